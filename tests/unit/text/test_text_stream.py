"""Streamed text: whole characters, nothing lost, nothing twice."""

import random
from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer

from outrider.identity import TokenizerFiles
from outrider.text import TextCodec

TEXTS = [
    "plain ascii END",
    "2: é ß ж ש 3: 你好世界 € ก 4: 😀 𠮷 𝔘",
    "👨‍👩‍👧‍👦 👍🏽 ❤️ 🇩🇪",
    "e\u0301 n\u0303 a\u030a\u0323 q\u0307\u0323 각",
    "العربيّة שלום فارسی\u200cزبان",
    "a你b好c世d界e 한국어abc안녕",
    "tabs\tand\r\nlines\n\n  spaces   \u00a0\u3000",
]


@pytest.fixture(scope="module")
def codec(byte_level: Tokenizer, make_files: Callable[..., TokenizerFiles]) -> TextCodec:
    return TextCodec(make_files(byte_level))


@pytest.fixture(scope="module")
def llama(metaspace: Tokenizer, make_files: Callable[..., TokenizerFiles]) -> TextCodec:
    return TextCodec(make_files(metaspace, config={"eos_token": "</s>", "bos_token": "<s>"}))


def byte_ids(codec: TextCodec, text: str, num_bytes: Sequence[int]) -> list[int]:
    """Ids of the text cut after these numbers of bytes, whatever merges the tokenizer has."""
    data, ids, start = text.encode(), [], 0
    tokenizer = codec._tokenizer
    to_character = byte_characters()
    for count in num_bytes:
        for byte in data[start : start + count]:
            token_id = tokenizer.token_to_id(to_character[byte])
            assert token_id is not None
            ids.append(token_id)
        start += count
    return ids


def byte_characters() -> dict[int, str]:
    """The byte-level alphabet of GPT-2."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}


def stream(codec: TextCodec, ids: Sequence[int], **options: object) -> list[str]:
    text_stream = codec.stream(**options)  # type: ignore[arg-type]
    return [*(text_stream.push(token_id) for token_id in ids), text_stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_case_25_every_byte_is_a_token(codec: TextCodec, text: str) -> None:
    ids = byte_ids(codec, text, [len(text.encode())])
    pieces = stream(codec, ids)
    assert "".join(pieces) == text == codec.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert [p for p in pieces if p] == list(text)  # each character as soon as it is complete


@pytest.mark.parametrize("text", TEXTS)
def test_case_25_merged_tokens_that_cut_characters(codec: TextCodec, text: str) -> None:
    ids = codec.encode(text)
    assert "".join(stream(codec, ids)) == text
    rng = random.Random(1)
    for _ in range(20):  # other segmentations: random merges left out
        cuts = sorted(rng.sample(range(len(text.encode())), 3))
        counts = [b - a for a, b in zip([0, *cuts], [*cuts, len(text.encode())], strict=True)]
        assert "".join(stream(codec, byte_ids(codec, text, counts))) == text


def test_tokens_that_all_end_inside_a_character() -> None:
    """A legal stream never aligned with characters still tells all but the last of them."""
    from tokenizers import decoders, models

    to_character = byte_characters()
    data = ("你好世界" * 30).encode()
    tokens = [data[:2], *(data[i : i + 3] for i in range(2, len(data), 3))]
    names = ["".join(to_character[b] for b in token) for token in tokens]
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    codec = TextCodec(TokenizerFiles({"tokenizer.json": tokenizer.to_str().encode()}))
    pieces = stream(codec, [vocabulary[name] for name in names])
    assert pieces[0] == ""
    assert all(len(piece) == 1 for piece in pieces[1:-1])
    assert "".join(pieces) == "你好世界" * 30


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_case_25_output_that_ends_inside_a_character_leaves_it_out(
    codec: TextCodec, num_bytes: int
) -> None:
    ids = byte_ids(codec, "ab😀", [2 + num_bytes])
    assert "".join(stream(codec, ids)) == "ab"


def test_bytes_that_are_no_character_read_as_everywhere(codec: TextCodec) -> None:
    to_character = byte_characters()
    rng = random.Random(3)
    for _ in range(300):
        data = (
            bytes(rng.choices([0x61, 0x20, 0x80, 0xC3, 0xA9, 0xE4, 0xBD, 0xA0, 0xF0], k=12)) + b"."
        )
        ids = [codec._tokenizer.token_to_id(to_character[byte]) for byte in data]
        assert "".join(stream(codec, ids)) == codec.decode(ids) == data.decode(errors="replace")


def test_endless_garbage_is_told_at_last_and_text_goes_on(codec: TextCodec) -> None:
    junk = codec._tokenizer.token_to_id(byte_characters()[0x80])
    pieces = stream(codec, [junk] * 2000 + byte_ids(codec, "ok 你", [6]))
    assert "".join(pieces).endswith("ok 你")
    assert "\ufffd" in "".join(pieces[:2000])


def test_special_tokens_are_left_out_or_told(codec: TextCodec) -> None:
    eos = codec._tokenizer.token_to_id("<|im_end|>")
    head, tail = byte_ids(codec, "a你", [2]), byte_ids(codec, "a你", [4])[2:]
    ids = [*head, eos, *tail, eos]
    assert "".join(stream(codec, ids)) == "a你"
    assert "".join(stream(codec, [*codec.encode("a"), eos], skip_special_tokens=False)) == (
        "a<|im_end|>"
    )
    assert "".join(stream(codec, [codec.vocab_size + 5, *codec.encode("a")])) == "a"


@pytest.mark.parametrize("prompt", ["it is", "한국어", "<s>", ""])
def test_prefix_spaces_continue_the_prompt(llama: TextCodec, prompt: str) -> None:
    prompt_ids = llama.encode(prompt)
    space = llama._tokenizer.token_to_id("▁")
    for output in ("is", "Paris", " x", "你好 안녕 a", "😀"):
        ids = [space, *llama._tokenizer.encode(output, add_special_tokens=False).ids[1:]]
        whole = llama.decode([*prompt_ids, *ids])
        assert (
            "".join(stream(llama, ids, prompt_ids=prompt_ids))
            == (whole[len(llama.decode(prompt_ids)) :])
        )
        assert "".join(stream(llama, ids)) == llama.decode(ids)


def test_byte_fallback_runs_never_show_a_broken_character(llama: TextCodec) -> None:
    text = "a한국어b 你😀c"
    ids = llama._tokenizer.encode(text, add_special_tokens=False).ids
    pieces = stream(llama, ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    # Broken in the middle of a run: what was told stays told, and the stream goes on.
    byte = llama._tokenizer.token_to_id("<0xE4>")
    letter = llama._tokenizer.token_to_id("b")
    korean = llama._tokenizer.encode("a한", add_special_tokens=False).ids
    assert "".join(stream(llama, [*korean, byte, letter, letter])) == "a한\ufffdbb"
    assert "".join(stream(llama, [*korean, byte])) == "a한"


def test_a_prompt_that_ends_inside_a_character_is_completed(codec: TextCodec) -> None:
    ids = byte_ids(codec, "ab你c", [6])
    assert "".join(stream(codec, ids[3:], prompt_ids=ids[:3])) == "你c"
