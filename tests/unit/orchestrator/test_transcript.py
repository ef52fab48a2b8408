"""Where an output ends, and which text is certain before it does."""

import itertools

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from orchestrator.sequence import End, FinishReason
from orchestrator.transcript import Delivery, Transcript
from orchestrator.verdict import CommittedToken, Origin
from outrider.text import StopMatcher, TextStream

WORDS = ["a", "b", "c", "ab", "bc", "<eos>"]
EOS = WORDS.index("<eos>")


def transcript(
    *,
    stop: tuple[str, ...] = (),
    stop_ids: tuple[int, ...] = (EOS,),
    longest: int = 100,
    keeps_stop: bool = False,
    skips: bool = True,
) -> Transcript:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    stream = TextStream(tokenizer, skip_special_tokens=skips, special_ids=frozenset([EOS]))
    stops = StopMatcher(stop, keeps_match=keeps_stop)
    return Transcript(stream, stops, frozenset(stop_ids), longest, keeps_stop)


def take(one: Transcript, words: list[str]) -> Delivery:
    return one.take([CommittedToken(WORDS.index(word), Origin.ONLY) for word in words])


@pytest.mark.parametrize(
    ("options", "words", "delivered", "text", "end"),
    [
        pytest.param({}, ["a", "b"], 2, "ab", None, id="no end"),
        pytest.param({}, [], 0, "", None, id="nothing"),
        pytest.param(
            {}, ["a", "<eos>", "b"], 2, "a", End(FinishReason.STOP, token_id=EOS), id="eos"
        ),
        pytest.param(
            {"stop_ids": (EOS, 1)},
            ["a", "b", "c"],
            2,
            "a",
            End(FinishReason.STOP, token_id=1),
            id="a stop id's own text is left out",
        ),
        pytest.param({"stop_ids": ()}, ["a", "<eos>", "b"], 3, "ab", None, id="eos ignored"),
        pytest.param(
            {"stop": ("bc",)},
            ["a", "b", "c", "a"],
            3,
            "a",
            End(FinishReason.STOP, stop="bc"),
            id="stop string over two tokens",
        ),
        pytest.param(
            {"stop": ("b",)},
            ["a", "ab", "c"],
            2,
            "aa",
            End(FinishReason.STOP, stop="b"),
            id="stop string inside a token",
        ),
        pytest.param(
            {"longest": 2}, ["a", "b", "c"], 2, "ab", End(FinishReason.LENGTH), id="length"
        ),
        pytest.param(
            {"longest": 2, "stop": ("bcc",)},
            ["a", "b"],
            2,
            "ab",
            End(FinishReason.LENGTH),
            id="what a stop string held back is told at the end",
        ),
        pytest.param(
            {"stop": ("bcc",)},
            ["a", "b", "<eos>"],
            3,
            "ab",
            End(FinishReason.STOP, token_id=EOS),
            id="and before a stop id",
        ),
        pytest.param(
            {"longest": 2},
            ["a", "<eos>"],
            2,
            "a",
            End(FinishReason.STOP, token_id=EOS),
            id="a stop id as the last token wins over length",
        ),
        pytest.param(
            {"longest": 2, "stop": ("ab",)},
            ["a", "b"],
            2,
            "",
            End(FinishReason.STOP, stop="ab"),
            id="so does a stop string",
        ),
        pytest.param(
            {"stop": ("bc", "abc")},
            ["a", "b", "c"],
            3,
            "",
            End(FinishReason.STOP, stop="abc"),
            id="of two that end together the longest",
        ),
        pytest.param(
            {"stop": ("bc",), "keeps_stop": True},
            ["a", "b", "c", "a"],
            3,
            "abc",
            End(FinishReason.STOP, stop="bc"),
            id="kept: a stop string over two tokens",
        ),
        pytest.param(
            {"stop": ("b",), "keeps_stop": True},
            ["a", "bc", "c"],
            2,
            "ab",
            End(FinishReason.STOP, stop="b"),
            id="kept: the stop string, and not what its token says behind it",
        ),
        pytest.param(
            {"stop_ids": (EOS, 1), "keeps_stop": True},
            ["a", "b", "c"],
            2,
            "ab",
            End(FinishReason.STOP, token_id=1),
            id="kept: the text of a stop id",
        ),
        pytest.param(
            {"keeps_stop": True},
            ["a", "<eos>", "b"],
            2,
            "a",
            End(FinishReason.STOP, token_id=EOS),
            id="kept: a special token is left out all the same",
        ),
        pytest.param(
            {"keeps_stop": True, "skips": False},
            ["a", "<eos>", "b"],
            2,
            "a<eos>",
            End(FinishReason.STOP, token_id=EOS),
            id="kept: a special token reads as text where those are told",
        ),
        pytest.param(
            {"skips": False},
            ["a", "<eos>", "b"],
            2,
            "a",
            End(FinishReason.STOP, token_id=EOS),
            id="the stop id is left out where other special tokens are told",
        ),
        pytest.param(
            {"stop": ("bcc",), "keeps_stop": True},
            ["a", "b", "<eos>"],
            3,
            "ab",
            End(FinishReason.STOP, token_id=EOS),
            id="kept: what was held back comes before a stop id",
        ),
        pytest.param(
            {"stop": ("bc",), "stop_ids": (2,), "keeps_stop": True},
            ["a", "b", "c"],
            3,
            "abc",
            End(FinishReason.STOP, token_id=2),
            id="kept: a stop id whose text completes a stop string counts as the id",
        ),
        pytest.param(
            {"longest": 2, "stop": ("ab",), "keeps_stop": True},
            ["a", "b"],
            2,
            "ab",
            End(FinishReason.STOP, stop="ab"),
            id="kept: a stop string as the last token",
        ),
    ],
)
def test_take(options, words, delivered, text, end):
    delivery = take(transcript(**options), words)
    assert len(delivery.tokens) == len(delivery.pieces) == delivered
    assert delivery.text == text
    assert delivery.end == end


