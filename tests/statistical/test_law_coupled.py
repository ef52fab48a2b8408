"""COUPLED emits exactly the target's law through three cycles of drafts, whatever drafts them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider import acceptance, coupling, distribution, noise
from outrider.acceptance import ChainRequest
from outrider.distribution import RowSampling
from outrider.proposal import Place, propose
from outrider.proposed import Proposed
from outrider.sampling import Mode
from tests.statistical.law import ALPHA, NUM_DRAWS, Ids, TableLaw, sequence_p

pytestmark = pytest.mark.statistical

VOCAB_SIZE = 6
HEAD_SIZE = 3  # half of the ids are tail
PROMPT = (4, 1)
NUM_TOKENS = 3
NUM_CYCLES = 3
BATCH = 2_000
ROW = RowSampling(temperature=0.8)
TARGET = TableLaw.random(VOCAB_SIZE, seed=21, scale=1.0)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=22, scale=0.7).logits)

# Context [N, any], keys and the position to fill -> draft token ids [N].
Drafter = Callable[[Ids, list[int], list[int]], Ids]


def model_drafter(law: TableLaw) -> Drafter:
    def draft(contexts: Ids, keys: list[int], positions: list[int]) -> Ids:
        proposals = propose(
            torch.tensor(law.rows(contexts), dtype=torch.float32),
            [ROW] * len(contexts),
            [Place(*each) for each in zip(keys, positions, strict=True)],
            mode=Mode.COUPLED,
            vocab_size=VOCAB_SIZE,
            head_size=HEAD_SIZE,
            num_listed=0,
        )
        return np.array([p.token_id for p in proposals])

    return draft


def adversary(contexts: Ids, keys: list[int], positions: list[int]) -> Ids:
    """Knows the target's token: lets even ones pass, gives the least likely for odd ones.

    Under every fifth key it knows nothing and always gives the least likely.
    """
    known = model_drafter(TARGET)(contexts, keys, positions)
    lets_pass = (known % 2 == 0) & (np.array(keys) % 5 != 0)
    return np.where(lets_pass, known, TARGET.rows(contexts).argmin(-1))


def cycle(
    outputs: list[list[int]], keys: list[int], lengths: list[int], drafter: Drafter
) -> Counter:
    """Draft, verify and commit once for every sequence; count the kinds of committed tokens."""
    drafts: list[list[int]] = [[] for _ in outputs]
    for depth in range(max(lengths)):
        active = [i for i, length in enumerate(lengths) if depth < length]
        contexts = np.array([[*PROMPT, *outputs[i], *drafts[i]][-2:] for i in active])
        positions = [len(PROMPT) + len(outputs[i]) + depth for i in active]
        drawn = drafter(contexts, [keys[i] for i in active], positions)
        for i, token_id in zip(active, drawn.tolist(), strict=True):
            drafts[i].append(token_id)
    contexts, requests = [], []
    for key, output, draft in zip(keys, outputs, drafts, strict=True):
        base = len(PROMPT) + len(output)
        text = [*PROMPT, *output, *draft]
        contexts += [text[end - 2 : end] for end in range(base, len(text) + 1)]
        rows = (ROW,) * (len(draft) + 1)
        requests.append(ChainRequest(Proposed(tuple(draft)), rows, Mode.COUPLED, key, base))
    decisions = acceptance.verify_batch(
        requests,
        torch.tensor(TARGET.rows(np.array(contexts)), dtype=torch.float32),
        vocab_size=VOCAB_SIZE,
        head_size=HEAD_SIZE,
    )
    kinds: Counter = Counter()
    for output, draft, decision in zip(outputs, drafts, decisions, strict=True):
        output += [*draft[: decision.num_accepted], decision.next_token_id]
        kinds["accepted"] += decision.num_accepted
        kinds["bonus" if decision.num_accepted == len(draft) else "recovered"] += 1
    return kinds


def sample(drafter: Drafter, *, num_draws: int, first_seed: int) -> tuple[Ids, Counter]:
    """Return the first tokens of every seed, from up to three cycles of 1 to 3 draft tokens."""
    first_tokens: list[Ids] = []
    kinds: Counter = Counter()
    for start in range(0, num_draws, BATCH):
        keys = [first_seed + start + i for i in range(min(BATCH, num_draws - start))]
        outputs: list[list[int]] = [[] for _ in keys]
        for turn in range(NUM_CYCLES):
            # Every cycle adds a token at least, so three always suffice.
            short = [i for i, output in enumerate(outputs) if len(output) < NUM_TOKENS]
            if not short:
                break
            lengths = [1 + (keys[i] + turn) % 3 for i in short]
            unfinished = [outputs[i] for i in short]
            kinds += cycle(unfinished, [keys[i] for i in short], lengths, drafter)
        first_tokens.append(np.array([output[:NUM_TOKENS] for output in outputs]))
    return np.concatenate(first_tokens), kinds


@pytest.mark.parametrize(
    "drafter",
    [model_drafter(DRAFT), adversary],
    ids=["coupled", "adversary"],
)
def test_three_cycles_follow_the_law(drafter):
    # seeds 10**12.., draws as stated there, alpha 1e-6
    sequences, kinds = sample(drafter, num_draws=NUM_DRAWS, first_seed=10**12)
    assert all(kinds[kind] > NUM_DRAWS / 10 for kind in ("accepted", "recovered", "bonus")), kinds
    assert sequence_p(TARGET, PROMPT, sequences, temperature=ROW.temperature) > ALPHA


def reuse_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = coupling.draw
    monkeypatch.setattr(
        coupling,
        "draw",
        lambda rows, keys, positions: draw(rows, keys, [p // 2 for p in positions]),
    )


def omit_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = coupling.draw
    monkeypatch.setattr(
        coupling,
        "draw",
        lambda rows, keys, positions: draw(replace(rows, full_rows=()), keys, positions),
    )


def share_tail_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = noise.uniform
    monkeypatch.setattr(
        noise,
        "uniform",
        lambda key, a, position, cycle, stream: uniform(key, a, position, cycle, 0),
    )


def ignore_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    process = distribution.process
    monkeypatch.setattr(
        distribution,
        "process",
        lambda logits, rows, **sizes: process(logits, [RowSampling()] * len(rows), **sizes),
    )


def accept_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    count = acceptance.num_accepted
    monkeypatch.setattr(
        acceptance, "num_accepted", lambda draft, target: min(count(draft, target) + 1, len(draft))
    )


def shift_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    select = acceptance.select

    def shifted(logits, rows, modes, keys, positions, **sizes):
        return select(logits.roll(1, 0), rows, modes, keys, positions, **sizes)

    monkeypatch.setattr(acceptance, "select", shifted)


@pytest.mark.parametrize(
    "mutate",
    [
        reuse_noise,
        omit_tail,
        share_tail_noise,
        ignore_temperature,
        accept_one_too_many,
        shift_rows,
    ],
)
def test_a_mutant_fails_the_law(monkeypatch, mutate):
    # seeds 10**12.., draws 20,000, alpha 1e-6
    mutate(monkeypatch)
    sequences, _ = sample(model_drafter(DRAFT), num_draws=20_000, first_seed=10**12)
    assert sequence_p(TARGET, PROMPT, sequences, temperature=ROW.temperature) < ALPHA
