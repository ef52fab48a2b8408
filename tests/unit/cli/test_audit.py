"""What an audit's flags mean, and what its exit status says."""

import json

import pytest
from typer.testing import CliRunner

from outrider.audit.plan import FULL, QUICK, VIEWS, Plan, Tolerances
from outrider.audit.report import Audited, write_report
from outrider.audit.view import Table, Verdict, View
from outrider.cli import audit as running
from outrider.cli import audit_command, commands
from outrider.cli.audit import AuditOptions, with_sources
from outrider.errors import OutriderError, Unavailable
from outrider.v1 import generation_pb2 as pb

PLAN = Plan(QUICK, Tolerances(), ())


def run(monkeypatch: pytest.MonkeyPatch, outcome: object, *arguments: str):
    """Run the command with an audit that comes to ``outcome``."""
    seen: list[AuditOptions] = []

    def audited(options: AuditOptions) -> Verdict:
        seen.append(options)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Verdict)
        return outcome

    monkeypatch.setattr(audit_command, "run_audit", audited)
    done = CliRunner().invoke(commands.app, ["audit", *arguments])
    return done, seen


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Verdict.PASS, 0),
        (Verdict.FAIL, 1),
        (Verdict.NOT_RUN, 2),
        (OutriderError("no drafter is ready"), 2),
        (Unavailable("no verifier"), 2),
        (TimeoutError(), 2),
    ],
)
def test_the_exit_status_is_the_verdict(monkeypatch, outcome, code):
    done, _ = run(monkeypatch, outcome)
    assert done.exit_code == code
    assert ("could not run" in done.output) == isinstance(outcome, Exception)


def test_sizes(monkeypatch):
    _, [full] = run(monkeypatch, Verdict.PASS)
    assert full.plan.sizes == FULL
    _, [quick] = run(
        monkeypatch, Verdict.PASS, "--quick", "--num-prompts", "3", "--skip", "latency"
    )
    assert quick.plan.sizes.num_prompts == 3
    assert quick.plan.sizes.max_tokens == QUICK.max_tokens
    assert not quick.plan.wants("latency")
    assert all(quick.plan.wants(view) for view in VIEWS if view != "latency")


@pytest.mark.parametrize(
    "flags",
    [
        ("--skip", "nothing"),
        ("--address", "nonsense"),
        ("--address", "127.0.0.1:1", "--draft", "folder"),
        ("--prompts", "/does/not/exist"),
    ],
)
def test_flags_that_make_no_sense_are_no_verdict(monkeypatch, flags):
    done, seen = run(monkeypatch, Verdict.PASS, *flags)
    assert done.exit_code == 2
    assert not seen


def worker(role: str, state: str, *sources: str, reason: str = "") -> pb.WorkerInfo:
    return pb.WorkerInfo(role=role, state=state, sources=sources, reason=reason)


def test_the_drafters_own_first_source_is_forced():
    workers = [worker("verifier", "ready"), worker("drafter", "ready", "eagle3", "ngram")]
    assert with_sources(PLAN, (), workers).sources == ("eagle3",)
    assert with_sources(PLAN, ("ngram", "suffix"), workers).sources == ("ngram", "suffix")


def test_without_a_drafter_there_is_nothing_to_audit():
    workers = [worker("verifier", "ready"), worker("drafter", "refused", reason="template differs")]
    with pytest.raises(OutriderError, match="no drafter is ready: template differs"):
        with_sources(PLAN, (), workers)


def view(name: str, verdict: Verdict) -> View:
    table = Table(("way", "figure"), [("a|b", "1")])
    return View(
        name, f"{name}: of something", verdict, "none", "found", [table], {"x": float("nan")}
    )


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.PASS, Verdict.PASS], Verdict.PASS),
        ([Verdict.PASS, Verdict.NOT_RUN], Verdict.NOT_RUN),
        ([Verdict.NOT_RUN, Verdict.FAIL], Verdict.FAIL),
        ([], Verdict.NOT_RUN),
    ],
)
def test_the_worst_view_decides(verdicts, expected):
    views = [view(str(index), each) for index, each in enumerate(verdicts)]
    assert Audited({}, PLAN, views, {}).verdict is expected


def test_a_report(tmp_path):
    views = [view("greedy", Verdict.PASS), view("other", Verdict.FAIL)]
    write_report(Audited({"target": "toy"}, PLAN, views, {"host:1": {"name": "toy"}}), tmp_path)
    page = (tmp_path / "audit.md").read_text()
    assert page.startswith("# Audit: fail")
    assert "| other | **FAIL** | found |" in page
    assert "a\\|b" in page
    told = json.loads((tmp_path / "audit.json").read_text())
    assert told["views"]["other"]["figures"] == {"x": None}, "JSON has no nan"
    assert told["plan"]["tolerances"]["alpha"] == 1e-4


def test_models_are_only_made_where_none_is_named():
    options = AuditOptions(
        plan=PLAN,
        address="127.0.0.1:1",
        target="",
        draft="",
        model="",
        drafters=(),
        prompts=None,
        raw=False,
        dtype="bfloat16",
        reference_dtype="float32",
        device="cpu",
        out=running.DEMO_MODELS,
    )
    assert running.with_models(options, running.plain_console()) is options
