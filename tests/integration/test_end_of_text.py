"""The output ends at the first EOS, also where a draft copies what once stood behind it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.integration.chain import byte_ids, chain, save_chain
from tests.integration.stage import Stage, assert_parity, open_stage, together
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH
# After "u" the target says v, x, y, E, z, w and then u again: a circle through its EOS.
U, V, X, Y, E, Z, W = CIRCLE = byte_ids("uvxyEzw")
PROMPT = [U, V, X, Y, E, Z, W, U, V]  # lookup finds "u v" and copies "x y E z w u v"
PARAMS = SamplingParams(temperature=0.0, max_tokens=24)
LENGTHS = range(1, 9)
DRAFTERS = ("ngram", "oracle", "alt")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(models: Path) -> AsyncIterator[Stage]:
    circle = chain([*CIRCLE, U])
    targets = []
    for name, ends in (("one-eos", [E]), ("no-eos", []), ("two-eos", [E, Y])):
        folder = save_chain(models / name, circle, eos_token_ids=ends)
        targets.append(VerifierSettings(model=str(folder), dtype="float32", num_threads=1))
    async with open_stage(targets) as opened:
        # The scripted drafters know what would follow the EOS as well.
        await opened.of("no-eos").plain(PROMPT, replace(PARAMS, max_tokens=64))
        yield opened


async def check(stage: Stage, params: SamplingParams):
    """Return the plain output and those of all drafters and draft lengths, found equal to it."""
    plain = await stage.plain(PROMPT, params)
    cells = [(drafter, length) for drafter in DRAFTERS for length in LENGTHS]
    outputs = await together(
        *(
            stage.speculated(PROMPT, params, drafter=drafter, num_draft_tokens=length)
            for drafter, length in cells
        )
    )
    for cell, output in zip(cells, outputs, strict=True):
        assert_parity(output, plain, cell)
    return plain, dict(zip(cells, outputs, strict=True))


async def test_generation_ends_at_an_eos_inside_a_draft(stage: Stage):
    """Case 16: x y EOS and nothing behind it, in ids, text, usage and counts."""
    plain, outputs = await check(stage.of("one-eos"), PARAMS)
    assert plain.token_ids == [X, Y, E]
    assert plain.text == "xy"
    assert (plain.complete.finish_reason, plain.complete.matched_token_id) == (STOP, E)
    for output in outputs.values():
        receipt = output.complete.receipt
        assert sum(len(chunk.token_ids) for chunk in output.chunks) == 3
        assert receipt.num_accepted_draft_tokens <= 2  # the first token comes from the prefill
    # The draft did run past the end: only what was delivered counts as accepted.
    long = outputs["oracle", 8].complete.receipt
    assert (long.num_draft_tokens, long.num_accepted_draft_tokens) == (8, 2)


async def test_without_an_eos_generation_runs_to_its_length(stage: Stage):
    """Case 16: no EOS id at all is no error."""
    plain, _ = await check(stage.of("no-eos"), PARAMS)
    assert len(plain.token_ids) == PARAMS.max_tokens
    assert plain.token_ids.count(E) > 1
    assert plain.complete.finish_reason == LENGTH
    assert plain.complete.WhichOneof("matched_stop") is None


async def test_an_ignored_eos_is_a_token_like_any_other(stage: Stage):
    """Case 16: with ignore_eos the text goes on."""
    plain, outputs = await check(stage.of("one-eos"), replace(PARAMS, ignore_eos=True))
    free = await stage.of("no-eos").plain(PROMPT, PARAMS)
    assert plain.token_ids == free.token_ids
    assert outputs["oracle", 4].complete.receipt.draft_acceptance_rate == 1.0
    assert outputs["ngram", 4].complete.receipt.draft_acceptance_rate == 1.0


async def test_either_of_two_eos_ids_ends_the_output(stage: Stage):
    """Case 16: the first one that comes."""
    two = stage.of("two-eos")
    plain, _ = await check(two, PARAMS)
    assert plain.token_ids == [X, Y]
    assert plain.complete.matched_token_id == Y
    beyond = [*PROMPT, X, Y]
    other = await two.plain(beyond, PARAMS)
    assert other.token_ids == [E]
    copied = await two.speculated(beyond, PARAMS, drafter="ngram")
    assert_parity(copied, other)


async def test_a_stop_token_id_ends_the_output_like_an_eos(stage: Stage):
    """Case 16: the same cut for ids that the request names."""
    params = replace(PARAMS, stop_token_ids=(Z,), ignore_eos=True)
    plain, _ = await check(stage.of("one-eos"), params)
    assert plain.token_ids == [X, Y, E, Z]
    assert plain.complete.matched_token_id == Z


@pytest.mark.parametrize("model", ["one-eos", "two-eos"])
async def test_an_eos_that_the_request_names_ends_the_output_though_eos_is_ignored(
    stage: Stage, model: str
):
    """Case 16: ignore_eos is about the model's own list, not about what the client asks for."""
    params = replace(PARAMS, stop_token_ids=(E,), ignore_eos=True)
    plain, _ = await check(stage.of(model), params)
    assert plain.token_ids == [X, Y, E]
    assert (plain.complete.finish_reason, plain.complete.matched_token_id) == (STOP, E)


@pytest.mark.parametrize(("keeps", "text"), [(False, "xy"), (True, "xyE")])
async def test_the_text_of_a_stop_token_is_kept_on_request(stage: Stage, keeps: bool, text: str):
    """Case 16: include_stop_str_in_output changes the text alone; E is no special token here."""
    params = replace(PARAMS, include_stop_str_in_output=keeps, stop=("never",))
    plain, outputs = await check(stage.of("one-eos"), params)
    assert (plain.text, plain.token_ids) == (text, [X, Y, E])
    for output in outputs.values():
        pieces = [piece for chunk in output.chunks for piece in chunk.pieces]
        assert pieces == ["x", "y", "E" if keeps else ""]
