"""Blocks are never lost, never owned twice by accident, and shared by content and salt only."""

import random

import pytest

from outrider.engine.cache import SequenceCache
from outrider.engine.errors import OutOfBlocks
from outrider.engine.ledger import BlockLedger, chain_key

SIZE = 4


class Model:
    """What every sequence should hold, kept as plain lists; blocks hold (sequence ids) by slot."""

    def __init__(self, num_blocks: int) -> None:
        self.ledger = BlockLedger(num_blocks)
        self.slots: dict[int, list[int]] = {block: [0] * SIZE for block in range(num_blocks)}
        self.caches: list[SequenceCache] = []
        self.expected: list[list[int]] = []

    def write(self, index: int, ids: list[int]) -> None:
        cache = self.caches[index]
        copy = cache.reserve(cache.length + len(ids))
        if copy is not None:
            self.slots[copy[1]] = list(self.slots[copy[0]])
        for offset, token in enumerate(ids):
            position = cache.length + offset
            self.slots[cache.table[position // SIZE]][position % SIZE] = token
        cache.extend(ids)
        self.expected[index] += ids

    def check(self) -> None:
        self.ledger.check_integrity([cache.table for cache in self.caches])
        for cache, ids in zip(self.caches, self.expected, strict=True):
            stored = [self.slots[cache.table[p // SIZE]][p % SIZE] for p in range(cache.length)]
            assert stored == list(cache.token_ids) == ids
            assert cache.committed_length <= cache.length


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_keep_the_books(seed: int) -> None:
    draw = random.Random(seed)
    model = Model(num_blocks=24)
    for _ in range(400):
        action = draw.choice(["open", "write", "write", "truncate", "commit", "commit", "close"])
        if action == "open" and len(model.caches) < 8:
            cache = SequenceCache(model.ledger, block_size=SIZE, salt=draw.choice("ab"))
            prefix = [draw.randrange(2) for _ in range(draw.randrange(14))]
            adopted = cache.adopt(prefix, len(prefix))
            model.caches.append(cache)
            model.expected.append(prefix[:adopted])
        elif not model.caches:
            continue
        else:
            index = draw.randrange(len(model.caches))
            cache = model.caches[index]
            if action == "write":
                ids = [draw.randrange(2) for _ in range(draw.randrange(1, 9))]
                try:
                    model.write(index, ids)
                except OutOfBlocks:
                    assert cache.blocks_needed(cache.length + len(ids)) > model.ledger.num_available
            elif action == "truncate":
                length = draw.randrange(cache.length + 1)
                cache.truncate(length)
                del model.expected[index][length:]
            elif action == "commit":
                cache.commit(draw.randrange(cache.length + 1))
            elif action == "close":
                cache.clear()
                del model.caches[index], model.expected[index]
        model.check()
    for cache in model.caches:
        cache.clear()
    model.ledger.check_integrity([])
    assert model.ledger.num_used == 0


def test_adoption_needs_the_same_salt_and_parents() -> None:
    model = Model(num_blocks=8)
    first = SequenceCache(model.ledger, block_size=SIZE, salt="a")
    model.caches.append(first)
    model.expected.append([])
    model.write(0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    first.commit(9)
    assert SequenceCache(model.ledger, block_size=SIZE, salt="b").adopt(range(1, 10), 9) == 0
    assert SequenceCache(model.ledger, block_size=SIZE, salt="a").adopt([5, 6, 7, 8], 4) == 0
    second = SequenceCache(model.ledger, block_size=SIZE, salt="a")
    assert second.adopt(range(1, 10), 7) == 4  # no more than the limit
    assert second.table[0] == first.table[0]


def test_draft_rows_are_never_published() -> None:
    model = Model(num_blocks=8)
    first = SequenceCache(model.ledger, block_size=SIZE, salt="")
    model.caches.append(first)
    model.expected.append([])
    model.write(0, [1, 2, 3, 4, 5, 6, 7, 8])
    first.commit(5)  # block 1 holds a committed id and three draft rows
    assert SequenceCache(model.ledger, block_size=SIZE, salt="").adopt(range(1, 9), 8) == 4


def test_evicted_blocks_are_forgotten_oldest_first() -> None:
    ledger = BlockLedger(2)
    keys = [chain_key(b"", [n], b"") for n in range(2)]
    for key in keys:
        (block,) = ledger.allocate(1)
        ledger.publish(block, key)
        ledger.release(block)
    assert ledger.num_available == ledger.num_evictable == 2
    ledger.allocate(1)
    assert ledger.find(keys[0]) is None
    assert ledger.find(keys[1]) is not None
    with pytest.raises(OutOfBlocks):
        ledger.allocate(2)
    ledger.check_integrity()
