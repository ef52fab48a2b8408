"""A stop string ends the output at its first character, wherever drafts and cycles are cut."""

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

TEXT = "abcdefghijklmnopqrstuvwxyzENDABCFGHIJKLMOPQRS0123456789"
PARAMS = SamplingParams(temperature=0.0, max_tokens=48, stop=("END",))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(models: Path) -> AsyncIterator[Stage]:
    folder = save_chain(models / "alphabet", chain(byte_ids(TEXT)))
    target = VerifierSettings(model=str(folder), dtype="float32", num_threads=1)
    async with open_stage([target]) as opened:
        yield opened


async def both(stage: Stage, starts: range, params: SamplingParams, **drafting: object):
    """Play prompts that end with each of these letters, with and without drafts."""
    prompts = [byte_ids(TEXT[at - 1] + TEXT[at]) for at in starts]
    # The drafters know the text behind the stop string as well.
    await together(*(stage.plain(each, replace(params, stop=())) for each in prompts))
    plain = await together(*(stage.plain(each, params) for each in prompts))
    outputs = await together(*(stage.speculated(each, params, **drafting) for each in prompts))
    return zip(starts, plain, outputs, strict=True)


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 4, 5, 6, 7, 8])
async def test_a_stop_string_is_found_at_every_offset_of_a_run(stage: Stage, num_draft_tokens: int):
    """Case 21: runs of up to nine tokens; END begins at each offset and also across two runs.

    A prompt that ends one letter earlier shifts END by one against the runs.
    """
    end = TEXT.index("END")
    offsets = set()
    starts = range(end - 20, end)
    drafting = {"drafter": "oracle", "num_draft_tokens": num_draft_tokens}
    for start, plain, output in await both(stage, starts, PARAMS, **drafting):
        assert_parity(output, plain, start)
        assert output.text == TEXT[start + 1 : end], start
        assert output.token_ids == byte_ids(TEXT[start + 1 : end + 3]), start
        assert output.complete.finish_reason == pb.FINISH_REASON_STOP
        assert output.complete.matched_stop_str == "END"
        assert output.complete.completion_tokens == end + 3 - start - 1
        # The prefill gives the first token, every run after it K + 1.
        offsets.add((end - start - 2) % (num_draft_tokens + 1))
        runs = [len(chunk.token_ids) for chunk in output.chunks]
        assert runs[0] == 1
        assert all(run == num_draft_tokens + 1 for run in runs[1:-1])
        assert all("E" not in chunk.text for chunk in output.chunks)
    assert offsets == set(range(num_draft_tokens + 1))


@pytest.mark.parametrize("drafter", ["alt", "wrong", "ngram"])
async def test_a_stop_string_is_found_behind_rejections(stage: Stage, drafter: str):
    """Case 21: the same text where runs are cut short."""
    starts = range(TEXT.index("END") - 9, TEXT.index("END"))
    for start, plain, output in await both(
        stage, starts, PARAMS, drafter=drafter, num_draft_tokens=8
    ):
        assert_parity(output, plain, start)


@pytest.mark.parametrize(
    ("drafter", "num_draft_tokens"), [("oracle", 2), ("oracle", 8), ("alt", 5), ("ngram", 8)]
)
async def test_a_stop_string_that_is_kept_ends_the_text(
    stage: Stage, drafter: str, num_draft_tokens: int
):
    """Case 21: with include_stop_str_in_output the same ids, and the text up to END."""
    params = replace(PARAMS, include_stop_str_in_output=True)
    end = TEXT.index("END")
    starts = range(end - 9, end)
    drafting = {"drafter": drafter, "num_draft_tokens": num_draft_tokens}
    for start, plain, output in await both(stage, starts, params, **drafting):
        assert_parity(output, plain, start)
        assert output.text == TEXT[start + 1 : end + 3], start
        assert output.token_ids == byte_ids(TEXT[start + 1 : end + 3]), start
        assert output.complete.matched_stop_str == "END"
        pieces = [piece for chunk in output.chunks for piece in chunk.pieces]
        assert "".join(pieces[-3:]) == "END", "told with the ids that it is made of"


async def test_log_probabilities_end_with_the_stop_string(stage: Stage):
    """Case 21: one entry for each id that is left, in stream and completion, kept or not."""
    starts = range(TEXT.index("END") - 5, TEXT.index("END"))
    for keeps in (False, True):
        params = replace(PARAMS, logprobs=2, include_stop_str_in_output=keeps)
        for start, _, output in await both(
            stage, starts, params, drafter="oracle", num_draft_tokens=8
        ):
            told = [each.token_id for chunk in output.chunks for each in chunk.logprobs]
            assert told == output.token_ids == [each.token_id for each in output.logprobs], start


async def test_of_several_stop_strings_the_first_complete_one_wins(stage: Stage):
    """Case 21: one run holds three of them; the cut is the one that plain decoding makes."""
    params = replace(PARAMS, stop=("NDABCF", "ND", "zENDA"))
    starts = range(TEXT.index("END") - 9, TEXT.index("END") - 1)
    for start, plain, output in await both(
        stage, starts, params, drafter="oracle", num_draft_tokens=8
    ):
        assert_parity(output, plain, start)
        assert output.complete.matched_stop_str == "ND"
        assert output.text.endswith("E")


async def test_the_beginning_of_a_stop_string_is_given_out_when_the_text_goes_on(stage: Stage):
    """Case 21: "EN" is held back, and told when no "X" follows or the output is over."""
    for limit in range(22, 28):
        params = replace(PARAMS, stop=("ENX",), max_tokens=limit)
        starts = range(TEXT.index("a") + 1, TEXT.index("a") + 5)
        for start, plain, output in await both(
            stage, starts, params, drafter="oracle", num_draft_tokens=5
        ):
            assert_parity(output, plain, (limit, start))
            assert output.text == TEXT[start + 1 : start + 1 + limit]
            assert output.complete.finish_reason == pb.FINISH_REASON_LENGTH
