"""Models and devices that cannot be used are refused in one sentence that names the flag."""

import json
from pathlib import Path

import pytest
import torch

from outrider.hosting import UnusableModel, local_folder
from tests.toy import save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = pytest.mark.integration


async def refusal(**settings: str) -> str:
    with pytest.raises(UnusableModel) as error_info:
        async with open_verifier(VerifierSettings(**settings)):
            pass
    return str(error_info.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


def narrow(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 32}))


BROKEN = [
    ("config.json", Path.unlink, "no config.json; the folder must hold a model"),
    ("config.json", lambda path: path.write_text("{"), "not a valid JSON file"),
    ("config.json", lambda path: path.write_text('{"model_type": "dog"}'), "model type `dog`"),
    ("config.json", narrow, "the weights do not have the shapes that config.json states"),
    ("tokenizer.json", Path.unlink, "no tokenizer.json; save the tokenizer"),
    ("tokenizer.json", lambda path: path.write_text("{"), "tokenizer.json: "),
    ("tokenizer_config.json", lambda path: path.write_text("{"), "tokenizer_config.json: "),
    ("model.safetensors", Path.unlink, "no file named model.safetensors"),
    ("model.safetensors", cut, "model.safetensors is damaged or incomplete, fetch it again"),
]


@pytest.mark.parametrize(("name", "damage", "reason"), BROKEN)
async def test_a_broken_folder_is_refused_by_flag_path_and_reason(tmp_path, name, damage, reason):
    folder = save_toy(tmp_path / "dog")
    damage(folder / name)
    told = await refusal(model=str(folder))
    assert told.startswith(f"--model {folder}: ")
    assert reason in told
    assert "\n" not in told


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
async def test_a_device_that_is_not_there_is_refused_by_its_flag(tmp_path, device):
    told = await refusal(model=str(tmp_path), device=device)
    assert told.startswith(f"--device {device}: ")
    assert "sees 0 CUDA devices" in told


@pytest.mark.parametrize("model", ["/nope", "./nope", "a/b/c", "~/nope", "tests/nope"])
def test_of_a_path_only_the_folder_is_spoken(model):
    with pytest.raises(OSError, match=f"^--model {model}: no such folder$"):
        local_folder(model)


def test_a_file_is_no_folder():
    with pytest.raises(OSError, match="not a folder; name the folder that holds config.json"):
        local_folder(__file__)
