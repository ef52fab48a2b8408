"""Draft heads at work: what they propose is what the head says, computed slowly from scratch."""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from drafter_svc.heads import drafting
from drafter_svc.heads.eagle import EagleAtWork
from drafter_svc.heads.engine import HeadEngine
from drafter_svc.heads.source import HeadSource
from drafter_svc.source import Opening, Wanted
from outrider.features import Features
from outrider.heads.eagle import EagleConfig, EagleHead
from outrider.sampling import Mode, SamplingParams
from outrider.sampling_state import SequenceState

WIDTH, VOCAB, TAPS = 16, 60, 2
DRAFT_IDS = tuple(range(0, VOCAB, 2))
IDS = [5, 17, 3, 40, 22, 8, 31, 50, 12, 44, 9, 27]


@dataclass
class Bench:
    """A random head, its source, and the slow way to its logits."""

    head: EagleHead
    embeddings: nn.Embedding
    logits: nn.Linear
    source: HeadSource
    features: torch.Tensor

    def says(self, ids, num_features, drafted=()):
        """Logits behind ids and draft tokens with hidden states of the first ``num_features``."""
        ids = [*ids, *drafted]
        with torch.inference_mode():
            outs = []
            keys, values = [], []
            for p in range(len(ids) - 1):
                if p < num_features:
                    feature = self.head.combine(self.features[p].float())
                else:
                    feature = self.head.feature_of(outs[-1], self.head.norm(outs[-1]))
                embedded = self.embeddings(torch.tensor(ids[p + 1]))
                at = torch.tensor([[p]])
                pair = self.head.begin(embedded[None, None], feature[None, None], at)
                keys.append(pair.key[0, 0])
                values.append(pair.value[0, 0])
                groups = pair.query.shape[2] // keys[0].shape[0]
                k = torch.stack(keys).repeat_interleave(groups, dim=1)  # [p + 1, heads, D]
                v = torch.stack(values).repeat_interleave(groups, dim=1)
                weights = torch.einsum("hd,nhd->hn", pair.query[0, 0], k) / k.shape[-1] ** 0.5
                attended = torch.einsum("hn,nhd->hd", weights.softmax(-1), v)
                outs.append(self.head.end(pair.residual[0, 0], attended))
            return self.logits(self.head.norm(outs[-1]))

    def first_choice(self, ids, num_features, drafted=()):
        return DRAFT_IDS[int(self.says(ids, num_features, drafted).argmax())]

    def part(self, begin, end):
        bits = self.features[begin:end].contiguous().view(torch.uint16).numpy()
        return Features(begin, bits.astype(np.uint16))


@pytest.fixture(params=[False, True], ids=["plain", "norm_output"])
def bench(request):
    torch.manual_seed(3)
    config = EagleConfig(
        hidden_size=WIDTH,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        target_hidden_size=10,
        vocab_size=VOCAB,
        tap_layers=(1, 2),
        draft_ids=DRAFT_IDS,
        fc_norm=True,
        norm_output=request.param,
    )
    head = EagleHead(config).eval().requires_grad_(False)
    for parameter in head.parameters():
        if parameter.dim() == 2:
            parameter.mul_(2.0)
    embeddings = nn.Embedding(VOCAB, WIDTH).requires_grad_(False)
    logits = nn.Linear(WIDTH, len(DRAFT_IDS), bias=False).requires_grad_(False)
    logits.weight.mul_(8.0)
    engine = HeadEngine(EagleAtWork(head, embeddings, logits), torch.tensor(DRAFT_IDS))
    engine.start()
    source = HeadSource(engine, "eagle3", config.tap_layers, config.feature_size, 100)
    yield Bench(head, embeddings, logits, source, torch.randn(40, 20).bfloat16())
    asyncio.run(engine.close())


def opening(mode=Mode.GREEDY, temperature=0.0, stops=()):
    params = SamplingParams(temperature=temperature, stop_token_ids=stops)
    return Opening(mode, params, 7, 4, VOCAB, "")


def wanted(start, ids, num=4, pending=None, temperature=0.0):
    states = SequenceState(SamplingParams(temperature=temperature), 4, VOCAB)
    states.tell(0, [0] * start)
    states.tell(start, ids)
    return Wanted(start, tuple(ids), pending, num, states.state())


def run(*steps):
    async def body():
        return [await step() for step in steps]

    return asyncio.run(body())


