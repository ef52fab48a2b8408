"""Whether sampled tokens follow the target's law, token by token.

Every output is read once more by a reference that knows nothing of the services. Three numbers of
each token then have a known law if the token was drawn from the target's distribution, whatever
that is: its place among all ids by likelihood, and by what the draft preferred, both made uniform
(``outrider.uniformity``), and its surprisal, whose mean is the entropy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.audit.asking import Answer, Drafted
from outrider.audit.intervals import Interval, mean
from outrider.audit.plan import TARGET_ONLY, Tolerances
from outrider.audit.reference import Floats, Law, Reference, Rows
from outrider.audit.view import Table, View, verdict_of
from outrider.uniformity import rank_uniforms

NAME, TITLE = "token-law", "Token law: sampled tokens against the target's own distribution"
MAX_OUTSIDE = 0.01  # share of tokens at an edge of the nucleus, where rounding decides


@dataclass(frozen=True, slots=True)
class Scored:
    """The tokens of one way, as the reference sees them.

    ``num_outside``: tokens that the law does not allow at all. Shapes: uniforms [N], by likelihood;
    pulls [N], by the draft's preference where there is one, of no token without traced drafts;
    excess, surprisal less entropy in nats, and spread, the standard deviation that the law gives
    it, both [N - num_outside].
    """

    way: str
    uniforms: Floats
    pulls: Floats
    excess: Floats
    spread: Floats
    num_outside: int


async def score(way: str, answers: Sequence[Answer], reference: Reference, seed: int) -> Scored:
    """Let the reference read the outputs of one way."""
    rng = np.random.default_rng(seed)
    uniforms, excess, spread, num_outside = [], [], [], 0
    pulls = [np.empty(0)]
    for answer in answers:
        sampling = answer.ask.sampling
        law = Law(sampling.temperature, sampling.top_p, sampling.top_k)
        rows = await reference.read(answer.ask.prompt.token_ids, answer.token_ids, law)
        probs = rows.probs
        randoms = rng.random(len(rows.outcomes))
        uniforms.append(rank_uniforms(probs, rows.outcomes, randoms))
        if answer.drafted:
            drafts = draft_probs(rows, answer.drafted)
            pulls.append(rank_uniforms(probs, rows.outcomes, randoms, drafts))
        own = np.take_along_axis(probs, rows.outcomes[:, None], 1)[:, 0]
        inside = own > 0
        num_outside += int((~inside).sum())
        surprisals = -np.log(np.where(probs > 0, probs, 1.0))  # 0 where there is no probability
        entropy = (probs * surprisals).sum(1)
        variance = (probs * surprisals**2).sum(1) - entropy**2
        excess.append((-np.log(np.where(inside, own, 1.0)) - entropy)[inside])
        spread.append(np.sqrt(np.maximum(variance, 0.0))[inside])
    return Scored(
        way=way,
        uniforms=np.concatenate(uniforms),
        pulls=np.concatenate(pulls),
        excess=np.concatenate(excess),
        spread=np.concatenate(spread),
        num_outside=num_outside,
    )


def draft_probs(rows: Rows, drafted: Sequence[Drafted | None]) -> Floats:
    """Return what draft tokens were drawn from, [N, W], 0 where there was none."""
    found = np.zeros_like(rows.probs)
    for row, each in enumerate(drafted):
        if each is not None:
            found[row] = rows.of_outcomes(row, *each)
    return found


@dataclass(frozen=True, slots=True)
class Tested:
    """The tests of one way.

    ``distance`` and ``pull``: the largest distances between the distributions of ``uniforms`` and
    of ``pulls`` and the uniform one (Kolmogorov-Smirnov); without drafts there is no pull.
    """

    scored: Scored
    distance: float
    distance_p: float
    pull: float
    pull_p: float
    surprisal_p: float
    excess: Interval
    """Mean surprisal less entropy, nats a token."""

    def passes(self, alpha: float) -> bool:
        """True if no test finds anything."""
        outside = self.scored.num_outside / max(len(self.scored.uniforms), 1)
        return min(self.distance_p, self.pull_p, self.surprisal_p) >= alpha and (
            outside <= MAX_OUTSIDE
        )


def check(scored: Scored, confidence: float) -> Tested:
    """Test the numbers of one way."""
    from scipy import stats

    found = stats.kstest(scored.uniforms, "uniform")
    pull, pull_p = 0.0, 1.0
    if len(scored.pulls):
        pull, pull_p = stats.kstest(scored.pulls, "uniform")
    total = float(np.sqrt((scored.spread**2).sum()))
    z = float(scored.excess.sum()) / total if total else 0.0
    return Tested(
        scored=scored,
        distance=float(found.statistic),
        distance_p=float(found.pvalue),
        pull=float(pull),
        pull_p=float(pull_p),
        surprisal_p=float(2 * stats.norm.sf(abs(z))),
        excess=mean(scored.excess, confidence),
    )


async def token_law_view(
    answers: Mapping[str, Sequence[Answer]],
    reference: Reference,
    tolerances: Tolerances,
    seed: int,
) -> View:
    """Judge every way's tokens; the target alone is judged beside them."""
    tolerance = (
        f"all p-values at least {tolerances.alpha:g} for every way: of the Kolmogorov-Smirnov "
        "distances from uniform of the tokens' places by likelihood and by the draft's preference, "
        f"and of the mean surprisal; at most {MAX_OUTSIDE:.0%} of the tokens outside the support"
    )
    tested = [
        check(await score(way, some, reference, seed + index), tolerances.confidence)
        for index, (way, some) in enumerate(answers.items())
    ]
    failed = [each.scored.way for each in tested if not each.passes(tolerances.alpha)]
    return View(
        name=NAME,
        title=TITLE,
        verdict=verdict_of(not failed),
        tolerance=tolerance,
        finding=_finding(tested, failed),
        tables=[_table(tested, tolerances.confidence)],
        data={
            "reference": reference.description,
            "ways": {each.scored.way: _json(each) for each in tested},
        },
    )


