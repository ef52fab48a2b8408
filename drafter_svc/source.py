"""The seam between the drafter's servicer and its draft sources."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outrider.continuations import Continuations
from outrider.draft import Draft
from outrider.features import Features
from outrider.sampling import Mode, SamplingParams
from outrider.sampling_state import SamplingState


@dataclass(frozen=True, slots=True)
class Opening:
    """What a source learns of a sequence when its lease opens."""

    mode: Mode
    sampling: SamplingParams
    noise_key: int
    num_prompt_tokens: int
    vocab_size: int
    cache_salt: str
    tokenizer_digest: str = ""
    """Of the target; empty where it did not state one."""

    @property
    def salt(self) -> str:
        """What is remembered of other sequences is shared under the same one only.

        Token ids mean something within one vocabulary, so that belongs to it.
        """
        return f"{self.vocab_size}:{self.tokenizer_digest}:{self.cache_salt}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One advance: the sequence holds ``token_ids`` from ``start`` on.

    ``pending`` is being verified; None: nothing is, and a draft of the committed sequence itself is
    wanted. ``for_cycle`` is the one cycle that may use the draft in RATIO.
    """

    start: int
    token_ids: tuple[int, ...]
    pending: tuple[int, ...] | None
    num_draft_tokens: int
    state: SamplingState
    """Behind the committed ids: how the target will process what follows, so that both choose
    alike."""
    for_cycle: int = 0
    continuations: tuple[Continuations, ...] = ()
    """What the target said since the last advance, where the source asked for it."""
    max_outcomes: int = 1
    """Outcomes of the pending draft to prepare, where the source can prepare several."""

    @property
    def base(self) -> int:
        """Committed length."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Block:
    """A proposal: if ``path`` is committed after the base, ``draft`` is proposed."""

    path: tuple[int, ...]
    draft: Draft
    compute_ms: float = 0.0
    scores: tuple[float, ...] = ()
    """Of a tree: how likely each node is to be accepted, as its source sees it."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Outcomes of a pending draft to draft for: what is committed in each, likeliest first."""

    paths: tuple[tuple[int, ...], ...] = ()
    compute_ms: float = 0.0
    """What it took to find them."""


class SourceLease(Protocol):
    """A source's state of one sequence."""

    @property
    def cache_length(self) -> int:
        """Committed positions that the source still has."""
        ...

    async def draft(self, wanted: Wanted) -> Block:
        """Take the ids in and propose.

        Raises: CacheTooShort if positions before ``wanted.start`` got lost.
        """
        ...

    def close(self) -> None:
        """Free everything kept for the sequence."""
        ...


@runtime_checkable
class OutcomeLease(SourceLease, Protocol):
    """A lease that can draft for several outcomes of a pending draft.

    Both calls together take the place of ``draft``, where more than one outcome is wanted.
    """

    async def foresee(self, wanted: Wanted) -> Foreseen:
        """Take the ids in and rank the outcomes of ``wanted.pending``.

        At most ``wanted.max_outcomes``. Raises: CacheTooShort as ``draft`` does.
        """
        ...

    def draft_each(self, wanted: Wanted, foreseen: Foreseen) -> AsyncGenerator[Block, None]:
        """Yield a block for every outcome as soon as it is there; some may be missing.

        Of the same ``wanted``, before anything else is asked of the lease.
        """
        ...


@runtime_checkable
class FeatureLease(SourceLease, Protocol):
    """A lease of a source that wants hidden states of the target."""

    def take_features(self, features: Features) -> None:
        """Keep hidden states of committed positions, in a ``FeatureStore``, until they are used.

        Called as they arrive, also while ``draft`` is at work, before the first ``draft`` that
        is told the positions. In ascending order as a rule; after a failover positions come again,
        and what the verifier's prefix cache served or a full store dropped never comes.
        """
        ...


class Source(Protocol):
    """A way of drafting."""

    @property
    def name(self) -> str:
        """Name on the wire."""
        ...

    @property
    def needs_tokenizer(self) -> bool:
        """True where drafts make sense only with the tokenizer that the drafter loaded."""
        ...

    @property
    def num_continuations(self) -> int:
        """Most likely ids of every verified row that the source learns from; 0: none."""
        ...

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states the source wants; its leases take them.

        As ``FeatureSpec`` counts them. Empty: none.
        """
        ...

    @property
    def feature_width(self) -> int:
        """Numbers of one position: layers times the target's hidden size; 0 without layers."""
        ...

    def open(self, opening: Opening) -> SourceLease:
        """Begin a sequence; returns a ``FeatureLease`` where there are ``feature_layers``."""
        ...
