"""Loads a draft head and says what it is bound to."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from drafter_svc.heads.eagle import EagleAtWork
from drafter_svc.heads.engine import HeadEngine
from drafter_svc.heads.kept import KeptStates
from drafter_svc.heads.last_pair import MedusaAtWork, ReDrafterAtWork
from drafter_svc.heads.source import HeadSource
from drafter_svc.heads.work import Head
from outrider.distribution import HEAD_SIZE
from outrider.engine.linear import replace_linears
from outrider.engine.model import DTYPES
from outrider.engine.norm import replace_norms
from outrider.errors import OutriderError
from outrider.heads.eagle import EagleHead
from outrider.heads.layouts import LoadedHead, read_head_folder
from outrider.heads.medusa import MedusaHead
from outrider.heads.redrafter import ReDrafterHead
from outrider.hosting import ModelSettings, check_device
from outrider.identity import ModelFacts, ModelIdentity, Numerics, TokenizerFiles
from outrider.identity.weights import weights_digest
from outrider.kernels import Kernels, KernelsUnavailable, load_kernels


class UnusableHead(OutriderError):
    """The head's files cannot be used."""


@dataclass(frozen=True, slots=True)
class HostedHead:
    """A head at work, its identity, and the target whose hidden states it reads."""

    engine: HeadEngine
    identity: ModelIdentity
    files: TokenizerFiles
    target_weights_digest: str
    sources: tuple[HeadSource, ...]
    device: torch.device


@asynccontextmanager
async def host_head(
    settings: ModelSettings, folder: Path, target: Path | None
) -> AsyncIterator[HostedHead]:
    """Load the head of a folder; ``target`` has what the folder lacks. Closed on exit.

    Raises: UnusableHead naming the flag if it cannot work; OSError if files are missing.
    """
    check_device(settings.device)
    try:
        hosted = await asyncio.to_thread(_load, settings, folder, target)
    except ValueError as error:
        raise UnusableHead(f"--model {settings.model}: {error}") from error
    hosted.engine.start()
    try:
        yield hosted
    finally:
        await hosted.engine.close()


def _load(settings: ModelSettings, folder: Path, target: Path | None) -> HostedHead:
    device = torch.device(settings.device)
    native = _native(settings, device)
    # On a CPU without native kernels the library's bfloat16 is the slower one.
    slow = device.type == "cpu" and native is None
    dtype = torch.float32 if slow else DTYPES[settings.dtype]
    loaded = read_head_folder(folder, target, dtype=dtype)
    has_tokenizer = (folder / "tokenizer.json").is_file()
    if not has_tokenizer and target is None:
        raise ValueError(
            "the folder has no tokenizer.json; name the target's folder with --target-model"
        )
    files = TokenizerFiles.from_folder(folder if has_tokenizer or target is None else target)
    digest = loaded.target_weights_digest
    if target is not None:
        found = weights_digest(target)
        if digest and digest != found:
            raise ValueError(
                f"made for a target with weights {digest}, but those of {target} are {found}"
            )
        digest = found
    if not digest:
        raise ValueError(
            "the folder does not say which target it was made for; name the target's folder with "
            "--target-model"
        )
    whole = _Whole(loaded).to(device)
    if native is not None:
        replace_linears(whole, native, heads=list(whole.logits))
        replace_norms(whole, native)
    engine = HeadEngine(whole.at_work(), loaded.draft_ids.to(device))
    longest = loaded.max_position_embeddings
    if settings.max_context_length:
        longest = min(longest, settings.max_context_length)
    facts = ModelFacts(
        name=settings.name or Path(settings.model).name,
        incarnation=uuid.uuid4().hex,
        architecture=type(loaded.module).__name__,
        logits_size=loaded.vocab_size,
        max_context_length=longest,
        numerics=Numerics(
            dtype="float32" if slow else settings.dtype,
            device=device.type,
            kernels="torch" if native is None else native.name,
            coupled_head_size=HEAD_SIZE,
        ),
        revision=settings.revision,
    )
    identity = ModelIdentity.from_folder(folder, facts, files=files)
    return HostedHead(
        engine=engine,
        identity=identity,
        files=files,
        target_weights_digest=digest,
        sources=_sources(loaded, engine, longest),
        device=device,
    )


def _sources(loaded: LoadedHead, engine: HeadEngine, longest: int) -> tuple[HeadSource, ...]:
    width, kept = len(loaded.tap_layers) * loaded.target_hidden_size, KeptStates()
    return tuple(
        HeadSource(
            engine=engine,
            kind=loaded.kind,
            feature_layers=loaded.tap_layers,
            feature_width=width,
            max_length=longest,
            makes_trees=makes_trees,
            kept=kept,
        )
        for makes_trees in (False, True)
    )


def _native(settings: ModelSettings, device: torch.device) -> Kernels | None:
    """Return the native kernels where the head runs on a CPU that has them."""
    if device.type != "cpu":
        return None
    try:
        return load_kernels(threads=settings.num_threads or None)
    except KernelsUnavailable:
        return None


class _Whole(nn.Module):
    """A head with its embeddings and its logits."""

    def __init__(self, loaded: LoadedHead) -> None:
        super().__init__()
        self.head = loaded.module
        self.embeddings = None
        if loaded.embeddings is not None:
            size, width = loaded.embeddings.shape
            self.embeddings = nn.Embedding(size, width, _weight=loaded.embeddings)
        shared = loaded.lm_head if loaded.lm_head.dim() == 3 else loaded.lm_head[None]
        self.logits = nn.ModuleList(_linear(weight) for weight in shared)
        self.eval().requires_grad_(False)

    def at_work(self) -> Head:
        """Return the head as the engine runs it."""
        logits: list[nn.Linear] = list(self.logits)  # type: ignore[arg-type]
        if isinstance(self.head, MedusaHead):
            return MedusaAtWork(self.head, logits)
        assert self.embeddings is not None
        if isinstance(self.head, ReDrafterHead):
            return ReDrafterAtWork(self.head, self.embeddings, logits[0])
        assert isinstance(self.head, EagleHead)
        return EagleAtWork(self.head, self.embeddings, logits[0])


def _linear(weight: torch.Tensor) -> nn.Linear:
    """Shapes: weight [D, H]."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    return linear
