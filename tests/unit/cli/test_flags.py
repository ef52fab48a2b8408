"""Values are checked before anything starts, and errors speak of flags."""

import sys

import pytest
import typer
from typer.testing import CliRunner

import outrider
from outrider.cli import commands
from outrider.cli.flags import biases, by_flag, check_address, check_device


@pytest.mark.parametrize("value", ["127.0.0.1:50051", "localhost:1", "[::1]:65535", "a.b-c:80"])
def test_an_address_is_host_and_port(value):
    assert check_address(value) == value


@pytest.mark.parametrize(
    "value",
    ["", "nonsense", ":1", "host:", "host:0", "host:65536", "http://host:1", "::1:5", "a b:1"],
)
def test_anything_else_is_no_address(value):
    with pytest.raises(typer.BadParameter, match="host:port"):
        check_address(value)


def test_biases_are_pairs():
    assert biases(["7=-1.5", "3=+.5", "0=100"]) == ((0, 100.0), (3, 0.5), (7, -1.5))
    assert biases([]) == ()


@pytest.mark.parametrize("value", ["", "5", "5=", "=1", "-5=1", "5=nan", "5=1e3", "5 = 1", "a=1"])
def test_anything_else_is_no_bias(value):
    with pytest.raises(typer.BadParameter, match="ID=VALUE"):
        biases([value])
    with pytest.raises(typer.BadParameter, match="5 is there twice"):
        biases(["5=1", "5=2"])


@pytest.mark.parametrize(("value", "is_good"), [("cpu", True), ("cuda:1", True), ("gpu", False)])
def test_devices(value, is_good):
    if is_good:
        assert check_device(value) == value
        return
    with pytest.raises(typer.BadParameter, match="cuda:N"):
        check_device(value)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("sampling_params.top_p: 2 is outside (0, 1]", "--top-p: 2 is outside (0, 1]"),
        ("sampling_params.stop[3]: 0 characters", "--stop: 0 characters"),
        ("speculation.num_draft_tokens: 100", "--k: 100"),
        ("speculation.max_draft_tokens: 100", "--max-draft-tokens: 100"),
        ("sampling_params.n: 17", "--n: 17"),
        ("sampling_params.logit_bias[5]: 101", "--logit-bias: 101"),
        ("sampling_params.bad_words[0]: x", "--bad-word: x"),
        ("chat.tools_json[1]: is no JSON object", "--tools: is no JSON object"),
        ("model: x is not served; there is a: b", "--model: x is not served; there is a: b"),
        ("--system: needs --chat", "--system: needs --chat"),
        ("lora_id: 'x'", "lora_id: 'x'"),
        ("no field", "no field"),
        ("", ""),
    ],
)
def test_an_error_names_the_flag(message, expected):
    assert by_flag(message) == expected


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["up", "--dtype", "foo"], "--dtype"),
        (["up", "--device", "foo"], "--device"),
        (["status", "--address", "nonsense"], "--address"),
        (["generate", "a", "--address", ""], "--address"),
        (["generate", "a", "--logit-bias", "5"], "--logit-bias"),
        (["generate", "a", "--tools", "/nowhere"], "--tools"),
        (["generate", "a", "--allow-token", "x"], "--allow-token"),
    ],
)
def test_bad_values_are_refused_at_once(arguments, flag, monkeypatch):
    monkeypatch.setattr(commands, "run_up", lambda options: pytest.fail("started"))
    result = CliRunner().invoke(commands.app, arguments)
    assert result.exit_code == 2
    assert flag in result.output


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_the_version_in_both_ways(argument):
    result = CliRunner().invoke(commands.app, [argument])
    assert (result.exit_code, result.output) == (0, f"{outrider.__version__}\n")


@pytest.mark.parametrize("text", ["[/bold]", "[red]x", ":smile:"])
def test_an_error_is_printed_as_it_is(text, monkeypatch, capsys):
    def fail() -> None:
        raise TimeoutError(text)

    monkeypatch.setattr(commands, "app", fail)
    with pytest.raises(SystemExit):
        commands.run()
    assert capsys.readouterr().err == f"error: {text}\n"


def test_a_local_error_names_the_flag(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["outrider", "generate", "a", "--temperature=-1"])
    with pytest.raises(SystemExit):
        commands.run()
    assert "--temperature: -1.0 is outside" in capsys.readouterr().err
