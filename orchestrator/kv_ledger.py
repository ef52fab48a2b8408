"""Which prefix of a sequence has valid KV at a worker, as far as the orchestrator knows."""

from dataclasses import dataclass


@dataclass(slots=True)
class KVLedger:
    """The expectation for one lease, compared with what the worker states in every answer.

    ``num_heals`` counts differences; each is healed by sending the ids from the smaller length on
    again.
    """

    cache_length: int = 0
    num_heals: int = 0

    def expect(self, cache_length: int) -> None:
        """Note what the worker must hold after the answer that is now awaited."""
        self.cache_length = cache_length

    def observe(self, stated: int) -> None:
        """Compare the worker's statement with the expectation."""
        if stated != self.cache_length:
            self.num_heals += 1
            self.cache_length = min(stated, self.cache_length)

    def lower(self, have_length: int) -> None:
        """The worker asked for context.

        It has only this much. That is healing too, and is counted.
        """
        self.num_heals += 1
        self.cache_length = have_length
