"""23. A drafter declares what it is bound to. 24. A refusal names the first differences.

25. A template difference may be overridden for a pair, which the receipt shows; a tokenizer's
never.
"""

from pathlib import Path

import grpc
import pytest

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import common_pb2
from tests.cluster import DRAFTER_NAMES, cluster, serving
from tests.conformance.conftest import Worker
from tests.conformance.wire import draft_stream
from tests.toy import TEMPLATE, save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def verifier_of(folder: Path) -> object:
    settings = VerifierSettings(model=str(folder), dtype="float32")
    return lambda: open_verifier(settings)


def drafter_of(folder: Path | None) -> object:
    settings = DrafterSettings(model="" if folder is None else str(folder), dtype="float32")
    return lambda: open_drafter(settings)


@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One exchanged pair of vocabulary entries."""
    folder = tmp_path_factory.mktemp("pairs") / "swapped"
    return save_toy(folder, seed=1, scale=0.25, max_context_length=128, swap=(33, 34))


@pytest.fixture(scope="module")
def retemplated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another chat template."""
    folder = tmp_path_factory.mktemp("pairs") / "retemplated"
    template = TEMPLATE.replace("<assistant>", "<helper>")
    return save_toy(folder, seed=1, scale=0.25, max_context_length=128, template=template)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More logits than the tokenizer has ids."""
    folder = tmp_path_factory.mktemp("pairs") / "padded"
    return save_toy(folder, seed=1, scale=0.25, max_context_length=128, logits_size=600)


async def test_a_swapped_entry_is_refused_with_the_tokens_named(toy: Path, swapped: Path) -> None:
    async with cluster(
        verifiers=[verifier_of(toy)], drafters=[drafter_of(swapped)], lookup_on_miss=False
    ) as services:
        drafter = services.workers[1]
        assert drafter.state == "refused"
        assert "33" in drafter.reason
        assert "34" in drafter.reason
        output = await services.client.generate(generate_request([1, 2, 3], GREEDY))
        receipt = output.complete.receipt
        assert receipt.num_draft_tokens == 0
        assert {each.reason for each in receipt.fallbacks} >= {"no_drafter"}


async def test_another_template_is_refused_with_the_line_named(
    toy: Path, retemplated: Path
) -> None:
    async with cluster(
        verifiers=[verifier_of(toy)], drafters=[drafter_of(retemplated)]
    ) as services:
        drafter = services.workers[1]
        assert drafter.state == "refused"
        assert "<helper>" in drafter.reason
        assert "<assistant>" in drafter.reason


async def test_padded_logits_work_and_padding_is_never_proposed(toy: Path, padded: Path) -> None:
    async with cluster(verifiers=[verifier_of(toy)], drafters=[drafter_of(padded)]) as services:
        assert services.workers[1].state == "ready"
        for seed in range(4):
            sampling = SamplingParams(temperature=2.0, seed=seed, max_tokens=40, ignore_eos=True)
            request = generate_request([1, 2, 3], sampling, sources=["model"])
            receipt = (await services.client.generate(request)).complete.receipt
            assert receipt.num_draft_tokens > 0
            assert "invalid_draft" not in {each.reason for each in receipt.fallbacks}


async def test_an_override_is_explicit_and_shown(toy: Path, retemplated: Path) -> None:
    async with (
        serving(DRAFTER_NAMES, drafter_of(retemplated)) as address,
        cluster(
            verifiers=[verifier_of(toy)],
            drafter_addresses=[address],
            allow_template_difference=(address,),
        ) as services,
    ):
        assert services.workers[1].state == "ready"
        request = generate_request([1, 2, 3], GREEDY, sources=["model"])
        receipt = (await services.client.generate(request)).complete.receipt
        assert receipt.num_draft_tokens > 0
        assert "template difference was overridden" in receipt.decision


async def test_a_tokenizer_difference_cannot_be_overridden(toy: Path, swapped: Path) -> None:
    async with (
        serving(DRAFTER_NAMES, drafter_of(swapped)) as address,
        cluster(
            verifiers=[verifier_of(toy)],
            drafter_addresses=[address],
            allow_template_difference=(address,),
        ) as services,
    ):
        assert services.workers[1].state == "refused"


async def test_lookup_is_bound_to_no_tokenizer(toy: Path) -> None:
    async with cluster(verifiers=[verifier_of(toy)], drafters=[drafter_of(None)]) as services:
        drafter = services.workers[1]
        assert drafter.state == "ready"
        offered = {"ngram", "suffix", "recycling", "suffix+recycling", "lookahead"}
        assert set(drafter.sources) == offered
        assert drafter.sources[0] == "ngram"


async def test_a_drafter_checks_the_target_by_itself(drafter: Worker) -> None:
    foreign = common_pb2.IdentityDigests(tokenizer_digest="0" * 32)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with draft_stream(drafter.address, target=foreign):
            pass
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    async with draft_stream(drafter.address, target=foreign, sources=["ngram"]) as stream:
        assert stream.source == "ngram"
