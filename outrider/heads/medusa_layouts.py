"""Medusa checkpoints of its authors (``medusa_lm_head.pt``) and in vLLM's form.

How many heads and layers there are is what the tensors say: published configurations are known to
state other numbers.
"""

import re

import torch

from outrider.heads.draft_ids import ids_of_map
from outrider.heads.folder import HeadFolder
from outrider.heads.loaded import LoadedHead
from outrider.heads.medusa import MedusaConfig, MedusaHead

_PREFIX = re.compile(r"^medusa_heads?\.")
_LINEAR = re.compile(r"^(\d+)\.(\d+)\.linear\.(weight|bias)$")
_ROWS = re.compile(r"^(\d+)\.(\d+)\.weight$")
_BLOCK = re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)$")


def read_medusa(folder: HeadFolder) -> LoadedHead:
    """Return the heads of a folder; Raises: ValueError naming a key or a tensor."""
    folder.rename({name: _name(name) for name in folder.names})
    num_heads, num_layers, has_bias = _counted(folder)
    hidden_size = folder.shape("blocks.0.layers.0.weight")[0]
    if folder.size("hidden_size", hidden_size) != hidden_size:
        raise folder.wrong_tensor(
            "blocks.0.layers.0.weight",
            f"is of width {hidden_size}, expected hidden_size {folder.size('hidden_size')}",
        )
    lm_head, draft_ids, vocab_size = _lm_head(folder, num_heads, hidden_size)
    folder.check_against_target(hidden_size=hidden_size, vocab_size=vocab_size)
    taps = last_tap(folder)
    module = MedusaHead(
        MedusaConfig(
            num_heads=num_heads,
            num_layers=num_layers,
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            tap_layers=taps,
            draft_ids=tuple(draft_ids.tolist()),
            bias=has_bias,
        )
    )
    folder.fill(module)
    folder.refuse_leftovers()
    return LoadedHead(
        kind="medusa",
        module=module,
        embeddings=None,
        lm_head=lm_head,
        draft_ids=draft_ids,
        tap_layers=taps,
        target_hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=num_positions(folder),
        target_weights_digest=folder.target_weights_digest,
    )


def last_tap(folder: HeadFolder) -> tuple[int, ...]:
    """Return the layer whose hidden states the target's own head reads, as a tap.

    Raises: ValueError if neither folder nor target states it, or both differ.
    """
    if "tap_layers" in folder.config:
        taps = folder.check_taps("tap_layers", folder.config["tap_layers"])
        if folder.target is not None:
            num_layers = folder.target.size("num_hidden_layers")
            if taps != (num_layers,):
                raise folder.wrong_config("tap_layers", f"is {list(taps)}, expected [{num_layers}]")
        elif len(taps) != 1:
            raise folder.wrong_config("tap_layers", f"is {list(taps)}, expected one layer")
        return taps
    return (folder.needed_target("tap_layers").size("num_hidden_layers"),)


def num_positions(folder: HeadFolder) -> int:
    """Return the longest context, the target's where the folder states none; Raises: ValueError."""
    if "max_position_embeddings" in folder.config:
        return folder.size("max_position_embeddings")
    target = folder.needed_target("max_position_embeddings")
    return target.size("max_position_embeddings")


def _name(name: str) -> str:
    name = _PREFIX.sub("", name)
    if found := _LINEAR.match(name):
        return f"blocks.{found[1]}.layers.{found[2]}.{found[3]}"
    if found := _ROWS.match(name):
        return f"lm_heads.{found[1]}.weight"
    return "lm_heads.0.weight" if name == "lm_head.weight" else name


def _counted(folder: HeadFolder) -> tuple[int, int, bool]:
    """Return how many heads and layers the tensors make up, and whether they have biases."""
    blocks = [found for name in folder.names if (found := _BLOCK.match(name))]
    if not blocks:
        raise ValueError(f"{folder.path}: missing tensors blocks.0.layers.0.weight")
    num_heads = 1 + max(int(found[1]) for found in blocks)
    num_layers = 1 + max(int(found[2]) for found in blocks)
    # A head or layer that is left out, or one bias, is missed when the module is filled.
    return num_heads, num_layers, any(found[3] == "bias" for found in blocks)


def _lm_head(
    folder: HeadFolder, num_heads: int, hidden_size: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return rows of the logits, of every head if each has its own; their ids, ascending; V."""
    names = [name for name in folder.names if name.startswith("lm_heads.")]
    if not names:
        whole = folder.needed_target("lm_head").lm_head
        matrices = [whole.to(folder.dtype)]
        if whole.shape[1] != hidden_size:
            raise ValueError(
                f"{folder.path}: missing tensors lm_heads.0.weight; the target's is of width "
                f"{whole.shape[1]}, expected {hidden_size}"
            )
    else:
        count = 1 if folder.switch("original_lm_head") else num_heads
        matrices = [folder.take(f"lm_heads.{i}.weight", [None, hidden_size]) for i in range(count)]
    num_rows = len(matrices[0])
    if any(len(each) != num_rows for each in matrices):
        raise ValueError(
            f"{folder.path}: tensors lm_heads.*.weight have {[len(each) for each in matrices]} "
            "rows, expected the same number"
        )
    vocab_size = folder.size("vocab_size", _vocab_size(folder, num_rows))
    stated = folder.size("truncated_vocab_size", vocab_size)
    if stated > vocab_size:
        raise folder.wrong_config("truncated_vocab_size", f"is {stated}, expected <= {vocab_size}")
    if num_rows not in (stated, vocab_size):
        raise folder.wrong_tensor(
            "lm_heads.0.weight", f"has {num_rows} rows, expected {stated} or {vocab_size}"
        )
    ids = ids_of_map(folder, vocab_size, stated)
    order = ids.argsort()
    # Where all of the vocabulary is stored the map chooses among the rows.
    chosen = order if num_rows == stated else ids[order]
    rows = [each[chosen].contiguous() for each in matrices]
    return rows[0] if len(rows) == 1 else torch.stack(rows), ids[order], vocab_size


def _vocab_size(folder: HeadFolder, num_rows: int) -> int:
    return num_rows if folder.target is None else folder.target.size("vocab_size")
