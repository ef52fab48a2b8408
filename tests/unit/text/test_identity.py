"""Identities: equal whatever the files look like, different as soon as ids or texts differ."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from outrider.identity import (
    ModelFacts,
    ModelIdentity,
    Numerics,
    TokenizerFiles,
    chat_template,
    chat_template_digest,
    differences,
    dummy_weights_digest,
    template_differences,
    tokenizer_differences,
    tokenizer_digest,
    tokenizer_probe_digest,
    weights_digest,
)

NUMERICS = Numerics("bfloat16", "cpu", "torch", row_invariant=True, coupled_head_size=512)
FACTS = ModelFacts("toy", "1", "LlamaForCausalLM", 512, 64, NUMERICS)


@pytest.fixture(scope="module")
def raw(byte_level: Tokenizer) -> dict[str, Any]:
    return json.loads(byte_level.to_str())


def files_of(raw: dict[str, Any], **contents: str) -> TokenizerFiles:
    extra = {name.replace("__", "."): text.encode() for name, text in contents.items()}
    return TokenizerFiles({"tokenizer.json": json.dumps(raw).encode()} | extra)


def identity_of(tmp_path: Path, files: TokenizerFiles, **changes: Any) -> ModelIdentity:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return ModelIdentity.from_folder(tmp_path, replace(FACTS, **changes), files=files)


def swapped(raw: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer with the ids of two single letters exchanged."""
    vocab = dict(raw["model"]["vocab"])
    vocab["Q"], vocab["Z"] = vocab["Z"], vocab["Q"]
    return raw | {"model": raw["model"] | {"vocab": vocab}}


