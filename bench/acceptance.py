"""How often a real draft model's tokens are kept, by rule, beside what is possible at all.

``python -m bench.acceptance``: SmolLM2-135M-Instruct and cuts of it, temperature 0.8. First the
services answer questions under every rule, several draft tokens at a time; then both models read
the answers once more and give, position by position, the overlap of their distributions.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from bench.report import print_table, write_report
from outrider import coupling, distribution, wire
from outrider.checkpoints import cut_layers, prepare
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.distribution import RowSampling
from outrider.proposal import NUM_LISTED
from outrider.questions import load_questions
from outrider.sampling import AcceptanceRule, SamplingParams

TEMPERATURE = 0.8
NUM_STREAMS = 8
MAX_CHARACTERS = 400
NUM_SEEDS = 4  # of the coupled rule, per position
CHUNK = 16  # positions whose distributions are held at a time
CUTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("6 layers", (0, 1, 2, 3, 28, 29)),
    ("20 layers", (*range(18), 28, 29)),
    ("26 layers", (*range(24), 28, 29)),
)


@dataclass(slots=True)
class Served:
    """Receipts of one rule, added up; answers of the last run."""

    accepted: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    drafted: int = 0

    @property
    def length(self) -> float:
        """Mean acceptance length: 1 + accepted / cycles that verified a draft."""
        return 1 + sum(self.accepted) / sum(self.steps)

    @property
    def error(self) -> float:
        """Standard error of the length, requests as the independent unit."""
        accepted, steps = np.array(self.accepted), np.array(self.steps)
        spread = accepted - (self.length - 1) * steps
        return float(np.sqrt((spread**2).sum()) / steps.sum())

    @property
    def rate(self) -> float:
        """Accepted over verified draft tokens."""
        return sum(self.accepted) / self.drafted


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the answer that the target sampled."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


async def serve(
    client: Client, rule: AcceptanceRule, num_questions: int, num_tokens: int, k: int
) -> tuple[Served, list[Text]]:
    """Answer all questions under a rule."""
    questions = load_questions(num_questions, max_characters=MAX_CHARACTERS)
    served, texts = Served(), []
    slots = asyncio.Semaphore(NUM_STREAMS)

    async def answer(index: int) -> None:
        messages = [("user", questions[index].text)]
        sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=num_tokens, seed=index)
        request = generate_request(
            messages, sampling, sources=["model"], num_draft_tokens=k, acceptance_rule=rule
        )
        async with slots:
            output = await client.generate(request, timeout_s=600)
            prompt = await client.tokenize(messages)
        receipt = output.complete.receipt
        if receipt.num_spec_steps:
            served.accepted.append(receipt.num_accepted_draft_tokens)
            served.steps.append(receipt.num_spec_steps)
            served.drafted += receipt.num_draft_tokens
        texts.append(Text(tuple(prompt), tuple(output.token_ids)))

    await asyncio.gather(*map(answer, range(num_questions)))
    return served, texts


class Reader:
    """A model that gives the logits behind every token of an answer."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def logits(self, text: Text) -> torch.Tensor:
        """Return [answer, V]: what the model says where each answer token stands."""
        ids = torch.tensor([[*text.prompt_ids, *text.answer_ids]])
        logits: torch.Tensor = self._model(ids).logits[0]
        return logits[len(text.prompt_ids) - 1 : -1].float()


def overlaps(target: Reader, draft: Reader, texts: Sequence[Text]) -> dict[str, float]:
    """Return the mean chance that one draft token is kept: the optimum and both kinds of rules."""
    sums = {"optimum 1 - TV": 0.0, "rejection, 32 counts": 0.0, "coupled": 0.0}
    num = 0
    for text in texts:
        p_logits, q_logits = target.logits(text), draft.logits(text)
        for start in range(0, len(p_logits), CHUNK):
            part = p_logits[start : start + CHUNK], q_logits[start : start + CHUNK]
            for name, value in zip(sums, _overlaps(*part, first=num), strict=True):
                sums[name] += value
            num += len(part[0])
    return {name: value / num for name, value in sums.items()}


def _overlaps(p_logits: torch.Tensor, q_logits: torch.Tensor, *, first: int) -> list[float]:
    size = p_logits.shape[1]
    rows = [RowSampling(temperature=TEMPERATURE)] * len(p_logits)
    p = distribution.process(p_logits, rows, vocab_size=size)
    q = distribution.process(q_logits, rows, vocab_size=size)
    p_probs, q_probs = p.log_probs().double().exp(), q.log_probs().double().exp()
    listed = q.head_log_probs[:, :NUM_LISTED].double().exp().numpy()
    counts = wire.quantise_rows(listed, np.full(len(listed), NUM_LISTED))
    sent = torch.zeros_like(q_probs).scatter_(
        1, q.head_ids[:, :NUM_LISTED], torch.from_numpy(counts / wire.TOTAL_COUNT)
    )
    positions = range(first, first + len(rows))
    equal = 0.0
    for seed in range(NUM_SEEDS):
        keys = [seed] * len(rows)
        equal += float(
            (coupling.draw(p, keys, positions)[0] == coupling.draw(q, keys, positions)[0]).sum()
        )
    return [
        float(torch.minimum(p_probs, q_probs).sum()),
        float(torch.minimum(p_probs, sent).sum()),
        equal / NUM_SEEDS,
    ]


async def run(num_questions: int, num_tokens: int, k: int, num_layers: Sequence[int]) -> None:
    """Measure and report."""
    target = prepare().target
    reader = Reader(target)
    table, summary, details = [], {}, {}
    for name, layers in CUTS:
        if len(layers) not in num_layers:
            continue
        folder = cut_layers(
            target, target.with_name(f"{target.name}-cut{len(layers)}"), layers=layers
        )
        options = StackOptions(
            verifier_flags=[("--model", str(target))],
            drafter_flags=[("--model", str(folder))],
            orchestrator_flags=("--draft-wait-ms", "10000", "--no-lookup-on-miss"),
        )
        served: dict[AcceptanceRule, Served] = {}
        texts: list[Text] = []
        async with run_stack(options) as stack, Client(stack.orchestrator.address) as client:
            await wait_paired(client)
            for rule in AcceptanceRule:
                served[rule], texts = await serve(client, rule, num_questions, num_tokens, k)
        single = overlaps(reader, Reader(folder), texts)
        for rule, one in served.items():
            table.append(
                (f"{name}, {rule.value}", f"{one.rate:.3f}", f"{one.length:.3f} ± {one.error:.3f}")
            )
            summary[f"length_{rule.value}_{len(layers)}_layers"] = one.length
        for kind, value in single.items():
            table.append((f"{name}, one position: {kind}", f"{value:.3f}", ""))
            details[f"{name}: {kind}"] = value
        table.append(("", "", ""))
    title = f"SmolLM2-135M-Instruct, temperature {TEMPERATURE}, K = {k}, {num_questions} questions"
    print_table(title, ("draft model, rule", "accepted", "mean acceptance length"), table[:-1])
    print(write_report("acceptance", summary, details))


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--k", type=int, default=4, help="draft tokens per cycle")
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 20, 26], help="draft models")
    options = parser.parse_args()
    asyncio.run(run(options.questions, options.tokens, options.k, options.layers))


if __name__ == "__main__":
    main()
