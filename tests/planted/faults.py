"""Faults that an audit must find, planted into a verifier's code from outside: no flag does so."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from outrider import ratio, rules, wire
from outrider.engine import JobInput
from outrider.proposed import Proposed
from outrider.ratio import Chain, Workings
from outrider.rules import Floats
from verifier_svc.verification import Verification

Q_TEMPERATURE = 4.0
"""The faulty verifier takes draft probabilities for those at another temperature."""


def tempered(counts: np.ndarray) -> np.ndarray:
    """Return counts of the same sum at another temperature."""
    weights = counts.astype(np.float64) ** (1 / Q_TEMPERATURE)
    scaled = np.maximum(np.floor(weights / weights.sum() * wire.TOTAL_COUNT), 1).astype(np.int64)
    scaled[scaled.argmax()] += wire.TOTAL_COUNT - scaled.sum()
    return scaled


@contextmanager
def q_temperature() -> Iterator[None]:
    """Judge drafts by probabilities at another temperature than they were drawn with."""
    verify = ratio.verify

    def faulty(chains: Sequence[Chain], log_probs: torch.Tensor) -> Workings:
        return verify(
            [replace(each, proposed=misread(each.proposed)) for each in chains], log_probs
        )

    def misread(proposed: Proposed) -> Proposed:
        if not proposed.is_sampled:
            return proposed
        return replace(proposed, listed=tuple((ids, tempered(n)) for ids, n in proposed.listed))

    with patched(ratio, "verify", faulty):
        yield


@contextmanager
def residual() -> Iterator[None]:
    """Draw the token at a rejection from the target's distribution, not from what is left of it."""

    def faulty(p: Floats, q: Floats, weight: Floats) -> Floats:
        return p

    with patched(rules, "corrected", faulty):
        yield


@contextmanager
def stale_kv() -> Iterator[None]:
    """Leave the KV of rejected draft tokens where it is; what follows is appended behind it."""
    num_stale: dict[int, int] = {}  # by cache
    start = Verification.start

    def faulty_start(job: Verification) -> JobInput:
        given = start(job)
        if given.start == 0 or given.start + num_stale.get(id(job.cache), 0) > job.cache.length:
            num_stale[id(job.cache)] = 0
        shift = num_stale[id(job.cache)]
        return replace(given, start=given.start + shift, committed=given.committed + shift)

    def faulty_settle(job: Verification, decision: Any) -> None:
        assert job.layout is None, "planted for chains"
        kept = job.base + num_stale[id(job.cache)] + len(job.draft_token_ids)
        num_stale[id(job.cache)] += len(job.draft_token_ids) - decision.num_accepted
        job.cache.commit(kept)

    with (
        patched(Verification, "start", faulty_start),
        patched(Verification, "settle", faulty_settle),
    ):
        yield


FAULTS: dict[str, Callable[[], Any]] = {
    "q-temperature": q_temperature,
    "residual": residual,
    "stale-kv": stale_kv,
}


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in the place of an attribute, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
