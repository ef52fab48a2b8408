"""Where outputs end, against a plain reference that reads the whole text, over random outputs.

The tokenizer is byte-level: its tokens begin and end inside characters and inside stop strings.
"""

import random
from dataclasses import dataclass

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from orchestrator.sequence import End, FinishReason
from orchestrator.transcript import Transcript
from orchestrator.verdict import CommittedToken, Origin
from outrider.text import StopMatcher, TextStream

CORPUS = ["the end of the END, and the end. naïve é 你好世界 END 안녕 <|s|>"] * 4
SPECIAL = "<|s|>"
NUM_OUTPUTS = 400


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=320,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[SPECIAL],
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


@dataclass(frozen=True)
class Wanted:
    """What is asked of one output."""

    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    longest: int
    keeps_stop: bool
    skips: bool


def reference(tokenizer: Tokenizer, ids: list[int], wanted: Wanted) -> tuple[int, str, End | None]:
    """Return how many ids are delivered, the text and the end, by reading every prefix whole."""

    def read(count: int) -> str:
        text = tokenizer.decode(ids[:count], skip_special_tokens=wanted.skips)
        return text.rstrip("\ufffd")  # a character that is not complete yet

    for count in range(1, len(ids) + 1):
        if ids[count - 1] in wanted.stop_ids:
            text = read(count if wanted.keeps_stop else count - 1)
            return count, text, End(FinishReason.STOP, token_id=ids[count - 1])
        ends = {
            text_end: stop
            for stop in sorted(wanted.stop, key=len)  # of those that end together the longest stays
            if (at := read(count).find(stop)) >= 0
            for text_end in [at + len(stop)]
        }
        if ends:
            end = min(ends)
            begin = end if wanted.keeps_stop else end - len(ends[end])
            return count, read(count)[:begin], End(FinishReason.STOP, stop=ends[end])
        if count == wanted.longest:
            return count, read(count), End(FinishReason.LENGTH)
    return len(ids), read(len(ids)), None


def drawn(rng: random.Random, tokenizer: Tokenizer) -> tuple[list[int], Wanted]:
    """Return an output of whole words, pieces of words and loose bytes, and what is asked of it."""
    special = tokenizer.token_to_id(SPECIAL)
    ids: list[int] = []
    while len(ids) < 12:
        word = rng.choice(CORPUS[0].split(" "))
        pieces = tokenizer.encode(word).ids if rng.random() < 0.6 else []
        ids += pieces or [rng.choice(tokenizer.encode(c).ids) for c in word[:3]]
        if rng.random() < 0.1:
            ids.append(special)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    starts = [rng.randrange(len(text)) for _ in range(rng.randint(0, 3))]
    stop = tuple(
        part for at in starts if "\ufffd" not in (part := text[at : at + rng.randint(1, 5)])
    )
    stop_ids = frozenset([special] if rng.random() < 0.5 else rng.sample(ids, rng.randint(0, 1)))
    longest = rng.randint(1, len(ids) + 2)
    return ids, Wanted(stop, stop_ids, longest, rng.random() < 0.5, rng.random() < 0.5)


def test_outputs_end_where_the_whole_text_says(tokenizer: Tokenizer) -> None:
    """Cases 21 and 24: wherever cycles are cut, nothing of a stop string leaks and nothing is
    lost."""
    rng = random.Random(2024)
    special_ids = frozenset([tokenizer.token_to_id(SPECIAL)])
    ends = {"id": 0, "string": 0, "length": 0, "across tokens": 0, "kept": 0}
    for _ in range(NUM_OUTPUTS):
        ids, wanted = drawn(rng, tokenizer)
        count, text, end = reference(tokenizer, ids, wanted)
        one = Transcript(
            TextStream(tokenizer, skip_special_tokens=wanted.skips, special_ids=special_ids),
            StopMatcher(wanted.stop, keeps_match=wanted.keeps_stop),
            wanted.stop_ids,
            wanted.longest,
            wanted.keeps_stop,
        )
        tokens, pieces, got, rest = [], [], None, list(ids)
        while rest and got is None:
            size = rng.randint(1, 5)
            delivery = one.take([CommittedToken(i, Origin.ONLY) for i in rest[:size]])
            del rest[:size]
            tokens += delivery.tokens
            pieces += delivery.pieces
            got = delivery.end
            assert text.startswith("".join(pieces)), "no message is taken back"
        about = (ids, wanted)
        assert got == end, about
        assert [token.token_id for token in tokens] == ids[:count], about
        assert len(pieces) == len(tokens), about
        if got is not None:
            assert "".join(pieces) == text, about
            ends["length"] += got.reason is FinishReason.LENGTH
            ends["id"] += got.token_id is not None
            ends["string"] += got.stop is not None
            ends["kept"] += wanted.keeps_stop and got.reason is FinishReason.STOP
            if got.stop is not None:
                ends["across tokens"] += got.stop not in tokenizer.decode(ids[count - 1 : count])
    assert min(ends.values()) > 25, ends
