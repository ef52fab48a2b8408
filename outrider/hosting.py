"""What both workers do with a model: settings, loading, self-test, identity."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open

from outrider.distribution import HEAD_SIZE
from outrider.engine import Engine, EngineSettings, Head, LoadedModel, load_model
from outrider.errors import OutriderError
from outrider.identity import ModelFacts, ModelIdentity, Numerics, TokenizerFiles
from outrider.serving.settings import ServiceSettings
from outrider.v1 import common_pb2
from outrider.worker import engine_load

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


class UnusableModel(OutriderError):
    """The model's files or the device cannot be used; the message names the flag."""


class ModelSettings(ServiceSettings):
    """Which model a worker loads, and how it runs it."""

    model: str = Field(
        min_length=1, description="Folder or hub id of a causal language model (Hugging Face)."
    )
    name: str = Field(
        default="", description="Name under which the model is served; empty: the folder's name."
    )
    revision: str = Field(default="", description="Revision that the identity states.")
    dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="Element type of weights and activations."
    )
    device: str = Field(
        default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu, cuda or cuda:N."
    )
    load_format: Literal["auto", "dummy"] = Field(
        default="auto", description="dummy draws random weights of the configured shape."
    )
    dummy_seed: int = Field(default=0, ge=0, description="Seed of dummy weights.")
    num_threads: int = Field(
        default=0, ge=0, le=1024, description="Threads of a forward pass; 0 takes every core."
    )
    max_context_length: int = Field(
        default=0, ge=0, description="Longest sequence; 0 takes what the model was trained for."
    )
    kv_cache_tokens: int = Field(
        default=16_384, ge=256, description="Tokens whose KV is kept, of all sequences together."
    )
    max_tokens_per_pass: int = Field(
        default=512, ge=16, le=65_536, description="Rows of one forward pass at most."
    )
    prefill_chunk_tokens: int = Field(
        default=128, ge=16, description="Prompt rows of a pass beside running streams at most."
    )
    max_sequences: int = Field(
        default=256, ge=1, le=65_536, description="Leases that are open at once."
    )
    max_draft_tokens: int = Field(
        default=64, ge=1, le=1024, description="Longest draft that is made or checked."
    )


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A loaded model with its engine running and its identity computed."""

    engine: Engine
    identity: ModelIdentity
    files: TokenizerFiles

    def load(self, num_leases: int) -> common_pb2.Load:
        """Return the load of a worker with this many leases on the engine."""
        return engine_load(self.engine, num_leases)


MakeHead = Callable[[int, LoadedModel], Head]
"""Builds the engine's head for a tokenizer of this many ids, and a model."""


@asynccontextmanager
async def host_model(settings: ModelSettings, make_head: MakeHead) -> AsyncIterator[HostedModel]:
    """Load, test and identify the model; the engine is closed on exit.

    Raises: UnsupportedModel if the model cannot work; UnusableModel or OSError if files or device
        are not usable.
    """
    check_device(settings.device)
    folder = await asyncio.to_thread(local_folder, settings.model)
    with _blamed_on(settings.model, folder):
        _check_files(settings, folder)
        files = TokenizerFiles.from_folder(folder)
        vocab_size = max(files.tokenizer().get_vocab(with_added_tokens=True).values()) + 1
        loaded = await asyncio.to_thread(_load, settings, folder)
    engine = Engine(loaded, _engine_settings(settings), make_head(vocab_size, loaded))
    await asyncio.to_thread(engine.start)
    try:
        facts = _facts(settings, loaded, engine)
        with _blamed_on(settings.model, folder):
            identity = await asyncio.to_thread(
                lambda: ModelIdentity.from_folder(folder, facts, files=files)
            )
        yield HostedModel(engine, identity, files)
    finally:
        await engine.close()


def check_device(device: str) -> None:
    """Raise UnusableModel if torch does not see the device."""
    where = torch.device(device)
    seen = torch.cuda.device_count()
    if where.type == "cuda" and (where.index or 0) >= seen:
        raise UnusableModel(
            f"--device {device}: torch {torch.__version__} sees {seen} CUDA devices; "
            "choose another, or install a driver and a torch that fit the GPU"
        )


def local_folder(model: str) -> Path:
    """Return the folder of a model, fetched from the hub where the name is no folder.

    Raises: OSError if it is neither a folder nor to be had from the hub.
    """
    path = Path(model)
    if path.is_dir():
        return path
    if path.exists():
        raise OSError(f"--model {model}: not a folder; name the folder that holds config.json")
    if not HUB_ID.fullmatch(model) or ("/" in model and path.parent.is_dir()):
        raise OSError(f"--model {model}: no such folder")
    # Imported here: a model in a folder must load where the hub's client is absent or switched off.
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.bin"]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the client raises many kinds; all mean the same to an operator
        raise OSError(
            f"--model {model}: no such folder, and the hub does not give it: {error}"
        ) from error


@contextmanager
def _blamed_on(model: str, folder: Path) -> Iterator[None]:
    """Name flag and folder in what the libraries say of files that they cannot use."""
    where = model if Path(model) == folder else f"{model} ({folder})"
    try:
        yield
    except (ValueError, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnusableModel(f"--model {where}: {first_line}") from error


def _check_files(settings: ModelSettings, folder: Path) -> None:
    """Raise ValueError for what the libraries would not put into words."""
    if not (folder / "config.json").is_file():
        raise ValueError("no config.json; the folder must hold a model in Hugging Face's format")
    if settings.load_format == "dummy":
        return
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            detail = f"{path.name} is damaged or incomplete, fetch it again ({error})"
            raise ValueError(detail) from error


def _load(settings: ModelSettings, folder: Path) -> LoadedModel:
    try:
        return load_model(
            str(folder),
            dtype=settings.dtype,
            device=settings.device,
            load_format=settings.load_format,
            seed=settings.dummy_seed,
        )
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError("the weights do not have the shapes that config.json states") from error


def _engine_settings(settings: ModelSettings) -> EngineSettings:
    block_size = EngineSettings().block_size
    return EngineSettings(
        block_size=block_size,
        num_blocks=-(-settings.kv_cache_tokens // block_size),
        max_tokens_per_pass=settings.max_tokens_per_pass,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        threads=settings.num_threads or None,
    )


def _facts(settings: ModelSettings, loaded: LoadedModel, engine: Engine) -> ModelFacts:
    longest = loaded.max_context_length
    if settings.max_context_length:
        longest = min(longest, settings.max_context_length)
    report = engine.report
    return ModelFacts(
        name=settings.name or Path(settings.model).name,
        incarnation=uuid.uuid4().hex,
        architecture=loaded.architecture,
        logits_size=loaded.logits_size,
        max_context_length=min(longest, settings.kv_cache_tokens),
        numerics=Numerics(
            dtype=settings.dtype,
            device=torch.device(settings.device).type,
            kernels=report.kernels,
            row_invariant=report.row_invariant,
            coupled_head_size=HEAD_SIZE,
        ),
        revision=settings.revision,
        eos_token_ids=loaded.eos_token_ids,
        dummy_seed=settings.dummy_seed if settings.load_format == "dummy" else None,
    )
