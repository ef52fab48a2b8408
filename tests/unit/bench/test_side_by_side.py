"""Statistics of the side-by-side measurement, on turns that can be calculated by hand."""

import asyncio
import math
import os
import sys
from pathlib import Path

import pytest

from bench.peers import figures as of
from bench.peers.contestants import (
    CONTESTANTS,
    DEFAULT,
    TARGET_ONLY,
    VLLM_PLAIN,
    commands,
    contestant,
    rotated,
)
from bench.peers.driver import play
from bench.peers.page import Setting, row, write_page
from bench.peers.turn import Answer, Played, Turn
from bench.side_by_side import headlines

DRAFTED = contestant("outrider:suffix@4")
TIMES = {"queue": 10.0, "draft": 20.0, "verify": 40.0, "network": 10.0, "total": 100.0}


def turn(answers: list[Answer], wall_s: float) -> Played:
    return Played(answers, wall_s=wall_s, cpu_s=wall_s, peak_rss_bytes=2**20)


def one_by_one(ids: list[int]) -> Answer:
    """First token after 0.5 s, then one every 0.1 s."""
    return Answer(ids, [(0.5 + 0.1 * i, 1) for i in range(len(ids))])


THREE_PASSES = Answer([1, 2, 3, 4, 5, 6], [(0.2, 1), (0.3, 4), (0.4, 1)], TIMES)


def test_time_per_token_leaves_out_the_first_pass() -> None:
    assert of.tpot_ms(one_by_one([7, 8, 9])) == pytest.approx(100.0)
    assert of.tpot_ms(THREE_PASSES) == pytest.approx(40.0)
    assert of.tpot_ms(Answer([1, 2], [(0.1, 2)])) is None


def test_acceptance_counts_later_passes_and_saved_ones_all() -> None:
    assert of.mean_acceptance_length([THREE_PASSES]) == 2.5
    assert of.mean_acceptance_length([Answer([1], [(0.1, 1)])]) == 1.0
    assert of.passes_saved([THREE_PASSES]) == 0.5
    assert of.passes_saved([one_by_one([1, 2])]) == 0.0


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0, 1.0, 2.0], 50, 2.0), ([1.0, 2.0], 99, 2.0), ([5.0], 50, 5.0), ([1.0, 2.0], 50, 1.0)],
)
def test_a_percentile_is_one_of_the_values(
    values: list[float], percent: float, expected: float
) -> None:
    assert of.percentile(values, percent) == expected


def test_a_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(of.percentile([], 50))


def test_shares_of_the_time_add_up() -> None:
    shares = of.shares([THREE_PASSES, one_by_one([1])])
    assert shares["verify"] == 0.4
    assert sum(shares.values()) == pytest.approx(1.0)
    assert of.shares([one_by_one([1])]) == {}


def test_ratios_pair_the_same_repeats() -> None:
    # A machine that slows down by ten halves nobody's ratio.
    base = [turn([one_by_one([1, 2])], 1.0), turn([one_by_one([1, 2])], 10.0)]
    ours = [turn([one_by_one([1, 2])], 0.5), turn([one_by_one([1, 2])], 5.0)]
    assert of.ratios(ours, base) == of.Spread(2.0, 2.0, 2.0)
    assert of.ratios(ours[:1], base) == of.Spread(2.0, 2.0, 2.0)


def some_turns() -> dict[tuple[of.Contestant, int], list[Played]]:
    plain = one_by_one([1, 2, 3, 4, 5, 6])
    return {
        (TARGET_ONLY, 1): [turn([plain], 2.0), turn([plain], 3.0)],
        (DRAFTED, 1): [
            turn([THREE_PASSES], 1.0),
            turn([Answer([1, 2, 3, 4, 5, 7], THREE_PASSES.arrivals, TIMES)], 1.0),
        ],
    }


