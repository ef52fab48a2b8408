"""What the target's law is, from weights and code that serve nobody: transformers' own forward pass.

Whatever goes wrong in a verifier, in its engine, its KV cache, its sampling or its acceptance, is not
in here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from outrider.errors import OutriderError

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Law:
    """How logits become a distribution."""

    temperature: float
    top_p: float
    top_k: int


class Reference(Protocol):
    """The target, read outside of the services."""

    @property
    def description(self) -> str:
        """What computes it, in words."""
        ...

    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Floats:
        """Return the logits that each output token was chosen from, [N, V]."""
        ...


@dataclass(frozen=True, slots=True)
class TransformersReference:
    """A model loaded by transformers, with no cache: every output is read in one pass."""

    model: "torch.nn.Module"
    vocab_size: int
    description: str

    @classmethod
    def load(
        cls, folder: Path, *, vocab_size: int, dtype: str, device: str
    ) -> "TransformersReference":
        """Load the target's weights.

        Raises: OutriderError if they cannot be loaded.
        """
        import torch
        import transformers

        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype)
            )
        except (OSError, ValueError, ImportError) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise OutriderError(f"--target {folder}: {first_line}") from error
        description = f"transformers {transformers.__version__}, {dtype} on {device}"
        return cls(model.to(device).eval(), vocab_size, description)

    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Floats:
        """Return the logits that each output token was chosen from, [N, V]."""
        import torch

        ids = torch.tensor([[*prompt_ids, *output_ids]], device=next(self.model.parameters()).device)
        with torch.inference_mode():
            rows = self.model(ids, use_cache=False, logits_to_keep=len(output_ids) + 1).logits
        found: Floats = rows[0, :-1, : self.vocab_size].to(torch.float64).cpu().numpy()
        return found


def processed(logits: Floats, law: Law) -> Floats:
    """Return the probabilities [N, V] that temperature, top_k and top_p leave, by transformers."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = torch.from_numpy(logits)
    ids = torch.empty((len(logits), 0), dtype=torch.int64)
    scores = TemperatureLogitsWarper(law.temperature)(ids, scores)
    if law.top_k > 0:
        scores = TopKLogitsWarper(law.top_k)(ids, scores)
    if law.top_p < 1:
        scores = TopPLogitsWarper(law.top_p)(ids, scores)
    probs: Floats = scores.softmax(-1).numpy()
    return probs
