"""Settings come from flags and variables, and every fault is told at once."""

import pytest
from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from outrider.serving.settings import CommaSeparated, ServiceSettings, parse_settings


class KennelSettings(ServiceSettings):
    """Serves dogs."""

    model_config = SettingsConfigDict(env_prefix="KENNEL_", cli_prog_name="kennel")

    dog: str = Field(description="Name of the dog.")
    num_bones: int = Field(default=3, ge=1, description="Bones a day.")
    bark: bool = Field(default=True, description="Whether it may bark.")
    neighbour: CommaSeparated = Field(default=(), description="Address of a neighbour.")


def faults(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with pytest.raises(SystemExit) as exit_info:
        parse_settings(KennelSettings, arguments)
    assert exit_info.value.code == 2
    return capsys.readouterr().err.splitlines()[1:-1]


def test_flags_win_over_variables(monkeypatch):
    monkeypatch.setenv("KENNEL_DOG", "rex")
    monkeypatch.setenv("KENNEL_NUM_BONES", "5")
    settings = parse_settings(KennelSettings, ["--num-bones", "7", "--no-bark"])
    assert (settings.dog, settings.num_bones, settings.bark) == ("rex", 7, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--neighbour", "a:1,b:2"],
        ["--neighbour", "a:1", "--neighbour", "b:2"],
        ["--neighbour=a:1, b:2"],
    ],
)
def test_lists_repeat_or_have_commas(arguments):
    assert parse_settings(KennelSettings, ["--dog", "rex", *arguments]).neighbour == ("a:1", "b:2")


def test_a_list_in_a_variable_has_commas(monkeypatch):
    monkeypatch.setenv("KENNEL_NEIGHBOUR", "a:1,b:2")
    assert parse_settings(KennelSettings, ["--dog", "rex"]).neighbour == ("a:1", "b:2")


def test_every_fault_is_listed_at_once(capsys, monkeypatch):
    monkeypatch.setenv("KENNEL_PROT", "1")
    told = faults(
        capsys,
        *("--num-bones", "0", "--port", "many", "--num-bonse", "4", "--grace-s", "0"),
    )
    assert len(told) == 6
    for start in (
        "  KENNEL_PROT: no such setting; did you mean KENNEL_PORT?",
        "  --port (KENNEL_PORT): ",
        "  --grace-s (KENNEL_GRACE_S): ",
        "  --dog (KENNEL_DOG): required",
        "  --num-bones (KENNEL_NUM_BONES): Input should be greater than or equal to 1, got '0'",
        "  --num-bonse: no such option; did you mean --num-bones?",
    ):
        assert any(line.startswith(start) for line in told), (start, told)


def test_a_stray_word_is_a_fault(capsys):
    assert faults(capsys, "--dog", "rex", "bella") == ["  bella: no such option"]


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse_settings(KennelSettings, ["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    for part in (
        "Serves dogs.",
        "--num-bones INTEGER",
        "--neighbour A,B",
        "Bones a day.",
        "KENNEL_NUM_BONES",
        "default: 3",
    ):
        assert part in text


def test_settings_never_change():
    settings = parse_settings(KennelSettings, ["--dog", "rex"])
    with pytest.raises(ValidationError):
        settings.dog = "bella"
