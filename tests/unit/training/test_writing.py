"""A target writes its corpus: the same example under the same number, broken off or not."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from outrider.cli.commands import app
from outrider.errors import InvalidField, OutriderError
from outrider.identity.files import TokenizerFiles
from outrider.text import TextCodec
from outrider.training.corpus import read_corpus
from outrider.training.trainer import RunMismatch
from outrider.training.writing import message_opening
from tests.toy import save_toy


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("target"), seed=1, scale=0.25)


def write(target, out, *more):
    flags = ["--target", target, "--out", out, "--max-answer-tokens", 12, "--dtype", "float32"]
    done = CliRunner().invoke(app, ["write", *map(str, [*flags, *more])])
    if isinstance(done.exception, OutriderError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return out.read_text()


def test_what_was_broken_off_goes_on_to_the_same_corpus(target, tmp_path):
    whole = write(target, tmp_path / "whole.jsonl", "--num-examples", 12, "--num-together", 5)
    out = tmp_path / "broken.jsonl"
    first = write(target, out, "--num-examples", 7, "--num-together", 3)
    assert whole.startswith(first)
    out.write_text(first + whole[len(first) : len(first) + 20])  # a line that was interrupted
    assert write(target, out, "--num-examples", 12, "--num-together", 4) == whole
    assert write(target, out, "--num-examples", 12) == whole

    rows = [json.loads(line) for line in whole.splitlines()]
    assert len({row["user"] for row in rows}) > 6
    assert [row["temperature"] == 0 for row in rows] == [True, False] * 6
    assert all(1 <= len(row["response_ids"]) <= 12 for row in rows)
    with pytest.raises(RunMismatch, match="seed was 0, is 7"):
        write(target, out, "--num-examples", 20, "--seed", 7)
    other = write(target, tmp_path / "other.jsonl", "--num-examples", 4, "--seed", 1)
    assert other.splitlines()[1] != whole.splitlines()[1]


def test_greedy_answers_are_the_targets_own_and_can_be_trained_on(target, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"user": "one"}\n{"turns": ["two", "three"]}\n')
    out = tmp_path / "corpus.jsonl"
    write(target, out, "--num-examples", 4, "--prompts", prompts)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["user"] for row in rows] == ["one", "two"] * 2
    codec = TextCodec(TokenizerFiles.from_folder(target))

    def encode(user):
        return codec.apply_chat_template([{"role": "user", "content": user}])

    corpus = read_corpus([out], encode, vocab_size=codec.vocab_size, max_length=100)
    model = AutoModelForCausalLM.from_pretrained(target).eval()
    for example in (*corpus.training, *corpus.held_out):
        if example.is_greedy:
            ids = torch.tensor([[*example.prompt_ids, *example.response_ids]])
            said = model(ids).logits[0].argmax(-1)[len(example.prompt_ids) - 1 : -1]
            assert tuple(said.tolist()) == example.response_ids


def test_a_template_that_does_not_show_where_the_user_speaks_needs_prompts(tmp_path):
    target = save_toy(tmp_path, template="{{ messages[0].content }}")
    with pytest.raises(InvalidField, match="--prompts"):
        message_opening(TextCodec(TokenizerFiles.from_folder(target)))
