"""What decided a step, number by number, for people who follow it by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from outrider import acceptance, distribution, proposed, ratio
from outrider.acceptance import ChainRequest, Decision
from outrider.distribution import RowSampling
from outrider.ratio import Chain, Workings
from outrider.rules import Floats
from outrider.sampling import AcceptanceRule, Mode, proposal_key
from outrider.v1 import common_pb2 as pb


@dataclass(frozen=True, slots=True)
class TopIds:
    """The most likely ids of a distribution, most likely first."""

    token_ids: tuple[int, ...]
    probs: tuple[float, ...]

    @classmethod
    def of(cls, probs: Floats, num_ids: int) -> "TopIds":
        """Return those of probabilities [V]; ids without any are left out, lowest first among
        equals."""
        order = np.argsort(-probs, kind="stable")[:num_ids]
        order = order[probs[order] > 0]
        return cls(tuple(order.tolist()), tuple(probs[order].tolist()))

    def to_proto(self) -> pb.TopIds:
        """Return the message."""
        return pb.TopIds(token_ids=self.token_ids, probs=self.probs)


@dataclass(frozen=True, slots=True)
class RowTrace:
    """One row of a step; the fields are those of the message of this name."""

    target: TopIds
    accepted: bool = False
    target_token_id: int | None = None
    target_prob: float | None = None
    draft_prob: float | None = None
    proposal_uniform: float | None = None
    acceptance_uniform: float | None = None
    threshold: float | None = None

    def to_proto(self) -> pb.RowTrace:
        """Return the message."""
        return pb.RowTrace(
            target=self.target.to_proto(),
            target_token_id=self.target_token_id,
            target_prob=self.target_prob,
            draft_prob=self.draft_prob,
            proposal_uniform=self.proposal_uniform,
            acceptance_uniform=self.acceptance_uniform,
            threshold=self.threshold,
            accepted=self.accepted,
        )


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step; the fields are those of the message of this name."""

    rule: str
    rows: tuple[RowTrace, ...]
    corrected: TopIds | None = None
    final_uniform: float | None = None

    def to_proto(self) -> pb.StepTrace:
        """Return the message."""
        return pb.StepTrace(
            rule=self.rule,
            rows=[row.to_proto() for row in self.rows],
            corrected=None if self.corrected is None else self.corrected.to_proto(),
            final_uniform=self.final_uniform,
        )


def explain(
    logits: torch.Tensor,
    request: ChainRequest,
    decision: Decision,
    *,
    num_ids: int,
    vocab_size: int,
    head_size: int,
) -> StepTrace:
    """Return everything that led to a decision, computed again by the same functions.

    Shapes: logits [K + 1, L] float32, the rows that the decision was made from.
    """
    rows: Sequence[RowSampling] = request.rows
    if request.mode is Mode.GREEDY:
        rows = [row.unscaled() for row in rows]
    log_probs = distribution.log_probs(logits, rows, vocab_size=vocab_size)  # [K + 1, V]
    probs = log_probs.double().exp().cpu().numpy()
    draft, num_accepted = request.draft_token_ids, decision.num_accepted
    traces = [
        RowTrace(
            target=TopIds.of(row, num_ids),
            accepted=i < num_accepted,
            target_prob=float(row[draft[i]]) if i < len(draft) else None,
        )
        for i, row in enumerate(probs)
    ]
    if request.mode is Mode.RATIO:
        return _explain_ratio(request.chain(), log_probs, traces, num_ids)
    size = len(request.rows)
    ids, _ = acceptance.select(
        logits,
        request.rows,
        [request.mode] * size,
        [request.key] * size,
        range(request.base_position, request.base_position + size),
        vocab_size=vocab_size,
        head_size=head_size,
    )
    return StepTrace(
        request.mode.name.lower(),
        tuple(
            replace(trace, target_token_id=token_id)
            for trace, token_id in zip(traces, ids.tolist(), strict=True)
        ),
    )


def _explain_ratio(
    chain: Chain, log_probs: torch.Tensor, traces: list[RowTrace], num_ids: int
) -> StepTrace:
    workings = ratio.verify([chain], log_probs)
    uniforms = _proposal_uniforms(chain)
    for i in range(len(chain)):
        traces[i] = replace(
            traces[i],
            draft_prob=float(workings.drawn_q[0, i]),
            proposal_uniform=uniforms[i],
            acceptance_uniform=float(workings.uniforms[0, i]),
            threshold=float(workings.thresholds[0, i]),
        )
    applied = AcceptanceRule.BLOCK if chain.is_block else AcceptanceRule.REJECTION
    return StepTrace(
        rule=(applied if len(chain) else chain.rule).value,
        rows=tuple(traces),
        corrected=TopIds.of(_corrected(chain, workings, log_probs), num_ids),
        final_uniform=float(workings.final_uniforms[0]),
    )


def _corrected(chain: Chain, workings: Workings, log_probs: torch.Tensor) -> Floats:
    start = np.zeros(1, dtype=np.int64)
    rest = ratio.leftover([chain], workings.accepted, workings.weights, log_probs, start)[0]
    normalised: Floats = rest / rest.sum()
    return normalised


def _proposal_uniforms(chain: Chain) -> list[float | None]:
    num = len(chain)
    if not chain.proposed.is_sampled:
        return [None] * num
    positions = range(chain.base_position, chain.base_position + num)
    key = proposal_key(chain.key)
    drawn = proposed.proposal_uniforms([key] * num, range(num), positions, [chain.cycle] * num)
    return list(drawn.tolist())
