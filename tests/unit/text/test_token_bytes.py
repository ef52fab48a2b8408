"""Tokens of a text put together are its bytes, whatever characters they cut in two."""

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, models

from outrider.identity import TokenizerFiles
from outrider.text import TextCodec
from tests.unit.text.test_text_stream import TEXTS


@pytest.fixture(params=["byte_level", "metaspace"])
def codec(request: pytest.FixtureRequest, make_files: Callable[..., TokenizerFiles]) -> TextCodec:
    return TextCodec(make_files(request.getfixturevalue(request.param)))


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_all_tokens_are_those_of_the_text(codec: TextCodec, text: str) -> None:
    pieces = [codec.token_bytes(i) for i in codec.encode_plain(text)]
    assert b"".join(pieces).decode() in (text, f" {text}")


def test_a_character_may_be_spread_over_tokens(
    byte_level: Tokenizer, make_files: Callable[..., TokenizerFiles]
) -> None:
    codec = TextCodec(make_files(byte_level))
    pieces = [codec.token_bytes(i) for i in codec.encode_plain("😀")]
    assert len(pieces) > 1
    assert b"".join(pieces) == "😀".encode()
    special = byte_level.token_to_id("<|im_end|>")
    assert codec.token_bytes(special) == b"<|im_end|>"
    assert codec.token_bytes(10_000) == b""


def test_a_tokenizer_without_a_decoder(make_files: Callable[..., TokenizerFiles]) -> None:
    words = Tokenizer(models.WordLevel({"zwei ": 0, "eins": 1}, unk_token="eins"))
    codec = TextCodec(make_files(words))
    assert [codec.token_bytes(i) for i in (0, 1, 2)] == [b"zwei ", b"eins", b""]
