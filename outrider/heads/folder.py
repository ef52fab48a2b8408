"""Configuration and tensors of a folder, looked at with suspicion: what is wrong is named."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outrider.checkpoints.pretrained import CONFIG_NAME, HEAD_KEY
from outrider.checkpoints.target import read_borrowed, read_text_config
from outrider.checkpoints.tensors import read_tensors

PATTERNS = ("medusa_lm_head.*", "*.safetensors", "*.bin", "*.pt")
"""The first that matches holds the weights."""


@dataclass(slots=True)
class Target:
    """What may be borrowed of a target; its weights are read when they are first asked for."""

    folder: Path
    config: Mapping[str, Any] = field(init=False)
    _borrowed: tuple[torch.Tensor, torch.Tensor] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.config = read_text_config(self.folder)

    def size(self, key: str) -> int:
        """Return a size that the target states; Raises: ValueError naming file and key."""
        return _size(self.folder / "config.json", key, self.config.get(key))

    @property
    def embeddings(self) -> torch.Tensor:
        """[V, H], as stored."""
        return self._read()[0]

    @property
    def lm_head(self) -> torch.Tensor:
        """[V, H], as stored."""
        return self._read()[1]

    def _read(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._borrowed is None:
            self._borrowed = read_borrowed(self.folder)
        return self._borrowed


@dataclass(slots=True)
class HeadFolder:
    """A folder's configuration, flat, and its tensors, each of which is taken once.

    ``layout``: what an error calls the form of the folder.
    """

    path: Path
    config: Mapping[str, Any]
    target: Target | None
    dtype: torch.dtype
    _tensors: dict[str, torch.Tensor] = field(init=False, default_factory=dict)
    _files: dict[str, Path] = field(init=False, default_factory=dict)

    @property
    def config_path(self) -> Path:
        """Where the configuration stands."""
        return self.path / "config.json"

    @property
    def names(self) -> list[str]:
        """Tensors that are not taken yet."""
        return sorted(self._tensors)

    @property
    def target_weights_digest(self) -> str:
        """Of the target that the head was made for; empty where the folder does not say."""
        stated = self.config.get(HEAD_KEY)
        return str(stated.get("target_weights_digest", "")) if isinstance(stated, dict) else ""

    def read(self) -> None:
        """Read all tensors; Raises: ValueError naming a file or a tensor; OSError."""
        for path in weight_files(self.path):
            for name, value in read_tensors(path).items():
                if name in self._tensors:
                    raise ValueError(f"{path}: tensor {name} is in {self._files[name].name} too")
                self._tensors[name], self._files[name] = value, path

    def rename(self, new_name: "Mapping[str, str]") -> None:
        """Give tensors other names; Raises: ValueError if two end with one."""
        for old, new in new_name.items():
            if new != old:
                if new in self._tensors:
                    raise self.wrong_tensor(old, f"stands beside {new}, which is the same")
                self._tensors[new] = self._tensors.pop(old)
                self._files[new] = self._files.pop(old)

    def drop(self, name: str) -> None:
        """Forget a tensor that is computed from the configuration anyway."""
        del self._tensors[name]

    def has(self, name: str) -> bool:
        """Return whether a tensor is there and not taken yet."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; Raises: ValueError if it is missing."""
        self._check_there(name)
        return tuple(self._tensors[name].shape)

    def take(self, name: str, shape: Sequence[int | None]) -> torch.Tensor:
        """Return a matrix or vector in the wanted dtype; None in ``shape`` takes any length.

        Raises: ValueError naming the tensor if it is missing, no floating point or another shape.
        """
        value = self._take(name, shape)
        if not value.is_floating_point():
            raise self.wrong_tensor(name, f"is {value.dtype}, expected floating point")
        return value.to(self.dtype)

    def take_ids(self, name: str, shape: Sequence[int | None]) -> torch.Tensor:
        """Return a tensor of integers or truth values as int64; Raises: as ``take``."""
        value = self._take(name, shape)
        if value.is_floating_point():
            raise self.wrong_tensor(name, f"is {value.dtype}, expected integers")
        return value.long()

    def _take(self, name: str, shape: Sequence[int | None]) -> torch.Tensor:
        found = self.shape(name)
        fits = len(found) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, found, strict=True)
        )
        if not fits:
            wanted = [("any" if want is None else want) for want in shape]
            raise self.wrong_tensor(name, f"is {list(found)}, expected {_listed(wanted)}")
        return self._tensors.pop(name)

    def fill(self, module: nn.Module) -> None:
        """Put the tensors into a module of the same names, ready to draft.

        Raises: ValueError naming a tensor that is missing or has another shape.
        """
        expected = module.state_dict()
        if missing := sorted(expected.keys() - self._tensors.keys()):
            raise ValueError(f"{self.path}: missing tensors {_some(missing)}")
        # Only parameters: the frequencies of rotary embeddings stay in full precision.
        values = {name: self.take(name, value.shape) for name, value in expected.items()}
        for parameter in module.parameters():
            parameter.data = parameter.data.to(self.dtype)
        module.load_state_dict(values)
        module.eval().requires_grad_(False)

    def refuse_leftovers(self) -> None:
        """Raises: ValueError naming tensors that nothing took."""
        if self._tensors:
            raise ValueError(f"{self.path}: unexpected tensors {_some(self.names)}")

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive number of the configuration; Raises: ValueError naming the key."""
        value = self.config.get(key)
        return _size(self.config_path, key, default if value is None else value)

    def switch(self, key: str) -> bool:
        """Return true or false, false where nothing is said; Raises: ValueError naming the key."""
        value = self.config.get(key) or False
        if not isinstance(value, bool):
            raise self.wrong_config(key, f"is {value!r}, expected true or false")
        return value

    def wrong_config(self, key: str, what: str) -> ValueError:
        """Return an error about a key of the configuration."""
        return ValueError(f"{self.config_path}: {key} {what}")

    def wrong_tensor(self, name: str, what: str) -> ValueError:
        """Return an error about a tensor."""
        return ValueError(f"{self._files.get(name, self.path)}: tensor {name} {what}")

    def needed_target(self, for_what: str) -> Target:
        """Return the target; Raises: ValueError saying for what one is needed."""
        if self.target is None:
            raise ValueError(f"{self.path} states no {for_what}: name the folder of its target")
        return self.target

    def check_against_target(self, *, hidden_size: int, vocab_size: int) -> None:
        """Raises: ValueError naming a size in which head and target differ."""
        for key, value in (("hidden_size", hidden_size), ("vocab_size", vocab_size)):
            if self.target is not None and (there := self.target.size(key)) != value:
                raise ValueError(
                    f"{self.path} is for a target of {key} {value}, but {self.target.folder} has "
                    f"{there}"
                )

    def check_taps(self, key: str, taps: Any) -> tuple[int, ...]:
        """Return the tapped layers; Raises: ValueError naming the key if they cannot be."""
        most = None if self.target is None else self.target.size("num_hidden_layers")
        if not isinstance(taps, list) or not all(type(each) is int for each in taps):
            raise self.wrong_config(key, f"is {taps!r}, expected a list of layers")
        if len(set(taps)) != len(taps) or not taps:
            raise self.wrong_config(key, f"is {taps}, expected different layers")
        if wrong := [each for each in taps if each < 0 or (most is not None and each > most)]:
            upto = "" if most is None else f" to {most}, the target's number of layers"
            raise self.wrong_config(key, f"names layer {wrong[0]}, expected 0{upto or ' or more'}")
        return tuple(taps)

    def _check_there(self, name: str) -> None:
        if name not in self._tensors:
            raise ValueError(f"{self.path}: missing tensors {name}")


def weight_files(path: Path) -> list[Path]:
    """Return the files that hold a head's weights; Raises: ValueError if there are none."""
    for pattern in PATTERNS:
        if found := sorted(path.glob(pattern)):
            return found
    raise ValueError(f"{path} has no weights: no {' and no '.join(PATTERNS)}")


