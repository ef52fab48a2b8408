"""Which examples are read together, in which order: a function of the seed and the step alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from outrider.training.corpus import Example

POOL_BATCHES = 64  # batches whose examples are sorted by length, so that little is padded


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, padded on the right.

    Shapes: token_ids [B, L] int64; is_answer [B, L] bool: the token at that place is the target's
        own; is_greedy [B] bool.
    """

    token_ids: torch.Tensor
    is_answer: torch.Tensor
    is_greedy: torch.Tensor
    num_tokens: int
    """Without padding."""
    examples: tuple[Example, ...]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        ids, answer, greedy = self.token_ids, self.is_answer, self.is_greedy
        return replace(
            self,
            token_ids=ids.to(device),
            is_answer=answer.to(device),
            is_greedy=greedy.to(device),
        )


def make_batch(examples: Sequence[Example]) -> Batch:
    """Pad the examples; what follows an answer is padding of id 0 and is never looked at."""
    width = max(len(each) for each in examples)
    token_ids = np.zeros((len(examples), width), np.int64)
    is_answer = np.zeros((len(examples), width), np.bool_)
    for row, each in enumerate(examples):
        token_ids[row, : len(each)] = each.prompt_ids + each.response_ids
        is_answer[row, len(each.prompt_ids) : len(each)] = True
    return Batch(
        token_ids=torch.from_numpy(token_ids),
        is_answer=torch.from_numpy(is_answer),
        is_greedy=torch.tensor([each.is_greedy for each in examples]),
        num_tokens=sum(len(each) for each in examples),
        examples=tuple(examples),
    )


@dataclass(frozen=True)
class BatchPlan:
    """Batches until ``num_tokens`` tokens are read, epoch after epoch.

    Raises: ValueError if there are no examples.
    """

    examples: Sequence[Example]
    num_tokens: int
    tokens_per_batch: int
    seed: int

    def __post_init__(self) -> None:
        if not self.examples:
            raise ValueError("nothing to train on: the corpus has no examples")

    @cached_property
    def _steps(self) -> list[list[int]]:
        steps: list[list[int]] = []
        num_read = epoch = 0
        while num_read < self.num_tokens:
            for batch in self._epoch(epoch):
                steps.append(batch)
                num_read += sum(len(self.examples[index]) for index in batch)
                if num_read >= self.num_tokens:
                    break
            epoch += 1
        return steps

    def _epoch(self, epoch: int) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(len(self.examples))
        lengths = np.array([len(each) for each in self.examples])
        mean = float(lengths.mean())
        pool = max(1, round(POOL_BATCHES * self.tokens_per_batch / mean))
        for begin in range(0, len(order), pool):
            some = order[begin : begin + pool]
            some = some[np.argsort(lengths[some], kind="stable")]
            batches: list[list[int]] = [[]]
            for index in some.tolist():
                # Sorted, so the newest is the longest: the batch is as wide as it.
                if batches[-1] and (len(batches[-1]) + 1) * lengths[index] > self.tokens_per_batch:
                    batches.append([])
                batches[-1].append(index)
            for number in generator.permutation(len(batches)).tolist():
                yield batches[number]

    def __len__(self) -> int:
        return len(self._steps)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step in [0, len)."""
        return make_batch([self.examples[index] for index in self._steps[step]])


def batches_of(examples: Sequence[Example], tokens_per_batch: int) -> Iterator[Batch]:
    """Return all examples once, longest together."""
    ordered = sorted(examples, key=len)
    some: list[Example] = []
    for each in ordered:
        if some and (len(some) + 1) * len(each) > tokens_per_batch:
            yield make_batch(some)
            some = []
        some.append(each)
    if some:
        yield make_batch(some)
