"""Structured output: with drafts of any kind as without, and never anything else than asked for."""

import json
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import grpc
import jsonschema
import pytest
import pytest_asyncio

from drafter_svc.settings import DrafterSettings
from outrider.client import Output, generate_request
from outrider.constraint import Constraints
from outrider.sampling import AcceptanceRule, Constraint, ConstraintKind, SamplingParams
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import verifier_pb2
from tests.cluster import cluster
from tests.integration.scripted import GUESSES, Guess
from tests.integration.stage import Stage, assert_parity, open_stage, together
from tests.toy import EOS, toy_tokenizer
from verifier_svc import __main__ as verifier_main
from verifier_svc.__main__ import open_verifier
from verifier_svc.lease import VerifierLease
from verifier_svc.servicer import VerifierServicer
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "né你"]}, "maxItems": 3},
        "size": {"type": "integer", "minimum": 0, "maximum": 1000},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PATTERN = r"[A-Z][a-z]{2,9}(?:, [a-z]{1,6}){0,3}\.(?:é|你)"
CHOICES = ("red", "green", "green or red", "né你")
GRAMMAR = 'start: term ("+" term){0,4}\nterm: /[0-9]{1,3}/ | "(" /[a-z]{1,5}/ ")"'
# Full of what is nearly right, so that copying from it meets the constraint again and again.
TEXT = (
    '{"name":"a","tags":["red","green","blue"],"size":12} {"name":"bbb", "tags":["red"],"size":1}'
    ' Red, green, red. green or red 1+2+(abc)+4 {"name":"ab","tags":["né你"],"size":10.5}'
)
TOKENIZER = toy_tokenizer()
PROMPT = TOKENIZER.encode(TEXT).ids
KINDS = {
    "json_schema": Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": Constraint(ConstraintKind.REGEX, PATTERN),
    "choice": Constraint(ConstraintKind.CHOICE, choices=CHOICES),
    "grammar": Constraint(ConstraintKind.GRAMMAR, GRAMMAR),
}
MARKER = "e:"
MARKER_BIAS = ((TOKENIZER.token_to_id("e"), 9.0), (TOKENIZER.token_to_id(":"), 9.0))
KINDS |= {f"{name} after": replace(constraint, after=MARKER) for name, constraint in KINDS.items()}
SOURCES = ("model", "ngram", "suffix", "recycling", "suffix+recycling", "lookahead", "oracle")
GREEDY = SamplingParams(temperature=0.0, max_tokens=120)
COUPLED = SamplingParams(max_tokens=120, seed=5)
LAWS = {"greedy": GREEDY, "coupled": COUPLED}


def near_miss(at: int) -> Guess:
    """Right but at one position, where what is drafted cannot be."""
    return lambda truth, index: 7 if index == at else truth[index]


ILLEGAL = {f"illegal at {at}": near_miss(at) for at in range(6)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, other: Path) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(model=str(other), dtype="float32", num_threads=1)
    async with open_stage([target], draft_model=draft_model, guesses=GUESSES | ILLEGAL) as opened:
        yield opened


def assert_valid(output: Output, kind: str) -> None:
    """A text that ended by itself is what was asked for, read by somebody else."""
    assert output.complete.finish_reason == pb.FINISH_REASON_STOP, output.text
    text = output.text
    if kind.endswith(" after"):
        assert MARKER in text
        text = text.partition(MARKER)[2]
    match kind.removesuffix(" after"):
        case "json_schema":
            jsonschema.validate(json.loads(text), SCHEMA)
        case "regex":
            assert re.fullmatch(PATTERN, text), text
        case "choice":
            assert text in CHOICES
        case "grammar":
            term = r"(?:\d{1,3}|\([a-z]{1,5}\))"
            assert re.fullmatch(rf"{term}(?:\+{term}){{0,4}}", text), text


