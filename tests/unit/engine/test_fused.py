"""Fused layers compute what the model's own modules do, and stand aside for models that differ."""

from typing import Any

import pytest
import torch

from outrider.engine import EngineSettings
from outrider.engine.cache import SequenceCache
from outrider.engine.ledger import BlockLedger
from outrider.engine.model import LoadedModel
from outrider.engine.packed import PackedModel
from outrider.engine.plan import Slice, StepPlan
from outrider.engine.pool import KVPool
from outrider.engine.selftest import prepare
from outrider.kernels import KernelsUnavailable, load_kernels
from outrider.tree import TreeLayout
from tests.unit.engine.conftest import build, random_ids


@pytest.fixture(autouse=True)
def kernels() -> Any:
    try:
        return load_kernels()
    except KernelsUnavailable:
        pytest.skip("no C compiler here")


def ready(model: LoadedModel) -> tuple[PackedModel, KVPool, str]:
    packed, trial, report = prepare(model, EngineSettings())
    assert report.kernels.endswith("-layers") == (packed.fused is not None)
    return packed, trial.resized(32), report.kernels_note


def feed(packed: PackedModel, pool: KVPool) -> list[torch.Tensor]:
    """A prompt, a chain behind it, a tree behind that: logits and hidden states of all."""
    cache = SequenceCache(BlockLedger(32), block_size=16, salt="")
    found: list[torch.Tensor] = []
    tree = TreeLayout.of([-1, -1, 0, 0, 1, 2, 3])
    for ids, layout in ((random_ids(40), None), (random_ids(5, 1), None), (random_ids(9, 2), tree)):
        cache.reserve(cache.length + len(ids) - (len(tree.parents) - 3 if layout else 0))
        if layout is not None:
            cache.fork(cache.length + 2, [len(path.nodes) for path in layout.paths[1:]])
        part = Slice(cache, ids, len(ids), layout, taps=(0, 1, 2))
        plan = StepPlan.build([part], block_size=16, device=torch.device("cpu"))
        logits, states = packed.forward(plan, pool)
        found += [logits, *(states[tap] for tap in (0, 1, 2))]
        if layout is None:
            cache.extend(ids)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_fused_layers_say_what_the_modules_say(family: str, dtype: torch.dtype) -> None:
    with torch.inference_mode():
        packed, pool, note = ready(build(family, dtype))
        assert packed.fused is not None, note
        fused = feed(packed, pool)
        packed.fused = None
        modules = feed(packed, pool)
        packed.detach()
    for one, other in zip(fused, modules, strict=True):
        # Hidden states are bfloat16 in both.
        rtol, atol = (1e-4, 1e-4) if one.dtype is dtype is torch.float32 else (1.6e-2, 1e-2)
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol * float(other.float().std()))
        # bfloat16 hides nearly all differences of the exponential function.
        assert dtype is torch.float32 or (one == other).float().mean() > 0.95


def test_blocks_are_copied_as_the_pool_copies_them() -> None:
    with torch.inference_mode():
        packed, pool, _ = ready(build("llama", torch.bfloat16))
        feed(packed, pool)
        expected = [(slab.keys.clone(), slab.values.clone()) for slab in pool.layers.values()]
        packed.copy_block(pool, 1, [20, 5, 31])
        packed.detach()
        for slab, (keys, values) in zip(pool.layers.values(), expected, strict=True):
            for target in (20, 5, 31):
                keys[target], values[target] = keys[1], values[1]
            assert torch.equal(slab.keys, keys)
            assert torch.equal(slab.values, values)
            assert slab.keys[1].any()


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("mistral", {}, "window"),
        ("gpt2", {}, "no embed_tokens"),
        ("gemma2", {}, "window"),
        ("llama", {"hidden_act": "gelu"}, "activation"),
        ("llama", {"intermediate_size": 84}, "do not fit"),
    ],
)
def test_other_models_run_on_their_modules(family: str, changes: Any, reason: str) -> None:
    with torch.inference_mode():
        packed, _, note = ready(build(family, **changes))
        packed.detach()
    assert packed.fused is None
    assert "not fused" in note
    assert reason in note


def test_a_model_that_only_looks_alike_is_found_out() -> None:
    """Its layers have the right parts, but it does more with them than the kernel knows."""
    model = build("llama")
    module: Any = model.module
    before = type(module.model.layers[0]).forward

    class Layer(type(module.model.layers[0])):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return 0.5 * before(self, *args, **kwargs)

    module.model.layers[0].__class__ = Layer
    with torch.inference_mode():
        packed, _, note = ready(model)
        packed.detach()
    assert packed.fused is None
    assert "deviations" in note
