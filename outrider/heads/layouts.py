"""TEMPORARY until merged."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from outrider.checkpoints.heads import load_head
from outrider.heads.eagle import EagleConfig, EagleHead


@dataclass(frozen=True, slots=True)
class LoadedHead:
    kind: str
    module: nn.Module
    embeddings: torch.Tensor | None
    lm_head: torch.Tensor
    draft_ids: torch.Tensor
    tap_layers: tuple[int, ...]
    target_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    target_weights_digest: str


def is_head_folder(folder):
    return (folder / "drafter.json").is_file()


def read_head_folder(folder: Path, target: Path | None = None) -> LoadedHead:
    stated, tensors = load_head(folder)
    config = EagleConfig(
        **{
            **stated.config,
            "tap_layers": tuple(stated.config["tap_layers"]),
            "draft_ids": tuple(stated.config["draft_ids"]),
        }
    )
    head = EagleHead(config)
    head.load_state_dict(tensors)
    m = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32)
    ids = torch.tensor(config.draft_ids)
    e = m.get_input_embeddings().weight.detach()
    return LoadedHead(
        "eagle3",
        head,
        e,
        m.get_output_embeddings().weight.detach()[ids].clone(),
        ids,
        config.tap_layers,
        config.target_hidden_size,
        config.vocab_size,
        config.max_position_embeddings,
        stated.target_weights_digest,
    )
