"""Settings come from flags and variables, and every fault is told at once."""

import pytest
from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from outrider.serving.settings import Addresses, CommaSeparated, ServiceSettings, parse_settings


class KennelSettings(ServiceSettings):
    """Serves dogs."""

    model_config = SettingsConfigDict(env_prefix="KENNEL_", cli_prog_name="kennel")

    dog: str = Field(description="Name of the dog.")
    num_bones: int = Field(default=3, ge=1, description="Bones a day.")
    bark: bool = Field(default=True, description="Whether it may bark.")
    neighbour: CommaSeparated = Field(default=(), description="Address of a neighbour.")
    master: Addresses = Field(default=(), max_length=2, description="Address of a master.")


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


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:1",
        "kennel_1.local:65535",
        "[::1]:50051",
        "dns:kennel:50051",
        "dns:///kennel:50051",
        "dns://10.0.0.1/kennel:50051",
        "unix:kennel.socket",
        "unix:///run/kennel.socket",
        "ipv4:10.0.0.1:50051",
    ],
)
def test_addresses_are_whatever_a_channel_can_be_opened_to(address):
    settings = parse_settings(KennelSettings, ["--dog", "rex", "--master", f"a:1,{address}"])
    assert settings.master == ("a:1", address)


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "a:",
        ":1",
        "a:b",
        "a:0",
        "a:65536",
        "a:٣",
        "a b:1",
        "::1:50051",
        "http://a:1",
        "dns:///a",
        "dns:///a:65536",
        "unix:",
    ],
)
def test_what_is_no_address_is_refused_by_the_flags_name(capsys, address):
    assert faults(capsys, "--dog", "rex", "--master", address) == [
        f"  --master (KENNEL_MASTER): {address} is not host:port with a port from 1 to 65535"
        f", got {address!r}"
    ]


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
