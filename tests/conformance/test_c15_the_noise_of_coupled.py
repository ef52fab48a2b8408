"""15. COUPLED draws by the contract's own formula, at the verifier and at the drafter.

The formula is written down here once more, from the contract, in plain integers and float64.
"""

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import LlamaForCausalLM

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.sampling import SamplingParams
from tests.cluster import DRAFTER_NAMES, VERIFIER_NAMES, serving
from tests.conformance.wire import draft_stream, verify_stream
from tests.toy import save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
VOCAB_SIZE = 900
HEAD_SIZE = 512
TEMPERATURE = 3.0  # flat enough that the tail is drawn from
PROMPT = [10, 20, 30, 40]
TOO_CLOSE = 1e-3  # the engine's sums differ from transformers' in the last bits
WORD = 2**32 - 1


def uniform(key: int, a: int, position: int, cycle: int, stream: int) -> float:
    """Return U(key, a, position, cycle, stream): Philox4x32-10, 53 bits, in (0, 1)."""
    c0, c1, c2, c3 = a, position, cycle, stream
    k0, k1 = key & WORD, key >> 32
    for _ in range(10):
        left, right = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & WORD, (left >> 32) ^ c3 ^ k1, left & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return (((c0 << 21) ^ (c1 >> 11)) + 0.5) * 2.0**-53


@dataclass(frozen=True)
class Expected:
    """The token of a position, whether it is one of the tail, and how clear that is."""

    token_id: int
    from_tail: bool
    margin: float


def expected(logits: npt.NDArray[np.float64], seed: int, position: int) -> Expected:
    """Return what the contract says for one row of logits."""
    scaled = logits / TEMPERATURE
    log_probs = scaled - scaled.max()
    log_probs -= math.log(np.exp(log_probs).sum())
    order = np.lexsort((np.arange(len(logits)), -log_probs))
    tail_mass = np.exp(log_probs[order[HEAD_SIZE:]]).sum()
    choice = uniform(seed, 0, position, 0, 4)
    from_tail = bool(choice < tail_mass)
    ids = sorted((order[HEAD_SIZE:] if from_tail else order[:HEAD_SIZE]).tolist())
    noised = [log_probs[i] - math.log(-math.log(uniform(seed, i, position, 0, 0))) for i in ids]
    best = int(np.argmax(noised))  # the first of equals, so the lowest id
    second = max(score for n, score in enumerate(noised) if n != best)
    at_edge = abs(log_probs[order[HEAD_SIZE - 1]] - log_probs[order[HEAD_SIZE]])
    margin = min(noised[best] - second, abs(choice - tail_mass), 1e3 * at_edge)
    return Expected(ids[best], from_tail, margin)


def all_logits(folder: Path, ids: list[int]) -> npt.NDArray[np.float64]:
    """Return transformers' logits after every prefix."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, :, :VOCAB_SIZE].double().numpy()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with more ids than the head holds."""
    folder = tmp_path_factory.mktemp("c15") / "wide"
    return save_toy(folder, seed=7, vocab_size=VOCAB_SIZE, scale=0.2, max_context_length=128)


@pytest.mark.parametrize("seed", [3, 2**64 - 5])
async def test_the_verifiers_tokens(wide: Path, seed: int) -> None:
    settings = VerifierSettings(model=str(wide), dtype="float32")
    signed = seed - 2**64 if seed >= 2**63 else seed
    sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=100, seed=signed)
    ids = list(PROMPT)
    async with (
        serving(VERIFIER_NAMES, lambda: open_verifier(settings)) as address,
        verify_stream(address, sampling=sampling) as stream,
    ):
        while len(ids) < 80:
            start = 0 if ids == PROMPT else len(ids) - 1
            ids.append((await stream.step(ids, start)).verdict.next_token_id)
    logits = await asyncio.to_thread(all_logits, wide, ids)
    clear = check(logits, ids, seed, range(len(PROMPT), len(ids)))
    assert sum(each.from_tail for each in clear) > 10
    assert sum(not each.from_tail for each in clear) > 10


async def test_the_drafters_tokens(wide: Path) -> None:
    settings = DrafterSettings(model=str(wide), dtype="float32")
    sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=100, seed=11)
    ids = list(PROMPT)
    async with (
        serving(DRAFTER_NAMES, lambda: open_drafter(settings)) as address,
        draft_stream(address, sampling=sampling, vocab_size=VOCAB_SIZE) as stream,
    ):
        while len(ids) < 70:
            await stream.advance(ids, 0, num_tokens=11)
            ids += (await stream.read()).block.draft.token_ids
        pending = ids[60:65]
        await stream.advance(ids[:60], 0, pending=pending, num_tokens=4)
        block = (await stream.read()).block
    assert list(block.path_token_ids) == ids[60:66]
    assert list(block.draft.token_ids) == ids[66:70]
    logits = await asyncio.to_thread(all_logits, wide, ids)
    clear = check(logits, ids, 11, range(len(PROMPT), len(ids)))
    assert len(clear) > 40


def check(
    logits: npt.NDArray[np.float64], ids: list[int], seed: int, positions: range
) -> list[Expected]:
    """Compare every clear position; the token at t comes from the logits after t - 1."""
    clear = []
    for position in positions:
        want = expected(logits[position - 1], seed, position)
        if want.margin > TOO_CLOSE:
            assert ids[position] == want.token_id, f"position {position}"
            clear.append(want)
    return clear