def asked(kind: str, law: SamplingParams) -> tuple[list[int], SamplingParams]:
    """A prompt of its own, by which the scripted drafters know what will be said, and its law."""
    bias = MARKER_BIAS if kind.endswith("after") else ()  # of random text, or it takes long
    prompt = [100 + list(KINDS).index(kind), *PROMPT]
    return prompt, replace(law, constraint=KINDS[kind], logit_bias=bias)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", LAWS)
async def test_case_38_every_drafter_leaves_the_output_as_it_is(stage: Stage, law: str, kind: str):
    prompt, sampling = asked(kind, LAWS[law])
    plain = await stage.plain(prompt, sampling)
    assert_valid(plain, kind)
    first = list(KINDS).index(kind)
    runs = [(source, 1 + (first + 3 * n) % 8) for n, source in enumerate(SOURCES)]
    runs += [(source, 8) for source in (ILLEGAL if law == "greedy" else [*ILLEGAL][::3])]
    outputs = await together(
        *(
            stage.speculated(prompt, sampling, drafter=source, num_draft_tokens=k)
            for source, k in runs
        )
    )
    for (source, k), output in zip(runs, outputs, strict=True):
        assert_parity(output, plain, (source, k))
        receipt = output.complete.receipt
        assert not any("invalid" in each.reason for each in receipt.fallbacks), source
        if source == "oracle" and len(output.token_ids) > 2:
            assert receipt.draft_acceptance_rate == 1.0
            assert receipt.num_draft_tokens


async def test_case_38_seeds(stage: Stage):
    """Many outputs, each with another drafter, length and seed; all valid, all as without."""
    cases = []
    for seed in range(24):
        kind = [*KINDS][seed % len(KINDS)]
        prompt, sampling = asked(kind, replace(COUPLED, seed=seed, temperature=1.3))
        cases.append((kind, SOURCES[seed % len(SOURCES)], 1 + seed % 8, prompt, sampling))
    plain = await together(*(stage.plain(prompt, sampling) for *_, prompt, sampling in cases))
    outputs = await together(
        *(
            stage.speculated(prompt, sampling, drafter=source, num_draft_tokens=k)
            for _, source, k, prompt, sampling in cases
        )
    )
    for (kind, *about), output, expected in zip(cases, outputs, plain, strict=True):
        assert_valid(output, kind)
        assert_parity(output, expected, (kind, about))
    assert len({output.text for output in outputs}) > 15
    assert sum(output.complete.receipt.num_accepted_draft_tokens for output in outputs) > 20


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
async def test_rules_that_judge_by_probabilities(stage: Stage, rule: AcceptanceRule):
    requests = [
        (kind, *asked(kind, COUPLED), source)
        for kind in KINDS
        for source in ("suffix+model", "ngram")
    ]
    outputs = await together(
        *(
            stage.client.generate(
                generate_request(
                    prompt, sampling, sources=[source], num_draft_tokens=4, acceptance_rule=rule
                ),
                timeout_s=50,
            )
            for _, prompt, sampling, source in requests
        )
    )
    for (kind, *_), output in zip(requests, outputs, strict=True):
        assert_valid(output, kind)
        receipt = output.complete.receipt
        assert receipt.rule == rule.value
        assert not any("invalid" in each.reason for each in receipt.fallbacks)


