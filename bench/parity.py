"""Speculation against target-only: the same requests both ways, and what a difference means."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from bench.probe import review
from outrider.client import Client, Output, generate_request
from outrider.sampling import Mode, SamplingParams

# Low enough that hardly any mass lies outside the head of the coupled rule: which side a token
# comes from is a decision of its own, and its lead is not part of the margin.
TEMPERATURE = 0.1
DRAWN_WITH = {Mode.GREEDY: 0.0, Mode.COUPLED: TEMPERATURE}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two outputs part, and the largest lead that the speculated one overturns from there.

    ``is_promised``: the lead is within what rounding may do where rows are not invariant.
    """

    position: int
    lead: float
    is_promised: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of the same prompts with speculation and without.

    Units: milliseconds. ``overhead_ms`` and ``network_ms`` are per cycle, one entry a request.
    """

    drafter: str
    mode: Mode
    num_streams: int
    num_draft_tokens: int
    differences: tuple[Difference, ...]
    num_verified: int
    num_accepted: int
    num_cycles: int
    num_cycles_saved: int
    overhead_ms: tuple[float, ...]
    network_ms: tuple[float, ...]

    @property
    def acceptance_rate(self) -> float:
        """Accepted over draft tokens."""
        return self.num_accepted / max(self.num_verified, 1)

    @property
    def num_equal(self) -> int:
        """Outputs with equal ids."""
        return self.num_streams - len(self.differences)

    @property
    def is_ok(self) -> bool:
        """True if drafts were checked and every difference is one that may be."""
        return self.num_verified > 0 and all(each.is_promised for each in self.differences)


@dataclass(frozen=True, slots=True)
class Comparer:
    """Sends requests to an orchestrator and asks the verifier about the places where they differ.

    ``margin_limit`` is the largest lead in logits that rounding may overturn; 0 promises equal ids.
    """

    client: Client
    verifier: grpc.aio.Channel
    drafter: str
    prompts: Sequence[Sequence[int]]
    num_tokens: int
    margin_limit: float

    async def run(
        self, mode: Mode, *, num_streams: int, lengths: Sequence[int]
    ) -> list[Comparison]:
        """Compare drafts of each length with target-only, ``num_streams`` requests at once."""
        plain = await self._generate(mode, num_streams, None)
        comparisons = []
        for num_draft_tokens in lengths:
            outputs = await self._generate(mode, num_streams, num_draft_tokens)
            pairs = enumerate(zip(plain, outputs, strict=True))
            found = [await self._difference(mode, n, one, other) for n, (one, other) in pairs]
            receipts = [output.complete.receipt for output in outputs]
            comparisons.append(
                Comparison(
                    drafter=self.drafter,
                    mode=mode,
                    num_streams=num_streams,
                    num_draft_tokens=num_draft_tokens,
                    differences=tuple(each for each in found if each is not None),
                    num_verified=sum(r.num_draft_tokens for r in receipts),
                    num_accepted=sum(r.num_accepted_draft_tokens for r in receipts),
                    num_cycles=sum(r.num_target_passes for r in receipts),
                    num_cycles_saved=sum(r.num_passes_saved for r in receipts),
                    overhead_ms=tuple(
                        (r.total_ms - r.queue_ms - r.verify_ms - r.draft_ms) / r.num_target_passes
                        for r in receipts
                    ),
                    network_ms=tuple(r.network_ms / r.num_target_passes for r in receipts),
                )
            )
        return comparisons

    async def _generate(
        self, mode: Mode, num_streams: int, num_draft_tokens: int | None
    ) -> list[Output]:
        target_only = num_draft_tokens is None
        requests = [
            generate_request(
                self.prompts[index],
                self._sampling(mode, index),
                target_only=target_only,
                sources=() if target_only else ("model",),
                num_draft_tokens=num_draft_tokens,
            )
            for index in range(num_streams)
        ]
        return await asyncio.gather(*(self.client.generate(request) for request in requests))

    async def _difference(
        self, mode: Mode, index: int, plain: Output, speculated: Output
    ) -> Difference | None:
        one, other = plain.token_ids, speculated.token_ids
        if one == other:
            return None
        position = first_difference(one, other)
        if position == min(len(one), len(other)):
            return Difference(position, float("inf"), is_promised=False)  # one is cut short
        leads = await review(
            self.verifier,
            self._sampling(mode, index),
            prompt=self.prompts[index],
            output=other,
            position=position,
        )
        limit = self.margin_limit / (DRAWN_WITH[mode] or 1.0)
        is_promised = self.margin_limit > 0 and max(leads) <= limit
        return Difference(position, max(leads), is_promised)

    def _sampling(self, mode: Mode, index: int) -> SamplingParams:
        temperature = DRAWN_WITH[mode]
        return SamplingParams(
            temperature=temperature, seed=1000 + index, max_tokens=self.num_tokens, ignore_eos=True
        )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the first place where the ids differ, the shorter length if they do not."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
