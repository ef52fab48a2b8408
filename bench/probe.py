"""A verifier asked directly: how long passes take, and how far rows depend on each other."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import grpc

from outrider.prefix import PrefixDigest
from outrider.sampling import SamplingParams
from outrider.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc

GREEDY = SamplingParams(temperature=0.0, seed=0)
TIMEOUT_S = 120.0
MAX_DRAFT = 32  # no more than a verifier checks at once


class VerifyStream:
    """One lease; it is told what the sequence is, and says what would follow."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        sampling: SamplingParams,
        *,
        num_prompt_tokens: int,
        salt: str = "",
    ) -> None:
        opening = verifier_pb2.VerifyOpen(
            sequence_id="probe",
            sampling=sampling.to_proto(),
            mode=sampling.mode().value,
            seed=sampling.key,
            cache_salt=salt,
            num_prompt_tokens=num_prompt_tokens,
        )
        self._call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify(timeout=TIMEOUT_S)
        self._opening: verifier_pb2.VerifyOpen | None = opening
        self._cycle = 0
        self._cache_length = 0

    async def __aenter__(self) -> "VerifyStream":
        await self._call.write(verifier_pb2.VerifyRequest(open=self._opening))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call.cancel()

    async def step(
        self, token_ids: Sequence[int], draft_token_ids: Sequence[int] = ()
    ) -> verifier_pb2.Verdict:
        """Return the verdict on a draft behind the sequence ``token_ids``."""
        while True:
            start = min(self._cache_length, len(token_ids) - 1)
            step = verifier_pb2.Step(
                cycle=self._cycle,
                start=start,
                token_ids=token_ids[start:],
                prefix_digest=PrefixDigest(token_ids[:start]).digest(),
                draft=common_pb2.Draft(token_ids=draft_token_ids, source="probe"),
            )
            await self._call.write(verifier_pb2.VerifyRequest(step=step))
            response = await self._read()
            self._cycle += 1
            if response.WhichOneof("kind") == "verdict":
                verdict: verifier_pb2.Verdict = response.verdict
                # What it accepted is not what the next call will say, so it does not count.
                self._cache_length = min(verdict.cache_length, len(token_ids))
                return verdict
            self._cache_length = response.context_needed.have_length

    async def _read(self) -> verifier_pb2.VerifyResponse:
        while True:
            response = await self._call.read()
            if response is grpc.aio.EOF:
                raise RuntimeError(f"the verifier ended the stream: {await self._call.details()}")
            assert isinstance(response, verifier_pb2.VerifyResponse)
            if response.WhichOneof("kind") != "opened":
                return response


@dataclass(slots=True)
class Probe:
    """What the probes found.

    ``pass_ms`` by rows of one sequence, ``sequences_pass_ms`` by sequences of one row, and for
    those ``sequences_rows``, the rows that the passes really had. ``margins`` are leads of winners,
    ``changes`` what other rows in the pass made of them, ``num_flips`` how often another one won.
    """

    pass_ms: dict[int, list[float]] = field(default_factory=dict)
    sequences_pass_ms: dict[int, list[float]] = field(default_factory=dict)
    sequences_rows: dict[int, list[int]] = field(default_factory=dict)
    margins: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    num_flips: int = 0

    @property
    def largest_change(self) -> float:
        """The most that other rows in the pass have moved a margin."""
        return max(self.changes)

    def compare(self, token_id: int, margin: float, verdict: verifier_pb2.Verdict) -> None:
        """Note what became of a decision in a pass of another size."""
        if verdict.accepted_nodes:  # the draft was right by accident: another row decided
            return
        if verdict.next_token_id == token_id:
            self.changes.append(abs(verdict.min_decision_margin - margin))
        else:
            self.changes.append(verdict.min_decision_margin + margin)
            self.num_flips += 1


