"""Small heads with random weights, written as published checkpoints are."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from outrider.heads.eagle import EagleConfig, EagleHead

VOCAB, HIDDEN, NUM_LAYERS, NUM_DRAFTED = 512, 64, 4, 50
THETA = 10000.0  # of the toy target

EAGLE = EagleConfig(
    hidden_size=HIDDEN,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    target_hidden_size=HIDDEN,
    vocab_size=VOCAB,
    tap_layers=(1, 2, 4),
    draft_ids=tuple(range(0, 500, 10)),
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
    rope={"rope_type": "default", "rope_theta": THETA},
)


def eagle(**changes: Any) -> EagleHead:
    """A head of random weights, norms included."""
    torch.manual_seed(5)
    head = EagleHead(replace(EAGLE, **changes))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return head.eval()


def eagle_config(head: EagleHead) -> dict[str, Any]:
    """The authors' flat form."""
    stated = asdict(head.config)
    rope = dict(stated.pop("rope"))
    taps, ids = stated.pop("tap_layers"), stated.pop("draft_ids")
    return {
        **stated,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "draft_vocab_size": len(ids),
        "rope_theta": rope.pop("rope_theta"),
        "rope_scaling": rope if rope["rope_type"] != "default" else None,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(taps),
            "use_aux_hidden_state": True,
        },
    }


def speculators_config(head: EagleHead) -> dict[str, Any]:
    """The same in the library's form, with what it says about proposals."""
    flat = eagle_config(head)
    outer = (
        "draft_vocab_size",
        "norm_before_residual",
        "target_hidden_size",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
    )
    inner = {k: v for k, v in flat.items() if k not in (*outer, "eagle_config", "architectures")}
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
        "architectures": ["Eagle3DraftModel"],
        **{key: flat[key] for key in outer},
        "eagle_aux_hidden_state_layer_ids": list(head.config.tap_layers),
        "embed_requires_grad": False,
        "transformer_layer_config": inner,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": "someone/target", "architectures": []},
        },
    }


def eagle_tensors(head: EagleHead) -> dict[str, torch.Tensor]:
    """The head's tensors with embeddings, logits and both tables of ids."""
    config = head.config
    generator = torch.Generator().manual_seed(6)
    ids = torch.tensor(config.draft_ids)
    is_drafted = torch.zeros(config.vocab_size, dtype=torch.bool)
    is_drafted[ids] = True
    return {
        **head.state_dict(),
        "embed_tokens.weight": torch.randn(VOCAB, config.hidden_size, generator=generator),
        "lm_head.weight": torch.randn(len(ids), config.hidden_size, generator=generator),
        "d2t": ids - torch.arange(len(ids)),
        "t2d": is_drafted,
    }


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    """Write a folder with one file of safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {name: value.clone().contiguous() for name, value in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    return folder


@torch.inference_mode()
def drafted(
    head: nn.Module, embeddings: torch.Tensor, lm_head: torch.Tensor, features: torch.Tensor
) -> torch.Tensor:
    """Logits of two steps over a row of features [N, W]: the target's, then the head's own."""
    assert isinstance(head, EagleHead)
    ids = torch.arange(len(features)) * 7 % VOCAB
    feature = head.combine(features)[None]
    logits = []
    for _ in range(2):
        positions = torch.arange(len(ids))[None]
        pair = head.begin(embeddings[ids][None], feature, positions)
        heads = (each.transpose(1, 2) for each in (pair.query, pair.key, pair.value))
        attended = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        out = head.end(pair.residual, attended.transpose(1, 2))
        normed = head.norm(out)
        logits.append(normed[0] @ lm_head.T)
        feature = head.feature_of(out, normed)
    return torch.cat(logits)
