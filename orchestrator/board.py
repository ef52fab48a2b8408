"""The draft board: blocks of one sequence, kept until the sequence has outgrown them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.draft import Draft

MAX_BLOCKS = 64  # of one sequence; a drafter that sends more loses its oldest


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """If the committed sequence becomes ``base_length`` tokens followed by ``path``, use
    ``draft``."""

    base_length: int
    path: tuple[int, ...]
    draft: Draft
    for_cycle: int | None = None
    """The one cycle that may use the block; None: any."""

    @property
    def fits_length(self) -> int:
        """Committed length at which the block can be used."""
        return self.base_length + len(self.path)


@dataclass(slots=True)
class DraftBoard:
    """Blocks keyed by (base length, path).

    ``num_discarded_tokens`` counts tokens that were never used, ``num_stale_blocks`` blocks that
    were dropped as a whole.
    """

    num_discarded_tokens: int = 0
    num_stale_blocks: int = 0
    _blocks: dict[tuple[int, tuple[int, ...]], DraftBlock] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def post(self, block: DraftBlock) -> None:
        """Put a block on the board and wake who waits for one; an empty one only wakes."""
        if block.draft.token_ids:
            replaced = self._blocks.get((block.base_length, block.path))
            if replaced is not None:
                self.discard(replaced.draft)
            self._blocks[block.base_length, block.path] = block
            if len(self._blocks) > MAX_BLOCKS:
                self.discard(self._blocks.pop(next(iter(self._blocks))).draft)
        self._changed.set()

    def wake(self) -> None:
        """Wake who waits, since no block will come."""
        self._changed.set()

    def take(self, token_ids: Sequence[int], cycle: int) -> Draft | None:
        """Return the draft that fits the committed ids in this cycle and drop every block that no
        longer can."""
        self._changed.clear()
        length = len(token_ids)
        fitting: Draft | None = None
        for key, block in list(self._blocks.items()):
            is_due = block.for_cycle is None or block.for_cycle == cycle
            is_over = block.for_cycle is not None and block.for_cycle < cycle
            if not is_over and block.fits_length > length and _may_fit(token_ids, block):
                continue
            del self._blocks[key]
            matches = is_due and block.fits_length == length
            if fitting is None and matches and _ends_with(token_ids, block):
                fitting = block.draft
            else:
                self.discard(block.draft)
        return fitting

    def discard(self, draft: Draft) -> None:
        """Count the draft of a block that is dropped unused."""
        self.num_discarded_tokens += len(draft)
        self.num_stale_blocks += 1

    def clear(self) -> None:
        """Drop everything, counted as discarded."""
        for block in self._blocks.values():
            self.discard(block.draft)
        self._blocks.clear()

    async def wait(self) -> None:
        """Wait for a post or wake since the last take."""
        await self._changed.wait()


def _may_fit(token_ids: Sequence[int], block: DraftBlock) -> bool:
    """True if what is committed behind the block's base is the beginning of its path."""
    after = tuple(token_ids[block.base_length :])
    return after == block.path[: len(after)]


def _ends_with(token_ids: Sequence[int], block: DraftBlock) -> bool:
    return tuple(token_ids[block.base_length :]) == block.path