def test_figures_of_a_contestant() -> None:
    found = of.figures(some_turns(), DRAFTED, 1, num_cores=2)
    assert found.tokens_per_s == of.Spread(6.0, 6.0, 6.0)
    assert found.tokens_per_s_per_core == 3.0
    assert found.cores_busy == 1.0
    assert found.ttft_ms.median == pytest.approx(200.0)
    assert (found.num_equal, found.num_answers) == (1, 2)
    assert found.ratios == {TARGET_ONLY.name: of.Spread(2.5, 2.0, 3.0)}
    assert VLLM_PLAIN.name not in found.ratios


def test_the_ratios_that_aims_are_set_for() -> None:
    walls = {
        (TARGET_ONLY, 1): 4.0,
        (DEFAULT, 1): 2.0,
        (VLLM_PLAIN, 1): 6.0,
        (contestant("vllm:ngram"), 1): 8.0,
        (contestant("transformers:assistant"), 1): 5.0,
        (contestant("transformers:plain"), 1): 4.5,
        (TARGET_ONLY, 8): 1.0,
        (VLLM_PLAIN, 8): 2.0,
        (TARGET_ONLY, 16): 1.0,
        (DEFAULT, 16): 1.25,
        (VLLM_PLAIN, 16): 50.0,
    }
    turns = {who: [turn([one_by_one([1, 2, 3])], wall_s)] for who, wall_s in walls.items()}
    found = headlines({who: of.figures(turns, *who, num_cores=2) for who in turns})
    assert found == {
        "speedup_vs_target_only": pytest.approx(2.0),
        "speedup_vs_vllm_plain": pytest.approx(3.0),
        "speedup_vs_best_peer": pytest.approx(2.5),
        "target_only_vs_vllm_1": pytest.approx(1.5),
        "target_only_vs_vllm_8": pytest.approx(2.0),
        "worst_ratio_16_streams": pytest.approx(0.8),
    }
    assert headlines({}) == {}


def test_the_page_has_a_line_for_every_contestant(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = {key: of.figures(some_turns(), *key, num_cores=2) for key in some_turns()}
    setting = Setting("Two repeats.", {"outrider": "1.0"}, ["vLLM is not installed"], "make")
    page = write_page(results, setting, tmp_path).read_text()
    for one, num_streams in results:
        assert " | ".join(row(one, results[one, num_streams])) in page
    assert "vLLM is not installed" in page
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".png"}


def test_everybody_begins_once() -> None:
    orders = [rotated(CONTESTANTS, repeat) for repeat in range(len(CONTESTANTS))]
    assert {order[0] for order in orders} == set(CONTESTANTS)
    assert all(set(order) == set(CONTESTANTS) for order in orders)


def test_outriders_modes_share_a_process() -> None:
    found = commands(CONTESTANTS, Path("t"), Path("d"), is_vllm_eager=False)
    assert len(found) == 7
    assert found["outrider"][:2] == [sys.executable, "-m"]
    assert TARGET_ONLY.mode in found["outrider"]
    assert "--eager" not in found[VLLM_PLAIN.name]


@pytest.mark.parametrize("name", ["outrider", "outrider:", "gpt:plain", ""])
def test_unknown_contestants_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="ENGINE:MODE"):
        contestant(name)


class Counting:
    """Answers with the prompt, and counts how many were asked at once."""

    def __init__(self) -> None:
        self.num_running = self.most_running = 0

    async def start(self) -> dict[str, str]:
        return {}

    async def answer(self, turn: Turn, index: int) -> Answer:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        for _ in range(3 - index % 2):
            await asyncio.sleep(0)
        self.num_running -= 1
        return Answer(turn.prompts[index], [(0.0, 1)])

    def pids(self, mode: str) -> list[int]:
        return [os.getpid()]

    async def stop(self) -> None:
        pass


async def test_a_turn_keeps_its_streams_busy_and_its_answers_in_order() -> None:
    driver = Counting()
    prompts = [[index] for index in range(7)]
    played = await play(driver, Turn("plain", prompts, num_tokens=1, num_streams=3, salt=""))
    assert [answer.ids for answer in played.answers] == prompts
    assert driver.most_running == 3
    assert played.peak_rss_bytes > 0
