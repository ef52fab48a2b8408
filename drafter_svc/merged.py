"""Draft source "suffix+recycling+parallel-tree": the likeliest nodes of all of them in one tree."""

from dataclasses import dataclass

from drafter_svc.recycling import RecyclingLease, RecyclingSource
from drafter_svc.source import Block, FeatureLease, Opening, Source, SourceLease, Wanted
from outrider.draft import Draft
from outrider.features import Features
from outrider.tree import GrowingTree, merge


@dataclass(slots=True)
class MergedLease:
    """Both trees are functions of the committed ids, so theirs is too: exact in every mode."""

    recycling: RecyclingLease
    model: SourceLease
    source: str

    @property
    def cache_length(self) -> int:
        """What both still have."""
        return min(self.recycling.cache_length, self.model.cache_length)

    async def draft(self, wanted: Wanted) -> Block:
        """Merge what the model deems likely with what was copied and recycled behind its guess."""
        self.recycling.learn(wanted)
        drawn = await self.model.draft(wanted)
        if not drawn.draft or not drawn.scores:
            return drawn
        ids, parents = list(drawn.draft.token_ids), list(drawn.draft.parents)
        likely = GrowingTree(ids, parents, list(drawn.scores))
        grown = self.recycling.grow(wanted, drawn.path)
        tree = merge([likely, grown], wanted.num_draft_tokens)
        return Block(
            path=drawn.path,
            draft=Draft(tuple(tree.token_ids), self.source, parents=tuple(tree.parents)),
            compute_ms=drawn.compute_ms,
            scores=tuple(tree.scores),
        )

    def take_features(self, features: Features) -> None:
        """Hand on to the model, whichever of both drafts next."""
        assert isinstance(self.model, FeatureLease)
        self.model.take_features(features)

    def close(self) -> None:
        """Close both."""
        self.recycling.close()
        self.model.close()


@dataclass(frozen=True, slots=True)
class MergedSource:
    """A model that makes trees, with copies and recycling beside it."""

    recycling: RecyclingSource
    model: Source

    @property
    def num_continuations(self) -> int:
        """As recycling does."""
        return self.recycling.num_continuations

    @property
    def name(self) -> str:
        """Name on the wire."""
        return f"{self.recycling.name}+{self.model.name}"

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """As the model does."""
        return self.model.feature_layers

    @property
    def feature_width(self) -> int:
        """As the model does."""
        return self.model.feature_width

    @property
    def needs_tokenizer(self) -> bool:
        """As the model does."""
        return self.model.needs_tokenizer

    def open(self, opening: Opening) -> MergedLease:
        """Begin with both."""
        return MergedLease(self.recycling.open(opening), self.model.open(opening), self.name)
