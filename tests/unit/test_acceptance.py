"""Acceptance reads like the paper: a common prefix, then one token of the target's own."""

import pytest
import torch

from outrider import acceptance
from outrider.acceptance import ChainRequest, num_accepted, verify_batch, verify_chain
from outrider.distribution import RowSampling
from outrider.proposed import Proposed
from outrider.sampling import Mode

VOCAB_SIZE = 8


def logits_for(*token_ids: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(token_ids), VOCAB_SIZE).float() * 30


def request(*draft: int, mode: Mode = Mode.GREEDY, **fields) -> ChainRequest:
    rows = (RowSampling(**fields),) * (len(draft) + 1)
    return ChainRequest(Proposed(draft), rows, mode, key=3, base_position=10)


@pytest.mark.parametrize(
    ("draft", "target", "accepted"),
    [
        ([], [4], 0),
        ([1], [1, 2], 1),
        ([1], [2, 2], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 5, 3, 4], 1),
        ([9, 2, 3], [1, 2, 3, 4], 0),
    ],
    ids=["no draft", "bonus", "rejected", "perfect match", "early mismatch", "first mismatch"],
)
def test_num_accepted_is_the_common_prefix(draft, target, accepted):
    assert num_accepted(draft, target) == accepted


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
@pytest.mark.parametrize(
    ("draft", "accepted", "next_token_id"),
    [((), 0, 5), ((5,), 1, 6), ((5, 6), 2, 7), ((5, 1), 1, 6), ((1, 6), 0, 5)],
)
def test_verify_chain_accepts_and_adds_one(mode, draft, accepted, next_token_id):
    logits = logits_for(5, 6, 7)[: len(draft) + 1]
    decision = verify_chain(logits, request(*draft, mode=mode), vocab_size=VOCAB_SIZE)
    assert (decision.num_accepted, decision.next_token_id) == (accepted, next_token_id)
    assert decision.min_margin > 0


def test_min_margin_covers_the_deciding_rows_only():
    logits = logits_for(5, 6, 7)
    logits[1, 2] = 29.0
    logits[2, 1] = 30.0
    sizes = {"vocab_size": VOCAB_SIZE}
    assert verify_chain(logits[:2], request(1), **sizes).min_margin == 30.0
    assert verify_chain(logits, request(5, 2), **sizes).min_margin == 1.0
    assert verify_chain(logits, request(5, 6), **sizes).min_margin == 0.0


def test_a_mixed_batch_decides_each_sequence_as_alone():
    generator = torch.Generator().manual_seed(6)
    requests, parts = [], []
    for i in range(24):
        k = i % 4
        fields = [{}, {"temperature": 0.7, "top_p": 0.8}, {"top_k": 3}][i % 3]
        rows = tuple(RowSampling(**fields) for _ in range(k + 1))
        draft = tuple(torch.randint(100, (k,), generator=generator).tolist())
        mode = Mode.GREEDY if i % 5 == 0 else Mode.COUPLED
        parts.append(torch.randn(k + 1, 100, generator=generator) * 4)
        if k:  # accept something
            plain = ChainRequest(Proposed(), rows[:1], mode, 1000 + i, 50 + i)
            first = verify_chain(parts[-1][:1], plain, vocab_size=90, head_size=8)
            draft = (first.next_token_id, *draft[1:])
        requests.append(ChainRequest(Proposed(draft), rows, mode, 1000 + i, 50 + i))
    together = verify_batch(requests, torch.cat(parts), vocab_size=90, head_size=8)
    alone = [
        verify_chain(part, r, vocab_size=90, head_size=8)
        for part, r in zip(parts, requests, strict=True)
    ]
    assert together == alone
    assert all(
        d.num_accepted >= 1 for d, r in zip(together, requests, strict=True) if r.draft_token_ids
    )


def test_any_draft_gives_the_plain_samplers_output():
    table = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    row = RowSampling(temperature=0.9)

    def decode(drafter) -> list[int]:
        output = [0]
        while len(output) < 40:
            draft = drafter(output)
            contexts = [output[-1], *draft]
            request = ChainRequest(
                Proposed(tuple(draft)), (row,) * len(contexts), Mode.COUPLED, 77, len(output)
            )
            decision = verify_chain(table[contexts], request, vocab_size=6, head_size=3)
            output += [*draft[: decision.num_accepted], decision.next_token_id]
        return output[:40]

    plain = decode(lambda output: [])
    for drafter in (
        lambda output: [output[-1]] * 3,
        lambda output: [(output[-1] + i) % 6 for i in range(4)],
        lambda output: plain[len(output) : len(output) + 2],
    ):
        assert decode(drafter) == plain


def test_refuses_rows_that_do_not_fit():
    with pytest.raises(ValueError, match="RATIO"):
        acceptance.select(
            logits_for(1), [RowSampling()], [Mode.RATIO], [0], [0], vocab_size=VOCAB_SIZE
        )
    with pytest.raises(ValueError, match="rows"):
        verify_chain(logits_for(1), request(1), vocab_size=VOCAB_SIZE)
    short = ChainRequest(Proposed((1, 2)), (RowSampling(),), Mode.GREEDY, 0, 0)
    with pytest.raises(ValueError, match="1 rows for 2 tokens"):
        verify_chain(logits_for(1), short, vocab_size=VOCAB_SIZE)


def test_no_requests_give_no_decisions():
    assert acceptance.verify_batch([], torch.empty(0, 8), vocab_size=VOCAB_SIZE) == []
