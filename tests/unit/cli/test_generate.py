"""What the flags of ``outrider generate`` ask for, and how several choices are printed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from outrider.cli import commands, generate_command
from outrider.cli.generate import GenerateOptions, run_generate
from outrider.errors import InvalidField
from outrider.v1 import common_pb2, generation_pb2_grpc
from outrider.v1 import generation_pb2 as pb


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GenerateOptions]:
    """What would have been sent."""
    sent: list[GenerateOptions] = []

    async def keep(options: GenerateOptions) -> None:
        sent.append(options)

    monkeypatch.setattr(generate_command, "run_generate", keep)
    return sent


def ask(asked: list[GenerateOptions], *flags: str) -> pb.GenerateRequest:
    result = CliRunner().invoke(commands.app, ["generate", "hello", *flags])
    if isinstance(result.exception, InvalidField):
        raise result.exception
    assert result.exit_code == 0, result.output
    return asked[-1].request


def test_without_flags_nothing_special_is_asked_for(asked):
    request = ask(asked)
    assert (request.text, request.sampling_params.n) == ("hello", 1)
    assert not request.HasField("speculation")
    assert not request.sampling_params.HasField("truncate_prompt_tokens")
    assert not request.sampling_params.HasField("logprobs")


def test_every_flag_arrives(asked):
    flags = (
        "--n 3 --truncate-prompt-tokens 9 --include-stop --presence-penalty 0.5"
        " --frequency-penalty -0.25 --repetition-penalty 1.5 --logit-bias 5=1.5 --logit-bias 6=-2"
        " --allow-token 5 --allow-token 6 --ban-token 7 --bad-word x --bad-word y --logprobs 2"
        " --min-draft-tokens 2 --max-draft-tokens 6 --stop END"
    )
    request = ask(asked, *flags.split(" "))
    sampling = request.sampling_params
    assert (sampling.n, sampling.truncate_prompt_tokens, sampling.logprobs) == (3, 9, 2)
    assert sampling.include_stop_str_in_output
    penalties = (
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
    )
    assert penalties == (0.5, -0.25, 1.5)
    assert dict(sampling.logit_bias) == {5: 1.5, 6: -2.0}
    assert (sampling.allowed_token_ids, sampling.banned_token_ids) == ([5, 6], [7])
    assert (sampling.bad_words, sampling.stop) == (["x", "y"], ["END"])
    lengths = request.speculation.min_draft_tokens, request.speculation.max_draft_tokens
    assert lengths == (2, 6)


def test_the_form_of_the_output(asked, tmp_path: Path):
    path = tmp_path / "form"
    path.write_text('{"enum": ["f\u00fc"]}', encoding="utf-8")
    forms = {
        ("--json-schema", str(path), "--after", "so:"): common_pb2.SamplingParams(
            json_schema='{"enum": ["fü"]}', constraint_after="so:"
        ),
        ("--grammar", str(path)): common_pb2.SamplingParams(grammar='{"enum": ["fü"]}'),
        ("--regex", "a+"): common_pb2.SamplingParams(regex="a+"),
        ("--json-object",): common_pb2.SamplingParams(json_object=True),
        ("--choice", "yes", "--choice", "no"): common_pb2.SamplingParams(
            choice=common_pb2.Choice(choices=["yes", "no"])
        ),
    }
    for flags, expected in forms.items():
        found = ask(asked, *flags).sampling_params
        name = expected.WhichOneof("constraint")
        assert found.WhichOneof("constraint") == name
        assert getattr(found, name) == getattr(expected, name)
        assert found.constraint_after == expected.constraint_after
    with pytest.raises(InvalidField, match="--choice: not together with --regex"):
        ask(asked, "--choice", "a", "--regex", "b")
    with pytest.raises(InvalidField, match="--after: there is no constraint"):
        ask(asked, "--after", "b")
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidField, match=r"--grammar: .* is no text"):
        ask(asked, "--grammar", str(path))


def test_tools_are_read_from_a_file(asked, tmp_path: Path):
    path = tmp_path / "tools.json"
    path.write_text('[{"name": "f\u00fc"}]', encoding="utf-8")
    chat = ask(asked, "--chat", "--tools", str(path), "--system", "Be brief.").chat
    assert json.loads(chat.tools_json) == [{"name": "fü"}]
    assert [(each.role, each.content) for each in chat.messages] == [
        ("system", "Be brief."),
        ("user", "hello"),
    ]
    with pytest.raises(InvalidField, match="--tools: needs --chat"):
        ask(asked, "--tools", str(path))
    with pytest.raises(InvalidField, match="--system: needs --chat"):
        ask(asked, "--system", "x")


@pytest.mark.parametrize(("text", "fault"), [("{", "is no JSON"), ("{}", "holds no JSON array")])
def test_a_file_without_tools_is_refused(asked, tmp_path: Path, text: str, fault: str):
    path = tmp_path / "tools.json"
    path.write_text(text)
    with pytest.raises(InvalidField, match=f"--tools: .*{fault}"):
        ask(asked, "--chat", "--tools", str(path))


def told(index: int, *texts: str) -> list[pb.GenerateResponse]:
    chunks = [pb.GenerateChunk(index=index, text=t, pieces=[t], origins=[4]) for t in texts]
    complete = pb.GenerateComplete(index=index, completion_tokens=len(texts), finish_reason=1)
    return [
        *(pb.GenerateResponse(chunk=chunk) for chunk in chunks),
        pb.GenerateResponse(complete=complete),
    ]


class Told(generation_pb2_grpc.GenerationServiceServicer):
    """Says what it was told to say."""

    def __init__(self, responses: list[pb.GenerateResponse]) -> None:
        self.responses = responses

    async def Generate(self, request, context) -> AsyncIterator[pb.GenerateResponse]:
        for response in self.responses:
            yield response


async def printed(
    capsys, responses: list[pb.GenerateResponse], *, n: int, as_json: bool = False
) -> str:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Told(responses), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    request = pb.GenerateRequest()
    request.sampling_params.n = n
    try:
        await run_generate(GenerateOptions(f"127.0.0.1:{port}", request, as_json, 5.0))
    finally:
        await server.stop(None)
    return str(capsys.readouterr().out)


async def test_choices_are_printed_one_after_another(capsys):
    """They come side by side."""
    first, second = told(0, "one ", "two"), told(1, "three ", "four")
    mixed = [first[0], second[0], second[1], second[2], first[1], first[2]]
    lines = (await printed(capsys, mixed, n=2)).splitlines()
    wanted = ["choice 1", "three four", "choice 0", "one two"]
    assert [line.strip() for line in lines if line.strip() in wanted] == wanted


async def test_as_json_choices_are_a_list_and_a_lone_one_is_none(capsys):
    out = await printed(capsys, told(0, "a", "b"), n=1, as_json=True)
    assert json.loads(out)["text"] == "ab"
    out = await printed(capsys, told(1, "c") + told(0, "a"), n=2, as_json=True)
    assert [choice["text"] for choice in json.loads(out)["choices"]] == ["a", "c"]
