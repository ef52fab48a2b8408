"""Who owns which KV block: reference counts, content keys, and the order of eviction."""

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Sequence

from outrider.engine.errors import OutOfBlocks


def chain_key(parent: bytes, token_ids: Sequence[int], salt: bytes) -> bytes:
    """Key of a full block: blake2b(parent key, its ids, cache salt), 16 bytes."""
    packed = struct.pack(f"<{len(token_ids)}i", *token_ids)
    return hashlib.blake2b(parent + packed + salt, digest_size=16).digest()


class BlockLedger:
    """Blocks are free, owned (at least one reference) or evictable (published, no reference).

    An evictable block counts as available; taking it forgets its key. It holds no tensors.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._evictable)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def allocate(self, count: int) -> list[int]:
        """Take blocks for one owner; all or none.

        Raises: OutOfBlocks if fewer than ``count`` are available.
        """
        if count > self.num_available:
            raise OutOfBlocks(f"{count} KV blocks needed, {self.num_available} available")
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._evictable.popitem(last=False)
                self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def acquire(self, block: int) -> None:
        """Add an owner to a block that is owned or evictable."""
        if self._references[block] == 0:
            del self._evictable[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Remove an owner; the last one leaves the block evictable if published, else free."""
        assert self._references[block] > 0
        self._references[block] -= 1
        if self._references[block] == 0:
            if block in self._key_of:
                self._evictable[block] = None
            else:
                self._free.append(block)

    def is_private(self, block: int) -> bool:
        """Whether its one owner may overwrite the block."""
        return self._references[block] == 1 and block not in self._key_of

    def publish(self, block: int, key: bytes) -> None:
        """Make an owned full block findable; of two equal ones the first stays."""
        assert self._references[block] > 0
        if key not in self._block_of and block not in self._key_of:
            self._key_of[block] = key
            self._block_of[key] = block

    def find(self, key: bytes) -> int | None:
        return self._block_of.get(key)

    def check_integrity(self, tables: Sequence[Sequence[int]] | None = None) -> None:
        """Assert that every block is in exactly one state, and that ``tables`` are all owners."""
        free, evictable = set(self._free), set(self._evictable)
        owned = {b for b in range(self.num_blocks) if self._references[b] > 0}
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & evictable
        assert not free & owned
        assert not evictable & owned
        assert len(free) + len(evictable) + len(owned) == self.num_blocks, "a block is lost"
        assert {k: b for b, k in self._key_of.items()} == self._block_of
        assert not free & self._key_of.keys(), "a free block has a key"
        assert evictable <= self._key_of.keys(), "an evictable block has no key"
        if tables is not None:
            counts = [0] * self.num_blocks
            for table in tables:
                for block in table:
                    counts[block] += 1
            assert counts == self._references, "references and block tables disagree"

    def _forget(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