def _finding(tested: Sequence[Tested], failed: Sequence[str]) -> str:
    num = sum(len(each.scored.uniforms) for each in tested)
    if not failed:
        return f"{num:,} tokens follow the target's law as the reference computes it"
    if TARGET_ONLY.name in failed:
        return (
            "the target alone does not follow the reference's law: other weights, other numerics, "
            f"or a fault that has nothing to do with drafts; failed: {', '.join(failed)}"
        )
    return f"not the target's law: {', '.join(failed)}"


def _table(tested: Sequence[Tested], confidence: float) -> Table:
    headers = (
        *("way", "tokens", "by likelihood: KS distance", "p", "by the draft: KS distance", "p"),
        *("surprisal less entropy, nats", "p", "outside the support"),
    )
    rows = [
        (
            each.scored.way,
            f"{len(each.scored.uniforms):,}",
            f"{each.distance:.4f}",
            f"{each.distance_p:.2g}",
            f"{each.pull:.4f}" if len(each.scored.pulls) else "",
            f"{each.pull_p:.2g}" if len(each.scored.pulls) else "",
            f"{each.excess.told('+.4f')}",
            f"{each.surprisal_p:.2g}",
            str(each.scored.num_outside),
        )
        for each in tested
    ]
    return Table(headers, rows)


def _json(tested: Tested) -> dict[str, Any]:
    numbers = tested.scored.pulls if len(tested.scored.pulls) else tested.scored.uniforms
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    return {
        "num_tokens": len(tested.scored.uniforms),
        "num_outside": tested.scored.num_outside,
        "ks_distance": tested.distance,
        "ks_p": tested.distance_p,
        "pull_distance": tested.pull,
        "pull_p": tested.pull_p,
        "surprisal_p": tested.surprisal_p,
        "excess_surprisal_nats": tested.excess.as_json(),
        "uniforms_histogram": counts.tolist(),
    }
