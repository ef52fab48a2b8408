"""Which draft tokens the target accepts, and the one token of its own that follows.

In GREEDY and COUPLED the target's token at each position is fixed before the draft is looked at, so
accepting while they are equal is exact for every draft, however it was made. In RATIO the draft's
probabilities decide (``outrider.ratio``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from outrider import coupling, distribution, ratio
from outrider.distribution import HEAD_SIZE, RowSampling
from outrider.proposed import Proposed
from outrider.ratio import Chain
from outrider.sampling import AcceptanceRule, Mode


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """One sequence's rows in a pass: a chain of K draft tokens is judged by K + 1 rows."""

    proposed: Proposed
    rows: tuple[RowSampling, ...]
    """[K + 1]; row i processes the logits of position base_position + i."""
    mode: Mode
    key: int
    base_position: int
    """Absolute position of the first token to be emitted."""
    cycle: int = 0
    """Keys the noise of RATIO."""
    rule: AcceptanceRule = AcceptanceRule.BLOCK
    """Decides in RATIO: REJECTION or BLOCK."""

    @property
    def draft_token_ids(self) -> tuple[int, ...]:
        """The K draft tokens."""
        return self.proposed.token_ids

    def chain(self) -> Chain:
        """Return what RATIO needs to know."""
        return Chain(self.proposed, self.rule, self.key, self.base_position, self.cycle)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is committed: the first ``num_accepted`` draft tokens, then ``next_token_id``."""

    num_accepted: int
    next_token_id: int
    min_margin: float
    """Smallest lead of a winner among the rows that decided, in RATIO smallest distance of a
    uniform from its threshold: what a change must exceed to matter."""


def num_accepted(draft_token_ids: Sequence[int], target_token_ids: Sequence[int]) -> int:
    """Return the length of the common prefix.

    >>> num_accepted([5, 6, 7], [5, 6, 9, 1])
    2
    """
    count = 0
    for draft_token_id, target_token_id in zip(draft_token_ids, target_token_ids, strict=False):
        if draft_token_id != target_token_id:
            break
        count += 1
    return count


def verify_chain(
    logits: torch.Tensor,
    request: ChainRequest,
    *,
    vocab_size: int,
    head_size: int = HEAD_SIZE,
) -> Decision:
    """Accept a prefix of the draft and draw exactly one more token.

    Shapes: logits [K + 1, L] float32, L >= vocab_size.
    """
    return verify_batch([request], logits, vocab_size=vocab_size, head_size=head_size)[0]


def verify_batch(
    requests: Sequence[ChainRequest],
    logits: torch.Tensor,
    *,
    vocab_size: int,
    head_size: int = HEAD_SIZE,
) -> list[Decision]:
    """Decide several sequences at once; each decision is the one that its sequence would get alone.

    Shapes: logits [sum of K + 1, L] float32, the rows of the requests one after another.
    Raises: ValueError if rows and logits disagree.
    """
    starts = [0]
    for request in requests:
        if len(request.rows) != len(request.draft_token_ids) + 1:
            raise ValueError(f"{len(request.rows)} rows for {len(request.draft_token_ids)} tokens")
        starts.append(starts[-1] + len(request.rows))
    if starts[-1] != len(logits):
        raise ValueError(f"{starts[-1]} rows for {len(logits)} rows of logits")
    decisions: dict[int, Decision] = {}
    for verify, group in (
        (_verify_fixed, [i for i, each in enumerate(requests) if each.mode is not Mode.RATIO]),
        (_verify_ratio, [i for i, each in enumerate(requests) if each.mode is Mode.RATIO]),
    ):
        if not group:
            continue
        part = logits
        if len(group) < len(requests):
            part = torch.cat([logits[starts[i] : starts[i + 1]] for i in group])
        made = verify(
            [requests[i] for i in group], part, vocab_size=vocab_size, head_size=head_size
        )
        decisions.update(zip(group, made, strict=True))
    return [decisions[i] for i in range(len(requests))]


def _verify_ratio(
    requests: Sequence[ChainRequest], logits: torch.Tensor, *, vocab_size: int, head_size: int
) -> list[Decision]:
    rows = [row for request in requests for row in request.rows]
    processed = distribution.process(logits, rows, vocab_size=vocab_size, head_size=head_size)
    made = ratio.verify([request.chain() for request in requests], processed.log_probs())
    columns = (made.accepted.tolist(), made.next_ids.tolist(), made.margins.tolist())
    return [
        _as_stated(request, Decision(*each))
        for request, *each in zip(requests, *columns, strict=True)
    ]


def _as_stated(request: ChainRequest, decision: Decision) -> Decision:
    """Return the decision in terms of the draft that the drafter stated.

    A corrected token that was kept is the verifier's own: it ends the cycle, without a bonus.
    """
    tokens = request.draft_token_ids
    if request.proposed.is_corrected and decision.num_accepted == len(tokens):
        return replace(decision, num_accepted=len(tokens) - 1, next_token_id=tokens[-1])
    return decision


def _verify_fixed(
    requests: Sequence[ChainRequest], logits: torch.Tensor, *, vocab_size: int, head_size: int
) -> list[Decision]:
    rows = [row for request in requests for row in request.rows]
    modes = [request.mode for request in requests for _ in request.rows]
    keys = [request.key for request in requests for _ in request.rows]
    positions = [r.base_position + i for r in requests for i in range(len(r.rows))]
    ids, margins = select(
        logits, rows, modes, keys, positions, vocab_size=vocab_size, head_size=head_size
    )
    target_token_ids, leads = ids.tolist(), margins.tolist()
    decisions = []
    start = 0
    for request in requests:
        target = target_token_ids[start : start + len(request.rows)]
        accepted = num_accepted(request.draft_token_ids, target)
        min_margin = min(leads[start : start + accepted + 1])
        decisions.append(Decision(accepted, target[accepted], min_margin))
        start += len(request.rows)
    return decisions


def select(
    logits: torch.Tensor,
    rows: Sequence[RowSampling],
    modes: Sequence[Mode],
    keys: Sequence[int],
    positions: Sequence[int],
    *,
    vocab_size: int,
    head_size: int = HEAD_SIZE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's token and its lead over the second: the plain sampler of GREEDY and
    COUPLED.

    Shapes: logits [R, L] float32; the sequences [R]; ids [R] int64, leads [R] float32.
    Raises: ValueError if sizes disagree, for RATIO, where no row has a token of its own.
    """
    if not len(rows) == len(modes) == len(keys) == len(positions) == len(logits):
        raise ValueError(f"{len(rows)} rows for {len(logits)} rows of logits")
    if Mode.RATIO in modes:
        raise ValueError("RATIO decides by chains, not by rows")
    ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    margins = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
    greedy = [i for i, mode in enumerate(modes) if mode is Mode.GREEDY]
    if greedy:
        at = torch.tensor(greedy, device=logits.device)
        part = logits if len(greedy) == len(rows) else logits[at]
        ids[at], margins[at] = distribution.greedy(
            part, [rows[i] for i in greedy], vocab_size=vocab_size
        )
    sampled = [i for i, mode in enumerate(modes) if mode is Mode.COUPLED]
    if sampled:
        at = torch.tensor(sampled, device=logits.device)
        part = logits if len(sampled) == len(rows) else logits[at]
        processed = distribution.process(
            part, [rows[i] for i in sampled], vocab_size=vocab_size, head_size=head_size
        )
        ids[at], margins[at] = coupling.draw(
            processed, [keys[i] for i in sampled], [positions[i] for i in sampled]
        )
    return ids, margins
