"""Which workers serve a target, and which drafter fits which target."""

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from orchestrator.worker import (
    DRAFTER_PAUSE_S,
    MAX_FAILURES,
    VERIFIER_PAUSE_S,
    Role,
    Worker,
    WorkerState,
)
from orchestrator.workers import AFFINITY_LEASES, WorkerPool
from outrider.errors import InvalidField, NotFound, Unavailable
from outrider.identity import (
    IdentityDigests,
    ModelIdentity,
    Numerics,
    TokenizerFiles,
    chat_template_digest,
    tokenizer_digest,
)
from outrider.v1 import worker_pb2

WORDS = ("a", "b", "c", "d")


def worker(
    address: str,
    role: Role,
    *,
    name: str = "m",
    weights: str = "w",
    words: tuple[str, ...] = WORDS,
    template: str = "one\ntwo",
    sources: tuple[str, ...] = (),
) -> Worker:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    files = TokenizerFiles(
        {
            "tokenizer.json": tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps({"chat_template": template}).encode(),
        }
    )
    digests = IdentityDigests(tokenizer_digest(files), chat_template_digest(files), weights)
    identity = ModelIdentity(
        name=name,
        revision="",
        architecture="Toy",
        digests=digests,
        tokenizer_probe_digest="",
        vocab_size=len(words),
        logits_size=len(words),
        max_context_length=16,
        eos_token_ids=(),
        bos_token_id=None,
        pad_token_id=None,
        numerics=Numerics("float32", "cpu", "native", True, 512),
        incarnation=address,
    )
    made = Worker(address, role, None)  # type: ignore[arg-type]
    made.identity, made.files, made.sources = identity, files, sources
    verifies = role is Role.VERIFIER
    made.binding = (
        worker_pb2.WORKER_BINDING_TARGET if verifies else worker_pb2.WORKER_BINDING_DRAFT_MODEL
    )
    return made


def verifier(address: str = "v", **changed: object) -> Worker:
    return worker(address, Role.VERIFIER, **changed)  # type: ignore[arg-type]


def drafter(address: str = "d", **changed: object) -> Worker:
    return worker(address, Role.DRAFTER, sources=("model",), **changed)  # type: ignore[arg-type]


def pool(*workers: Worker, overrides: tuple[str, ...] = ()) -> WorkerPool:
    made = WorkerPool(list(workers), frozenset(overrides))
    for each in workers:
        if each.role is Role.VERIFIER:
            made.admit_verifier(each)
    made.pair_drafters()
    return made


def test_a_target_by_name():
    assert pool(verifier()).target("").identity.name == "m"
    two = pool(verifier("v1"), verifier("v2", name="n"))
    assert two.target("n").identity.name == "n"
    for name in ("", "o"):
        with pytest.raises(NotFound, match="there is m, n"):
            two.target(name)
    with pytest.raises(Unavailable):
        pool().target("m")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"digests": IdentityDigests("t", "c", "w")}, "digests"),
        ({"eos_token_ids": (1,)}, "eos_token_ids"),
        ({"max_context_length": 8}, "max_context_length"),
        ({"tokenizer_probe_digest": "x"}, "tokenizer_probe_digest"),
        ({"vocab_size": 3}, "vocab_size"),
        ({"numerics": Numerics("bfloat16", "cpu", "native", True, 512)}, "numerics"),
        ({"numerics": Numerics("float32", "cuda", "native", True, 512)}, "numerics"),
        ({"numerics": Numerics("float32", "cpu", "torch", True, 512)}, "numerics"),
        ({"numerics": Numerics("float32", "cpu", "native", True, 256)}, "numerics"),
    ],
)
def test_an_unequal_verifier_of_the_name_is_refused_and_never_chosen(change, named):
    first, second = verifier("v1"), verifier("v2")
    second.identity = replace(second.identity, **change)
    made = pool(first, second)
    assert second.state is WorkerState.REFUSED
    assert named in second.reason
    target = made.target("m")
    assert made.choose_verifier(target, set()) is first
    assert made.choose_verifier(target, {"v1"}) is None


def test_an_equal_verifier_of_another_name_serves_its_own_name_alone():
    first, second = verifier("v1", name="one"), verifier("v2", name="two")
    made = pool(first, second)
    assert made.choose_verifier(made.target("one"), {"v1"}) is None
    assert made.choose_verifier(made.target("two"), set()) is second


