"""A policy file in force: what it decides, and what SIGHUP makes of a new one."""

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from orchestrator.settings import OrchestratorSettings
from outrider.client import Output, collect, generate_request
from outrider.receipts import read_receipts
from outrider.sampling import SamplingParams
from outrider.serving.settings import parse_settings
from outrider.v1 import generation_pb2 as pb
from tests.cluster import Cluster, cluster
from tests.integration.test_measures import read
from tests.scrape import free_port
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

TARGET = TableLaw.random(VOCAB_SIZE, seed=3)
SAMPLING = SamplingParams(temperature=0.0, max_tokens=30)


def policy_text(version: int, speculation: str, **more: object) -> str:
    lines = "".join(f"    {key}: {value}\n" for key, value in more.items())
    return (
        f"version: {version}\nclasses:\n  - name: all\n    speculation: {speculation}\n"
        f"    draft_tokens: 3\n    draft_wait_ms: 5000\n{lines}"
    )


async def info(services: Cluster) -> pb.PolicyInfo:
    return (await services.client.stub.GetServerInfo(pb.GetServerInfoRequest())).policy


async def hang_up(services: Cluster, version: str, *, error: str = "") -> pb.PolicyInfo:
    """Send SIGHUP and wait until this version is in force, with this error or none."""
    os.kill(os.getpid(), signal.SIGHUP)
    for _ in range(500):
        told = await info(services)
        if told.version == version and (error in told.error if error else not told.error):
            return told
        await asyncio.sleep(0.02)
    raise AssertionError(f"still {told}")


@pytest.mark.integration
async def test_a_new_file_counts_for_new_requests_and_a_bad_one_for_none(tmp_path: Path):
    policy, log, port = tmp_path / "policy.yaml", tmp_path / "log", free_port()
    policy.write_text(policy_text(1, "on"))
    request = generate_request([1, 2], SAMPLING)
    async with cluster(
        verifiers=[table_verifier(TARGET, gather_s=0.02)],
        drafters=[table_drafter(TARGET)],
        policy=policy,
        receipt_log=log,
        num_draft_tokens="auto",
        metrics_port=port,
    ) as services:
        first = await info(services)
        assert (first.version, first.path, first.error) == ("1", str(policy), "")
        async with aclosing(services.client.stream(request)) as running:
            responses = [await anext(running)]
            policy.write_text(policy_text(2, "off"))
            log.rename(tmp_path / "old")
            second = await hang_up(services, "2")
            assert second.digest != first.digest
            new = await services.client.generate(request)
            responses += [response async for response in running]
        old = collect(responses)
        assert old.token_ids == new.token_ids
        assert (*told(old), old.complete.receipt.num_spec_steps > 0) == ("1", "on", True)
        assert (*told(new), new.complete.receipt.num_spec_steps > 0) == ("2", "off", False)

        policy.write_text(policy_text(3, "maybe"))
        error = f"{policy}: line 4: classes[0].speculation: must be one of"
        await hang_up(services, "2", error=error)
        assert told(await services.client.generate(request)) == ("2", "off")
        policy.unlink()
        await hang_up(services, "2", error="No such file")
        policy.write_text(policy_text(3, "on"))
        await hang_up(services, "3")
        assert told(await services.client.generate(request)) == ("3", "on")
        samples = await read(port)
    assert samples["policy_reloads_total", ("loaded",)] == 2
    assert samples["policy_reloads_total", ("refused",)] >= 2
    (series,) = [labels for name, labels in samples if name == "policy_info"]
    assert series[1] == "3"
    assert [told.policy.version for told in read_receipts(log)] == ["1", "2", "2", "3"]
    assert not (tmp_path / "old").read_text(), "nothing had ended by then"


def told(output: Output) -> tuple[str, str]:
    receipt = output.complete.receipt
    return receipt.policy.version, receipt.policy.speculation


@pytest.mark.integration
async def test_without_a_file_sighup_changes_nothing():
    async with cluster(verifiers=[table_verifier(TARGET)]) as services:
        os.kill(os.getpid(), signal.SIGHUP)
        output = await services.client.generate(generate_request([1, 2], SAMPLING))
        assert (await info(services)).version == "flags"
    assert output.complete.receipt.policy.workload_class == "default"


@pytest.mark.integration
async def test_a_class_takes_the_drafters_that_it_names(tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    async with cluster(
        verifiers=[table_verifier(TARGET)],
        drafters=[table_drafter(TARGET, name="one"), table_drafter(TARGET, name="two")],
    ) as services:
        one, two = services.drafters
        policy.write_text(policy_text(1, "on", drafters=f"[{two}]"))
        async with cluster(
            verifiers=[],
            verifier_addresses=services.verifiers,
            drafter_addresses=[one, two],
            policy=policy,
            num_draft_tokens="auto",
        ) as choosing:
            outputs = [
                await choosing.client.generate(generate_request([1, 2], SAMPLING)) for _ in range(3)
            ]
    for output in outputs:
        receipt = output.complete.receipt
        assert (receipt.drafter_address, receipt.drafter.name) == (two, "two")
        assert list(receipt.policy.drafters) == [two]
        assert receipt.num_spec_steps > 0


@pytest.mark.integration
async def test_a_class_stops_drafting_where_too_little_is_accepted(tmp_path: Path):
    """Over many requests; now and then it is tried again, and then the drafts are as bad."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy_text(1, "on", min_agreement=0.6, lookup="false"))
    unlike = TableLaw.random(VOCAB_SIZE, seed=99)
    async with cluster(
        verifiers=[table_verifier(TARGET)],
        drafters=[table_drafter(unlike)],
        policy=policy,
        num_draft_tokens="auto",
    ) as services:
        outputs = [
            await services.client.generate(
                generate_request([1, 2], SamplingParams(temperature=1.0, max_tokens=40, seed=seed))
            )
            for seed in range(8)
        ]
    receipts = [output.complete.receipt for output in outputs]
    assert receipts[0].num_spec_steps > 0
    reasons = {each.reason: each.count for each in receipts[-1].draft_lengths.reasons}
    assert reasons["low_agreement"] > reasons.get("probe", 0)
    tried = [each for r in receipts[2:] for each in r.draft_lengths.reasons]
    assert sum(each.count for each in tried if each.reason == "probe") >= 4


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (
            ["--num-draft-tokens", "4"],
            "excludes --num-draft-tokens; the file says it all",
        ),
        (["--sources", "ngram", "--max-outcomes", "2"], "excludes --sources, --max-outcomes"),
    ],
)
def test_settings_that_a_file_would_overrule_are_refused(
    arguments: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy_text(1, "on"))
    base = ["--verifier", "a:1", "--policy", str(policy)]
    settings = parse_settings(OrchestratorSettings, [*base, "--num-draft-tokens", "auto"])
    assert settings.policy == policy, "a default that is spelt out is no contradiction"
    with pytest.raises(SystemExit):
        parse_settings(OrchestratorSettings, [*base, *arguments])
    assert fault in capsys.readouterr().err


def test_a_bad_file_stops_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nclasses: [{name: a, speculation: maybe, lookup: 3}]\n")
    with pytest.raises(SystemExit):
        parse_settings(OrchestratorSettings, ["--verifier", "a:1", "--policy", str(policy)])
    told = capsys.readouterr().err
    assert "--policy (ORCHESTRATOR_POLICY): " in told
    assert "line 2: classes[0].speculation: must be one of on, off, shadow, got 'maybe'" in told
    assert "classes[0].lookup: Input should be a valid boolean, got 3" in told
