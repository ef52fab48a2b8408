"""An audit from its plan to its views.

1. Greedy, one request at a time, by turns: the target alone, the policy's choice, forced drafts.
2. Sampled with equal seeds, several at a time: the target alone and forced drafts.
3. Sampled with other seeds: the target alone, and forced drafts under every rule that keeps a law
   rather than a seed.
4. Tasks, if there are any.
What 1 and 2 must agree on is compared id by id; of 2 and 3 every token is read by the reference.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.audit import acceptance, divergence, latency, token_law
from outrider.audit.accuracy import Arm, accuracy_view
from outrider.audit.asking import Answer, Ask, Asker, Prompt
from outrider.audit.equality import Compared, Text, compare, equality_view, gaps, tie_limit
from outrider.audit.plan import LAWS, POLICY, TARGET_ONLY, Plan
from outrider.audit.reference import Floats, Reference
from outrider.audit.view import View
from outrider.sampling import AcceptanceRule, SamplingParams

GREEDY_TITLE = "Greedy equality: the same ids as the target alone"
SEEDED_TITLE = "Seeded equality: the same ids as the target alone with the same seed"
TASK_TEMPERATURE = 0.2

ByWay = dict[str, list[Answer]]


@dataclass(frozen=True, slots=True)
class Task:
    """Something to solve; ``solved`` judges the text of an answer, None: nobody knows."""

    prompt: Prompt
    stop: tuple[str, ...]
    solved: Callable[[str], bool] | None


@dataclass(slots=True)
class Audit:
    """Runs a plan against an orchestrator.

    ``tasks`` by the view that judges them; ``told`` is called with what begins and how many
    requests it takes, and ``asker.told`` with each that ended.
    """

    asker: Asker
    plan: Plan
    prompts: Sequence[Prompt]
    reference: Reference
    row_invariant: bool
    tasks: dict[str, Sequence[Task]]
    told: Callable[[str, int], None]
    _seeds: "itertools.count[int]" = field(init=False)

    def __post_init__(self) -> None:
        self._seeds = itertools.count(self.plan.seed)

    async def run(self) -> list[View]:
        """Make the views that the plan wants, in the order of ``plan.VIEWS``.

        Raises: grpc.aio.AioRpcError if a request fails.
        """
        plan, tolerances = self.plan, self.plan.tolerances
        greedy = await self._greedy() if plan.wants("greedy", "acceptance", "latency") else {}
        seeded = await self._seeded() if plan.wants("seeded", "token-law", "acceptance") else {}
        laws = ("token-law", "divergence", "acceptance")
        sampled = await self._sampled() if plan.wants(*laws) else {}
        views: list[View] = []
        if plan.wants("greedy"):
            views.append(await self._greedy_view(greedy))
        if plan.wants("seeded"):
            views.append(await self._seeded_view(seeded))
        if plan.wants("token-law"):
            views.append(await self._token_law(seeded, sampled))
        if plan.wants("divergence"):
            ways = {way: some for way, some in sampled.items() if way != TARGET_ONLY.name}
            own = sampled[TARGET_ONLY.name]
            views.append(divergence.divergence_view(own, ways, tolerances, plan.seed))
        for name, tasks in self.tasks.items():
            if plan.wants(name):
                views.append(await self._accuracy(name, tasks))
        if plan.wants("acceptance"):
            every = {f"{way}, greedy": some for way, some in greedy.items()}
            own = [*seeded.pop(TARGET_ONLY.name), *sampled.pop(TARGET_ONLY.name)]
            every |= {f"{TARGET_ONLY.name}, sampled": own} | seeded | sampled
            views.append(acceptance.acceptance_view(every, tolerances.confidence))
        if plan.wants("latency"):
            views.append(latency.latency_view(greedy, tolerances, plan.seed))
        return views

    async def _greedy(self) -> ByWay:
        sampling = SamplingParams(temperature=0.0, max_tokens=self.plan.sizes.max_tokens)
        ways = [TARGET_ONLY, POLICY, *self.plan.forced()]
        asks = [[Ask(prompt, way, sampling) for way in ways] for prompt in self.prompts]
        return await self._ask("greedy", asks, num_streams=1)

    async def _seeded(self) -> ByWay:
        ways = [TARGET_ONLY, *self.plan.forced(AcceptanceRule.COUPLED)]
        asks = []
        for prompt in self.prompts:
            sampling = self._sampling(next(self._seeds))
            asks.append([Ask(prompt, way, sampling) for way in ways])
        return await self._ask("seeded", asks)

    async def _sampled(self) -> ByWay:
        ways = [way for rule in LAWS for way in self.plan.forced(rule)]
        num_own = 2 if self.plan.wants("divergence") else 1
        ways = [*[TARGET_ONLY] * num_own, *ways]
        asks = [
            [Ask(prompt, way, self._sampling(next(self._seeds))) for way in ways]
            for _ in range(self.plan.sizes.num_samples)
            for prompt in self.prompts
        ]
        return await self._ask("sampled", asks)

    async def _ask(
        self, what: str, asks: Sequence[Sequence[Ask]], num_streams: int | None = None
    ) -> ByWay:
        """Run requests in the given order; return the answers by way."""
        every = [ask for turn in asks for ask in turn]
        self.told(what, len(every))
        answers = await self.asker.ask(every, num_streams or self.plan.num_streams)
        found: ByWay = {}
        for answer in answers:
            found.setdefault(answer.ask.way.name, []).append(answer)
        return found

    def _sampling(self, seed: int) -> SamplingParams:
        plan = self.plan
        return SamplingParams(
            temperature=plan.temperature,
            top_p=plan.top_p,
            top_k=plan.top_k,
            max_tokens=plan.sizes.max_tokens,
            seed=seed,
        )

    async def _compare(self, answers: ByWay) -> tuple[list[Compared], float]:
        plain = answers[TARGET_ONLY.name]
        limit = tie_limit(
            row_invariant=self.row_invariant, temperature=plain[0].ask.sampling.temperature
        )
        others = [some for way, some in answers.items() if way != TARGET_ONLY.name]
        return [await compare(self.asker, plain, some, limit) for some in others], limit

    async def _greedy_view(self, answers: ByWay) -> View:
        compared, limit = await self._compare(answers)
        self.told("reading greedy outputs", 0)
        known: dict[Text, Floats] = {}
        seen = [await gaps(some, self.reference, known) for some in answers.values()]
        tolerances = self.plan.tolerances
        return equality_view(
            "greedy",
            GREEDY_TITLE,
            compared,
            limit=limit,
            confidence=tolerances.confidence,
            seen=seen,
            max_gap=tolerances.max_gap,
        )

    async def _seeded_view(self, answers: ByWay) -> View:
        compared, limit = await self._compare(answers)
        confidence = self.plan.tolerances.confidence
        return equality_view("seeded", SEEDED_TITLE, compared, limit=limit, confidence=confidence)

    async def _token_law(self, seeded: ByWay, sampled: ByWay) -> View:
        self.told("reading sampled outputs", 0)
        name = TARGET_ONLY.name
        every = {name: [*seeded[name], *sampled[name]]}
        every |= {way: some for way, some in (seeded | sampled).items() if way != name}
        plan = self.plan
        return await token_law.token_law_view(every, self.reference, plan.tolerances, plan.seed)

    async def _accuracy(self, name: str, tasks: Sequence[Task]) -> View:
        by_number = {task.prompt.number: task for task in tasks}
        arms = []
        for mode, rule, temperature in (
            ("greedy", None, 0.0),
            ("coupled", AcceptanceRule.COUPLED, TASK_TEMPERATURE),
            ("block", AcceptanceRule.BLOCK, TASK_TEMPERATURE),
        ):
            ways = [TARGET_ONLY, *self.plan.forced(rule)]
            asks = [
                [Ask(task.prompt, way, self._of_task(task, temperature)) for way in ways]
                for task in tasks
            ]
            answers = await self._ask(f"{name}, {mode}", asks)
            plain = answers[TARGET_ONLY.name]
            compared, _ = await self._compare(answers)
            arms += [
                Arm(mode, plain, answers[each.way], None if mode == "block" else each)
                for each in compared
            ]

        def solved(answer: Answer) -> bool | None:
            judge = by_number[answer.ask.prompt.number].solved
            return None if judge is None else judge(answer.text)

        tolerances = self.plan.tolerances
        return await asyncio.to_thread(accuracy_view, name, TITLES[name], arms, solved, tolerances)

    def _of_task(self, task: Task, temperature: float) -> SamplingParams:
        return SamplingParams(
            temperature=temperature,
            max_tokens=self.plan.sizes.task_tokens,
            stop=task.stop,
            seed=self.plan.seed + task.prompt.number,
        )


TITLES = {
    "humaneval": "Programs: HumanEval, each run in a sandbox",
    "arithmetic": "Sums: arithmetic word problems",
}
