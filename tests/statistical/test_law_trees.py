"""Trees through the verifier's core: three cycles follow the target's law, and mutants do not."""

from collections import Counter

import numpy as np
import pytest
import torch

from outrider import acceptance, ratio
from outrider.acceptance import ChainRequest
from outrider.distribution import RowSampling
from outrider.proposed import Proposed
from outrider.sampling import Mode
from tests.statistical.law import ALPHA, NUM_DRAWS, Ids, TableLaw, sequence_p

pytestmark = pytest.mark.statistical

VOCAB_SIZE = 6
HEAD_SIZE = 3  # half of the ids are tail
PROMPT = (4, 1)
NUM_TOKENS = 3
BATCH = 2_000
ROW = RowSampling(temperature=0.8)
TARGET = TableLaw.random(VOCAB_SIZE, seed=21, scale=1.0)
# Shapes of trees, and by how much the rank of a node's token lies behind the likeliest.
SHAPES = (
    ((-1, -1, 0, 0, 1), (0, 1, 0, 1, 0)),
    ((-1, 0, 1, -1, 3), (0, 0, 0, 5, 4)),
    ((-1, -1, -1, -1, -1, -1), (5, 4, 3, 2, 1, 0)),
    ((-1, 0, 0, 0, 0, 0, 0), (2, 0, 1, 2, 3, 4, 5)),
)


def grow(prefix: list[int]) -> tuple[Proposed, list[list[int]]]:
    """Return a tree that is a function of the prefix, and the text before every row."""
    parents, ranks = SHAPES[(len(prefix) + sum(prefix)) % len(SHAPES)]
    texts, token_ids = [[*PROMPT, *prefix]], []
    for parent, rank in zip(parents, ranks, strict=True):
        before = texts[parent + 1]
        order = np.argsort(-TARGET.rows(np.array([before[-2:]]))[0], kind="stable")
        token_ids.append(int(order[rank]))
        texts.append([*before, token_ids[-1]])
    return Proposed(tuple(token_ids), parents=parents), texts


TREES: dict[tuple[int, ...], tuple[Proposed, list[list[int]]]] = {}


def sample(mode: Mode, *, num_draws: int, first_seed: int) -> tuple[Ids, Counter]:
    """Return the first tokens of every seed, and how many tokens its cycles accepted."""
    sequences: list[Ids] = []
    kinds: Counter = Counter()
    for start in range(0, num_draws, BATCH):
        keys = [first_seed + start + i for i in range(min(BATCH, num_draws - start))]
        outputs: list[list[int]] = [[] for _ in keys]
        for turn in range(NUM_TOKENS):
            short = [i for i, output in enumerate(outputs) if len(output) < NUM_TOKENS]
            requests, contexts = [], []
            for i in short:
                known = tuple(outputs[i])
                if known not in TREES:
                    TREES[known] = grow(outputs[i])
                proposed, texts = TREES[known]
                contexts += [text[-2:] for text in texts]
                base = len(PROMPT) + len(outputs[i])
                rows = (ROW,) * len(texts)
                requests.append(ChainRequest(proposed, rows, mode, keys[i], base, cycle=turn))
            if not requests:
                break
            decisions = acceptance.verify_batch(
                requests,
                torch.tensor(TARGET.rows(np.array(contexts)), dtype=torch.float32),
                vocab_size=VOCAB_SIZE,
                head_size=HEAD_SIZE,
            )
            for i, request, decision in zip(short, requests, decisions, strict=True):
                kept = [request.proposed.token_ids[node] for node in decision.accepted_nodes]
                outputs[i] += [*kept, decision.next_token_id]
                kinds[len(kept)] += 1
        sequences.append(np.array([output[:NUM_TOKENS] for output in outputs]))
    return np.concatenate(sequences), kinds


@pytest.mark.parametrize("mode", [Mode.COUPLED, Mode.RATIO])
def test_three_cycles_of_trees_follow_the_law(mode: Mode):
    # seeds 10**12.., draws as stated there, alpha 1e-6
    sequences, kinds = sample(mode, num_draws=NUM_DRAWS, first_seed=10**12)
    assert all(kinds[length] > NUM_DRAWS / 20 for length in range(3)), kinds
    assert sequence_p(TARGET, PROMPT, sequences, temperature=ROW.temperature) > ALPHA


def share_noise_between_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = ratio.draw_rows
    monkeypatch.setattr(
        ratio,
        "draw_rows",
        lambda log_probs, keys, rows, bases, cycles: draw(
            log_probs, keys, [0] * len(rows), bases, cycles
        ),
    )


def forget_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of a base and a row alone would serve two cycles if positions did not move; here it is
    the base that is forgotten as well."""
    draw = ratio.draw_rows
    monkeypatch.setattr(
        ratio,
        "draw_rows",
        lambda log_probs, keys, rows, bases, cycles: draw(
            log_probs, keys, rows, [0] * len(bases), [0] * len(cycles)
        ),
    )


def keep_the_first_child(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = acceptance.accepted_path
    monkeypatch.setattr(
        acceptance, "accepted_path", lambda proposed, said: walk(proposed, said) or (0,)
    )


def position_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of the row's number, not of its depth: two rows on a path may share a position."""
    monkeypatch.setattr(
        Proposed,
        "row_depths",
        property(lambda self: [0, *(parent // 2 + 1 for parent in self.parents)]),
    )


@pytest.mark.parametrize(
    ("mode", "mutate"),
    [
        (Mode.RATIO, share_noise_between_rows),
        (Mode.RATIO, forget_the_cycle),
        (Mode.RATIO, keep_the_first_child),
        (Mode.COUPLED, keep_the_first_child),
        (Mode.COUPLED, position_by_row),
    ],
)
def test_a_mutant_fails_the_law(monkeypatch: pytest.MonkeyPatch, mode: Mode, mutate):
    # seeds 10**12.., draws 20,000, alpha 1e-6
    mutate(monkeypatch)
    sequences, _ = sample(mode, num_draws=20_000, first_seed=10**12)
    assert sequence_p(TARGET, PROMPT, sequences, temperature=ROW.temperature) < ALPHA
