"""How likely draft tokens are to be accepted, position by position."""

from dataclasses import dataclass, field

PRIOR = 0.5  # of the first position before anything is known
RATE = 0.05
FRESH_COUNT = 8  # observations that an estimate still stands for once it may be out of date
SHARED_WEIGHT = 8.0  # observations of its own that weigh as much as the source's estimate
DECAY = 0.95  # of a sequence's own observations, per verified draft


@dataclass(slots=True)
class SourceAcceptance:
    """Conditional acceptance by position in the draft: of those whose prefix was accepted.

    A position that no draft has reached is taken to be like the last one that some did.
    """

    probs: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def conditional(self, position: int) -> float:
        """Return the chance of the token at a position, given that all before it were accepted."""
        if not self.probs:
            return PRIOR
        return self.probs[min(position, len(self.probs) - 1)]

    def conditionals(self, num_positions: int) -> list[float]:
        """Return the chances at the first positions."""
        if not self.probs:
            return [PRIOR] * num_positions
        beyond = [self.probs[-1]] * (num_positions - len(self.probs))
        return [*self.probs[:num_positions], *beyond]

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        """Learn from a chain; positions behind the first rejection were not reached."""
        for position in range(min(num_accepted + 1, num_drafted)):
            if position == len(self.probs):
                self.probs.append(self.conditional(position))
                self.counts.append(0)
            self.counts[position] += 1
            # A mean at first, of the prior and what was seen, then an average that forgets.
            rate = max(RATE, 1 / (self.counts[position] + 1))
            hit = float(position < num_accepted)
            self.probs[position] += rate * (hit - self.probs[position])

    def refresh(self) -> None:
        """Let the next drafts count for more than the old ones."""
        self.counts = [min(count, FRESH_COUNT) for count in self.counts]


@dataclass(slots=True)
class SequenceAcceptance:
    """The same of one sequence, drawn to its source's estimate while it has seen little itself."""

    hits: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)

    def conditional(self, position: int, shared: SourceAcceptance) -> float:
        """Return the chance at a position: (n m + 8 a) / (n + 8), for its own mean m of n."""
        prior = SHARED_WEIGHT * shared.conditional(position)
        if position >= len(self.hits):
            return prior / SHARED_WEIGHT
        return (self.hits[position] + prior) / (self.reached[position] + SHARED_WEIGHT)

    def conditionals(self, num_positions: int, shared: SourceAcceptance) -> list[float]:
        """Return the chances at the first positions."""
        chances = shared.conditionals(num_positions)
        own = zip(chances, self.hits, self.reached, strict=False)
        for position, (prior, hits, reached) in enumerate(own):
            chances[position] = (hits + SHARED_WEIGHT * prior) / (reached + SHARED_WEIGHT)
        return chances

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        """Learn from a chain."""
        self.hits = [DECAY * hits for hits in self.hits]
        self.reached = [DECAY * reached for reached in self.reached]
        for position in range(min(num_accepted + 1, num_drafted)):
            if position == len(self.hits):
                self.hits.append(0.0)
                self.reached.append(0.0)
            self.hits[position] += position < num_accepted
            self.reached[position] += 1
