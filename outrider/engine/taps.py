"""Where hidden states of a model can be read while it runs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from outrider.engine.errors import UnsupportedModel
from outrider.engine.model import LoadedModel
from outrider.engine.plan import Slice

LAYER_NAMES = ("layers", "h", "blocks")
NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f")

States = dict[int, torch.Tensor]
"""By layer, [rows, hidden] bfloat16: the rows of all slices that ask, one slice after the other."""


class Taps:
    """The decoder layers of a model and its final norm.

    Layer i is what enters decoder layer i, ``num_layers`` what leaves the final norm, as in
    transformers' ``output_hidden_states``.

    Raises: UnsupportedModel if they cannot be found.
    """

    def __init__(self, model: LoadedModel) -> None:
        module: Any = model.module
        decoder = module.get_decoder() if hasattr(module, "get_decoder") else None
        decoder = getattr(module, "base_model", None) if decoder is None else decoder
        layers, norm = _first(decoder, LAYER_NAMES), _first(decoder, NORM_NAMES)
        stated = getattr(model.config.get_text_config(), "num_hidden_layers", None)
        if not isinstance(layers, nn.ModuleList) or norm is None or len(layers) != stated:
            raise UnsupportedModel(
                f"{model.architecture}: its decoder layers and final norm cannot be found, "
                "so it gives no hidden states"
            )
        self._layers, self._norm = layers, norm

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self._layers)

    @contextmanager
    def reading(self, taps: Sequence[int], rows: torch.Tensor) -> Iterator[States]:
        """Let passes inside fill what is yielded with the hidden states of ``rows``.

        Raises: ValueError if there is no such layer.
        """
        states: States = {}
        with ExitStack() as hooks:
            for tap in taps:
                hooks.callback(self._hook(tap, rows, states).remove)
            yield states

    def _hook(self, tap: int, rows: torch.Tensor, states: States) -> Any:
        if tap == self.num_layers:

            def behind(_: nn.Module, __: tuple[Any, ...], output: torch.Tensor) -> None:
                states[tap] = keep(output[0], rows)

            return self._norm.register_forward_hook(behind)
        if not 0 <= tap < self.num_layers:
            raise ValueError(f"layer {tap} is not in [0, {self.num_layers}]")

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states[tap] = keep((args[0] if args else kwargs["hidden_states"])[0], rows)

        return self._layers[tap].register_forward_pre_hook(before, with_kwargs=True)


def keep(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Copy rows as they come by: later layers may reuse the memory.

    Shapes: hidden [T, H], rows [R]; returns [R, H] bfloat16.
    """
    return hidden.index_select(0, rows).to(torch.bfloat16)


def features_of(slices: Sequence[Slice], states: States) -> list[torch.Tensor | None]:
    """Return what each slice asked for; None for those that asked for nothing.

    Shapes: [rows of the slice, layers, hidden] bfloat16, nodes of a tree in node order.
    """
    found: list[torch.Tensor | None] = []
    begin = 0
    for part in slices:
        if not part.taps:
            found.append(None)
            continue
        end = begin + len(part.token_ids)
        found.append(torch.stack([states[tap][begin:end] for tap in part.taps], dim=1))
        begin = end
    return found


def _first(decoder: Any, names: Sequence[str]) -> nn.Module | None:
    """Return the first module of one of the names."""
    found = (getattr(decoder, name, None) for name in names)
    return next((module for module in found if isinstance(module, nn.Module)), None)
