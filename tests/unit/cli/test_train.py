"""``outrider train`` and ``assemble``, as a person calls them."""

import json

import pytest
from typer.testing import CliRunner

from outrider.checkpoints.__main__ import main as checkpoints
from outrider.cli.commands import app
from outrider.engine import load_model
from outrider.errors import OutriderError
from outrider.heads.layouts import read_head_folder
from tests.toy import save_toy


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("target"), num_layers=3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = [
        {"user": f"say {n}", "response_ids": [n % 90, n % 90 + 1, 510], "temperature": 0}
        for n in range(150)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(kind, target, corpus, out, *more):
    flags = ["--target", target, "--corpus", corpus, "--out", out]
    if kind in ("draft-model", "parallel"):
        flags += ["--layers", "0,2"]
    small = ["--num-tokens", "3000", "--tokens-per-batch", "300", "--draft-vocab-size", "80"]
    return CliRunner().invoke(app, ["train", kind, *map(str, [*flags, *small, *more])])


@pytest.mark.parametrize(("kind", "num_parallel"), [("draft-model", 1), ("parallel", 4)])
def test_a_run_ends_in_weights_that_can_be_served(
    target, corpus, tmp_path, capsys, kind, num_parallel
):
    more = ["--num-parallel", 4] if num_parallel > 1 else []
    done = train(kind, target, corpus, tmp_path / "run", *more)
    assert done.exit_code == 0, done.output
    assert "mean acceptance length" in done.output
    assert str(tmp_path / "run" / "drafter") in done.output.splitlines()

    whole = tmp_path / "whole"
    flags = ["--target", target, "--drafter", tmp_path / "run" / "drafter", "--out", whole]
    assert checkpoints(["assemble", *map(str, flags)]) == 0
    assert capsys.readouterr().out == f"{whole}\n"
    head = load_model(str(whole), dtype="float32").draft_head
    assert head is not None
    assert head.num_parallel == num_parallel
    assert len(head.draft_ids) == 80

    assert checkpoints(["assemble", *map(str, flags)]) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-parallel", "3"], "--num-parallel: is for the kind parallel, not draft-model"),
        (["--layers", "a,b"], "--layers: 'a,b' is no list"),
        (["--layers", "0,7"], "layers must ascend"),
        (["--max-length", "5"], "--corpus: no examples"),
    ],
)
def test_what_cannot_be_is_said_by_flag(target, corpus, tmp_path, flags, message):
    done = train("draft-model", target, corpus, tmp_path / "run", *flags)
    assert isinstance(done.exception, OutriderError)
    assert message in str(done.exception)


@pytest.mark.parametrize(
    ("kind", "flags", "taps"),
    [
        ("eagle3", ["--tap-layers", "1,3", "--num-steps", 2], (1, 3)),
        ("medusa", ["--num-heads", 2, "--num-head-layers", 2], (3,)),
        ("redrafter", ["--num-steps", 2], (3,)),
    ],
)
def test_a_head_is_trained_assembled_and_read(target, corpus, tmp_path, capsys, kind, flags, taps):
    done = train(kind, target, corpus, tmp_path / "run", *flags, "--features", tmp_path / "states")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "states" / "features.bf16").stat().st_size > 0
    whole = tmp_path / "whole"
    given = ["--target", target, "--drafter", tmp_path / "run" / "drafter", "--out", whole]
    assert checkpoints(["assemble", *map(str, given)]) == 0, capsys.readouterr().err
    head = read_head_folder(whole, target)
    assert (head.kind, head.tap_layers, len(head.draft_ids)) == (kind, taps, 80)
    if kind == "medusa":
        assert (head.module.config.num_heads, head.module.config.num_layers) == (2, 2)


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("draft-model", ["--tap-layers", "1,3"], "--tap-layers: is for the kind eagle3, not draft"),
        ("parallel", ["--features", "f"], "--features: is for the kinds eagle3, medusa, redrafter"),
        ("eagle3", ["--num-heads", 2], "--num-heads: is for the kind medusa, not eagle3"),
        ("eagle3", ["--num-head-layers", 2], "--num-head-layers: is for the kinds medusa, redr"),
        ("eagle3", ["--num-frozen", 1], "--num-frozen: is for the kinds draft-model, parallel"),
        ("medusa", ["--tap-layers", "3"], "--tap-layers: is for the kind eagle3, not medusa"),
        ("medusa", ["--num-steps", 3], "--num-steps: is for the kinds eagle3, redrafter, not"),
        ("redrafter", ["--layers", "0,1"], "--layers: is for the kinds draft-model, parallel"),
        ("redrafter", ["--num-parallel", 3], "--num-parallel: is for the kind parallel, not red"),
    ],
)
def test_flags_of_another_kind_are_refused_by_name(target, corpus, tmp_path, kind, flags, message):
    done = train(kind, target, corpus, tmp_path / "run", *flags)
    assert isinstance(done.exception, OutriderError)
    assert message in str(done.exception)


def test_another_run_in_the_folder_is_refused(target, corpus, tmp_path):
    assert train("draft-model", target, corpus, tmp_path / "run").exit_code == 0
    done = train("draft-model", target, corpus, tmp_path / "run", "--seed", "5")
    assert isinstance(done.exception, OutriderError)
    assert "settings.seed was 0, is 5" in str(done.exception)


@pytest.mark.parametrize("missing", ["--target", "--corpus", "--exclude", "--start-from"])
def test_files_that_do_not_exist_are_named(target, corpus, tmp_path, missing):
    done = train("draft-model", target, corpus, tmp_path / "run", missing, tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "does not exist" in done.output
