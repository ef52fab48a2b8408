"""The start-up test: packed passes must say what the plain model says, or the model is refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outrider.engine.cache import SequenceCache
from outrider.engine.errors import UnsupportedModel
from outrider.engine.fused import FusedDecoder, NotFusible
from outrider.engine.ledger import BlockLedger
from outrider.engine.model import LoadedModel
from outrider.engine.packed import PackedModel, is_attached, use_kernels
from outrider.engine.plan import Slice, StepPlan
from outrider.engine.pool import KVPool
from outrider.engine.settings import EngineSettings
from outrider.engine.view import Mode
from outrider.kernels import Kernels, KernelsUnavailable, load_kernels

NUM_BLOCKS = 48
LENGTHS = (23, 37)
# Root mean square difference of the worst row, in standard deviations of the plain model's logits.
# Rounding alone gives up to 0.21 in bfloat16 on layer cuts of a small model; one wrong position
# gives 0.75 and more.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.4}
# The same of fused layers against the model's own modules on the same kernels: they round alike but
# for the last bit of the exponential function.
FUSED_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1}
RECURRENT = ("linear_attention", "conv", "mamba", "recurrent", "mamba2")


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """What the start-up test found.

    ``max_error`` is the root mean square logit difference from the plain model in the worst row, in
    standard deviations of its logits;
    ``kernels_note``: why not all of the native kernels are used;
    ``row_invariant``: a row has the same bits alone and in any batch that was tried.
    """

    mode: str
    row_invariant: bool
    kernels: str
    max_error: float
    kernels_note: str = ""


def prepare(
    model: LoadedModel, settings: EngineSettings
) -> tuple[PackedModel, KVPool, SelfTestReport]:
    """Install kernels and attention, choose the mode, and test.

    Raises: UnsupportedModel with the reason.
    """
    _refuse_known(model)
    if is_attached(model):
        raise RuntimeError("the model already belongs to another engine")
    with torch.inference_mode():
        kernels, note = _kernels(model, settings)
        if kernels is not None:
            # What is left to torch is small, and its OpenMP threads would spin on our cores.
            torch.set_num_threads(1)
        sequences = [_token_ids(model, length, seed) for seed, length in enumerate(LENGTHS)]
        plain = [_plain_logits(model, ids) for ids in sequences]  # before anything is replaced
        if kernels is not None:
            use_kernels(model, kernels)
        reasons = []
        for mode in (Mode.INPLACE, Mode.GATHER):
            packed = PackedModel(model, mode, kernels)
            packed.attach()
            try:
                trial = _Trial(packed, settings.block_size)
                error = trial.compare(sequences, plain)
                trial.roll_back_and_adopt(sequences[1], plain[1])
                if mode is Mode.INPLACE and kernels is not None:
                    note = _fuse(packed, trial, sequences, plain, kernels)
                # A GPU's library picks its kernels by the number of rows: a few equal bits promise
                # nothing about the passes that were not tried.
                on_cpu = model.device.type == "cpu"
                row_invariant = on_cpu and trial.is_row_invariant(sequences[0])
            except Exception as problem:  # whatever a foreign model does with our view
                packed.detach()
                reasons.append(f"{mode.value}: {type(problem).__name__}: {problem}")
                continue
            name = kernels.name if kernels is not None else _library(model.device)
            name += "-layers" if packed.fused is not None else ""
            report = SelfTestReport(mode.value, row_invariant, name, error, note)
            return packed, trial.pool, report
    raise UnsupportedModel(f"{model.architecture} failed the start-up test: {'; '.join(reasons)}")


def _fuse(
    packed: PackedModel,
    trial: "_Trial",
    sequences: list[list[int]],
    plain: list[torch.Tensor],
    kernels: Kernels,
) -> str:
    """Let fused layers take over if they compute what the modules do; returns why they do not."""
    modules = trial.logits(sequences)
    try:
        packed.fused = FusedDecoder(packed.model, kernels)
        error = max(map(_distance, trial.logits(sequences), modules))
        limit = FUSED_TOLERANCES[packed.model.dtype]
        if not error <= limit:
            raise NotFusible(f"its logits differ by {error:.3g} deviations")
        trial.compare(sequences, plain)
        trial.roll_back_and_adopt(sequences[1], plain[1])
    except Exception as problem:  # whatever a foreign model is made of
        packed.fused = None
        return f"layers are not fused: {problem}"
    return ""


def _refuse_known(model: LoadedModel) -> None:
    """Families that would fail late or only on long inputs."""
    module: Any = model.module
    config: Any = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(module, "_is_stateful", False) or kinds & set(RECURRENT):
        raise UnsupportedModel(
            f"{model.architecture} keeps a recurrent state, which cannot roll back"
        )
    if getattr(config, "attention_chunk_size", None) or "chunked_attention" in kinds:
        raise UnsupportedModel(f"{model.architecture} uses chunked attention")
    if getattr(config, "alibi", False):
        raise UnsupportedModel(f"{model.architecture} uses ALiBi, which is not implemented")
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{model.architecture} is an encoder-decoder model")
    if not type(module)._can_set_attn_implementation():
        raise UnsupportedModel(
            f"{model.architecture} computes attention without transformers' interface"
        )


def _kernels(model: LoadedModel, settings: EngineSettings) -> tuple[Kernels | None, str]:
    if model.device.type != "cpu":
        return None, ""
    if settings.kernels == "torch":
        return None, "settings.kernels=torch"
    try:
        return load_kernels(threads=settings.threads), ""
    except KernelsUnavailable as reason:
        return None, str(reason)


def _library(device: torch.device) -> str:
    """Name what computes in place of our kernels; results differ between kinds of GPU."""
    if device.type != "cuda":
        return "torch"
    return f"torch-{torch.__version__} {torch.cuda.get_device_name(device)}"


def _token_ids(model: LoadedModel, length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, model.logits_size, (length,), generator=generator).tolist()
    return ids


def _plain_logits(model: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    """The untouched model on one sequence, eager attention; [len(ids), V] float32."""
    module: Any = model.module
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        logits = module(torch.tensor([ids], device=model.device), use_cache=False).logits
    finally:
        module.set_attn_implementation(before)
    result: torch.Tensor = logits[0].float()
    return result


class _Trial:
    """A small pool on which sequences are fed by hand."""

    def __init__(self, packed: PackedModel, block_size: int) -> None:
        self.packed = packed
        self.block_size = block_size
        self.pool = KVPool(NUM_BLOCKS, block_size=block_size)
        self.ledger = BlockLedger(NUM_BLOCKS)

    def cache(self, salt: str = "") -> SequenceCache:
        return SequenceCache(self.ledger, block_size=self.block_size, salt=salt)

    def feed(self, parts: Sequence[tuple[SequenceCache, Sequence[int]]]) -> list[torch.Tensor]:
        """One pass; the logits of all fed rows, a tensor for each part."""
        for cache, ids in parts:
            copy = cache.reserve(cache.length + len(ids))
            if copy is not None:
                self.pool.copy_block(copy[0], [copy[1]])
        slices = [Slice(cache, ids, len(ids)) for cache, ids in parts]
        device = self.packed.model.device
        plan = StepPlan.build(slices, block_size=self.block_size, device=device)
        logits, _ = self.packed.forward(plan, self.pool)
        view = self.packed.view
        if self.packed.fused is None and not (view.num_attentions and view.num_updates):
            raise NotImplementedError(
                "the model does not use the cache or the attention we gave it"
            )
        for cache, ids in parts:
            cache.extend(ids)
        return list(torch.split(logits, [len(ids) for _, ids in parts]))

    def compare(self, sequences: list[list[int]], plain: list[torch.Tensor]) -> float:
        """Chunks of two sequences in common passes against the plain model."""
        a, b = sequences
        first, second = self.cache(), self.cache()
        one = self.feed([(first, a[:7]), (second, b[:18])])
        two = self.feed([(second, b[18:]), (first, a[7:])])
        error = max(
            self._error(torch.cat((one[0], two[1])), plain[0]),
            self._error(torch.cat((one[1], two[0])), plain[1]),
        )
        first.clear()
        second.clear()
        return error

    def logits(self, sequences: list[list[int]]) -> list[torch.Tensor]:
        """Return the logits of sequences fed in two parts."""
        found = []
        for ids in sequences:
            cache = self.cache()
            half = len(ids) // 2
            found.append(
                torch.cat([self.feed([(cache, part)])[0] for part in (ids[:half], ids[half:])])
            )
            cache.clear()
        return found

    def roll_back_and_adopt(self, ids: list[int], plain: torch.Tensor) -> None:
        """Rejected rows leave no trace; a second sequence takes over committed blocks."""
        first, second = self.cache(), self.cache()
        self.feed([(first, ids[:-6])])
        self.feed([(first, ids[5::-1])])  # a draft that is rejected
        first.truncate(len(ids) - 6)
        self._error(self.feed([(first, ids[-6:])])[0], plain[-6:])
        first.commit(len(ids))
        adopted = second.adopt(ids, len(ids) - 1)
        assert adopted == (len(ids) - 1) // self.block_size * self.block_size
        self._error(self.feed([(second, ids[adopted:])])[0], plain[adopted:])
        first.clear()
        second.clear()

    def is_row_invariant(self, ids: list[int]) -> bool:
        """The same rows one at a time, in blocks, and among other sequences, bit for bit."""
        single, context, last = self.cache(), 4, 17  # every pass of a large model takes its time
        self.feed([(single, ids[:context])])
        alone = [self.feed([(single, [token])])[0] for token in ids[context:last]]
        expected = torch.cat(alone)
        single.clear()
        for rows in (2, 3, 5, 8, last - context):
            block = self.cache()
            self.feed([(block, ids[:context])])
            got = self.feed([(block, ids[context : context + rows])])[0]
            block.clear()
            if not torch.equal(got, expected[:rows]):
                return False
        crowd = [self.cache() for _ in range(5)]
        got = self.feed([(cache, ids[: 3 + 5 * n]) for n, cache in enumerate(crowd)])[4]
        same = torch.equal(got[context:last], expected)
        for cache in crowd:
            cache.clear()
        return same

    def _error(self, got: torch.Tensor, plain: torch.Tensor) -> float:
        error = _distance(got, plain)
        limit = TOLERANCES[self.packed.model.dtype]
        if not error <= limit:
            raise ArithmeticError(f"logits differ from the plain model by {error:.3g} deviations")
        return error


def _distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square difference of the worst row, in deviations of what is expected."""
    worst = (got - expected).square().mean(-1).sqrt().max()
    return float(worst / expected.std().clamp_min(1e-30))
