"""A tokenizer reduced to what decides its ids and texts, and the digest of that.

Two files of the same tokenizer may differ in white space, key order, the notation of merges and in
fields left at their defaults, depending on which version of the tokenizers library wrote them. All
of that is levelled here; the library itself is not asked to re-write the file, since two workers
may have two versions of it.
"""

import json
from hashlib import blake2b
from typing import Any

from outrider.identity.files import TokenizerFiles

DIGEST_BYTES = 16
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")

# What an absent field means to the library. An empty affix and none are the same to its BPE.
_MODEL_DEFAULTS: dict[str, Any] = {
    "dropout": None,
    "unk_token": None,
    "unk_id": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_COMPONENT_DEFAULTS: dict[str, dict[str, Any]] = {
    "ByteLevel": {"use_regex": True},
    "Metaspace": {"split": True, "prepend_scheme": "always"},
    "WordPiece": {"prefix": "##", "cleanup": True},
}
_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Offsets are no part of ids or text, and a ByteLevel decoder heeds none of its fields.
_NO_EFFECT = {"trim_offsets", "str_rep"}


def canonical_tokenizer(files: TokenizerFiles) -> dict[str, Any]:
    """Return what decides ids and text: vocabulary, merges, model, added tokens, components.

    Raises: ValueError if ``tokenizer.json`` lacks a model with a vocabulary.
    """
    raw = files.json("tokenizer.json")
    model = raw.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ValueError("tokenizer.json has no model with a vocabulary")
    options = {k: v for k, v in model.items() if k not in ("vocab", "merges", "type")}
    canonical: dict[str, Any] = {
        "vocabulary": _vocabulary(model["vocab"]),
        "merges": [_merge(merge) for merge in model.get("merges") or ()],
        "model": {"type": _model_type(model)} | _without_defaults(options, _MODEL_DEFAULTS),
        "added_tokens": sorted(
            (_added_token(token) for token in raw.get("added_tokens") or ()), key=lambda t: t["id"]
        ),
    }
    for name in COMPONENTS:
        canonical[name] = _component(raw.get(name), is_decoder=name == "decoder")
    return canonical


def tokenizer_digest(files: TokenizerFiles) -> str:
    """Return the digest of the canonical tokenizer in hexadecimal.

    Raises: ValueError as ``canonical_tokenizer`` does.
    """
    return text_digest(canonical_json(canonical_tokenizer(files)))


def canonical_json(value: Any) -> str:
    """Return the one JSON text of the value: sorted keys, no white space, plain ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def text_digest(text: str) -> str:
    """Return the digest of a text in hexadecimal."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _vocabulary(vocab: Any) -> Any:
    """Return ids by token, or for Unigram the (token, score) pairs, whose places are the ids."""
    if isinstance(vocab, dict):
        return vocab
    return [[token, float(score)] for token, score in vocab]


def _merge(merge: str | list[str]) -> list[str]:
    # The older notation separates by the first space; tokens with spaces need the newer one.
    return merge.split(" ", 1) if isinstance(merge, str) else list(merge)


def _model_type(model: dict[str, Any]) -> str:
    if "type" in model:
        return str(model["type"])
    # Files from before the field: only BPE has merges, only Unigram lists its vocabulary.
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model["vocab"], list) else "WordPiece"


def _added_token(token: dict[str, Any]) -> dict[str, Any]:
    flags = {flag: bool(token.get(flag, False)) for flag in _ADDED_TOKEN_FLAGS}
    return {"id": token["id"], "content": token["content"], **flags}


def _component(value: Any, *, is_decoder: bool) -> Any:
    """Return the component without fields at their defaults, nested components too."""
    if isinstance(value, list):
        return [_component(item, is_decoder=is_decoder) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind == "ByteLevel" and is_decoder:
        return {"type": kind}
    fields = {k: _component(v, is_decoder=is_decoder) for k, v in value.items()}
    if kind == "Metaspace":
        fields = _metaspace(fields)
    return _without_defaults(
        {k: v for k, v in fields.items() if k not in _NO_EFFECT},
        _COMPONENT_DEFAULTS.get(str(kind), {}),
    )


def _metaspace(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with ``add_prefix_space`` told in the newer way."""
    scheme = "never" if fields.get("add_prefix_space") is False else "always"
    newer = {k: v for k, v in fields.items() if k != "add_prefix_space"}
    return {"prepend_scheme": scheme} | newer


def _without_defaults(fields: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    levelled = {k: None if v == "" and k in defaults else v for k, v in fields.items()}
    return {k: v for k, v in levelled.items() if not (k in defaults and v == defaults[k])}
