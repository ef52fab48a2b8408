"""The digest that tells two holders of a sequence whether they hold the same ids."""

import hashlib
import sys
from array import array
from collections.abc import Sequence

INT32 = "i"  # of four bytes wherever Python runs today
EVERY = 64  # positions between kept hash states: a digest of any prefix rehashes at most this many


class PrefixDigest:
    """Running BLAKE2b (8 bytes) over little-endian int32 ids, for any prefix of a growing list.

    ``states[i]`` has consumed the first ``i * EVERY`` ids.
    """

    __slots__ = ("_ids", "_states")

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._ids = array(INT32)
        self._states = [hashlib.blake2b(digest_size=8)]
        self.extend(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append ids."""
        self._ids.extend(ids)
        while len(self._ids) >= len(self._states) * EVERY:
            start = (len(self._states) - 1) * EVERY
            state = self._states[-1].copy()
            state.update(_encode(self._ids[start : start + EVERY]))
            self._states.append(state)

    def truncate(self, length: int) -> None:
        """Forget the ids from ``length`` on."""
        del self._ids[length:]
        del self._states[length // EVERY + 1 :]

    def digest(self, length: int | None = None) -> bytes:
        """Return the digest of the first ``length`` ids, of all by default."""
        length = len(self._ids) if length is None else length
        assert 0 <= length <= len(self._ids)
        block = length // EVERY
        state = self._states[block].copy()
        state.update(_encode(self._ids[block * EVERY : length]))
        return state.digest()


def _encode(ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()
