"""Which verifier has probably cached the beginning of a prompt."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

SHORTEST = 32  # tokens; a shorter prefix is read again sooner than it is looked for
MAX_ENTRIES = 8192


@dataclass(slots=True)
class PrefixAffinity:
    """Remembers which worker last read a prefix, by digests of prefixes of doubling length.

    A digest covers salt and ids, so prefixes of two salts never meet. Old entries give way.
    """

    _workers: "OrderedDict[bytes, str]" = field(default_factory=OrderedDict)

    def note(self, salt: str, token_ids: Sequence[int], address: str) -> None:
        """Remember that a worker reads these ids."""
        for key in _keys(salt, token_ids):
            self._workers[key] = address
            self._workers.move_to_end(key)
        while len(self._workers) > MAX_ENTRIES:
            self._workers.popitem(last=False)

    def find(self, salt: str, token_ids: Sequence[int], able: Collection[str]) -> str | None:
        """Return which of the able addresses read the longest prefix of these ids, if any did."""
        for key in reversed(_keys(salt, token_ids)):
            address = self._workers.get(key)
            if address in able:
                return address
        return None


def _keys(salt: str, token_ids: Sequence[int]) -> list[bytes]:
    """Return digests of the prefixes of 32, 64, 128, ... ids, the shortest first."""
    keys = []
    digest = hashlib.blake2b(salt.encode() + b"\0", digest_size=16)
    begin, end = 0, SHORTEST
    while end <= len(token_ids):
        digest.update(array("I", token_ids[begin:end]).tobytes())
        keys.append(digest.copy().digest())
        begin, end = end, 2 * end
    return keys
