"""Counter-based noise: a pure function of its arguments, so every call can be repeated.

Paper: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
"""

import enum
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from outrider import elementary

Counter: TypeAlias = int | torch.Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10
_LARGEST_BELOW_1 = 1.0 - 2.0**-53


class Stream(enum.IntEnum):
    """What a draw is for; two streams never share a number."""

    TOKEN = 0
    PROPOSAL = 1
    ACCEPTANCE = 2
    RECOVERY = 3
    TAIL = 4
    RANK = 5


def philox(
    counter: tuple[Counter, Counter, Counter, Counter], key: tuple[Counter, Counter]
) -> tuple[Counter, Counter, Counter, Counter]:
    """Return the four 32-bit words of Philox4x32-10.

    Shapes: words are ints or int64 tensors in [0, 2**32), broadcastable.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # The 64-bit products wrap around in int64; only their bits matter, so the shift is masked.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> 32 & _WORD) ^ c1 ^ k0,
            product1 & _WORD,
            (product0 >> 32 & _WORD) ^ c3 ^ k1,
            product0 & _WORD,
        )
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def uniform(
    key: Counter, a: Counter, position: Counter, cycle: Counter, stream: Counter
) -> torch.Tensor:
    """Return numbers with 53 bits in (0, 1).

    Shapes: all broadcastable; key is a 64-bit pattern, of the others the low 32 bits count; result
    float64.
    """
    counter = (a & _WORD, position & _WORD, cycle & _WORD, stream & _WORD)
    word0, word1, _, _ = philox(counter, (key & _WORD, key >> 32 & _WORD))
    bits = torch.as_tensor(word0 << 21 ^ word1 >> 11)  # 53 bits
    # Half a step keeps 0 out; at the other end the sum would round to 1.
    return ((bits.to(torch.float64) + 0.5) * 2.0**-53).clamp_(max=_LARGEST_BELOW_1)


def gumbel(
    key: Counter, a: Counter, position: Counter, cycle: Counter, stream: Counter
) -> torch.Tensor:
    """Return standard Gumbel noise, ``-log(-log U)``, as float64 of the broadcast shape."""
    exponential = -elementary.log(uniform(key, a, position, cycle, stream))
    return -elementary.log(exponential)


def key_tensor(keys: Sequence[int], *, device: torch.device) -> torch.Tensor:
    """Return 64-bit keys as the bit patterns of int64, [len(keys)]."""
    signed = [(key % 2**64 + 2**63) % 2**64 - 2**63 for key in keys]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def uniforms(
    keys: Sequence[int],
    a: Sequence[int] | npt.NDArray[np.int64],
    positions: Sequence[int],
    cycles: Sequence[int],
    stream: Stream,
) -> npt.NDArray[np.float64]:
    """Return ``uniform`` of many counters on the CPU.

    Shapes: all [N]; keys any 64-bit values.
    """
    rows, places, turns = (torch.tensor(each, dtype=torch.int64) for each in (a, positions, cycles))
    drawn = uniform(key_tensor(keys, device=torch.device("cpu")), rows, places, turns, stream)
    numbers: npt.NDArray[np.float64] = drawn.numpy()
    return numbers
