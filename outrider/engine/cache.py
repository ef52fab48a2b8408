"""One sequence's KV: a block table, the ids of its positions, and how far they are committed."""

import math
from array import array
from collections.abc import Sequence

from outrider.engine.errors import CacheTooShort
from outrider.engine.ledger import BlockLedger, chain_key

# Half-open ranges of positions:
#   [0, committed_length)       final ids; their full blocks are published
#   [committed_length, length)  draft rows: valid KV, may be rolled back, never published
#   [length, len(table) * bs)   blocks that are owned, rows that mean nothing


RETURN_RATE = 0.3  # weight of the newest absence


class SequenceCache:
    """Positions with valid KV of one lease; owned and changed by the engine's thread alone."""

    def __init__(self, ledger: BlockLedger, *, block_size: int, salt: str) -> None:
        self._ledger = ledger
        self._salt = salt.encode()
        self._keys: list[bytes] = []  # of published blocks, in order
        self._block_size = block_size
        self.table = array("i")
        self.branches: list[array[int]] = []  # of a tree: blocks from that of the first node on
        self.token_ids = array("i")
        self.committed_length = 0
        self.last_used = 0
        self.finished_s: float | None = None  # when its last job was done
        self.return_s = 0.0  # seconds that the next job usually takes to come, a moving average
        self.closed = False
        self.is_split = False  # it holds a guess about another sequence

    def note_return(self, arrived_s: float) -> None:
        """Learn how long the sequence was away between two jobs."""
        if self.finished_s is not None:
            self.return_s += RETURN_RATE * (arrived_s - self.finished_s - self.return_s)
            self.finished_s = None

    @property
    def length(self) -> int:
        """Positions with valid KV."""
        return len(self.token_ids)

    def common_prefix(self, start: int, token_ids: Sequence[int]) -> int:
        """Positions that stay valid if the ids from ``start`` on become ``token_ids``."""
        end = min(self.length, start + len(token_ids))
        position = start
        while position < end and self.token_ids[position] == token_ids[position - start]:
            position += 1
        return position

    def truncate(self, length: int) -> None:
        """Forget the positions from ``length`` on; moves no data."""
        if length >= self.length:
            return
        del self.token_ids[length:]
        self.committed_length = min(self.committed_length, length)
        del self._keys[length // self._block_size :]
        self._shrink(-(-length // self._block_size))

    def commit(self, length: int) -> None:
        """Declare [0, length) final: their full blocks may be shared with equal prefixes."""
        length = min(length, self.length)
        if length <= self.committed_length:
            return
        self.committed_length = length
        size = self._block_size
        for index in range(len(self._keys), length // size):
            parent = self._keys[-1] if self._keys else b""
            key = chain_key(parent, self.token_ids[index * size : (index + 1) * size], self._salt)
            self._ledger.publish(self.table[index], key)
            self._keys.append(key)

    def adopt(self, token_ids: Sequence[int], limit: int) -> int:
        """Take over published blocks that hold a prefix of ``token_ids``; at most ``limit`` tokens.

        The cache must be empty. Returns the number of positions taken.
        """
        assert self.length == 0
        self._shrink(0)
        size, parent = self._block_size, b""
        for end in range(size, limit + 1, size):
            parent = chain_key(parent, token_ids[end - size : end], self._salt)
            block = self._ledger.find(parent)
            if block is None:
                break
            self._ledger.acquire(block)
            self.table.append(block)
            self._keys.append(parent)
            self.token_ids.extend(token_ids[end - size : end])
        self.committed_length = self.length
        return self.length

    def split_from(self, parent: "SequenceCache", length: int) -> None:
        """Begin with the first positions of another sequence, draft rows included.

        Their blocks are shared; whoever writes into a shared one first gets a copy. The cache must
        be empty. Raises: CacheTooShort if the parent does not hold them any more.
        """
        assert self.length == 0
        if length > parent.length:
            raise CacheTooShort(parent.length)
        self._shrink(0)
        for block in parent.table[: -(-length // self._block_size)]:
            self._ledger.acquire(block)
            self.table.append(block)
        self.token_ids.extend(parent.token_ids[:length])
        self.committed_length = min(parent.committed_length, length)
        self._keys = parent._keys[: self.committed_length // self._block_size]
        self.is_split = True
        self.return_s = math.inf  # it has one job, so that no pass waits for its next

    def blocks_needed(self, length: int) -> int:
        """Blocks to allocate before the positions up to ``length`` can be written."""
        missing = max(0, -(-length // self._block_size) - len(self.table))
        return missing + (1 if self._first_write_is_shared(length) else 0)

    def reserve(self, length: int) -> tuple[int, int] | None:
        """Own private blocks up to ``length``; returns (source, copy) if a block must be copied.

        Raises: OutOfBlocks if they are not to be had; then nothing has changed.
        """
        shared = self._first_write_is_shared(length)
        blocks = self._ledger.allocate(self.blocks_needed(length))
        copy = None
        if shared:
            index = self.length // self._block_size
            copy = (self.table[index], blocks.pop())
            self._ledger.release(self.table[index])
            self.table[index] = copy[1]
        self.table.extend(blocks)
        return copy

    def extend(self, token_ids: Sequence[int]) -> None:
        """Count positions whose KV has been written."""
        self.token_ids.extend(token_ids)
        assert self.length <= len(self.table) * self._block_size

    def fork(self, base: int, lengths: Sequence[int]) -> None:
        """Own blocks for paths of a tree that begins at ``base``, beside the sequence's own path.

        Each gets private blocks from the one that holds position ``base`` on.

        Raises: OutOfBlocks if they are not to be had; then nothing has changed.
        """
        assert not self.branches
        counts = [self.blocks_of_path(base, length) for length in lengths]
        blocks = self._ledger.allocate(sum(counts))
        for count in counts:
            self.branches.append(array("i", blocks[:count]))
            del blocks[:count]

    def blocks_of_path(self, base: int, length: int) -> int:
        """Blocks that a path of ``length`` nodes takes from ``base`` on."""
        return -(-(base + length) // self._block_size) - base // self._block_size

    def take_branch(self, index: int, base: int, token_ids: Sequence[int]) -> None:
        """Go on with the positions of a branch in place of those from ``base`` on."""
        assert self.committed_length <= base <= self.length
        branch = self.branches[index]
        first = base // self._block_size
        self.branches[index] = self.table[first:]
        self.table = self.table[:first] + branch
        self.token_ids = self.token_ids[:base]
        self.token_ids.extend(token_ids)
        assert self.length <= len(self.table) * self._block_size

    def drop_branches(self) -> None:
        """Give the blocks of all branches back."""
        for branch in self.branches:
            for block in branch:
                self._ledger.release(block)
        self.branches.clear()

    @property
    def blocks(self) -> list[int]:
        """All blocks that the sequence owns, in its table and in branches."""
        return [*self.table, *(block for branch in self.branches for block in branch)]

    def clear(self) -> None:
        """Give every block back."""
        self.drop_branches()
        self.truncate(0)
        self._shrink(0)

    def _first_write_is_shared(self, length: int) -> bool:
        index, inside = divmod(self.length, self._block_size)
        if inside == 0 or index >= len(self.table) or length <= self.length:
            return False
        return not self._ledger.is_private(self.table[index])

    def _shrink(self, num_blocks: int) -> None:
        while len(self.table) > num_blocks:
            self._ledger.release(self.table.pop())
