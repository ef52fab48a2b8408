"""Who gets blocks: prefix reuse, reservation for whole inputs, and preemption of idle leases."""

from collections.abc import Callable

from outrider.engine.cache import SequenceCache
from outrider.engine.entry import Entry
from outrider.engine.errors import CacheTooShort, NoRoomForTree, OutOfBlocks
from outrider.engine.ledger import BlockLedger
from outrider.engine.pool import KVPool
from outrider.errors import InvalidField

Fail = Callable[[Entry, BaseException], None]


class Admission:
    """Owns the ledger and knows every cache that holds blocks.

    A job is admitted with blocks for all of its rows or not at all, so admitted jobs always finish.
    """

    def __init__(self, ledger: BlockLedger, pool: KVPool, *, max_context_length: int) -> None:
        self.ledger = ledger
        self.num_prefix_hit_tokens = 0
        self.num_prefix_looked_up_tokens = 0
        self.num_preemptions = 0
        self._pool = pool
        self._max_context_length = max_context_length
        self._holders: dict[int, SequenceCache] = {}
        self._now = 0

    def admit(self, entries: list[Entry], *, fail: Fail) -> None:
        """Prepare and reserve for jobs in order until one must wait for blocks."""
        while True:
            blocked = self._admit_in_order(entries, fail)
            if not blocked or any(entry.admitted for entry in entries):
                return
            # Nobody runs, so nobody will give blocks back: take them from the last in order.
            holders = [e for e in entries if e is not blocked[0] and len(e.job.cache.table)]
            if not holders:
                fail(blocked[0], OutOfBlocks("the KV pool is too small for this job"))
                continue
            victim = max(holders, key=lambda entry: entry.order)
            self._preempt(victim.job.cache)
            victim.forget_rows()

    def touch(self, entry: Entry) -> None:
        """Publish what a pass has made final, and note the use."""
        assert entry.input is not None
        entry.job.cache.commit(min(entry.input.committed, entry.input.end))
        self._now += 1
        entry.job.cache.last_used = self._now

    def close(self, cache: SequenceCache) -> None:
        cache.clear()
        cache.closed = True
        self._holders.pop(id(cache), None)

    def check_integrity(self) -> None:
        self.ledger.check_integrity([cache.blocks for cache in self._holders.values()])

    def _admit_in_order(self, entries: list[Entry], fail: Fail) -> list[Entry]:
        blocked: list[Entry] = []
        for entry in sorted(entries, key=lambda entry: entry.order):
            if entry.admitted:
                continue
            try:
                self._prepare(entry)
            except Exception as error:
                fail(entry, error)
                continue
            assert entry.input is not None
            cache = entry.job.cache
            needed = cache.blocks_needed(entry.input.reach)
            if cache.is_split and needed > self.ledger.num_available:
                # Nobody loses blocks for the sake of a guess.
                fail(entry, OutOfBlocks("the KV pool has no blocks left for another outcome"))
            elif needed and blocked:  # nobody overtakes a job that waits for blocks
                blocked.append(entry)
            elif self._make_room(needed, entries):
                if self.ledger.num_available - needed < _blocks_of_branches(entry):  # nor here
                    fail(entry, NoRoomForTree("the KV pool has no blocks left for a tree"))
                    continue
                copy = cache.reserve(entry.input.reach)
                if copy is not None:
                    self._pool.copy_block(copy[0], [copy[1]])
                cache.fork(entry.input.base, [len(ids) for ids in entry.input.path_ids[1:]])
                self._holders[id(cache)] = cache
                entry.admitted = True
            else:
                blocked.append(entry)
        return blocked

    def _prepare(self, entry: Entry) -> None:
        """Truncate to what stays valid and adopt what others have committed.

        Raises: CacheTooShort, OutOfBlocks, InvalidField, or what the job's start raised.
        """
        if entry.input is None:
            entry.take_input(entry.job.start())
        given, cache = entry.input, entry.job.cache
        assert given is not None
        cache.drop_branches()  # of a job that was cancelled
        if cache.closed:
            raise CacheTooShort(0)
        if given.start > cache.length:
            raise CacheTooShort(cache.length)
        end = max([given.reach, *(given.base + len(ids) for ids in given.path_ids)])
        if end > self._max_context_length:
            raise InvalidField(
                "token_ids",
                f"{end} positions exceed the context length {self._max_context_length}",
            )
        if -(-end // self._pool.block_size) > self.ledger.num_blocks:
            raise OutOfBlocks(f"{end} positions exceed the whole KV pool")
        most = given.end - max(1, given.num_logit_rows)
        keep = min(cache.common_prefix(given.start, given.token_ids), most)
        cache.truncate(keep)
        if keep == 0 and given.start == 0 and most > 0:
            keep = cache.adopt(given.token_ids, min(most, given.committed))
            if keep:
                self._holders[id(cache)] = cache
            if not entry.looked_up:  # once a job, however often it waits for blocks
                entry.looked_up = True
                self.num_prefix_hit_tokens += keep
                self.num_prefix_looked_up_tokens += most
        entry.cached_tokens = keep

    def _make_room(self, needed: int, entries: list[Entry]) -> bool:
        """Preempt idle leases, least recently used first, until enough blocks are available."""
        if self.ledger.num_available >= needed:
            return True
        busy = {id(entry.job.cache) for entry in entries}
        idle = [c for key, c in self._holders.items() if key not in busy and len(c.table)]
        for cache in sorted(idle, key=lambda cache: cache.last_used):
            self._preempt(cache)
            if self.ledger.num_available >= needed:
                return True
        return False

    def _preempt(self, cache: SequenceCache) -> None:
        cache.clear()
        self._holders.pop(id(cache), None)
        self.num_preemptions += 1


def _blocks_of_branches(entry: Entry) -> int:
    """Return the blocks of a tree's paths beside the first."""
    given, cache = entry.input, entry.job.cache
    assert given is not None
    return sum(cache.blocks_of_path(given.base, len(ids)) for ids in given.path_ids[1:])
