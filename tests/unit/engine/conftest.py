"""Tiny random models of many families, and a bench to feed them on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers

from outrider.engine import Engine, EngineSettings, JobInput, LoadedModel, wrap_model
from outrider.engine.cache import SequenceCache

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
    # large weights: a wrong mask must change the logits visibly
    "initializer_range": 0.25,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", {"sliding_window": 9, "attn_logit_softcapping": 20.0}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "gpt2": (
        "GPT2",
        {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 512, "initializer_range": 0.25},
    ),
    "gpt_oss": ("GptOss", {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "deepseek_v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 6,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
    ),
    "falcon": ("Falcon", {"alibi": False}),
    "bloom": ("Bloom", {"n_layer": 2, "n_head": 6}),
    "mamba": ("Mamba", {"state_size": 4}),
}


def build(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> LoadedModel:
    name, extra = FAMILIES[family]
    sizes = {**SIZES, **extra, **changes}
    if family in ("falcon", "deepseek_v3"):  # they derive it themselves
        del sizes["head_dim"]
    config = getattr(transformers, f"{name}Config")(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        for key, value in model.named_parameters():
            if key.endswith("bias"):
                torch.nn.init.normal_(value, std=0.2)
    return wrap_model(model)


def plain_logits(model: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    """What the model says without us, [len(ids), V] float32; call it before the engine starts."""
    model.module.set_attn_implementation("eager")  # type: ignore[operator]
    with torch.inference_mode():
        logits: torch.Tensor = model.module(torch.tensor([ids]), use_cache=False).logits[0].float()
    return logits


def random_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
    return ids


class Feed:
    """A job that feeds given inputs one after the other and keeps the logits."""

    def __init__(self, cache: SequenceCache, *inputs: JobInput, priority: int = 0) -> None:
        self.cache = cache
        self.priority = priority
        self.done = False
        self.next: JobInput | None = None
        self.inputs = list(inputs)
        self.logits: list[torch.Tensor] = []
        self.cached_tokens: list[int] = []
        self.passes = 0

    def start(self) -> JobInput:
        return self.inputs.pop(0)


def collect(finished: list[Any]) -> None:
    """A head that only keeps what it is given."""
    for item in finished:
        item.job.logits.append(item.logits)
        item.job.cached_tokens.append(item.cached_tokens)
        item.job.passes = item.passes
        if item.job.inputs:
            item.job.next = item.job.inputs.pop(0)
        else:
            item.job.done = True


class Bench:
    """An engine with one-line feeding."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def open(self, salt: str = "tenant") -> SequenceCache:
        return self.engine.open(salt=salt)

    async def feed(
        self,
        cache: SequenceCache,
        ids: Sequence[int],
        *,
        start: int = 0,
        rows: int | None = None,
        committed: int | None = None,
    ) -> torch.Tensor:
        rows = len(ids) if rows is None else rows
        end = start + len(ids)
        job = Feed(cache, JobInput(start, ids, rows, end if committed is None else committed))
        await self.engine.run(job)
        return job.logits[0]

    async def passes(self, count: int) -> None:
        """Until the engine has run that many passes."""
        for _ in range(5000):
            if self.engine.stats().num_passes >= count:
                return
            await asyncio.sleep(0.001)

    async def settle(self) -> None:
        """Until what was released has been taken in; then the books must balance."""
        for _ in range(200):
            if not self.engine._released and not self.engine._entries:
                break
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)
        self.engine.check_integrity()


Make = Callable[..., Bench]


@pytest.fixture
async def make_bench():
    """A factory of benches; closes their engines."""
    engines: list[Engine] = []

    def make(model: LoadedModel, head: Any = collect, **settings: Any) -> Bench:
        settings.setdefault("num_blocks", 128)
        engine = Engine(model, EngineSettings(**settings), head)
        engine.start()
        engines.append(engine)
        return Bench(engine)

    yield make
    for engine in engines:
        await engine.close()
