"""What the target's law is, worked out apart from the passes that are audited.

With the target's weights at hand transformers reads every output in a pass of its own: whatever
goes wrong in a verifier, in its engine, its KV cache, its sampling or its acceptance, is not in it.
Without them the verifier reads the outputs as prompts: no draft, no KV of an earlier pass, no
acceptance; but its weights and its engine.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from outrider.client import Client, generate_request
from outrider.errors import OutriderError
from outrider.sampling import MAX_LOGPROBS, SamplingParams

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Law:
    """What turns logits into a distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """What each token of an output was drawn from, and which outcome it was.

    An outcome is an id, or all that are not listed together: if tokens follow a law, so do their
    outcomes. Shapes: probs [N, W]; outcomes [N]; lead [N], by how many logits the likeliest id lies
    above the token; listed [N, W - 1], the ids of all outcomes but the last, None where the
    outcomes are the ids.
    """

    probs: Floats
    outcomes: Ints
    lead: Floats
    listed: Ints | None = None

    def of_outcomes(self, row: int, ids: Ints, probs: Floats) -> Floats:
        """Return another distribution's probabilities of a row's outcomes, [W].

        Shapes: ids, probs [M], all that the distribution allows.
        """
        found = np.zeros(self.probs.shape[1])
        if self.listed is None:
            found[ids] = probs
            return found
        place = {token_id: at for at, token_id in enumerate(self.listed[row].tolist())}
        at = [place.get(token_id, len(found) - 1) for token_id in ids.tolist()]
        np.add.at(found, at, probs)
        return found


class Reference(Protocol):
    """The target, read apart."""

    @property
    def description(self) -> str:
        """What reads, in words."""
        ...

    async def read(self, prompt_ids: Sequence[int], output_ids: Sequence[int], law: Law) -> Rows:
        """Return what the tokens of an output were drawn from."""
        ...


def whole_rows(logits: Floats, output_ids: Sequence[int], law: Law) -> Rows:
    """Return the rows of logits [N, V], processed by transformers."""
    ids = np.array(output_ids, dtype=np.int64)
    own = np.take_along_axis(logits, ids[:, None], 1)[:, 0]
    return Rows(processed(logits, law), ids, logits.max(1) - own)


def processed(logits: Floats, law: Law) -> Floats:
    """Return the probabilities [N, V] that temperature, top_k and top_p leave, by transformers."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores: Any = torch.from_numpy(logits)
    no_ids: Any = torch.empty((len(logits), 0), dtype=torch.int64)
    scores = TemperatureLogitsWarper(law.temperature)(no_ids, scores)
    if law.top_k > 0:
        scores = TopKLogitsWarper(law.top_k)(no_ids, scores)
    if law.top_p < 1:
        scores = TopPLogitsWarper(law.top_p)(no_ids, scores)
    probs: Floats = scores.softmax(-1).numpy()
    return probs


@dataclass(frozen=True, slots=True)
class TransformersReference:
    """The target loaded by transformers; no KV cache, every output is read in one pass."""

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
        try:
            import torch
            import transformers

            transformers.utils.logging.disable_progress_bar()
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype)
            )
        except (OSError, ValueError, ImportError) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise OutriderError(f"--target {folder}: {first_line}") from error
        description = f"transformers {transformers.__version__}, {dtype} on {device}"
        return cls(model.to(device).eval(), vocab_size, description)

    async def read(self, prompt_ids: Sequence[int], output_ids: Sequence[int], law: Law) -> Rows:
        """Return what the tokens of an output were drawn from."""

        def work() -> Rows:
            return whole_rows(self.logits(prompt_ids, output_ids), output_ids, law)

        return await asyncio.to_thread(work)

    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Floats:
        """Return the logits behind which each output token stands, [N, V]."""
        import torch

        device = next(self.model.parameters()).device
        ids = torch.tensor([[*prompt_ids, *output_ids]], device=device)
        with torch.inference_mode():
            rows = self.model(ids, use_cache=False, logits_to_keep=len(output_ids) + 1).logits
        found: Floats = rows[0, :-1, : self.vocab_size].to(torch.float64).cpu().numpy()
        return found


@dataclass(frozen=True, slots=True)
class PromptReference:
    """The verifier, which reads an output as part of a prompt (``prompt_logprobs``).

    It lists the likeliest ids of each position; all others are one outcome. The distribution of
    those is known where nothing is cut and the temperature is 1, or where top_k lists them all.
    """

    client: Client
    model: str
    timeout_s: float
    description: str = "the verifier, which reads outputs as prompts"

    @staticmethod
    def objection(law: Law) -> str:
        """Return why a law cannot be read so; empty if it can."""
        if 0 < law.top_k <= MAX_LOGPROBS or (
            law.temperature == 1 and law.top_p == 1 and not law.top_k
        ):
            return ""
        return (
            "without the target's weights (--target) it must be 1, without top-p and top-k, or "
            f"with a top-k of at most {MAX_LOGPROBS}"
        )

    async def read(self, prompt_ids: Sequence[int], output_ids: Sequence[int], law: Law) -> Rows:
        """Return what the tokens of an output were drawn from."""
        sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=MAX_LOGPROBS)
        text = [*prompt_ids, *output_ids]
        request = generate_request(text, sampling, model=self.model, target_only=True)
        output = await self.client.generate(request, timeout_s=self.timeout_s)
        listed = output.complete.prompt_logprobs[len(prompt_ids) - 1 :]
        logprobs = np.array([list(each.top_logprobs) for each in listed], dtype=np.float64)
        ids = np.array([list(each.top_ids) for each in listed], dtype=np.int64)  # [N, listed]
        is_own = ids == np.array(output_ids)[:, None]
        others = ids.shape[1]  # the outcome of all that are not listed
        outcomes = np.where(is_own.any(1), is_own.argmax(1), others).astype(np.int64)
        rest = np.log1p(-np.minimum(np.exp(logprobs).sum(1), 1 - 1e-12))
        every = np.concatenate([logprobs, rest[:, None]], axis=1)
        if law.top_k:
            every[:, law.top_k :] = -np.inf
        probs = processed(every, Law(law.temperature, law.top_p))
        lead = logprobs[:, 0] - np.array([each.logprob for each in listed])
        return Rows(probs, outcomes, lead, ids)
