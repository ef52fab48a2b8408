"""One cycle on a table of four positions, small enough to be followed by hand.

A and B are accepted, C is rejected, X is drawn from the corrected distribution, D is discarded.
Everything is done by the functions that serve requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from outrider.acceptance import ChainRequest, Decision, verify_batch
from outrider.distribution import RowSampling
from outrider.draft import Draft
from outrider.explanation import StepTrace, explain
from outrider.proposal import Place, Proposal, propose
from outrider.proposed import Proposed
from outrider.sampling import AcceptanceRule, Mode, proposal_key

TOKENS = ("A", "B", "C", "D", "X")
NUM_DRAFT_TOKENS = 4
BASE_POSITION = 10  # as if a prompt of ten tokens stood before
SEED = 7  # of this one the story is told
NUM_ERRORS = 5  # standard errors within which frequencies have to agree

# Rows are positions, columns A, B, C, D, X; they do not depend on the tokens before.
DRAFT = (
    (0.50, 0.20, 0.10, 0.10, 0.10),
    (0.10, 0.60, 0.10, 0.10, 0.10),
    (0.10, 0.10, 0.60, 0.10, 0.10),
    (0.10, 0.10, 0.10, 0.60, 0.10),
)
TARGET = (
    (0.60, 0.10, 0.10, 0.10, 0.10),
    (0.10, 0.50, 0.10, 0.10, 0.20),
    (0.15, 0.10, 0.20, 0.10, 0.45),
    (0.10, 0.10, 0.20, 0.40, 0.20),
    (0.30, 0.10, 0.10, 0.20, 0.30),
)

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Walk:
    """One cycle: what was proposed, decided, and why."""

    draft: Draft
    decision: Decision
    trace: StepTrace

    @property
    def committed(self) -> tuple[int, ...]:
        """The accepted prefix and the target's own token."""
        accepted = self.draft.token_ids[: self.decision.num_accepted]
        return (*accepted, self.decision.next_token_id)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Frequencies of tokens by position over many seeds, with speculation and without.

    Shapes: all [positions, tokens].
    """

    num_runs: int
    exact: Floats
    speculative: Floats
    target_only: Floats

    @property
    def tolerance(self) -> Floats:
        """How far a frequency may be from the exact probability."""
        errors: Floats = np.sqrt(self.exact * (1 - self.exact) / self.num_runs)
        return NUM_ERRORS * errors

    @property
    def agrees(self) -> bool:
        """True if both agree with the exact law, and with each other within both tolerances."""
        pairs = (
            (self.speculative, self.exact, 1.0),
            (self.target_only, self.exact, 1.0),
            (self.speculative, self.target_only, 2**0.5),
        )
        return all((np.abs(a - b) <= factor * self.tolerance).all() for a, b, factor in pairs)


def walk(seed: int = SEED, rule: AcceptanceRule = AcceptanceRule.REJECTION) -> Walk:
    """Draft, verify and explain one cycle."""
    (draft,) = _drafts([seed])
    request = _request(seed, Proposed.of(draft), rule)
    logits = _logits(TARGET)
    sizes = {"vocab_size": len(TOKENS), "head_size": len(TOKENS)}
    (decision,) = verify_batch([request], logits, **sizes)
    trace = explain(logits, request, decision, num_ids=len(TOKENS), **sizes)
    return Walk(draft, decision, trace)


def compare(num_runs: int, rule: AcceptanceRule = AcceptanceRule.REJECTION) -> Comparison:
    """Run as many seeds, each once with a draft and once without, and count what comes out.

    What a cycle leaves open of the five positions the target goes on with alone, one token a cycle,
    as the control does from the start.
    """
    seeds = range(num_runs)
    drafts = _drafts(seeds)
    requests = [
        _request(seed, Proposed.of(draft), rule) for seed, draft in zip(seeds, drafts, strict=True)
    ]
    decisions = verify_batch(
        requests,
        _logits(TARGET).repeat(num_runs, 1),
        vocab_size=len(TOKENS),
        head_size=len(TOKENS),
    )
    outputs = [
        [*draft.token_ids[: decision.num_accepted], decision.next_token_id]
        for draft, decision in zip(drafts, decisions, strict=True)
    ]
    return Comparison(
        num_runs,
        np.array(TARGET),
        _frequencies(_continued(seeds, outputs)),
        _frequencies(_continued(seeds, [[] for _ in seeds])),
    )


def _drafts(seeds: Sequence[int]) -> list[Draft]:
    drawn: list[list[Proposal]] = [[] for _ in seeds]
    for node in range(NUM_DRAFT_TOKENS):
        places = [
            Place(proposal_key(seed), BASE_POSITION + node, node=node, cycle=0) for seed in seeds
        ]
        proposals = propose(
            _logits(DRAFT[node : node + 1]).repeat(len(seeds), 1),
            [RowSampling()] * len(seeds),
            places,
            mode=Mode.RATIO,
            vocab_size=len(TOKENS),
        )
        for one, proposal in zip(drawn, proposals, strict=True):
            one.append(proposal)
    return [
        Draft(
            token_ids=tuple(each.token_id for each in proposals),
            source="fixture",
            distributions=tuple(each.distribution for each in proposals if each.distribution),
            logit_margins=tuple(each.logit_margin for each in proposals),
        )
        for proposals in drawn
    ]


def _request(
    seed: int, proposed: Proposed, rule: AcceptanceRule, *, at: int = 0, cycle: int = 0
) -> ChainRequest:
    rows = (RowSampling(),) * (len(proposed.token_ids) + 1)
    return ChainRequest(proposed, rows, Mode.RATIO, seed, BASE_POSITION + at, cycle, rule)


def _continued(seeds: Sequence[int], outputs: Sequence[Sequence[int]]) -> Ids:
    """Return all positions of every run, [runs, positions]."""
    runs = [list(output) for output in outputs]
    for cycle in range(1, len(TARGET) + 1):
        short = [i for i, run in enumerate(runs) if len(run) < len(TARGET)]
        if not short:
            break
        decisions = verify_batch(
            [
                _request(
                    seeds[i], Proposed(), AcceptanceRule.REJECTION, at=len(runs[i]), cycle=cycle
                )
                for i in short
            ],
            torch.cat([_logits(TARGET[len(runs[i]) : len(runs[i]) + 1]) for i in short]),
            vocab_size=len(TOKENS),
            head_size=len(TOKENS),
        )
        for i, decision in zip(short, decisions, strict=True):
            runs[i].append(decision.next_token_id)
    return np.array(runs)


def _frequencies(ids: Ids) -> Floats:
    counts = [np.bincount(column, minlength=len(TOKENS)) for column in ids.T]
    frequencies: Floats = np.array(counts) / len(ids)
    return frequencies


def _logits(probs: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64).log().float()
