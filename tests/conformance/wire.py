"""Raw streams to a worker: what a peer that follows the contract sends and receives."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from outrider.prefix import PrefixDigest
from outrider.sampling import SamplingParams, proposal_key
from outrider.serving.channel import open_channel
from outrider.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

GREEDY = SamplingParams(temperature=0.0, max_tokens=64)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=64, seed=5)


@dataclass
class VerifyStream:
    """One open Verify stream."""

    call: grpc.aio.StreamStreamCall
    cycle: int = field(default=0)

    async def step(
        self,
        ids: Sequence[int],
        start: int = 0,
        draft: Sequence[int] | common_pb2.Draft = (),
        *,
        cycle: int | None = None,
        digest: bytes | None = None,
        top_ids: int = 0,
        features: common_pb2.FeatureSpec | None = None,
        score_only: bool = False,
        rank_uniforms: bool = False,
    ) -> verifier_pb2.VerifyResponse:
        """State that the sequence is ``ids``, sending those from ``start`` on."""
        self.cycle = self.cycle + 1 if cycle is None else cycle
        if not isinstance(draft, common_pb2.Draft):
            draft = common_pb2.Draft(token_ids=draft)
        step = verifier_pb2.Step(
            cycle=self.cycle,
            start=start,
            token_ids=ids[start:],
            prefix_digest=PrefixDigest(ids).digest(start) if digest is None else digest,
            draft=draft,
            top_ids=top_ids,
            features=features,
            score_only=score_only,
            rank_uniforms=rank_uniforms,
        )
        await self.call.write(verifier_pb2.VerifyRequest(step=step))
        return await self.call.read()


@asynccontextmanager
async def verify_stream(
    address: str,
    *,
    sampling: SamplingParams = GREEDY,
    mode: int | None = None,
    num_prompt_tokens: int = 4,
    salt: str = "",
    expected: common_pb2.IdentityDigests | None = None,
    ratio_rule: int = verifier_pb2.RATIO_RULE_UNSPECIFIED,
) -> AsyncIterator[VerifyStream]:
    """Open a lease at a verifier; it ends with the block."""
    channel = open_channel(address)
    call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
    opening = verifier_pb2.VerifyOpen(
        sequence_id="test",
        sampling=sampling.to_proto(),
        mode=sampling.mode().value if mode is None else mode,
        seed=0 if sampling.seed is None else sampling.key,
        cache_salt=salt,
        num_prompt_tokens=num_prompt_tokens,
        expected=expected,
        ratio_rule=ratio_rule,  # type: ignore[arg-type]
    )
    await call.write(verifier_pb2.VerifyRequest(open=opening))
    try:
        await _opened(call)
        yield VerifyStream(call)
    finally:
        call.cancel()
        await channel.close()


@dataclass
class DraftStream:
    """One open Draft stream."""

    call: grpc.aio.StreamStreamCall
    source: str
    cycle: int = field(default=0)

    async def advance(
        self,
        ids: Sequence[int],
        start: int = 0,
        pending: Sequence[int] | None = None,
        *,
        num_tokens: int = 4,
        for_cycle: int = 0,
        max_outcomes: int = 0,
    ) -> int:
        """Tell the sequence and what is being verified; return the advance's cycle."""
        self.cycle += 1
        advance = drafter_pb2.Advance(
            cycle=self.cycle,
            start=start,
            token_ids=ids[start:],
            pending=None if pending is None else common_pb2.Draft(token_ids=pending),
            max_draft_tokens=num_tokens,
            for_cycle=for_cycle,
            max_outcomes=max_outcomes,
        )
        await self.call.write(drafter_pb2.DraftRequest(advance=advance))
        return self.cycle

    async def read(self) -> drafter_pb2.DraftResponse:
        """Return the next message."""
        return await self.call.read()


@asynccontextmanager
async def draft_stream(
    address: str,
    *,
    sampling: SamplingParams = GREEDY,
    mode: int | None = None,
    num_prompt_tokens: int = 4,
    vocab_size: int = 512,
    sources: Sequence[str] = (),
    target: common_pb2.IdentityDigests | None = None,
) -> AsyncIterator[DraftStream]:
    """Open a lease at a drafter; it ends with the block."""
    channel = open_channel(address)
    call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
    opening = drafter_pb2.DraftOpen(
        sequence_id="test",
        sampling=sampling.to_proto(),
        mode=sampling.mode().value if mode is None else mode,
        noise_key=_noise_key(sampling, mode),
        num_prompt_tokens=num_prompt_tokens,
        vocab_size=vocab_size,
        sources=sources,
        target=target,
    )
    await call.write(drafter_pb2.DraftRequest(open=opening))
    try:
        response = await _opened(call)
        yield DraftStream(call, response.opened.source)
    finally:
        call.cancel()
        await channel.close()


def _noise_key(sampling: SamplingParams, mode: int | None) -> int:
    key = 0 if sampling.seed is None else sampling.key
    return proposal_key(key) if mode == common_pb2.MODE_RATIO else key


async def _opened(
    call: grpc.aio.StreamStreamCall,
) -> verifier_pb2.VerifyResponse | drafter_pb2.DraftResponse:
    """Return the answer to an open; Raises: AioRpcError if it was refused."""
    response = await call.read()
    if response is grpc.aio.EOF:
        code, details = await call.code(), await call.details()
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
    assert response.WhichOneof("kind") == "opened"
    return response