def test_a_refused_verifier_is_judged_anew_when_what_it_differed_from_is_lost():
    first, second = verifier("v1"), verifier("v2", weights="x")
    made = pool(first, second)
    assert second.state is WorkerState.REFUSED
    made.lose(first, "gone")
    assert second.state is WorkerState.READY
    assert made.choose_verifier(made.target("m"), set()) is second


@pytest.mark.parametrize("change", [{"incarnation": "x"}, {"revision": "x"}, {"logits_size": 9}])
def test_what_does_not_change_the_output_does_not_part_verifiers(change):
    first, second = verifier("v1"), verifier("v2")
    second.identity = replace(second.identity, **change)
    made = pool(first, second)
    assert made.choose_verifier(made.target("m"), {"v1"}) is second


def test_the_least_loaded_equal_verifier_is_chosen():
    first, second = verifier("v1"), verifier("v2")
    made = pool(first, second)
    first.num_leases = 2
    assert made.choose_verifier(made.target("m"), set()) is second
    second.lose("gone")
    assert made.choose_verifier(made.target("m"), set()) is first


def test_a_verifier_that_left_a_step_unanswered_comes_last_for_a_while():
    now = [0.0]
    first, second = verifier("v1"), verifier("v2")
    made = pool(first, second)
    made.clock = lambda: now[0]
    first.breaker.jitter = second.breaker.jitter = lambda: 1.0
    second.num_leases = 5
    first.fail("no verdict within 5.0 s", now[0], grave=True)
    assert first.state is WorkerState.SUSPECT
    assert made.choose_verifier(made.target("m"), set()) is second
    assert made.choose_verifier(made.target("m"), {"v2"}) is first, "better than nobody"
    now[0] = VERIFIER_PAUSE_S
    assert made.choose_verifier(made.target("m"), set()) is first, "it is tried again"
    first.fail("no verdict within 5.0 s", now[0])
    now[0] += VERIFIER_PAUSE_S
    assert made.choose_verifier(made.target("m"), set()) is second, "twice as long now"
    first.succeed()
    assert (first.state, first.reason) == (WorkerState.READY, "")
    assert made.choose_verifier(made.target("m"), set()) is first


def test_a_few_lost_streams_open_the_breaker_of_a_drafter():
    now = [0.0]
    failing, other = drafter("d1"), drafter("d2")
    made = pool(verifier(), failing, other)
    made.clock = lambda: now[0]
    failing.breaker.jitter = lambda: 1.0
    other.num_leases = 5
    for _ in range(MAX_FAILURES):
        assert made.choose_drafter(made.target("m"), ()) is failing
        failing.fail("drafter_lost", now[0])
    assert failing.state is WorkerState.SUSPECT
    assert made.choose_drafter(made.target("m"), ()) is other
    other.lose("gone")
    assert made.choose_drafter(made.target("m"), ()) is None, "drafts can be done without"
    now[0] = DRAFTER_PAUSE_S
    assert made.choose_drafter(made.target("m"), ()) is failing
    failing.succeed()
    assert failing.state is WorkerState.READY


def test_a_prompt_goes_where_its_beginning_was_read():
    first, second = verifier("v1"), verifier("v2")
    made = pool(first, second)
    target, beginning = made.target("m"), list(range(100))

    def chosen(token_ids: list[int], salt: str = "") -> Worker | None:
        return made.choose_verifier(target, set(), salt=salt, token_ids=token_ids)

    second.num_leases = 1
    assert chosen(beginning) is first
    first.num_leases = 1 + AFFINITY_LEASES
    assert chosen([*beginning[:70], 5, 6]) is first, "two more leases are worth a cached prefix"
    assert chosen([9, *beginning]) is second
    assert chosen(beginning, salt="other") is second, "a cache is shared within a salt alone"
    first.num_leases += 1
    assert chosen(beginning) is second, "too busy by now"
    first.num_leases = 0
    second.num_leases = 1
    assert chosen(beginning) is second, "it was the last one to read them"
    assert chosen(beginning[:31]) is first, "too short to matter"


def test_a_name_passes_to_new_weights_once_nobody_serves_the_old_ones():
    first, second = verifier("v1"), verifier("v2", weights="x")
    made = pool(first, second)
    pinned = made.target("m")
    first.lose("gone")
    made.admit_verifier(second)
    assert made.target("m").identity.digests.weights_digest == "x"
    assert made.choose_verifier(pinned, set()) is None, "a running sequence stays with the old"


