"""Sets of token ids, packed to a bit each."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]
"""A set of ids: bit i % 8, counted from the lowest, of byte i // 8 is id i."""


def pack_ids(ids: Iterable[int], vocab_size: int) -> Bits:
    """Return a set of ids below ``vocab_size``."""
    bits = np.zeros(vocab_size, dtype=np.bool_)
    bits[[i for i in ids if i < vocab_size]] = True
    return np.packbits(bits, bitorder="little")


def holds(bits: Bits, token_id: int) -> bool:
    """Return whether an id is in a set."""
    return 0 <= token_id < 8 * len(bits) and bool(bits[token_id // 8] >> token_id % 8 & 1)
