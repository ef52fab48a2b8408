"""The prefix digest is plain BLAKE2b of the little-endian ids, for every prefix, after any cut."""

import hashlib
import random
import struct

import pytest

from outrider.prefix import EVERY, PrefixDigest


def oracle(ids: list[int]) -> bytes:
    return hashlib.blake2b(struct.pack(f"<{len(ids)}i", *ids), digest_size=8).digest()


def test_every_prefix():
    ids = [random.Random(1).randrange(2**31) for _ in range(3 * EVERY + 5)]
    digest = PrefixDigest(ids)
    assert len(digest) == len(ids)
    for length in range(len(ids) + 1):
        assert digest.digest(length) == oracle(ids[:length])
    assert digest.digest() == oracle(ids)


@pytest.mark.parametrize("length", [0, 1, EVERY - 1, EVERY, EVERY + 1, 2 * EVERY, 3 * EVERY])
def test_after_a_cut(length):
    ids = list(range(3 * EVERY))
    digest = PrefixDigest(ids)
    digest.truncate(length)
    assert digest.digest() == oracle(ids[:length])
    digest.extend([9] * (2 * EVERY))
    assert digest.digest() == oracle(ids[:length] + [9] * (2 * EVERY))


def test_random_histories_against_hashlib():
    rng = random.Random(2)
    for _ in range(50):
        digest, ids = PrefixDigest(), []
        for _ in range(20):
            if rng.random() < 0.3:
                cut = rng.randrange(len(ids) + 1)
                digest.truncate(cut)
                del ids[cut:]
            new = [rng.randrange(1000) for _ in range(rng.choice([0, 1, 3, EVERY, 150]))]
            digest.extend(new)
            ids += new
            length = rng.randrange(len(ids) + 1)
            assert digest.digest(length) == oracle(ids[:length])


def test_a_length_that_is_not_there_is_our_own_mistake():
    with pytest.raises(AssertionError):
        PrefixDigest([1, 2]).digest(3)
