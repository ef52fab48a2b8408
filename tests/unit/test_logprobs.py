"""Log probabilities are those of the model's own logits, whatever the parameters."""

import torch

from outrider.logprobs import token_logprobs


def test_they_are_log_softmax_and_the_likeliest_come_first():
    # seed 3; vocabulary of 40 in rows of 45, whose last five are padding
    logits = torch.randn(4, 45, generator=torch.Generator().manual_seed(3))
    logits[:, 40:] = 50.0
    logits[1, [7, 3]] = 9.0  # equal: the lower id first
    expected = logits[:, :40].log_softmax(-1)
    found = token_logprobs(logits, [0, 7, 39, 3], num_top=3, vocab_size=40)
    for row, (token_id, each) in enumerate(zip([0, 7, 39, 3], found, strict=True)):
        assert each.token_id == token_id
        assert abs(each.logprob - float(expected[row, token_id])) < 1e-5
        values, ids = expected[row].sort(descending=True, stable=True)
        assert list(each.top_ids) == ids[:3].tolist()
        torch.testing.assert_close(torch.tensor(each.top_logprobs), values[:3])
    assert found[1].top_ids[:2] == (3, 7)


def test_a_row_does_not_depend_on_the_others():
    logits = torch.randn(9, 49152, generator=torch.Generator().manual_seed(4))
    together = token_logprobs(logits, range(9), num_top=5, vocab_size=49152)
    alone = [
        token_logprobs(logits[i : i + 1], [i], num_top=5, vocab_size=49152)[0] for i in range(9)
    ]
    assert together == alone


def test_without_others():
    found = token_logprobs(torch.zeros(1, 4), [2], num_top=0, vocab_size=4)[0]
    assert (found.top_ids, found.top_logprobs) == ((), ())
    assert abs(found.logprob + 1.3862944) < 1e-6
