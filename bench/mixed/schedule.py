"""When which request comes: Poisson arrivals, the same for every run of a seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.mixed.classes import LoadClass, Prompt

CONTROL_BLOCK = 3  # of as many requests of a class in a row, one is the control


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; ``is_control`` asks for target-only itself."""

    number: int
    at_s: float
    of: LoadClass
    language: str
    prompt: Prompt
    max_tokens: int
    is_control: bool


def schedule(
    classes: Sequence[LoadClass], *, per_s: float, span_s: float, seed: int
) -> list[Arrival]:
    """Return the arrivals of a time span, in their order; ``per_s`` is of all classes together.

    Which of a block of requests is the control is drawn, so that no prompt and no moment is
    preferred.
    """
    rng = np.random.default_rng(seed)
    found: list[Arrival] = []
    shares = np.array([each.share for each in classes])
    block: dict[str, list[bool]] = {}
    at_s = float(rng.exponential(1 / per_s))
    while at_s < span_s:
        of = classes[int(rng.choice(len(classes), p=shares / shares.sum()))]
        if not block.get(of.name):
            control = int(rng.integers(CONTROL_BLOCK))
            block[of.name] = [place == control for place in range(CONTROL_BLOCK)]
        languages = sorted(of.prompts)
        language = languages[int(rng.integers(len(languages)))]
        prompts = of.prompts[language]
        low, high = of.max_tokens
        found.append(
            Arrival(
                number=len(found),
                at_s=at_s,
                of=of,
                language=language,
                prompt=prompts[int(rng.integers(len(prompts)))],
                max_tokens=int(rng.integers(low, high + 1)),
                is_control=block[of.name].pop(),
            )
        )
        at_s += float(rng.exponential(1 / per_s))
    return found