def test_a_drafter_of_other_weights_fits():
    fitting = drafter(weights="other")
    made = pool(verifier(), fitting)
    assert fitting.state is WorkerState.READY
    assert made.choose_drafter(made.target("m"), ()) is fitting
    assert made.choose_drafter(made.target("m"), ("model", "ngram")) is fitting
    assert made.choose_drafter(made.target("m"), ("ngram",)) is None


def test_a_refusal_names_the_first_differing_tokens():
    foreign = drafter(words=("a", "c", "b", "d"))
    made = pool(verifier(), foreign)
    assert foreign.state is WorkerState.REFUSED
    assert "token 1: target 'b', draft 'c'" in foreign.reason
    assert "token 2: target 'c', draft 'b'" in foreign.reason
    assert made.choose_drafter(made.target("m"), ()) is None


def test_a_refusal_names_the_first_differing_line():
    foreign = drafter(template="one\nthree")
    pool(verifier(), foreign)
    assert foreign.state is WorkerState.REFUSED
    assert "chat template line 2: target 'two', draft 'three'" in foreign.reason
    assert "line 1" not in foreign.reason


def test_an_override_holds_for_its_address_and_for_templates_alone():
    allowed, other = drafter("d1", template="x"), drafter("d2", template="x")
    swapped = drafter("d3", template="x", words=("b", "a", "c", "d"))
    pool(verifier(), allowed, other, swapped, overrides=("d1", "d3"))
    states = [each.state for each in (allowed, other, swapped)]
    assert states == [WorkerState.READY, WorkerState.REFUSED, WorkerState.REFUSED]
    assert "token 0" in swapped.reason


@pytest.mark.parametrize("order", [1, -1])
def test_an_override_is_noted_for_the_pair_that_needs_it(order):
    same = verifier("v1", name="same", template="x")
    differs = verifier("v2", name="differs", template="y")
    shared = drafter(template="x")
    made = pool(*[same, differs][::order], shared, overrides=("d",))
    assert shared.refusals == {"same": "", "differs": ""}
    assert shared.overridden_targets == {"differs"}
    # The target changes: what was noted of it is over.
    differs.lose("gone")
    made.admit_verifier(verifier("v3", name="differs", template="x"))
    assert shared.overridden_targets == set()


def test_a_drafter_is_used_for_the_targets_that_it_fits():
    fitting = verifier("v1", name="fits")
    foreign = verifier("v2", name="foreign", words=("b", "a", "c", "d"))
    shared = drafter()
    made = pool(fitting, foreign, shared)
    assert shared.state is WorkerState.READY
    assert made.choose_drafter(made.target("fits"), ()) is shared
    assert made.choose_drafter(made.target("foreign"), ()) is None


def test_lookup_fits_every_target():
    lookup = drafter(words=("x", "y"))
    lookup.binding, lookup.files = worker_pb2.WORKER_BINDING_ANY_TARGET, None
    pool(verifier(), lookup)
    assert lookup.state is WorkerState.READY


@pytest.mark.parametrize(
    "binding", [worker_pb2.WORKER_BINDING_TARGET, worker_pb2.WORKER_BINDING_DRAFT_MODEL + 100]
)
def test_a_worker_that_is_no_drafter(binding):
    odd = drafter()
    odd.binding = binding
    pool(verifier(), odd)
    assert odd.state is WorkerState.REFUSED
    assert odd.reason == "the worker is not a drafter"


def test_a_drafter_waits_for_a_target():
    early = drafter()
    pool(early)
    assert early.state is WorkerState.CONNECTING


def test_sources_that_nobody_offers():
    made = pool(verifier(), drafter())
    made.check_sources(())
    made.check_sources(("nosuch", "model"))
    made.check_sources(("ngram",))
    with pytest.raises(InvalidField, match="nosuch: there is lookup, model, ngram"):
        made.check_sources(("nosuch",))
    unreached = Worker("d2", Role.DRAFTER, None)  # type: ignore[arg-type]
    made.workers.append(unreached)
    made.check_sources(("nosuch",))


def test_a_refusal_counts_once_until_the_worker_comes_back():
    stranger, fitting = drafter("d1", words=("b", "a", "c", "d")), drafter("d2")
    made = pool(verifier(), stranger, fitting)
    made.pair_drafters()
    assert made.num_refusals == {"d1": 1}
    made.lose(stranger, "gone")
    stranger.state = WorkerState.CONNECTING  # what the supervisor does when it answers again
    made.pair_drafters()
    assert made.num_refusals == {"d1": 2}
