"""Loading a causal language model and the facts about it that others need."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from outrider.checkpoints.pretrained import CONFIG_KEY

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
GROWING_ROPE = ("longrope", "dynamic")  # frequencies depend on the longest position in the pass


@dataclass(frozen=True, slots=True)
class DraftHead:
    """What a draft model that was trained for a target says of itself in its config.json.

    ``draft_ids``: the ids that its logits stand for, ascending; empty: all. ``num_parallel``:
    tokens that it proposes in one pass, all but the first in place of ``mask_token_id``.
    """

    draft_ids: tuple[int, ...] = ()
    num_parallel: int = 1
    mask_token_id: int = 0


@dataclass(slots=True)
class LoadedModel:
    """A model ready for the engine, which owns it from then on.

    ``logits_size`` counts rows of the head and may exceed the tokenizer's vocabulary.
    """

    module: nn.Module
    config: PreTrainedConfig
    architecture: str
    logits_size: int
    max_context_length: int
    eos_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    draft_head: DraftHead | None = None


def load_model(
    path: str,
    *,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    device: str = "cpu",
    load_format: Literal["auto", "dummy"] = "auto",
    seed: int = 0,
    gguf_file: str | None = None,
) -> LoadedModel:
    """The model in a folder; ``dummy`` takes config.json alone and draws its weights from ``seed``.

    Drawn weights are the same for equal config, seed, dtype and model of device.
    Raises: ValueError for an unknown dtype or load format; OSError if files are missing.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {sorted(DTYPES)}, not {dtype!r}")
    module: Any
    if load_format == "dummy":
        config = AutoConfig.from_pretrained(path)
        where = torch.device(device)
        forked = [] if where.type == "cpu" else [where]
        # Built and drawn where it will run: billions of numbers take minutes on a CPU.
        with torch.random.fork_rng(devices=forked), where:
            torch.manual_seed(seed)
            module = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
        _balance(module)
    elif load_format == "auto":
        module = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            device_map=None,
            **({"gguf_file": gguf_file} if gguf_file else {}),
        )
        module.to(device)
    else:
        raise ValueError(f'load_format must be "auto" or "dummy", not {load_format!r}')
    return wrap_model(module, generation=_generation_config(path))


def _balance(module: Any) -> None:
    """Make a drawn model's embeddings as large as what its layers add to them.

    As drawn they are lost in the first layer, and then the rounding errors of a deep model grow
    until they decide more than its input does.
    """
    text = module.config.get_text_config()
    deviation = getattr(text, "initializer_range", None)
    weight, head = module.get_input_embeddings().weight, module.get_output_embeddings()
    if not deviation or head is None or head.weight is weight:
        return
    gain = deviation * weight.shape[1] ** 0.5  # of one linear layer; a block has two in a row
    with torch.no_grad():
        weight.mul_(max(1.0, text.num_hidden_layers**0.5 * gain**2 / deviation))


def wrap_model(module: Any, *, generation: GenerationConfig | None = None) -> LoadedModel:
    """Collect the facts of a model that is already in memory."""
    module.eval().requires_grad_(False)
    config = module.config
    text = config.get_text_config()
    head = module.get_output_embeddings()
    logits_size = int(head.weight.shape[0]) if head is not None else int(text.vocab_size)
    draft_head = _draft_head(config)
    if draft_head is not None and draft_head.draft_ids:
        module.set_output_embeddings(_cut_rows(head, draft_head.draft_ids))
    eos = generation.eos_token_id if generation is not None else None
    if eos is None:
        eos = getattr(text, "eos_token_id", None)
    ids = () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,)
    parameter = next(module.parameters())
    return LoadedModel(
        module=module,
        config=config,
        architecture=type(module).__name__,
        logits_size=logits_size,
        max_context_length=_max_context_length(text),
        eos_token_ids=tuple(int(i) for i in ids),
        device=parameter.device,
        dtype=parameter.dtype,
        draft_head=draft_head,
    )


def _draft_head(config: Any) -> DraftHead | None:
    stated = getattr(config, CONFIG_KEY, None)
    if stated is None:
        return None
    return DraftHead(
        draft_ids=tuple(stated["draft_ids"]),
        num_parallel=int(stated["num_parallel"]),
        mask_token_id=int(stated["mask_token_id"]),
    )


def _cut_rows(head: nn.Linear, ids: Sequence[int]) -> nn.Linear:
    """Return a head that computes these rows only."""
    weight = head.weight[list(ids)].clone()
    cut = nn.Linear(weight.shape[1], len(ids), bias=head.bias is not None, device="meta")
    cut.weight = nn.Parameter(weight, requires_grad=False)
    if head.bias is not None:
        cut.bias = nn.Parameter(head.bias[list(ids)].clone(), requires_grad=False)
    return cut


def _max_context_length(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if limit is None:
        raise ValueError("config.json states no max_position_embeddings")
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = rope if rope and all(isinstance(v, dict) for v in rope.values()) else {"": rope}
    for parameters in kinds.values():
        if parameters.get("rope_type") in GROWING_ROPE:
            original = parameters.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            limit = min(limit, original or limit)
    return int(limit)


def _generation_config(path: str) -> GenerationConfig | None:
    folder = Path(path)
    if not (folder / "generation_config.json").exists():
        return None
    return GenerationConfig.from_pretrained(path)
