"""Which draft tokens the target accepts, and the one token of its own that follows.

In GREEDY and COUPLED the target's token at each position is fixed before the draft is looked at, so
accepting while they are equal is exact for every draft, however it was made. In RATIO the draft's
probabilities decide (``outrider.ratio``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from outrider import coupling, distribution, ratio, tree
from outrider.distribution import HEAD_SIZE, RowSampling
from outrider.proposed import Proposed
from outrider.ratio import Chain
from outrider.sampling import AcceptanceRule, Mode


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """One sequence's rows in a pass: K draft tokens are judged by K + 1 rows.

    Row 0 follows the last committed token, row i + 1 draft token i.
    """

    proposed: Proposed
    rows: tuple[RowSampling, ...]
    """[K + 1]; how the logits of each row are processed."""
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

    @property
    def positions(self) -> list[int]:
        """Absolute positions of the tokens that the rows draw."""
        return [self.base_position + depth for depth in self.proposed.row_depths]

    def chain(self) -> Chain:
        """Return what RATIO needs to know."""
        return Chain(self.proposed, self.rule, self.key, self.base_position, self.cycle)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is committed: the accepted draft tokens, by their indices, then ``next_token_id``."""

    accepted_nodes: tuple[int, ...]
    next_token_id: int
    min_margin: float
    """Smallest lead of a winner among the rows that decided, in RATIO smallest distance of a
    uniform from its threshold: what a change must exceed to matter."""

    @property
    def num_accepted(self) -> int:
        """Draft tokens that are kept."""
        return len(self.accepted_nodes)


def accepted_path(proposed: Proposed, target_token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the draft tokens that are what the target says where they stand.

    Shapes: target_token_ids [K + 1], one for each row.
    """
    if not proposed.parents:
        return tuple(range(num_accepted(proposed.token_ids, target_token_ids)))
    below, row = tree.children(proposed.parents), 0
    path: list[int] = []
    while True:
        said = target_token_ids[row]
        fits = (n for n in below[row] if proposed.token_ids[n] == said and proposed.may_accept(n))
        node = next(fits, None)
        if node is None:
            return tuple(path)
        path.append(node)
        row = node + 1


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
    groups: dict[Verify, list[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(_way(request), []).append(index)
    for verify, group in groups.items():
        part = logits
        if len(group) < len(requests):
            part = torch.cat([logits[starts[i] : starts[i + 1]] for i in group])
        made = verify(
            [requests[i] for i in group], part, vocab_size=vocab_size, head_size=head_size
        )
        decisions.update(zip(group, made, strict=True))
    return [decisions[i] for i in range(len(requests))]


Verify = Callable[..., list[Decision]]


def _way(request: ChainRequest) -> Verify:
    """Return what decides a request."""
    if request.mode is not Mode.RATIO:
        return _verify_fixed
    return _verify_ratio_trees if request.proposed.parents else _verify_ratio


def _verify_ratio(
    requests: Sequence[ChainRequest], logits: torch.Tensor, *, vocab_size: int, head_size: int
) -> list[Decision]:
    rows = [row for request in requests for row in request.rows]
    processed = distribution.process(logits, rows, vocab_size=vocab_size, head_size=head_size)
    made = ratio.verify([request.chain() for request in requests], processed.log_probs())
    columns = (made.accepted.tolist(), made.next_ids.tolist(), made.margins.tolist())
    return [
        _as_stated(request, Decision(tuple(range(accepted)), next_id, margin))
        for request, accepted, next_id, margin in zip(requests, *columns, strict=True)
    ]


def _verify_ratio_trees(
    requests: Sequence[ChainRequest], logits: torch.Tensor, *, vocab_size: int, head_size: int
) -> list[Decision]:
    """Decide trees of point masses: every row draws from the target, and the path of tokens that
    are drawn is kept.

    A token of the tree is kept with the target's own probability, and what is committed is drawn
    from the target whatever the tree holds. (Keeping the children of a node one after the other
    and correcting what is left for each one rejected keeps as much.)
    """
    rows = [row for request in requests for row in request.rows]
    processed = distribution.process(logits, rows, vocab_size=vocab_size, head_size=head_size)
    counts = [len(request.rows) for request in requests]
    ids, gaps = ratio.draw_rows(
        processed.log_probs(),
        [request.key for request in requests for _ in request.rows],
        [row for count in counts for row in range(count)],
        [request.base_position for request in requests for _ in request.rows],
        [request.cycle for request in requests for _ in request.rows],
    )
    return _follow(requests, ids.tolist(), gaps.tolist())


def _follow(
    requests: Sequence[ChainRequest], target_token_ids: Sequence[int], margins: Sequence[float]
) -> list[Decision]:
    """Keep what the rows' own tokens say; the row behind the last kept one gives the next token."""
    decisions = []
    start = 0
    for request in requests:
        end = start + len(request.rows)
        target, leads = target_token_ids[start:end], margins[start:end]
        path = accepted_path(request.proposed, target)
        visited = [0, *(node + 1 for node in path)]
        margin = min(leads[row] for row in visited)
        decisions.append(Decision(path, target[visited[-1]], margin))
        start = end
    return decisions


def _as_stated(request: ChainRequest, decision: Decision) -> Decision:
    """Return the decision in terms of the draft that the drafter stated.

    A corrected token that was kept is the verifier's own: it ends the cycle, without a bonus.
    """
    tokens = request.draft_token_ids
    if request.proposed.is_corrected and decision.num_accepted == len(tokens):
        nodes = decision.accepted_nodes[:-1]
        return replace(decision, accepted_nodes=nodes, next_token_id=tokens[-1])
    return decision


def _verify_fixed(
    requests: Sequence[ChainRequest], logits: torch.Tensor, *, vocab_size: int, head_size: int
) -> list[Decision]:
    rows = [row for request in requests for row in request.rows]
    modes = [request.mode for request in requests for _ in request.rows]
    keys = [request.key for request in requests for _ in request.rows]
    positions = [position for request in requests for position in request.positions]
    ids, margins = select(
        logits, rows, modes, keys, positions, vocab_size=vocab_size, head_size=head_size
    )
    return _follow(requests, ids.tolist(), margins.tolist())


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
