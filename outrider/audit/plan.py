"""How much an audit asks, and what it tolerates: both are fixed before the first request."""

from dataclasses import dataclass

from outrider.sampling import AcceptanceRule
from outrider.sources import TREE, TREES

LAWS = (AcceptanceRule.REJECTION, AcceptanceRule.BLOCK)
"""The rules that keep a law rather than a seed."""

VIEWS = (
    "greedy",
    "seeded",
    "token-law",
    "divergence",
    "humaneval",
    "arithmetic",
    "acceptance",
    "latency",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many requests of what length.

    ``num_samples`` outputs are drawn of every prompt for each rule, and twice as many of the target
    alone; ``num_programs`` and ``num_sums`` are the tasks of the two kinds, answered with at most
    ``task_tokens`` tokens. Prompts of more than ``max_characters`` are left out; None: none is.
    """

    num_prompts: int
    max_tokens: int
    num_samples: int
    num_programs: int
    num_sums: int
    task_tokens: int
    max_characters: int | None = None


FULL = Sizes(
    num_prompts=24, max_tokens=96, num_samples=6, num_programs=32, num_sums=24, task_tokens=192
)
QUICK = Sizes(
    num_prompts=12,
    max_tokens=48,
    num_samples=4,
    num_programs=4,
    num_sums=6,
    task_tokens=96,
    max_characters=600,
)


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What counts as a failure.

    ``alpha``: a test of a law fails below this p-value; ``confidence``: of all intervals;
    ``max_kl_excess`` and ``max_ngram_excess`` (nats): how much farther speculative samples may be
    from target-only ones than those are from one another; ``max_gap`` (logits): by how much the
    reference may prefer another token where the output is greedy; ``max_slowdown``: the share by
    which a token may take longer than without speculation; ``max_accuracy_loss``: share of tasks.
    """

    alpha: float = 1e-4
    confidence: float = 0.99
    max_kl_excess: float = 0.1
    max_ngram_excess: float = 0.03
    max_gap: float = 0.5
    max_slowdown: float = 0.25
    max_accuracy_loss: float = 0.1


@dataclass(frozen=True, slots=True)
class Way:
    """One way of answering a request; ``sources`` empty and no length leave both to the policy."""

    name: str
    target_only: bool = False
    sources: tuple[str, ...] = ()
    num_draft_tokens: int | None = None
    rule: AcceptanceRule | None = None

    @property
    def is_traced(self) -> bool:
        """True where it shall be known what draft tokens were drawn from: under rules that depend
        on it.

        Of trees there are no traces; under those rules none is drawn from a distribution.
        """
        is_tree = any(each in TREES or each.endswith(TREE) for each in self.sources)
        return self.rule in LAWS and not is_tree

    @property
    def must_draft(self) -> bool:
        """True where an answer without drafts tests nothing."""
        return self.num_draft_tokens is not None


TARGET_ONLY = Way("target-only", target_only=True)
POLICY = Way("policy")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, how, and what is tolerated.

    ``sources`` are those whose drafts are forced, ``num_draft_tokens`` at a time, so that something
    is verified whatever the policy thinks of it.
    """

    sizes: Sizes
    tolerances: Tolerances
    sources: tuple[str, ...]
    num_draft_tokens: int = 4
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    num_streams: int = 4
    seed: int = 0
    skipped: frozenset[str] = frozenset()
    timeout_s: float = 300.0

    def forced(self, rule: AcceptanceRule | None = None) -> list[Way]:
        """Return one way for each source, with a rule where one is named."""
        suffix = "" if rule is None else f", {rule.value}"
        return [
            Way(f"{source}{suffix}", False, (source,), self.num_draft_tokens, rule)
            for source in self.sources
        ]

    def wants(self, *views: str) -> bool:
        """True if at least one of the views is to be made."""
        return any(view not in self.skipped for view in views)
