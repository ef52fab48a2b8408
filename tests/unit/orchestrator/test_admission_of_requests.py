"""Every bad field of a request is refused by its name and with its limit."""

import json
import math
from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from orchestrator.chat import Chat
from orchestrator.request import (
    MAX_SALT_CHARACTERS,
    Prompt,
    Request,
    Text,
    TokenIds,
    admit,
)
from orchestrator.workers import Target
from outrider.errors import IdentityMismatch, InvalidField
from outrider.identity import IdentityDigests, ModelIdentity, Numerics, TokenizerFiles
from outrider.policy import SpeculationOptions, policy_of_flags
from outrider.sampling import Mode, SamplingParams, choice_seed
from outrider.text import TextCodec

VOCAB_SIZE = 8
CONTEXT = 16
EOS = 7
PROMPT = TokenIds((1, 2))
DIGESTS = IdentityDigests("tokenizer", "template", "weights")


def make_target(**changed: object) -> Target:
    tokenizer = Tokenizer(WordLevel({str(i): i for i in range(VOCAB_SIZE)}, unk_token="0"))
    config = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    files = TokenizerFiles(
        {
            "tokenizer.json": tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
    )
    values: dict[str, object] = {
        "name": "toy",
        "revision": "",
        "architecture": "Toy",
        "digests": DIGESTS,
        "tokenizer_probe_digest": "",
        "vocab_size": VOCAB_SIZE,
        "logits_size": VOCAB_SIZE,
        "max_context_length": CONTEXT,
        "eos_token_ids": (EOS,),
        "bos_token_id": None,
        "pad_token_id": None,
        "numerics": Numerics(),
        "incarnation": "1",
    }
    identity = ModelIdentity(**(values | changed))  # type: ignore[arg-type]
    return Target(identity, files, TextCodec(files))


TARGET = make_target()


def request(
    prompt: Prompt | None = PROMPT,
    *,
    sampling: SamplingParams | None = None,
    speculation: SpeculationOptions | None = None,
    expected: IdentityDigests | None = None,
    cache_salt: str = "",
    target: Target = TARGET,
) -> Request:
    return admit(
        request_id="r",
        target=target,
        prompt=prompt,
        sampling=sampling or SamplingParams(),
        speculation=speculation or SpeculationOptions(),
        expected=expected or IdentityDigests(),
        cache_salt=cache_salt,
        policy=policy_of_flags(),
    )


def test_what_a_client_leaves_open_is_filled_in():
    made = request()
    assert made.prompt_ids == (1, 2)
    assert made.sampling.max_tokens == CONTEXT - 2
    assert made.max_length == CONTEXT
    assert made.sampling.stop_token_ids == (EOS,)
    assert made.mode is Mode.COUPLED
    assert made.sampling.seed is not None
    assert 0 <= made.sampling.seed < 2**63
    assert made.plan.speculates


@pytest.mark.parametrize(("most", "kept"), [(1, (5,)), (3, (3, 4, 5)), (5, (1, 2, 3, 4, 5))])
def test_a_prompt_is_cut_to_its_last_tokens(most, kept):
    prompt = TokenIds((1, 2, 3, 4, 5))
    made = request(prompt, sampling=SamplingParams(truncate_prompt_tokens=most))
    assert made.prompt_ids == kept
    assert made.sampling.max_tokens == CONTEXT - len(kept)
    longer = request(prompt, sampling=SamplingParams(truncate_prompt_tokens=100))
    assert longer.prompt_ids == prompt.input_ids


def test_a_prompt_that_is_cut_may_be_longer_than_the_context():
    prompt = TokenIds((1,) * 100 + (2,) * 3)
    made = request(prompt, sampling=SamplingParams(truncate_prompt_tokens=4))
    assert made.prompt_ids == (1, 2, 2, 2)
    with pytest.raises(InvalidField, match="has 16 tokens, it must be below the context of 16"):
        request(prompt, sampling=SamplingParams(truncate_prompt_tokens=CONTEXT))
    with pytest.raises(InvalidField, match=r"input_ids\[0\]: 99"):  # also of what is cut off
        request(TokenIds((99, 1)), sampling=SamplingParams(truncate_prompt_tokens=1))


def test_a_text_and_a_chat_are_cut_like_ids():
    params = SamplingParams(truncate_prompt_tokens=1)
    assert request(Text("3"), sampling=params).prompt_ids == (3,)
    assert request(Chat(({"role": "user", "content": "4"},)), sampling=params).prompt_ids == (4,)


def test_choices_are_requests_of_their_own():
    params = SamplingParams(n=3, seed=7, temperature=0.5, prompt_logprobs=1, logprobs=2)
    made = request(sampling=params)
    first, second, third = made.choices()
    assert [each.index for each in made.choices()] == [0, 1, 2]
    assert [each.sequence_id for each in made.choices()] == ["r", "r/1", "r/2"]
    assert {each.request_id for each in made.choices()} == {"r"}
    assert first.sampling == replace(made.sampling, n=1)
    for index, each in ((1, second), (2, third)):
        expected = replace(first.sampling, seed=choice_seed(7, index), prompt_logprobs=None)
        assert each.sampling == expected
        assert replace(each, index=0, sampling=first.sampling) == first
    drawn = request(sampling=SamplingParams(n=4))
    assert len({each.sampling.seed for each in drawn.choices()}) == 4


def test_seeds_that_are_drawn_differ():
    assert len({request().sampling.seed for _ in range(20)}) == 20


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_given_seed_is_kept(seed):
    made = request(sampling=SamplingParams(seed=seed))
    assert made.sampling.seed == seed
    assert 0 <= made.sampling.key < 2**64


@pytest.mark.parametrize(
    ("sampling", "stops"),
    [
        (SamplingParams(stop_token_ids=(3, 4)), (EOS, 3, 4)),
        (SamplingParams(stop_token_ids=(3, EOS, 3)), (EOS, 3)),
        (SamplingParams(ignore_eos=True), ()),
        (SamplingParams(ignore_eos=True, stop_token_ids=(3,)), (3,)),
        (SamplingParams(ignore_eos=True, stop_token_ids=(EOS,)), (EOS,)),
    ],
)
def test_the_ids_that_end_the_output(sampling, stops):
    assert request(sampling=sampling).sampling.stop_token_ids == stops


@pytest.mark.parametrize(("wanted", "kept"), [(1, 1), (14, 14), (15, 14), (2**31 - 1, 14)])
def test_max_tokens_end_at_the_context(wanted, kept):
    assert request(sampling=SamplingParams(max_tokens=wanted)).sampling.max_tokens == kept


def test_the_longest_prompt_leaves_one_token():
    made = request(TokenIds((1,) * (CONTEXT - 1)))
    assert made.sampling.max_tokens == 1


@pytest.mark.parametrize(
    ("changed", "field", "limit"),
    [
        pytest.param({"prompt": None}, "input", "one of text, tokenized and chat", id="none"),
        pytest.param({"prompt": TokenIds(())}, "input", "at least one token", id="no ids"),
        pytest.param({"prompt": Text("")}, "input", "at least one token", id="empty text"),
        pytest.param(
            {"prompt": TokenIds((1,) * CONTEXT)}, "input", f"below the context of {CONTEXT}",
            id="too long",
        ),
        pytest.param(
            {"prompt": TokenIds((1, VOCAB_SIZE))}, "tokenized.input_ids[1]", "outside [0, 8)",
            id="id out of range",
        ),
        pytest.param(
            {"prompt": TokenIds((2**32 - 1, 1))}, "tokenized.input_ids[0]", "outside [0, 8)",
            id="huge id",
        ),
        pytest.param({"prompt": Chat(())}, "chat.messages", "at least one", id="no messages"),
        pytest.param(
            {"prompt": Chat(({"role": "", "content": "1"},))}, "chat.messages[0].role", "empty",
            id="no role",
        ),
        pytest.param(
            {"cache_salt": "s" * (MAX_SALT_CHARACTERS + 1)}, "cache_salt",
            f"at most {MAX_SALT_CHARACTERS}", id="salt too long",
        ),
        pytest.param(
            {"sampling": SamplingParams(stop_token_ids=(1, 99))},
            "sampling_params.stop_token_ids[1]", "99 is outside [0, 8)", id="stop id",
        ),
        pytest.param(
            {"sampling": SamplingParams(min_tokens=15)}, "sampling_params.min_tokens",
            "above the 14 tokens", id="min_tokens beyond the context",
        ),
        pytest.param(
            {"sampling": SamplingParams(min_tokens=1, stop_token_ids=tuple(range(VOCAB_SIZE)))},
            "sampling_params.min_tokens", "leaves no token", id="everything stops",
        ),
        pytest.param(
            {"sampling": SamplingParams(banned_token_ids=tuple(range(VOCAB_SIZE)))},
            "sampling_params.banned_token_ids", "leaves no token", id="everything banned",
        ),
        pytest.param(
            {"sampling": SamplingParams(allowed_token_ids=(1, 2), bad_token_ids=((5, 1), (2,)))},
            "sampling_params.allowed_token_ids", "leaves no token", id="everything may be bad",
        ),
        pytest.param(
            {"sampling": SamplingParams(logit_bias=((VOCAB_SIZE, 1.0),))},
            f"sampling_params.logit_bias[{VOCAB_SIZE}]", "has 8 ids", id="biased id",
        ),
        pytest.param(
            {"speculation": SpeculationOptions(num_draft_tokens=33)},
            "speculation.num_draft_tokens", "outside [1, 32]", id="draft too long",
        ),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_with_its_limit(changed, field, limit):
    with pytest.raises(InvalidField) as refused:
        request(**changed)
    assert refused.value.field == field
    assert limit in str(refused.value)


@pytest.mark.parametrize("name", ["tokenizer_digest", "chat_template_digest", "weights_digest"])
def test_digests_that_are_not_the_expected_ones(name):
    with pytest.raises(IdentityMismatch, match=rf"expected\.{name}: other was expected"):
        request(expected=IdentityDigests(**{name: "other"}))
    assert request(expected=IdentityDigests(**{name: getattr(DIGESTS, name)}))


def test_a_target_without_eos_ends_by_length_only():
    made = request(target=make_target(eos_token_ids=()))
    assert made.sampling.stop_token_ids == ()


def test_a_chat_goes_through_the_template_once():
    assert request(Chat(({"role": "user", "content": "3"},))).prompt_ids == (3,)


def test_nan_never_gets_this_far():
    with pytest.raises(InvalidField, match="temperature"):
        request(sampling=SamplingParams(temperature=math.nan))
