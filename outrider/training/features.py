"""The target's hidden states over the examples of a corpus, computed once and kept in a folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM

from outrider.identity.weights import weights_digest
from outrider.training.corpus import Example
from outrider.training.trainer import RunMismatch, differing

NUM_TOGETHER = 2048  # tokens of one pass of the target, padding included
KEY_SIZE = 16


@dataclass(slots=True)
class FeatureStore:
    """Hidden states of every token of an example, computed when they are first asked for.

    A row holds the tapped layers one after the other, in bfloat16: layer i is the residual stream
    that enters decoder layer i, the number of layers is what the head reads. The folder serves any
    number of runs with one target that read the layers it was begun with, or some of them; it grows
    by 2 bytes for each number of a token.

    Raises: ValueError if a layer does not exist; RunMismatch if the folder belongs to another
        target or lacks a layer.
    """

    target: Path
    layers: tuple[int, ...]
    folder: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _model: Any = field(init=False)
    _hidden_size: int = field(init=False)
    _kept_layers: tuple[int, ...] = field(init=False)
    _offsets: dict[bytes, int] = field(init=False, default_factory=dict)
    """Of every example's first row, in rows."""
    _num_rows: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        # On a CPU float32 is the faster one; what is kept is bfloat16 in either case.
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        self._model = AutoModelForCausalLM.from_pretrained(str(self.target), dtype=dtype)
        self._model.eval().requires_grad_(False).to(self.device)
        text = self._model.config.get_text_config()
        most = int(text.num_hidden_layers)
        if not self.layers or not all(0 <= layer <= most for layer in self.layers):
            raise ValueError(f"hidden states enter layers 0 to {most}, not {list(self.layers)}")
        self._hidden_size = int(text.hidden_size)
        self._kept_layers = self.layers
        self._check_folder()
        self._read_index()

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return len(self.layers) * self._hidden_size

    @property
    def _kept_width(self) -> int:
        return len(self._kept_layers) * self._hidden_size

    def of(self, examples: Sequence[Example]) -> torch.Tensor:
        """Return the rows of examples side by side, padded on the right with zeros.

        Shapes: [B, L, width] bfloat16.
        """
        keys = [_key(each) for each in examples]
        pairs = zip(keys, examples, strict=True)
        self._compute({key: each for key, each in pairs if key not in self._offsets})
        shape = (len(self.layers), self._hidden_size)
        rows = np.zeros((len(examples), max(map(len, examples)), *shape), np.uint16)
        columns = [self._kept_layers.index(layer) for layer in self.layers]
        with self._rows_path.open("rb") as file:
            for row, key, each in zip(rows, keys, examples, strict=True):
                file.seek(2 * self._kept_width * self._offsets[key])
                read = np.fromfile(file, np.uint16, len(each) * self._kept_width)
                row[: len(each)] = read.reshape(len(each), -1, self._hidden_size)[:, columns]
        flat = torch.from_numpy(rows.reshape(*rows.shape[:2], self.width))
        return flat.view(torch.bfloat16).to(self.device)

    @property
    def _rows_path(self) -> Path:
        return self.folder / "features.bf16"

    @property
    def _index_path(self) -> Path:
        return self.folder / "features.index"

    def _check_folder(self) -> None:
        """Remember what the folder is for, or compare with what is remembered."""
        here = {"target_weights_digest": weights_digest(self.target), "layers": list(self.layers)}
        path = self.folder / "features.json"
        if path.exists():
            there = json.loads(path.read_text())
            if set(self.layers) <= set(there["layers"]):
                self._kept_layers = tuple(there["layers"])
                here["layers"] = there["layers"]
            if there != here:
                raise RunMismatch(
                    f"{self.folder} holds other features: {', '.join(differing(there, here))}"
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(here, indent=2) + "\n")

    def _read_index(self) -> None:
        """Read where examples begin; what a kill left half written behind them is cut off."""
        self._index_path.touch()
        self._rows_path.touch()
        data, size = self._index_path.read_bytes(), KEY_SIZE + 16
        whole = len(data) - len(data) % size
        with self._index_path.open("r+b") as file:
            file.truncate(whole)
        for at in range(0, whole, size):
            begin, length = np.frombuffer(data[at + KEY_SIZE : at + size], "<i8").tolist()
            self._offsets[data[at : at + KEY_SIZE]] = begin
            self._num_rows = begin + length
        with self._rows_path.open("r+b") as file:
            file.truncate(2 * self._kept_width * self._num_rows)

    def _compute(self, missing: dict[bytes, Example]) -> None:
        keys = sorted(missing, key=lambda key: len(missing[key]))
        group: list[bytes] = []
        for key in keys:
            if group and (len(group) + 1) * len(missing[key]) > NUM_TOGETHER:
                self._compute_group({each: missing[each] for each in group})
                group = []
            group.append(key)
        if group:
            self._compute_group({each: missing[each] for each in group})

    def _compute_group(self, group: dict[bytes, Example]) -> None:
        ids = np.zeros((len(group), max(map(len, group.values()))), np.int64)
        for row, each in zip(ids, group.values(), strict=True):
            row[: len(each)] = each.prompt_ids + each.response_ids
        with torch.inference_mode():
            body = self._model.get_decoder()
            given = torch.from_numpy(ids).to(self.device)
            read = body(input_ids=given, output_hidden_states=True, use_cache=False)
            taps = torch.cat([read.hidden_states[layer] for layer in self._kept_layers], dim=-1)
        values = taps.bfloat16().cpu().view(torch.uint16).numpy()
        for (key, each), rows in zip(group.items(), values, strict=True):
            self._append(key, rows[: len(each)])

    def _append(self, key: bytes, rows: npt.NDArray[np.uint16]) -> None:
        with self._rows_path.open("ab") as file:
            file.write(rows.tobytes())
        with self._index_path.open("ab") as file:  # after the rows, so that none is half known
            file.write(key + np.array([self._num_rows, len(rows)], "<i8").tobytes())
        self._offsets[key] = self._num_rows
        self._num_rows += len(rows)


def _key(example: Example) -> bytes:
    ids = np.array(example.prompt_ids + example.response_ids, "<i4").tobytes()
    return blake2b(ids, digest_size=KEY_SIZE).digest()
