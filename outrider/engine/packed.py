"""A Hugging Face model that runs packed passes over the KV pool."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from outrider.engine.attention import NativeAttention
from outrider.engine.errors import UnsupportedModel
from outrider.engine.fused import FusedDecoder
from outrider.engine.linear import replace_linears
from outrider.engine.model import LoadedModel
from outrider.engine.norm import replace_norms
from outrider.engine.plan import StepPlan
from outrider.engine.pool import KVPool
from outrider.engine.taps import States, Taps
from outrider.engine.view import Mode, PackedView
from outrider.kernels import Kernels

NAME_PREFIX = "outrider_packed_"


class PackedModel:
    """Owns the model's attention implementation from ``attach`` to ``detach``.

    The attention function is registered under a name of its own, for which there is no mask
    function: transformers then builds no mask.
    """

    def __init__(self, model: LoadedModel, mode: Mode, kernels: Kernels | None) -> None:
        self.model = model
        self.view = PackedView(mode, NativeAttention(kernels) if kernels else None)
        self._module: Any = model.module
        self._name = f"{NAME_PREFIX}{id(self):x}"
        self._before: str | None = None
        self._taps: Taps | None = None  # found when they are first asked for
        self.fused: FusedDecoder | None = None
        """Takes the place of the model's own layers where it proved to compute the same."""
        parameters = inspect.signature(self._module.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._selects_rows = "logits_to_keep" in parameters

    def attach(self) -> None:
        """Route the model's attention to us.

        Raises: UnsupportedModel if its attention cannot be replaced.
        """
        if not type(self._module)._can_set_attn_implementation():
            raise UnsupportedModel(
                f"{self.model.architecture} computes attention without transformers' interface"
            )
        self._before = self._module.config._attn_implementation
        ALL_ATTENTION_FUNCTIONS[self._name] = self.view.attention
        self._module.set_attn_implementation(self._name)

    def detach(self) -> None:
        if self._before is not None:
            self._module.set_attn_implementation(self._before)
            del ALL_ATTENTION_FUNCTIONS[self._name]
            self._before = None

    def forward(self, plan: StepPlan, pool: KVPool) -> tuple[torch.Tensor, States]:
        """Run one pass; the caller advances cache lengths after it succeeded.

        Returns the logits, and the hidden states that the plan's slices ask for.
        Shapes: logits [rows of plan.logit_rows, V] float32.
        Raises: UnsupportedModel if hidden states are asked for and the model gives none; ValueError
        if there is no such layer.
        """
        if self.fused is not None:
            return self.fused.forward(plan, pool)
        with self._tapped(plan) as states:
            return self._run_modules(plan, pool), states

    def copy_block(self, pool: KVPool, source: int, targets: Sequence[int]) -> None:
        """Copy a block of every layer into others; a tree has a target for each of its paths."""
        if self.fused is not None:
            self.fused.copy_block(pool, source, targets)
        else:
            pool.copy_block(source, targets)

    @contextmanager
    def _tapped(self, plan: StepPlan) -> Iterator[States]:
        """Let the pass inside fill what is yielded with the hidden states that slices ask for."""
        if plan.tapped_rows is None:
            yield {}
            return
        if self._taps is None:
            self._taps = Taps(self.model)
        with self._taps.reading(plan.taps, plan.tapped_rows) as states:
            yield states

    def _run_modules(self, plan: StepPlan, pool: KVPool) -> torch.Tensor:
        self.view.begin(plan, pool)
        try:
            arguments: dict[str, Any] = {self._cache_name: self.view, "use_cache": False}
            if self._selects_rows:
                arguments["logits_to_keep"] = plan.logit_rows
            logits = self._module(
                plan.input_ids, position_ids=plan.position_ids, **arguments
            ).logits
        finally:
            self.view.end()
        rows: torch.Tensor = logits[0] if self._selects_rows else logits[0, plan.logit_rows]
        return rows.float()


def is_attached(model: LoadedModel) -> bool:
    """Whether some engine has the model's attention at present."""
    implementation: str = model.config._attn_implementation
    return implementation.startswith(NAME_PREFIX)


def use_kernels(model: LoadedModel, kernels: Kernels) -> None:
    """Replace the model's linears and RMS norms by native ones, for good."""
    module: Any = model.module
    with torch.inference_mode():
        replace_linears(module, kernels, heads=[module.get_output_embeddings()])
        replace_norms(module, kernels)