def read_config(path: Path) -> dict[str, Any]:
    """Return what ``config.json`` states, nothing where a Medusa folder has none.

    Raises: ValueError naming the file.
    """
    file = path / "config.json"
    if not file.is_file():
        if (path / CONFIG_NAME).is_file():
            raise ValueError(
                f"{path} holds trained weights without their target; put both together with: "
                "python -m outrider.checkpoints assemble"
            )
        if not any(path.glob(PATTERNS[0])):
            raise ValueError(f"{path} has no config.json")
        return {}
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no JSON object")
    return config


def refuse_lossy(path: Path, config: Mapping[str, Any]) -> None:
    """Raises: ValueError naming a setting that would change what the target says."""
    for key, value in _settings(config):
        number = value if isinstance(value, int | float) else None
        lossy = (
            (key == "verifier_accept_k" and number is not None and number > 1)
            or (key == "accept_tolerance" and number is not None and number > 0)
            or (key in ("posterior_threshold", "posterior_alpha") and value is not None)
            or (key.startswith("typical_acceptance") and value not in (None, False))
            or ("acceptance" in key and isinstance(value, str) and "typical" in value)
        )
        if lossy:
            raise ValueError(
                f"{path}: {key} is {value!r}, which accepts tokens that the target does not say; "
                "only lossless verification is supported"
            )


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(config, dict):
        for key, value in config.items():
            yield key, value
            yield from _settings(value)
    elif isinstance(config, list):
        for each in config:
            yield from _settings(each)


def _size(path: Path, key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        found = "is missing" if value is None else f"is {value!r}"
        raise ValueError(f"{path}: {key} {found}, expected a positive whole number")
    return value


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest


def _listed(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
