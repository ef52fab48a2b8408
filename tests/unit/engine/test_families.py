"""Packed passes say what the plain model says, family by family; the rest is refused."""

import asyncio

import pytest
import torch

from outrider.engine import Engine, EngineSettings, UnsupportedModel
from tests.unit.engine.conftest import Make, build, collect, plain_logits, random_ids

INPLACE = ["llama", "qwen2", "qwen3", "gemma2", "mistral", "gpt2", "gpt_oss"]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("family", INPLACE)
async def test_packed_equals_plain(family: str, kernels: str, make_bench: Make) -> None:
    model = build(family)
    sequences = [random_ids(length, seed=length) for length in (5, 21, 40)]
    plain = [plain_logits(model, ids) for ids in sequences]
    bench = make_bench(model, kernels=kernels)
    assert bench.engine.report.mode == "inplace"
    assert (bench.engine.report.kernels == "torch") == (kernels == "torch")
    got = await asyncio.gather(*(bench.feed(bench.open(), ids) for ids in sequences))
    for one, expected in zip(got, plain, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


async def test_latent_attention_runs_in_gather_mode(make_bench: Make) -> None:
    model = build("deepseek_v3")
    ids = random_ids(30)
    plain = plain_logits(model, ids)
    bench = make_bench(model)
    assert bench.engine.report.mode == "gather"
    cache = bench.open()
    head = await bench.feed(cache, ids[:20])
    tail = await bench.feed(cache, ids[20:], start=20)
    torch.testing.assert_close(torch.cat((head, tail)), plain, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("family", "reason"),
    [("falcon", "interface"), ("bloom", "interface"), ("mamba", "recurrent")],
)
def test_models_that_would_be_silently_wrong_are_refused(family: str, reason: str) -> None:
    engine = Engine(build(family), EngineSettings(num_blocks=8), collect)
    with pytest.raises(UnsupportedModel, match=reason):
        engine.start()


def test_growing_rope_caps_the_context() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    rope["original_max_position_embeddings"] = 64
    model = build("llama", rope_parameters=rope)
    assert model.max_context_length == 64