def chain(bench, ids, num_features, num):
    drafted = []
    for _ in range(num):
        drafted.append(bench.first_choice(ids, num_features, drafted))
    return tuple(drafted)


def test_a_chain_says_what_the_head_says_step_by_step(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 5))
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:6])))
    assert block.draft.token_ids == chain(bench, IDS[:6], 5, 4)
    assert len(block.draft.logit_margins) == 4


def test_hidden_states_that_come_in_parts_and_over_several_drafts(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 3))
    lease.take_features(bench.part(3, 5))
    (_,) = run(lambda: lease.draft(wanted(0, IDS[:6])))
    lease.take_features(bench.part(5, 8))
    (block,) = run(lambda: lease.draft(wanted(6, IDS[6:9])))
    assert block.draft.token_ids == chain(bench, IDS[:9], 8, 4)


def test_ids_whose_hidden_states_are_late_are_gone_through_on_the_heads_own_output(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 4))
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:8])))
    assert block.draft.token_ids == chain(bench, IDS[:8], 4, 4)
    lease.take_features(bench.part(4, 8))  # now they are there, and replace what stood in for them
    (block,) = run(lambda: lease.draft(wanted(8, IDS[8:9])))
    assert block.draft.token_ids == chain(bench, IDS[:9], 8, 4)


def test_a_draft_without_anything_new_is_the_same_draft(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 5))
    first, second = run(
        lambda: lease.draft(wanted(0, IDS[:6])), lambda: lease.draft(wanted(5, IDS[5:6]))
    )
    assert first.draft == second.draft


def test_rollback_forgets_the_pairs_behind(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 8))
    (_,) = run(lambda: lease.draft(wanted(0, IDS[:9])))
    lease.take_features(bench.part(4, 6))
    (block,) = run(lambda: lease.draft(wanted(5, [1, 2])))
    assert block.draft.token_ids == chain(bench, [*IDS[:5], 1, 2], 6, 4)


def test_behind_lost_hidden_states_the_head_begins_anew(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(3, 8))
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:9])))
    moved = Bench(bench.head, bench.embeddings, bench.logits, bench.source, bench.features[3:])
    assert block.draft.token_ids == chain(moved, IDS[3:9], 5, 4)


def test_without_hidden_states_nothing_is_proposed(bench):
    lease = bench.source.open(opening())
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:6])))
    assert not block.draft.token_ids


def test_behind_a_pending_draft_nothing_is_proposed(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 5))
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:6], pending=(1, 2))))
    assert block.path == (1, 2)
    assert not block.draft.token_ids


def test_a_level_that_promises_little_ends_the_tree(bench, monkeypatch):
    bench.source.makes_trees = True
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 5))
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:6], num=12)))
    monkeypatch.setattr(drafting, "MOST_PROMISE", 2.0)
    monkeypatch.setattr(drafting, "LEVEL_COST", 24.0)
    (short,) = run(lambda: lease.draft(wanted(6, (), num=12)))
    assert max(block.draft.parents) >= 0
    assert set(short.draft.parents) == {-1}
    assert drafting.least_promise(4) == 2.0
    assert drafting.least_promise(24) == 1.0


def test_a_tree_holds_the_likeliest_nodes_of_all(bench, monkeypatch):
    monkeypatch.setattr(drafting, "LEVEL_COST", 0.0)  # however little they promise
    bench.source.makes_trees = True
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 5))
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:6], num=12)))
    draft = block.draft
    assert len(draft.token_ids) == 12
    paths = [()]
    for node, parent in enumerate(draft.parents):
        assert parent < node
        paths.append((*paths[parent + 1], draft.token_ids[node]))
    assert len(set(paths)) == 13
    assert all(a >= b for a, b in zip(block.scores, block.scores[1:], strict=False))
    for path, score in zip(paths[1:], block.scores, strict=True):
        expected = 1.0
        for depth, token_id in enumerate(path):
            probs = bench.says(IDS[:6], 5, path[:depth]).softmax(-1)
            expected *= float(probs[DRAFT_IDS.index(token_id)])
        assert score == pytest.approx(expected, rel=0.05, abs=1e-3)
    # No node outside is likelier than the least likely one inside by more than rounding.
    for path, score in zip(paths, (1.0, *block.scores), strict=True):
        probs = bench.says(IDS[:6], 5, path).softmax(-1)
        for index, token_id in enumerate(DRAFT_IDS):
            if (*path, token_id) not in paths and len(path) < 8:
                assert score * float(probs[index]) <= block.scores[-1] * 1.05 + 1e-3


