"""On the default (bf16, row-invariant kernels) speculation changes no token.

Every draft source, every draft length, alone and in a batch, cold and on a prefix hit, greedy and
coupled.
"""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence

import jsonschema
import pytest
import pytest_asyncio

from outrider.client import Output, generate_request
from outrider.questions import load_questions
from outrider.sampling import Constraint, ConstraintKind, SamplingParams
from outrider.v1 import generation_pb2
from tests.cluster import Cluster, cluster
from tests.real.models import target, trained_draft, trained_heads

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.integration,
    pytest.mark.timeout(240),  # the first test loads five models
]

BATCH = 8
PROMPTS = [question.text[:160] for question in load_questions(BATCH)]
LAWS = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "top_p": 0.95, "seed": 20_240_607},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Cluster]:
    """Target, a drafter with a trained model, lookup and trees, and one with each head."""
    drafters = [trained_draft(), *trained_heads()]
    async with cluster(verifiers=[target()], drafters=drafters, draft_wait_ms=10_000) as running:
        numerics = running.workers[0].identity.numerics
        assert numerics.dtype == "bfloat16"
        assert numerics.row_invariant
        yield running


@pytest.fixture(scope="module")
def plain() -> dict[tuple[str, int], list[list[int]]]:
    """Target-only outputs by law and length; filled by the first test that asks."""
    return {}


async def run(
    services: Cluster,
    law: str,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    salt: str,
    **how: object,
) -> list[Output]:
    """Answer all prompts at once; ``how`` holds parameters of sampling and of speculation."""
    names = {each.name for each in dataclasses.fields(SamplingParams)}
    values = LAWS[law] | {name: how.pop(name) for name in names & how.keys()}
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **values)
    requests = [
        # A salt each: the prompts begin alike, and a cold prompt must not find its neighbour's.
        generate_request([("user", prompt)], sampling, cache_salt=f"{salt}-{index}", **how)
        for index, prompt in enumerate(prompts)
    ]
    return list(await asyncio.gather(*map(services.client.generate, requests)))


def ids(outputs: Sequence[Output]) -> list[list[int]]:
    """The token ids."""
    return [output.token_ids for output in outputs]


async def check(
    services: Cluster,
    plain: dict[tuple[str, int], list[list[int]]],
    law: str,
    *,
    source: str,
    num_draft_tokens: int,
    max_tokens: int,
) -> None:
    """Compare with target-only: one stream cold and warm, then all streams cold and warm."""
    key = (law, max_tokens)
    if key not in plain:
        plain[key] = ids(
            await run(services, law, PROMPTS, max_tokens=max_tokens, salt="plain", target_only=True)
        )
    how = {"sources": [source], "num_draft_tokens": num_draft_tokens, "max_tokens": max_tokens}
    salt = f"{law}-{source}-{num_draft_tokens}-{max_tokens}"
    for prompts in (PROMPTS[:1], PROMPTS):
        cold = await run(services, law, prompts, salt=f"{salt}-{len(prompts)}", **how)
        warm = await run(services, law, prompts, salt=f"{salt}-{len(prompts)}", **how)
        expected = plain[key][: len(prompts)]
        assert ids(cold) == expected
        assert ids(warm) == expected
        assert all(output.complete.cached_tokens == 0 for output in cold)
        assert all(output.complete.cached_tokens > 0 for output in warm)
        if source == "model":
            assert all(output.complete.receipt.num_draft_tokens > 0 for output in warm)


async def test_target_only_is_the_same_alone_in_a_batch_and_on_a_prefix_hit(
    services: Cluster,
) -> None:
    for law in LAWS:
        how = {"max_tokens": 12, "target_only": True}
        batch = ids(await run(services, law, PROMPTS, salt=f"only-{law}", **how))
        again = ids(await run(services, law, PROMPTS, salt=f"only-{law}", **how))
        alone = [
            ids(await run(services, law, [prompt], salt=f"alone-{law}-{index}", **how))[0]
            for index, prompt in enumerate(PROMPTS)
        ]
        assert batch == again == alone