def test_formatting_is_no_difference(raw: dict[str, Any]) -> None:
    model = raw["model"]
    older = {k: v for k, v in model.items() if v not in (None, False)}
    older |= {
        "merges": [" ".join(merge) for merge in model["merges"]],
        "continuing_subword_prefix": "",
        "vocab": dict(reversed(model["vocab"].items())),
    }
    pre = raw["pre_tokenizer"] | {"trim_offsets": not raw["pre_tokenizer"]["trim_offsets"]}
    other = {
        "model": older,
        "pre_tokenizer": pre,
        "decoder": {"type": "ByteLevel"} | raw["decoder"] | {"add_prefix_space": False},
        "added_tokens": list(reversed(raw["added_tokens"])),
        "padding": {"strategy": "BatchLongest"},
        "version": "0.9",
    }
    plain = files_of(raw | other)
    indented = TokenizerFiles({"tokenizer.json": json.dumps(raw | other, indent=3).encode()})
    assert tokenizer_digest(plain) == tokenizer_digest(indented) == tokenizer_digest(files_of(raw))


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: swapped(raw),
        lambda raw: raw | {"model": raw["model"] | {"merges": raw["model"]["merges"][:-1]}},
        lambda raw: raw | {"normalizer": {"type": "NFC"}},
        lambda raw: raw | {"pre_tokenizer": raw["pre_tokenizer"] | {"use_regex": True}},
        lambda raw: raw | {"decoder": None},
        lambda raw: raw | {"post_processor": raw["pre_tokenizer"]},
        lambda raw: raw | {"added_tokens": raw["added_tokens"][:-1]},
        lambda raw: raw | {"model": raw["model"] | {"ignore_merges": True}},
    ],
)
def test_what_decides_ids_or_text_is_a_difference(
    raw: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    ours, theirs = files_of(raw), files_of(change(raw))
    assert tokenizer_digest(ours) != tokenizer_digest(theirs)
    named = tokenizer_differences(
        ours, identity_of(tmp_path, ours), theirs, identity_of(tmp_path, theirs)
    )
    assert len(named) >= 2  # the fingerprints, and what differs
    assert tokenizer_digest(ours) in named[0]
    assert tokenizer_digest(theirs) in named[0]


def test_the_probe_sees_ids(raw: dict[str, Any]) -> None:
    same = tokenizer_probe_digest(files_of(raw))
    assert same == tokenizer_probe_digest(files_of(raw | {"truncation": None, "version": "1.0"}))
    assert same != tokenizer_probe_digest(files_of(swapped(raw)))


def test_case_30_same_size_other_tokens_are_named(raw: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = files_of(raw), files_of(swapped(raw))
    named = differences(ours, identity_of(tmp_path, ours), theirs, identity_of(tmp_path, theirs))
    first = min(raw["model"]["vocab"]["Q"], raw["model"]["vocab"]["Z"])
    assert f"token {first}: target 'Q', draft 'Z'" in named


def test_case_30_padded_logits_are_no_difference(raw: dict[str, Any], tmp_path: Path) -> None:
    files = files_of(raw)
    target = identity_of(tmp_path, files, logits_size=512)
    draft = identity_of(tmp_path, files, logits_size=500)
    assert differences(files, target, files, draft) == []
    assert target.vocab_size == draft.vocab_size == len(raw["model"]["vocab"])
    with pytest.raises(ValueError, match="rows"):
        identity_of(tmp_path, files, logits_size=target.vocab_size - 1)


def test_template_lines_are_named_and_can_be_told_apart(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    long = "x" * 300
    ours = files_of(raw, chat_template__jinja=f"same\n{long}a{long}\n")
    theirs = files_of(raw, chat_template__jinja=f"same\n{long}b{long}")
    pair = (ours, identity_of(tmp_path, ours), theirs, identity_of(tmp_path, theirs))
    assert tokenizer_differences(*pair) == []
    fingerprints, line = template_differences(*pair)
    assert chat_template_digest(theirs) in fingerprints
    assert line.startswith("chat template line 2: target …xxx")
    assert "xxaxx" in line
    assert "xxbxx" in line
    assert len(line) < 300
    none = files_of(raw)
    missing = template_differences(ours, pair[1], none, identity_of(tmp_path, none))
    assert missing[1] == "chat template line 1: target 'same', draft none"


def test_the_template_is_found_where_it_may_be(raw: dict[str, Any]) -> None:
    def config(value: Any) -> str:
        return json.dumps({"chat_template": value})

    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D\r\n"}]
    digests = {
        chat_template_digest(files)
        for files in (
            files_of(raw, tokenizer_config__json=config("D")),
            files_of(raw, tokenizer_config__json=config(several)),
            files_of(raw, tokenizer_config__json=config("other"), chat_template__jinja="D\n"),
        )
    }
    assert len(digests) == 1
    assert chat_template(files_of(raw)) is None
    assert chat_template(files_of(raw, tokenizer_config__json=config(several[:1]))) is None


def test_special_ids_come_from_the_files_and_are_compared(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    config = json.dumps({"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"})
    one = files_of(raw, tokenizer_config__json=config)
    two = files_of(
        raw, tokenizer_config__json=config, generation_config__json='{"eos_token_id": [2, 0]}'
    )
    mapped = files_of(raw, special_tokens_map__json=config)
    ours, theirs = identity_of(tmp_path, one), identity_of(tmp_path, two)
    assert (ours.eos_token_ids, theirs.eos_token_ids) == ((2,), (0, 2))
    assert identity_of(tmp_path, mapped).bos_token_id == ours.bos_token_id == 1
    assert ours.pad_token_id is None
    assert differences(one, ours, two, theirs) == ["eos_token_ids: target [2], draft [0,2]"]
    assert identity_of(tmp_path, one, eos_token_ids=(9, 8)).eos_token_ids == (8, 9)
    assert identity_of(tmp_path, two, eos_token_ids=(9, 8)).eos_token_ids == (0, 2)


def test_identity_survives_the_wire(raw: dict[str, Any], tmp_path: Path) -> None:
    identity = identity_of(tmp_path, files_of(raw))
    assert ModelIdentity.from_proto(identity.to_proto()) == identity
    with_zero = replace(identity, bos_token_id=0, pad_token_id=0, eos_token_ids=(0, 5))
    assert ModelIdentity.from_proto(with_zero.to_proto()) == with_zero
    assert not with_zero.is_equal_verifier(identity)
    assert identity.is_equal_verifier(replace(identity, incarnation="2", name="other"))
    expected = replace(identity.digests, weights_digest="other", tokenizer_digest="")
    assert identity.digests.mismatches(expected) == ["weights_digest"]


def test_weights_digest_sees_every_byte_and_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1, "transformers_version": "5"}')
    (tmp_path / "model-1.safetensors").write_bytes(bytes(1000))
    (tmp_path / "model-2.safetensors").write_bytes(b"tail")
    first = weights_digest(tmp_path)
    (tmp_path / "config.json").write_text('{"transformers_version": "4",\n "a": 1}')
    assert weights_digest(tmp_path, num_threads=1) == first
    (tmp_path / "model-2.safetensors").write_bytes(b"tais")
    changed = weights_digest(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 2}')
    assert len({first, changed, weights_digest(tmp_path)}) == 3
    assert dummy_weights_digest(tmp_path, 0) != dummy_weights_digest(tmp_path, 1)


def test_files_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer.json"):
        TokenizerFiles.from_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="no weights"):
        weights_digest(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    broken = TokenizerFiles.from_folder(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        broken.json("tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        broken.tokenizer()
    with pytest.raises(ValueError, match="not tokenizer files: passwords"):
        TokenizerFiles({"tokenizer.json": b"", "passwords": b""})