@dataclass(frozen=True, slots=True)
class Prober:
    """Probes one verifier with prompts of its own."""

    channel: grpc.aio.Channel
    vocab_size: int
    num_prompt_tokens: int
    num_steps: int
    num_warm_up: int

    async def run(self, num_rows: Sequence[int], num_sequences: Sequence[int]) -> Probe:
        """Decode one sequence row by row, then ask for the same decisions in larger passes."""
        probe = Probe()
        prompt = self.prompt(0)
        output, margins, times = await self._decode(prompt)
        probe.margins = margins
        probe.pass_ms[1] = times
        for rows in num_rows:
            if rows > 1:
                probe.pass_ms[rows] = await self._verify_blocks(probe, rows, prompt, output)
        for count in num_sequences:
            passes = full_passes(await self._decode_together(probe, count, output), count)
            probe.sequences_rows[count] = [rows for rows, _ in passes]
            probe.sequences_pass_ms[count] = [ms for _, ms in passes]
        return probe

    def prompt(self, index: int) -> list[int]:
        """Return ids that are spread over the vocabulary, others for each index."""
        size = self.vocab_size
        return [(7919 * (i + 1) + 104_729 * index) % size for i in range(self.num_prompt_tokens)]

    async def _decode(self, prompt: list[int]) -> tuple[list[int], list[float], list[float]]:
        output: list[int] = []
        margins: list[float] = []
        times: list[float] = []
        async with self._open("alone") as stream:
            for step in range(self.num_steps):
                verdict = await stream.step(prompt + output)
                output.append(verdict.next_token_id)
                margins.append(verdict.min_decision_margin)
                if step >= self.num_warm_up:
                    times.append(verdict.compute_ms)
        return output, margins, times

    async def _verify_blocks(
        self, probe: Probe, rows: int, prompt: list[int], output: list[int]
    ) -> list[float]:
        times: list[float] = []
        async with self._open(f"rows-{rows}") as stream:
            for step, token_id in enumerate(output):
                wrong = [(token_id + 1 + i) % self.vocab_size for i in range(rows - 1)]
                verdict = await stream.step(prompt + output[:step], wrong)
                probe.compare(token_id, probe.margins[step], verdict)
                if step >= self.num_warm_up and verdict.rows_in_pass == rows:
                    times.append(verdict.compute_ms)
        return times

    async def _decode_together(
        self, probe: Probe, count: int, output: list[int]
    ) -> list[tuple[int, float]]:
        passes: list[tuple[int, float]] = []
        barrier = asyncio.Barrier(count)

        async def decode(index: int) -> None:
            prompt, own = self.prompt(index), list[int]()
            async with self._open(f"sequences-{count}") as stream:
                for step in range(self.num_steps):
                    await barrier.wait()  # so that all are in the pass
                    verdict = await stream.step(prompt + own)
                    own.append(verdict.next_token_id if index else output[step])
                    if step >= self.num_warm_up:
                        passes.append((verdict.rows_in_pass, verdict.compute_ms))
                    if index == 0:
                        probe.compare(output[step], probe.margins[step], verdict)

        async with asyncio.TaskGroup() as group:
            for index in range(count):
                group.create_task(decode(index))
        return passes

    def _open(self, salt: str) -> VerifyStream:
        return VerifyStream(
            self.channel, GREEDY, num_prompt_tokens=self.num_prompt_tokens, salt=salt
        )


def full_passes(passes: Sequence[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    """Return the passes (rows, ms) that most of ``count`` sequences shared, else the fullest."""
    enough = min(count * 3 // 4, max(rows for rows, _ in passes))
    return [each for each in passes if each[0] >= enough]


async def review(
    channel: grpc.aio.Channel,
    sampling: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    position: int,
) -> list[float]:
    """Ask afresh about ``output`` from ``position`` on.

    Returns the lead of the winner at ``position``, then those of the winners that are not the
    output's own tokens.
    """
    async with VerifyStream(
        channel, sampling, num_prompt_tokens=len(prompt), salt="afresh"
    ) as stream:
        verdict = await stream.step([*prompt, *output[:position]])
        leads = [verdict.min_decision_margin]
        while position < len(output):
            draft = output[position : position + MAX_DRAFT]
            verdict = await stream.step([*prompt, *output[:position]], draft)
            position += len(verdict.accepted_nodes)
            if len(verdict.accepted_nodes) < len(draft):
                # Its margin is the smallest of many rows; the one that matters is asked for alone.
                verdict = await stream.step([*prompt, *output[:position]])
                if verdict.next_token_id != output[position]:
                    leads.append(verdict.min_decision_margin)
                position += 1
    return leads


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)