@pytest.mark.parametrize("words", [["a", "b", "c", "ab", "<eos>"], ["ab", "c", "a", "b", "bc"]])
@pytest.mark.parametrize("stop", [(), ("bca",), ("cab", "x"), ("c",)])
@pytest.mark.parametrize("keeps_stop", [False, True])
def test_the_cut_into_cycles_changes_nothing(words, stop, keeps_stop):
    options = {"stop": stop, "longest": 5, "keeps_stop": keeps_stop}
    whole = take(transcript(**options), words)
    for cuts in itertools.product([False, True], repeat=len(words) - 1):
        one, got, pieces, rest = transcript(**options), [], [], list(words)
        end = None
        sizes = [len(list(group)) for group in _runs(cuts)]
        for size in sizes:
            if end is not None:
                break
            delivery = take(one, rest[:size])
            del rest[:size]
            got += delivery.tokens
            pieces += delivery.pieces
            end = delivery.end
        assert (got, pieces, end) == (whole.tokens, whole.pieces, whole.end)


def _runs(cuts: tuple[bool, ...]) -> list[list[int]]:
    runs: list[list[int]] = [[0]]
    for index, cut in enumerate(cuts, start=1):
        if cut:
            runs.append([])
        runs[-1].append(index)
    return runs


def test_a_piece_that_may_begin_a_stop_string_waits():
    one = transcript(stop=("bcc",))
    assert take(one, ["a", "b"]).pieces == ["a", ""]
    assert take(one, ["c"]).text == ""
    assert take(one, ["a"]).text == "bca"


class Late:
    """A text stream that tells each token's text only with the next one."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, token_id: int) -> str:
        told, self.held = self.held, WORDS[token_id]
        return told

    def flush(self) -> str:
        told, self.held = self.held, ""
        return told


@pytest.mark.parametrize(
    ("words", "text", "end"),
    [
        (["a", "b"], "a", End(FinishReason.STOP, stop="b")),
        (["b", "c"], "", End(FinishReason.STOP, stop="b")),
        (["a", "c"], "ac", End(FinishReason.LENGTH)),
    ],
)
def test_text_that_becomes_certain_at_the_end_is_searched_too(words, text, end):
    one = Transcript(Late(), StopMatcher(["b"]), frozenset([EOS]), 2)  # type: ignore[arg-type]
    delivery = take(one, words)
    assert (delivery.text, delivery.end) == (text, end)


@pytest.mark.parametrize(("keeps", "text"), [(False, "a"), (True, "ab")])
def test_the_text_of_a_stop_id_may_become_certain_at_the_end_only(keeps, text):
    ids = frozenset([WORDS.index("b")])
    one = Transcript(Late(), StopMatcher([]), ids, 9, keeps_stop=keeps)  # type: ignore[arg-type]
    delivery = take(one, ["a", "b", "c"])
    assert (delivery.text, delivery.pieces) == (text, ["", text])
    assert delivery.end == End(FinishReason.STOP, token_id=1)