@pytest.mark.timeout(180)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("source", "num_draft_tokens"),
    [
        ("model", 3),
        ("parallel", 5),
        ("suffix+recycling", 12),
        ("eagle3-tree", 12),
        ("medusa-tree", 12),
        ("redrafter-tree", 12),
    ],
)
async def test_no_draft_changes_a_token(
    services: Cluster,
    plain: dict[tuple[str, int], list[list[int]]],
    law: str,
    source: str,
    num_draft_tokens: int,
) -> None:
    await check(
        services, plain, law, source=source, num_draft_tokens=num_draft_tokens, max_tokens=10
    )


PARAMETERS: dict[str, object] = {
    "frequency_penalty": 0.4,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.15,
    "logit_bias": ((28, 1.0), (284, -2.0)),
    "bad_token_ids": ((198, 198), (253,)),
    "logprobs": 4,
}


@pytest.mark.parametrize("law", LAWS)
async def test_no_draft_changes_a_token_or_its_log_probability_under_penalties(
    services: Cluster, law: str
) -> None:
    how = {"max_tokens": 16, **PARAMETERS}
    plain = await run(services, law, PROMPTS, salt=f"{law}-bare", target_only=True, **how)
    unhindered = await run(services, law, PROMPTS, salt=law, max_tokens=16, target_only=True)
    assert ids(plain) != ids(unhindered)
    for source, num in (("model", 3), ("suffix+recycling", 12), ("eagle3-tree", 12)):
        drafts = {"sources": [source], "num_draft_tokens": num}
        outputs = await run(services, law, PROMPTS, salt=f"{law}-{source}", **drafts, **how)
        assert ids(outputs) == ids(plain)
        for output, expected in zip(outputs, plain, strict=True):
            assert list(output.complete.logprobs) == list(expected.complete.logprobs)
            assert len(output.complete.logprobs) == 16


END_OF_TURN = 2  # of SmolLM2
SCHEMA = {
    "type": "object",
    "properties": {"topic": {"type": "string", "maxLength": 20}, "hard": {"type": "boolean"}},
    "required": ["topic", "hard"],
    "additionalProperties": False,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("law", "after"),
    [
        ("coupled", ""),
        ("greedy", "."),
        *(
            pytest.param(*cell, marks=pytest.mark.parity)
            for cell in (("greedy", ""), ("coupled", "."))
        ),
    ],
)
async def test_no_draft_changes_a_token_of_a_constrained_text(
    services: Cluster, law: str, after: str
) -> None:
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA), after=after)
    how = {"max_tokens": 60, "constraint": constraint, "stop_token_ids": (END_OF_TURN,)}
    prompts = [f"{prompt} Say the topic in JSON." for prompt in PROMPTS[:4]]
    plain = await run(services, law, prompts, salt=f"{law}{after}", target_only=True, **how)
    for output in plain:
        text = output.text.partition(after)[2] if after else output.text
        if output.complete.finish_reason == generation_pb2.FINISH_REASON_STOP:
            jsonschema.validate(json.loads(text), SCHEMA)
        else:
            assert after, "that is long enough for the whole of it"
    for source, num in (("model", 3), ("suffix+recycling", 12), ("eagle3-tree", 12)):
        drafts = {"sources": [source], "num_draft_tokens": num}
        outputs = await run(services, law, prompts, salt=f"{law}{after}{source}", **drafts, **how)
        assert ids(outputs) == ids(plain), source
        assert any(output.complete.receipt.num_accepted_draft_tokens for output in outputs)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("source", "num_draft_tokens"),
    [
        *(("model", num) for num in (1, 2, 4, 8)),
        *(pytest.param("model", num, marks=pytest.mark.parity) for num in (3, 5, 6, 7)),
        *(pytest.param("ngram", num, marks=pytest.mark.parity) for num in range(1, 8)),
        ("ngram", 8),
        ("suffix", 6),
        ("recycling", 16),
        ("parallel-tree", 16),
        ("suffix+parallel", 7),
        ("suffix+recycling+parallel-tree", 24),
        ("eagle3", 5),
        ("suffix+recycling+eagle3-tree", 24),
    ],
)
async def test_no_draft_of_any_length_changes_a_token(
    services: Cluster,
    plain: dict[tuple[str, int], list[list[int]]],
    law: str,
    source: str,
    num_draft_tokens: int,
) -> None:
    await check(
        services, plain, law, source=source, num_draft_tokens=num_draft_tokens, max_tokens=8
    )
