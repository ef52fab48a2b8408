"""``outrider trace fixture``: every number of one cycle, for people and as JSON."""

import json

import pytest

from outrider import walkthrough
from outrider.cli.trace import FixtureOptions, run_fixture
from outrider.sampling import AcceptanceRule

REJECTION = AcceptanceRule.REJECTION


async def test_the_story_can_be_followed(capsys):
    assert await run_fixture(FixtureOptions(REJECTION, None, 0, as_json=False))
    told = capsys.readouterr().out
    for line in (
        "min(1, 0.6000 / 0.5000) = 1.0000, uniform 0.8897: accepted",
        "min(1, 0.2000 / 0.6000) = 0.3333, uniform 0.4880: rejected",
        "accepted prefix  'A' 'B'",
        "discarded suffix 'C' 'D'",
        "corrected distribution 'X' 0.875, 'A' 0.125, drawn with 0.9823",
        "committed        'A' 'B' 'X'",
    ):
        assert line in told


async def test_json_holds_the_same(capsys):
    await run_fixture(FixtureOptions(REJECTION, None, 0, as_json=True))
    told = json.loads(capsys.readouterr().out)
    assert [each["token"] for each in told["committed"]] == ["A", "B", "X"]
    assert [row["accepted"] for row in told["rows"]] == [True, True, False, False, False]
    for row in told["rows"][:4]:
        assert row["threshold"] == pytest.approx(min(1, row["target_prob"] / row["draft_prob"]))
    assert told["rows"][4]["draft_token"] is None
    assert sum(each["prob"] for each in told["corrected_distribution"]) == pytest.approx(1)


@pytest.mark.parametrize("as_json", [False, True])
async def test_many_runs_agree_with_the_control(capsys, as_json):
    # seeds 0.., draws 2,000
    assert await run_fixture(FixtureOptions(AcceptanceRule.BLOCK, None, 2_000, as_json))
    told = capsys.readouterr().out
    if as_json:
        assert json.loads(told)["agrees"]
    else:
        assert "2000 runs" in told
        assert "agree" in told


async def test_disagreement_is_told(capsys, monkeypatch):
    monkeypatch.setattr(walkthrough, "NUM_ERRORS", 0)
    assert not await run_fixture(FixtureOptions(REJECTION, None, 200, as_json=False))
    assert "disagree" in capsys.readouterr().out
