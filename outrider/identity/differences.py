"""Why a draft model cannot serve a target, in words that let an operator act.

Padding is not compared: rows of the head beyond the tokenizer are never used, and the id of the
padding token is never part of a text.
"""

from itertools import islice, zip_longest
from os.path import commonprefix
from typing import Any

from outrider.identity.files import TokenizerFiles
from outrider.identity.model import ModelIdentity
from outrider.identity.template import template_lines
from outrider.identity.tokenizer import COMPONENTS, canonical_json, canonical_tokenizer

MAX_NAMED = 3
MAX_SHOWN_CHARACTERS = 120


def differences(
    target_files: TokenizerFiles,
    target_identity: ModelIdentity,
    draft_files: TokenizerFiles,
    draft_identity: ModelIdentity,
) -> list[str]:
    """Return what forbids the pair, tokenizer first, then template; empty if nothing does."""
    return [
        *tokenizer_differences(target_files, target_identity, draft_files, draft_identity),
        *template_differences(target_files, target_identity, draft_files, draft_identity),
    ]


def tokenizer_differences(
    target_files: TokenizerFiles,
    target_identity: ModelIdentity,
    draft_files: TokenizerFiles,
    draft_identity: ModelIdentity,
) -> list[str]:
    """Return the first differing tokens, merges, components and special ids; no override."""
    found: list[str] = []
    ours, theirs = target_identity.digests, draft_identity.digests
    if ours.tokenizer_digest != theirs.tokenizer_digest:
        found.append(
            f"tokenizers differ: target {ours.tokenizer_digest}, draft {theirs.tokenizer_digest}"
        )
        target, draft = canonical_tokenizer(target_files), canonical_tokenizer(draft_files)
        found += _vocabulary_differences(target, draft)
        found += _merge_differences(target["merges"], draft["merges"])
        found += [
            f"{name}: {_pair(target[name], draft[name])}"
            for name in ("model", *COMPONENTS)
            if target[name] != draft[name]
        ]
        found += _added_differences(target["added_tokens"], draft["added_tokens"])
    elif target_identity.tokenizer_probe_digest != draft_identity.tokenizer_probe_digest:
        found.append(
            "tokenizer files agree but encode the probe text differently: check that both workers "
            "have the same version of the tokenizers library"
        )
    if target_identity.vocab_size != draft_identity.vocab_size:
        sizes = _pair(target_identity.vocab_size, draft_identity.vocab_size)
        found.append(f"vocabulary size: {sizes}")
    for name in ("bos_token_id", "eos_token_ids"):
        target_ids, draft_ids = getattr(target_identity, name), getattr(draft_identity, name)
        if target_ids != draft_ids:
            found.append(f"{name}: {_pair(target_ids, draft_ids)}")
    return found


def template_differences(
    target_files: TokenizerFiles,
    target_identity: ModelIdentity,
    draft_files: TokenizerFiles,
    draft_identity: ModelIdentity,
) -> list[str]:
    """Return the first differing lines of the chat templates; an operator may override them."""
    ours, theirs = target_identity.digests, draft_identity.digests
    if ours.chat_template_digest == theirs.chat_template_digest:
        return []
    digests = f"target {ours.chat_template_digest}, draft {theirs.chat_template_digest}"
    found = [f"chat templates differ: {digests}"]
    lines = zip_longest(template_lines(target_files), template_lines(draft_files))
    differing = (
        f"chat template line {number}: {_pair(target, draft)}"
        for number, (target, draft) in enumerate(lines, start=1)
        if target != draft
    )
    return found + list(islice(differing, MAX_NAMED))


def _tokens_by_id(canonical: dict[str, Any]) -> dict[int, str]:
    vocabulary = canonical["vocabulary"]
    if isinstance(vocabulary, dict):
        tokens = {token_id: token for token, token_id in vocabulary.items()}
    else:
        tokens = {token_id: token for token_id, (token, _) in enumerate(vocabulary)}
    return tokens | {token["id"]: token["content"] for token in canonical["added_tokens"]}


def _vocabulary_differences(target: dict[str, Any], draft: dict[str, Any]) -> list[str]:
    ours, theirs = _tokens_by_id(target), _tokens_by_id(draft)
    differing = [i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i)]
    named = [f"token {i}: {_pair(ours.get(i), theirs.get(i))}" for i in differing[:MAX_NAMED]]
    if len(differing) > MAX_NAMED:
        named.append(f"{len(differing) - MAX_NAMED} more tokens differ")
    if not differing and target["vocabulary"] != draft["vocabulary"]:
        named.append("the tokens are the same, but not all of their scores or hidden duplicates")
    return named


def _merge_differences(target: list[list[str]], draft: list[list[str]]) -> list[str]:
    differing = (
        f"merge {rank}: {_pair(ours and ' '.join(ours), theirs and ' '.join(theirs))}"
        for rank, (ours, theirs) in enumerate(zip_longest(target, draft))
        if ours != theirs
    )
    # One merge too many shifts all that follow: more than the first says nothing.
    return list(islice(differing, 1))


def _added_differences(target: list[dict[str, Any]], draft: list[dict[str, Any]]) -> list[str]:
    ours, theirs = ({token["id"]: token for token in tokens} for tokens in (target, draft))
    differing = (
        f"added token {token_id}: {_pair(ours.get(token_id), theirs.get(token_id))}"
        for token_id in sorted(ours.keys() | theirs.keys())
        if ours.get(token_id) != theirs.get(token_id)
    )
    return list(islice(differing, MAX_NAMED))


def _pair(target: Any, draft: Any) -> str:
    """Return both values in a readable form; of long ones the part where they begin to differ."""
    ours, theirs = _shown(target), _shown(draft)
    same = len(commonprefix([ours, theirs]))
    return f"target {_cut(ours, same)}, draft {_cut(theirs, same)}"


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    return repr(value) if isinstance(value, str) else canonical_json(value)


def _cut(text: str, same: int) -> str:
    if len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    start = max(0, min(same - MAX_SHOWN_CHARACTERS // 3, len(text) - MAX_SHOWN_CHARACTERS))
    end = start + MAX_SHOWN_CHARACTERS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