def test_many_sequences_at_once_get_what_each_would_get_alone(bench):
    leases = [bench.source.open(opening()) for _ in range(5)]
    bench.source.makes_trees = True
    leases += [bench.source.open(opening()) for _ in range(3)]

    async def all_of_them():
        for index, lease in enumerate(leases):
            lease.take_features(bench.part(0, 4 + index))
        return await asyncio.gather(
            *(lease.draft(wanted(0, IDS[: 5 + index])) for index, lease in enumerate(leases))
        )

    for index, block in enumerate(asyncio.run(all_of_them())):
        expected = chain(bench, IDS[: 5 + index], 4 + index, 1 if index >= 5 else 4)
        assert block.draft.token_ids[: len(expected)] == expected


def test_a_cancelled_draft_loses_no_hidden_states(bench):
    lease = bench.source.open(opening())
    lease.take_features(bench.part(0, 5))

    async def body():
        first = asyncio.create_task(lease.draft(wanted(0, IDS[:6])))
        await asyncio.sleep(0)
        first.cancel()
        lease.take_features(bench.part(5, 6))
        return await lease.draft(wanted(6, IDS[6:7]))

    assert asyncio.run(body()).draft.token_ids == chain(bench, IDS[:7], 6, 4)


def test_sampled_drafts_use_the_noise_of_their_places_and_name_target_ids(bench):
    for mode in (Mode.COUPLED, Mode.RATIO):
        lease = bench.source.open(opening(mode, temperature=1.0))
        lease.take_features(bench.part(0, 5))
        again = bench.source.open(opening(mode, temperature=1.0))
        again.take_features(bench.part(0, 5))
        one, two = run(
            lambda lease=lease: lease.draft(wanted(0, IDS[:6], temperature=1.0)),
            lambda again=again: again.draft(wanted(0, IDS[:6], temperature=1.0)),
        )
        assert one.draft == two.draft
        assert set(one.draft.token_ids) <= set(DRAFT_IDS)
        assert len(one.draft.distributions) == 4


def test_a_token_that_ends_the_text_ends_a_greedy_draft(bench):
    expected = chain(bench, IDS[:6], 5, 4)
    lease = bench.source.open(opening(stops=(expected[1],)))
    lease.take_features(bench.part(0, 5))
    (block,) = run(lambda: lease.draft(wanted(0, IDS[:6])))
    end = expected.index(expected[1]) + 1
    assert block.draft.token_ids == expected[:end]


def test_a_prompt_that_another_sequence_has_read_needs_no_hidden_states(bench):
    first = bench.source.open(opening())
    first.take_features(bench.part(0, 6))
    (_,) = run(lambda: first.draft(wanted(0, IDS[:7])))
    first.close()
    second = bench.source.open(opening())
    second.take_features(bench.part(4, 8))  # a verifier that has the beginning in its cache
    (block,) = run(lambda: second.draft(wanted(0, [*IDS[:5], 2, 4, 6, 8])))
    assert block.draft.token_ids == chain(bench, [*IDS[:5], 2, 4, 6, 8], 8, 4)


def test_what_was_read_is_not_taken_over_by_other_ids_or_salts(bench):
    first = bench.source.open(opening())
    first.take_features(bench.part(0, 6))
    (_,) = run(lambda: first.draft(wanted(0, IDS[:7])))
    first.close()
    salt = opening().salt
    assert bench.source.kept.find(salt, IDS[:5], 4) is not None
    assert bench.source.kept.find(salt, IDS[:9], 7) is None  # it has not read so far
    assert bench.source.kept.find(salt, [*IDS[:4], 1], 4) is None
    assert bench.source.kept.find("another", IDS[:5], 4) is None


def test_what_is_kept_is_bounded(bench):
    kept = bench.source.kept
    kept.max_sequences, kept.max_pairs = 3, 17
    for num in (4, 5, 6, 7):
        lease = bench.source.open(opening())
        lease.take_features(bench.part(0, num))
        (_,) = run(lambda lease=lease, num=num: lease.draft(wanted(0, IDS[: num + 1])))
        lease.close()
    assert kept.num_pairs == 13
    assert kept.find(opening().salt, IDS, 7) is not None