@pytest.mark.parametrize("source", ["model", "ngram", "suffix+model"])
@pytest.mark.parametrize("kind", ["regex", "json_schema after"])
async def test_drafts_are_legal(stage: Stage, source: str, kind: str):
    """Those of a model because it is masked as the target is, copies because they are cut."""
    prompt, sampling = asked(kind, replace(COUPLED, seed=3))
    request = generate_request(
        prompt,
        sampling,
        sources=[source],
        num_draft_tokens=6,
        trace_top_ids=1,
    )
    output = await stage.client.generate(request, timeout_s=50)
    resolved = replace(sampling, stop_token_ids=(TOKENIZER.token_to_id(EOS),))
    text = Constraints(TOKENIZER).open(resolved)
    assert text is not None
    num_drafted = 0
    for chunk in output.chunks:
        trace, draft = chunk.trace, chunk.trace.draft.token_ids
        before = output.token_ids[: trace.base_position - len(prompt)]
        assert all(text.behind(before).legal((), draft, ())), (before, draft)
        num_drafted += len(draft)
    assert num_drafted > 0


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (
            replace(GREEDY, constraint=Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "str"}')),
            "sampling_params.json_schema: Invalid type: str",
        ),
        (
            replace(GREEDY, constraint=Constraint(ConstraintKind.REGEX, "a(")),
            "sampling_params.regex: unclosed group",
        ),
        (
            replace(GREEDY, constraint=KINDS["choice"], ignore_eos=True),
            "sampling_params.stop_token_ids: needed where a constraint is",
        ),
    ],
)
async def test_what_cannot_be_is_refused_at_once(
    stage: Stage, sampling: SamplingParams, message: str
):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stage.client.generate(generate_request(PROMPT, sampling), timeout_s=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in (refused.value.details() or "")


async def test_max_tokens_may_leave_a_text_unfinished_and_says_so(stage: Stage):
    sampling = replace(GREEDY, constraint=KINDS["json_schema"], max_tokens=5)
    for output in (
        await stage.plain(PROMPT, sampling),
        await stage.speculated(PROMPT, sampling, drafter="oracle"),
    ):
        assert output.complete.finish_reason == pb.FINISH_REASON_LENGTH
        assert len(output.token_ids) == 5


async def test_a_dead_end_is_an_error_of_its_own_request(stage: Stage):
    """An ordinary token as the end of the text: within, nothing else could write it."""
    cut_off = replace(
        GREEDY,
        constraint=Constraint(ConstraintKind.CHOICE, choices=("no}",)),
        stop_token_ids=(await stage.client.tokenize("}"))[-1:],
    )
    beside = replace(GREEDY, constraint=KINDS["json_schema"])
    expected = await stage.plain(PROMPT, beside)
    for options in ({"target_only": True}, {"sources": ["oracle"]}, {"sources": ["model"]}):
        broken, whole = await together(
            _refusal(stage, generate_request(PROMPT, cut_off, **options)),
            stage.speculated(PROMPT, beside, drafter="model"),
        )
        assert broken.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = broken.details() or ""
        assert "sampling_params.choice: no token can follow the first" in details
        assert_parity(whole, expected)


@pytest.mark.parametrize("dies_at", [1, 2, 5])
@pytest.mark.parametrize("kind", ["json_schema", "regex after"])
async def test_a_verifier_that_takes_over_goes_on_with_the_text(
    stage: Stage, toy: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dies_at: int
):
    """At 1 while it reads the prompt; later it has told some of the text."""

    class Mortal(VerifierServicer):
        num_steps = 0
        dead: VerifierServicer | None = None

        async def _step(
            self, lease: VerifierLease, request: verifier_pb2.VerifyRequest
        ) -> Iterable[verifier_pb2.VerifyResponse]:
            Mortal.num_steps += 1
            if Mortal.num_steps == dies_at:
                Mortal.dead = self
            if Mortal.dead is self:
                raise RuntimeError("out of order")
            return await VerifierServicer._step(self, lease, request)

    prompt, sampling = asked(kind, COUPLED)
    expected = await stage.plain(prompt, sampling)
    monkeypatch.setattr(verifier_main, "VerifierServicer", Mortal)
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    async with cluster(
        verifiers=[lambda: open_verifier(target), lambda: open_verifier(target)]
    ) as running:
        request = generate_request(prompt, sampling)
        output = await running.client.generate(request, timeout_s=50)
    assert output.complete.receipt.num_failovers == 1
    assert_parity(output, expected)
    assert_valid(output, kind)


async def _refusal(stage: Stage, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stage.client.generate(request, timeout_s=20)
    return refused.value
