"""Whether a request belongs to a class, condition by condition."""

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.policy.schema import Band, When
from outrider.policy.traits import Traits, single


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that a class asks of a request; ``holds`` is None where that is not known."""

    key: str
    """As in the file, such as ``when.priority``."""
    wanted: str
    found: str
    holds: bool | None


def conditions(when: When, traits: Traits) -> Iterator[Condition]:
    """Yield what a class asks for, in the order in which it is looked at."""
    for key, values in when.metadata.items():
        value = traits.metadata.get(key)
        found = "absent" if value is None else value
        yield Condition(f"metadata.{key}", " or ".join(values), found, value in values)
    if when.models:
        wanted = " or ".join(when.models)
        holds = traits.model in when.models if traits.model else None
        yield Condition("models", wanted, traits.model or "not known", holds)
    if when.sampling is not None:
        found = "greedy" if traits.is_greedy else "sampled"
        yield Condition("sampling", when.sampling, found, found == when.sampling)
    if when.temperature is not None:
        # Requests carry it in single precision: 0.7 is to be 0.7 there as well.
        yield _within("temperature", when.temperature, traits.temperature)
    for feature, is_wanted in when.features.items():
        is_there = feature in traits.features
        words = {True: "present", False: "absent"}
        yield Condition(
            f"features.{feature}", words[is_wanted], words[is_there], is_there is is_wanted
        )
    if when.prompt_tokens is not None:
        yield _within("prompt_tokens", when.prompt_tokens, traits.num_prompt_tokens)
    if when.max_tokens is not None:
        yield _within("max_tokens", when.max_tokens, traits.max_tokens)
    if when.priority is not None:
        yield _within("priority", when.priority, traits.priority)


def _within(key: str, band: Band, value: float | None) -> Condition:
    ends = [f"at least {band.min:g}"] if band.min is not None else []
    ends += [f"at most {band.max:g}"] if band.max is not None else []
    wanted = " and ".join(ends)
    if value is None:
        return Condition(key, wanted, "not known", None)
    above = band.min is None or single(value) >= single(band.min)
    below = band.max is None or single(value) <= single(band.max)
    return Condition(key, wanted, f"{value:g}", above and below)
