"""The log probabilities of a prompt: a job of the engine that looks at every row of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.engine import Finished, JobInput, SequenceCache
from outrider.logprobs import TokenLogprobs, token_logprobs

CHUNK = 128
"""Rows whose logits are kept at a time: those of a whole prompt would take gigabytes."""


@dataclass(slots=True)
class PromptScore:
    """Feeds all of a prompt but its last token, and keeps what its rows say of the next tokens.

    The prefix cache is passed over, since what it serves has no logits.
    """

    cache: SequenceCache
    token_ids: Sequence[int]
    num_top: int
    priority: int = 0
    done: bool = False
    next: JobInput | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each token but the first, once the job is done."""
    compute_ms: float = 0.0
    num_passes: int = 0

    @property
    def end(self) -> int:
        """Position behind what is fed."""
        return len(self.token_ids) - 1

    def start(self) -> JobInput:
        """Return what the engine feeds first."""
        self.logprobs = []
        return self._chunk(0)

    def _chunk(self, begin: int) -> JobInput:
        end = min(begin + CHUNK, self.end)
        return JobInput(begin, self.token_ids[begin:end], end - begin, committed=end)

    def take(self, finished: Finished, vocab_size: int) -> None:
        """Keep what a chunk's rows say and ask for the next one; on the engine's thread."""
        begin = len(self.logprobs)
        end = begin + len(finished.logits)
        following = self.token_ids[begin + 1 : end + 1]
        self.logprobs += token_logprobs(
            finished.logits, following, num_top=self.num_top, vocab_size=vocab_size
        )
        self.cache.commit(end)
        self.compute_ms, self.num_passes = finished.compute_ms, finished.passes
        if end < self.end:
            self.next = self._chunk(end)
        else:
            self.done = True
