"""Sequences that are drafted, drafted ahead and verified in RATIO, many at once.

Drafts come from ``outrider.proposal``, decisions from ``outrider.acceptance``, cycle after cycle as
the services make them. The target is a table, so that the law of what comes out is known.
"""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from outrider import acceptance, wire
from outrider.acceptance import ChainRequest
from outrider.constraint import Constraints
from outrider.distribution import RowSampling
from outrider.draft import Draft
from outrider.proposal import Place, propose
from outrider.proposed import Proposed
from outrider.sampling import AcceptanceRule, Mode, SamplingParams, proposal_key
from outrider.sampling_state import SamplingState, SequenceState
from tests.statistical.law import Floats, Ids, TableLaw

VOCAB_SIZE = 6
HEAD_SIZE = 3  # half of the target's ids are tail
NUM_LISTED = 4  # of the draft's ids two are cut off
PROMPT = (4, 1)
NUM_TOKENS = 3
NUM_CYCLES = 3
BATCH = 2_000
ROW = RowSampling(temperature=0.8)
TEXTS = ("a", "b", "c", "ab", "ca", "<end>")
"""What the ids write; the last one is a special token."""


def vocabulary() -> Tokenizer:
    """Return a tokenizer of these."""
    tokenizer = Tokenizer(
        BPE({text: i for i, text in enumerate(TEXTS[:-1])}, [("a", "b"), ("c", "a")])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([TEXTS[-1]])
    return tokenizer


CONSTRAINTS = Constraints(vocabulary())


@dataclass(frozen=True, slots=True)
class Setting:
    """What is sampled: tables, rule, and what kind of drafter draws."""

    target: TableLaw
    draft: TableLaw
    rule: AcceptanceRule
    row: RowSampling = ROW
    draft_row: RowSampling = ROW
    point_mass: bool = False
    lengths: tuple[int, ...] = (1, 2, 3)
    redraws: bool = False
    """The verifier checks that tokens are what their counts draw."""
    sampling: SamplingParams | None = None
    """What rows follow that depend on the text; in place of ``row`` and ``draft_row``."""
    cuts: bool = False
    """Draft rows are not masked by a constraint; drafts are cut to what it allows instead."""

    def rows(
        self, context: Sequence[int], token_ids: Sequence[int] = ()
    ) -> tuple[RowSampling, ...]:
        """How the target processes the rows behind a text and behind each draft token."""
        if self.sampling is None:
            return (self.row,) * (len(token_ids) + 1)
        return text_rows(self.sampling, tuple(context), tuple(token_ids))

    def length(self, key: int, cycle: int) -> int:
        """How many tokens are drafted; fixed before the first is drawn."""
        return self.lengths[(key + cycle) % len(self.lengths)]


@cache
def text_rows(
    sampling: SamplingParams, context: tuple[int, ...], token_ids: tuple[int, ...]
) -> tuple[RowSampling, ...]:
    """Ask as verifier and drafter do; there are few different texts."""
    return text_state(sampling, context).rows(token_ids)


@cache
def text_state(sampling: SamplingParams, context: tuple[int, ...]) -> SamplingState:
    """Return the state behind a text."""
    constrained = None if sampling.constraint is None else CONSTRAINTS.open(sampling)
    states = SequenceState(sampling, len(PROMPT), VOCAB_SIZE, constrained)
    states.tell(0, context)
    return states.state()


@dataclass(frozen=True, slots=True)
class Ahead:
    """A draft for one cycle, to be used if the path is what gets committed."""

    path: tuple[int, ...]
    proposed: Proposed


@dataclass(slots=True)
class Run:
    """One request."""

    key: int
    output: list[int] = field(default_factory=list)
    ahead: Ahead | None = None
    last: tuple[Proposed, int] = (Proposed(), 0)
    """The draft of the cycle before, and how much of it was kept."""

    @property
    def context(self) -> list[int]:
        return [*PROMPT, *self.output]


@dataclass(slots=True)
class Tally:
    """What happened besides the output."""

    kinds: Counter = field(default_factory=Counter)
    surprises: list[float] = field(default_factory=list)
    """Accepted minus the expectation of it given draft and tables, of every verification."""

    def z(self) -> float:
        """Return how many standard errors the mean surprise is away from 0."""
        values = np.array(self.surprises)
        return float(values.sum() / np.sqrt((values**2).sum()))


def draft(
    setting: Setting,
    contexts: Sequence[Sequence[int]],
    keys: Sequence[int],
    cycle: int,
    lengths: Sequence[int],
    *,
    num_guesses: int = 0,
) -> list[Ahead]:
    """Draw a draft behind every context; the guesses before it become its path."""  # fmt: skip
    drawn: list[list[int]] = [[] for _ in contexts]
    listed: list[list[tuple[bytes, bytes]]] = [[] for _ in contexts]
    for depth in range(max(lengths) + num_guesses):
        active = [i for i, length in enumerate(lengths) if depth < length + num_guesses]
        rows = np.array([[*contexts[i], *drawn[i]][-2:] for i in active])
        proposals = propose(
            torch.tensor(setting.draft.rows(rows), dtype=torch.float32),
            [draft_row(setting, [*contexts[i], *drawn[i]]) for i in active],
            [
                Place(
                    proposal_key(keys[i]),
                    len(contexts[i]) + depth,
                    node=depth - num_guesses,
                    cycle=cycle,
                    is_guess=setting.point_mass or depth < num_guesses,
                )
                for i in active
            ],
            mode=Mode.RATIO,
            vocab_size=VOCAB_SIZE,
            head_size=HEAD_SIZE,
            num_listed=NUM_LISTED,
        )
        for i, proposal in zip(active, proposals, strict=True):
            drawn[i].append(proposal.token_id)
            assert proposal.distribution is not None
            listed[i].append(proposal.distribution)
    made = []
    for ids, distributions in zip(drawn, listed, strict=True):
        travels = () if setting.point_mass else tuple(distributions[num_guesses:])
        path, made_draft = (
            tuple(ids[:num_guesses]),
            Draft(tuple(ids[num_guesses:]), "model", travels),
        )
        if setting.cuts:
            made_draft = legal_part(setting, contexts[len(made)], path, made_draft)
        made.append(Ahead(path, Proposed.of(made_draft)))
    return made


def legal_part(
    setting: Setting, context: Sequence[int], path: Sequence[int], whole: Draft
) -> Draft:
    """Return what of a draft the constraint allows."""
    assert setting.sampling is not None
    constrained = text_state(setting.sampling, tuple(context)).constrained
    assert constrained is not None
    return whole.legal_part(constrained.legal(path, whole.token_ids, ()))


def draft_row(setting: Setting, text: Sequence[int]) -> RowSampling:
    """How the drafter processes the row behind a text."""
    if setting.sampling is None or setting.cuts:
        return setting.draft_row
    return setting.rows(text)[0]


def drafts_of(setting: Setting, runs: Sequence[Run], cycle: int, tally: Tally) -> list[Proposed]:
    """Return what each run verifies: what was drafted ahead if it fits, a new draft, or none."""
    chosen = [Proposed()] * len(runs)
    missing = []
    for i, run in enumerate(runs):
        tail = tuple(run.output[-len(run.ahead.path) :]) if run.ahead is not None else ()
        if run.ahead is not None and run.ahead.path == tail:
            chosen[i] = run.ahead.proposed
            tally.kinds["ahead"] += 1
        elif run.key % 4:  # a quarter of the misses go without
            missing.append(i)
    if missing:
        fresh = draft(
            setting,
            [runs[i].context for i in missing],
            [runs[i].key for i in missing],
            cycle,
            [setting.length(runs[i].key, cycle) for i in missing],
        )
        for i, each in zip(missing, fresh, strict=True):
            chosen[i] = each.proposed
    return chosen


def checked(setting: Setting, run: Run, proposed: Proposed, cycle: int) -> Proposed:
    """Return the draft as the verifier draws it again."""
    if not setting.redraws or not proposed.token_ids:
        return proposed
    place = {"base_position": len(run.context), "cycle": cycle}
    return proposed.redrawn(proposal_key=proposal_key(run.key), **place)[0]


def turn(setting: Setting, runs: Sequence[Run], cycle: int, tally: Tally) -> None:
    """Draft, draft ahead, verify and commit once for every run."""
    drafts = [
        checked(setting, run, proposed, cycle)
        for run, proposed in zip(runs, drafts_of(setting, runs, cycle, tally), strict=True)
    ]
    behind = draft(
        setting,
        [[*run.context, *proposed.token_ids] for run, proposed in zip(runs, drafts, strict=True)],
        [run.key for run in runs],
        cycle + 1,
        [setting.length(run.key, cycle + 1) for run in runs],
        num_guesses=1,
    )
    requests, contexts = [], []
    for run, proposed in zip(runs, drafts, strict=True):
        text = [*run.context, *proposed.token_ids]
        base = len(run.context)
        contexts += [text[end - 2 : end] for end in range(base, len(text) + 1)]
        rows = setting.rows(run.context, proposed.token_ids)
        requests.append(
            ChainRequest(proposed, rows, Mode.RATIO, run.key, base, cycle, setting.rule)
        )
    logits = setting.target.rows(np.array(contexts))
    decisions = acceptance.verify_batch(
        requests,
        torch.tensor(logits, dtype=torch.float32),
        vocab_size=VOCAB_SIZE,
        head_size=HEAD_SIZE,
    )
    at = 0
    for run, request, ahead, decision in zip(runs, requests, behind, decisions, strict=True):
        tokens, accepted = request.draft_token_ids, decision.num_accepted
        if tokens and setting.sampling is None and not request.proposed.is_corrected:
            scaled = np.exp(logits[at : at + len(tokens)] / setting.row.temperature)
            p = scaled / scaled.sum(-1, keepdims=True)
            tally.surprises.append(accepted - expected_length(request, p))
        at += len(tokens) + 1
        run.output += [*tokens[:accepted], decision.next_token_id]
        run.last = request.proposed, accepted
        run.ahead = replace(ahead, path=(*tokens, *ahead.path))
        tally.kinds["accepted"] += accepted
        kind = "only" if not tokens else "bonus" if accepted == len(tokens) else "recovered"
        tally.kinds[kind] += 1


def expected_length(request: ChainRequest, p: Floats) -> float:
    """Return the mean number of kept tokens given draft and tables, worked out by plain loops."""
    tokens, listed = request.draft_token_ids, request.proposed.listed
    q = np.zeros_like(p)
    for row, (ids, counts) in enumerate(listed):
        q[row, ids] = counts / wire.TOTAL_COUNT
    num = len(tokens)
    if request.rule is AcceptanceRule.REJECTION or not request.proposed.is_sampled:
        total, reached = 0.0, 1.0
        for i in range(num):
            reached *= min(1.0, p[i, tokens[i]] / q[i, tokens[i]])
            total += reached
        return total
    joint = [1.0]
    for i in range(num):
        joint.append(min(1.0, joint[-1] * p[i, tokens[i]] / q[i, tokens[i]]))
    total, none_longer = 0.0, 1.0
    for n in range(num, 0, -1):
        h = joint[num]
        if n < num:
            left = float(np.maximum(joint[n] * p[n] - q[n], 0).sum())
            whole = left + 1 - joint[n]
            h = left / whole if whole > 0 else 1.0
        total += n * h * none_longer
        none_longer *= 1 - h
    return total


def sample(setting: Setting, num_draws: int, first_seed: int) -> tuple[Ids, Tally]:
    """Return the first tokens of every seed after up to three cycles."""
    torch.set_num_threads(1)
    outputs: list[Ids] = []
    tally = Tally()
    for start in range(0, num_draws, BATCH):
        runs = [Run(first_seed + start + i) for i in range(min(BATCH, num_draws - start))]
        for cycle in range(NUM_CYCLES):
            # Every cycle adds a token at least, so three always suffice.
            short = [run for run in runs if len(run.output) < NUM_TOKENS]
            if short:
                turn(setting, short, cycle, tally)
        outputs.append(np.array([run.output[:NUM_TOKENS] for run in runs]))
    return np.concatenate(outputs), tally


def sample_on_all_cores(setting: Setting, num_draws: int, first_seed: int) -> tuple[Ids, Tally]:
    """Share the seeds out to a process per core."""
    shares = np.array_split(np.arange(num_draws), os.cpu_count() or 1)
    with ProcessPoolExecutor(len(shares), mp_context=get_context("spawn")) as processes:
        parts = list(
            processes.map(
                sample,
                [setting] * len(shares),
                [len(share) for share in shares],
                [first_seed + int(share[0]) for share in shares],
            )
        )
    whole = Tally()
    for _, tally in parts:
        whole.kinds += tally.kinds
        whole.surprises += tally.surprises
    return np.concatenate([ids for ids, _ in parts]), whole
