"""A pair is judged by what the services say and measure; the exit status tells the outcome."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.advisor.report import Findings
from outrider.advisor.runs import Runner, Setting
from outrider.cli.pair_check import (
    INCOMPATIBLE,
    Measurement,
    PairCheckOptions,
    pair_of,
    run_pair_check,
    takes_messages,
)
from outrider.cli.pair_tables import print_findings
from outrider.errors import InvalidField
from outrider.v1 import generation_pb2 as pb
from tests.cluster import cluster
from tests.toy import save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = pytest.mark.integration


def options(target: Path, draft: Path | str, **changed: object) -> PairCheckOptions:
    values: dict[str, object] = {
        "target": str(target),
        "draft": str(draft),
        "prompts": None,
        "json": None,
        "sources": (),
        "lengths": (1, 3),
        "streams": (1, 2),
        "temperatures": (0.0, 0.8),
        "num_prompts": 2,
        "max_tokens": 16,
        "num_rounds": 1,
        "dtype": "float32",
        "device": "cpu",
    }
    return PairCheckOptions(**(values | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("has_template", [False, True])
async def test_targets_without_a_template_are_given_texts(
    tmp_path: Path, has_template: bool
) -> None:
    target = save_toy(tmp_path / "target")
    if not has_template:
        (target / "chat_template.jinja").unlink()
    settings = VerifierSettings(model=str(target), dtype="float32")
    async with cluster(verifiers=[lambda: open_verifier(settings)]) as running:
        as_chat = await takes_messages(running.client)
        assert as_chat == has_template
        run = await Runner(running.client, ["Name a river."], 4, as_chat).run(Setting(0.0, 1))
    assert len(run.answers[0].token_ids) >= 1


async def test_a_model_that_drafts_for_itself_is_always_right(tmp_path: Path) -> None:
    target = save_toy(tmp_path / "target")
    model = {"model": str(target), "dtype": "float32"}
    async with cluster(
        verifiers=[lambda: open_verifier(VerifierSettings(**model))],
        drafters=[lambda: open_drafter(DrafterSettings(**model))],
        draft_wait_ms=10_000,
    ) as running:
        info = await running.client.stub.GetServerInfo(pb.GetServerInfoRequest())
        pair = pair_of(info)
        assert (pair.fits, pair.sources) == (True, ("model",))
        with pytest.raises(InvalidField, match="--source: eagle3"):
            pair_of(info, ["eagle3"])
        chosen = options(target, target)
        runner = Runner(running.client, ["Name a river.", "Say it again, again."], 16)
        with Progress(disable=True) as progress:
            findings = await Measurement(chosen, runner, progress).measure(pair)
    assert all(
        each.by_position == [1.0] * length and each.arrival == 1.0
        for by_length in findings.accepted.values()
        for length, each in by_length.items()
    )
    assert len(findings.times) == 2 * 2 * 3
    assert len(findings.predictions) == 2 * 2 * 2
    assert {each.best.setting.alone for each in findings.advice} == {
        Setting(temperature, num_streams) for temperature in (0.0, 0.8) for num_streams in (1, 2)
    }
    for each in findings.advice:
        assert (each.check is not None) == each.is_promising
        assert each.check is None or (each.check.num_differing, each.check.num_answers) == (0, 2)
    assert json.loads(json.dumps(findings.as_json()))["fits"] is True
    assert "model" in _printed(findings)


@pytest.mark.slow
def test_a_draft_of_another_tokenizer_is_incompatible(tmp_path: Path, capfd) -> None:
    target = save_toy(tmp_path / "target")
    draft = save_toy(tmp_path / "draft", swap=(5, 9))
    written = tmp_path / "found.json"
    assert run_pair_check(options(target, draft, json=written)) == INCOMPATIBLE
    found = json.loads(written.read_text())
    assert (found["fits"], found["pays"]) == (False, False)
    assert any(each.startswith("token 5:") for each in found["obstacles"])
    assert "token 5:" in capfd.readouterr().out


def test_prompts_that_are_none_are_named(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n")
    with pytest.raises(InvalidField, match="--prompts"):
        run_pair_check(options(tmp_path, "ngram", prompts=prompts))


def _printed(findings: Findings) -> str:
    console = Console(record=True, width=120)
    print_findings(console, findings)
    return console.export_text()
