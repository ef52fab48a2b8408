"""The target writes a corpus: messages that a user might send, and its own answers to them.

Messages come from a file, or the target writes them itself: its chat template is cut where the user
is to speak, and what it says there until its end of text is a message. (Self-synthesis as in Xu et
al. 2024, arXiv:2406.08464.)
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import torch

from outrider import coupling, distribution
from outrider.distribution import RowSampling
from outrider.engine import (
    Engine,
    EngineSettings,
    Finished,
    JobInput,
    LoadedModel,
    SequenceCache,
    load_model,
)
from outrider.errors import InvalidField
from outrider.identity.files import TokenizerFiles
from outrider.identity.weights import weights_digest
from outrider.text import TextCodec
from outrider.training.trainer import RunMismatch, differing

MARK = "\u2603\u2603\u2603"  # stands where the user speaks
MESSAGE = RowSampling(temperature=1.0, top_p=0.95)
MAX_MESSAGE_TOKENS = 128
TOP_K = 50  # of sampled answers
TEMPERATURES = (0.5, 0.7, 0.9, 1.0)
"""Of every second answer, in turn; the others are greedy."""


@dataclass(frozen=True, slots=True)
class WritingOptions:
    """What to write, and how much at a time."""

    target: Path
    out: Path
    num_examples: int
    messages: tuple[str, ...] = ()
    """Answered in turn; empty: the target writes them."""
    max_answer_tokens: int = 224
    num_together: int = 32
    seed: int = 0
    dtype: str = "bfloat16"
    device: str = "cpu"


@dataclass(slots=True)
class Writing:
    """An engine's job: one text, token after token, until the target ends it."""

    cache: SequenceCache
    prompt_ids: Sequence[int]
    row: RowSampling
    key: int
    max_tokens: int
    end_ids: frozenset[int]
    priority: int = 0
    done: bool = False
    next: JobInput | None = None
    written: list[int] = field(default_factory=list)

    def start(self) -> JobInput:
        """Return the prompt."""
        return JobInput(0, list(self.prompt_ids), num_logit_rows=1, committed=len(self.prompt_ids))

    def take(self, token_id: int) -> None:
        """Keep a token, and ask for the next unless the text has ended."""
        self.written.append(token_id)
        if token_id in self.end_ids or len(self.written) >= self.max_tokens:
            self.done = True
            return
        begin = self.cache.length
        self.next = JobInput(begin, [token_id], num_logit_rows=1, committed=begin + 1)


@dataclass(slots=True)
class WritingHead:
    """Draws the next token of every text in the pass; runs on the engine's thread."""

    vocab_size: int

    def __call__(self, finished: list[Finished]) -> None:
        """Draw."""
        jobs: list[Writing] = [entry.job for entry in finished]  # type: ignore[misc]
        logits = torch.cat([entry.logits for entry in finished])
        greedy, _ = distribution.greedy(
            logits, [job.row for job in jobs], vocab_size=self.vocab_size
        )
        processed = distribution.process(
            logits,
            [RowSampling() if job.row.temperature == 0 else job.row for job in jobs],
            vocab_size=self.vocab_size,
        )
        drawn, _ = coupling.draw(
            processed, [job.key for job in jobs], [job.cache.length for job in jobs]
        )
        for index, job in enumerate(jobs):
            job.next = None
            job.take(int(greedy[index] if job.row.temperature == 0 else drawn[index]))


@dataclass(slots=True)
class Writer:
    """Writes examples to the end of a file; one that was interrupted goes on where it stopped.

    An example depends on the seed and its number alone.
    """

    options: WritingOptions
    told: Callable[[int], None] = lambda _: None
    _codec: TextCodec = field(init=False)
    _loaded: LoadedModel = field(init=False)
    _engine: Engine = field(init=False)

    async def run(self) -> int:
        """Write what is missing; return how many lines the file has.

        Raises: InvalidField if the target cannot write messages itself; OSError.
        """
        options = self.options
        self._codec = TextCodec(TokenizerFiles.from_folder(options.target))
        opening = () if options.messages else message_opening(self._codec)
        self._check_run()
        num_written = _num_lines(options.out)
        if num_written >= options.num_examples:
            return num_written
        self._loaded = await asyncio.to_thread(
            load_model,
            str(options.target),
            dtype=options.dtype,  # type: ignore[arg-type]
            device=options.device,
        )
        settings = EngineSettings()
        self._engine = Engine(self._loaded, settings, WritingHead(self._codec.vocab_size))
        await asyncio.to_thread(self._engine.start)
        try:
            while num_written < options.num_examples:
                numbers = range(
                    num_written,
                    min(num_written + options.num_together, options.num_examples),
                )
                rows = await asyncio.gather(*(self._example(n, opening) for n in numbers))
                with options.out.open("a", encoding="utf-8") as file:  # noqa: ASYNC230 (a few lines)
                    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                num_written += len(rows)
                self.told(num_written)
        finally:
            await self._engine.close()
        return num_written

    def _check_run(self) -> None:
        """Remember beside the file what it is written from, or compare with what is remembered.

        Raises: RunMismatch if the file was begun otherwise.
        """
        path = self.options.out.with_name(f"{self.options.out.name}.run.json")
        prompts = "\n".join(self.options.messages).encode()
        here: dict[str, object] = {
            "target_weights_digest": weights_digest(self.options.target),
            "seed": self.options.seed,
            "max_answer_tokens": self.options.max_answer_tokens,
            "prompts_digest": blake2b(prompts, digest_size=8).hexdigest() if prompts else "",
            "dtype": self.options.dtype,
        }
        if path.exists():
            there = json.loads(path.read_text())
            if there != here:
                found = ", ".join(differing(there, here))
                raise RunMismatch(f"{self.options.out} was begun otherwise: {found}")
        elif self.options.out.exists() and self.options.out.stat().st_size:
            raise RunMismatch(f"{self.options.out} exists and was not begun by this command")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(here, indent=2) + "\n")

    async def _example(self, number: int, opening: Sequence[int]) -> dict[str, object]:
        key = (self.options.seed << 32) + 2 * number
        messages = self.options.messages
        user = messages[number % len(messages)] if messages else await self._message(key, opening)
        prompt_ids = self._codec.apply_chat_template([{"role": "user", "content": user}])
        if len(prompt_ids) >= self._loaded.max_context_length:
            raise InvalidField(
                "--prompts",
                f"message {number % max(len(messages), 1) + 1} takes {len(prompt_ids)} tokens, the "
                f"target's context has {self._loaded.max_context_length}",
            )
        is_greedy = number % 2 == 0
        temperature = 0.0 if is_greedy else TEMPERATURES[number // 2 % len(TEMPERATURES)]
        row = RowSampling(temperature=temperature, top_k=0 if is_greedy else TOP_K)
        ids = await self._write(prompt_ids, row, key + 1, self.options.max_answer_tokens)
        return {"user": user, "temperature": temperature, "response_ids": ids}

    async def _message(self, key: int, opening: Sequence[int]) -> str:
        """Return a message; an empty one is drawn again with other noise."""
        for attempt in range(8):
            ids = await self._write(opening, MESSAGE, key + (attempt << 48), MAX_MESSAGE_TOKENS)
            if text := self._codec.decode(ids).strip():
                return text
        return "Hello."

    async def _write(
        self, prompt_ids: Sequence[int], row: RowSampling, key: int, max_tokens: int
    ) -> list[int]:
        room = self._loaded.max_context_length - len(prompt_ids)
        cache = self._engine.open(salt="writing")
        ends = frozenset(self._loaded.eos_token_ids)
        job = Writing(cache, prompt_ids, row, key, min(max_tokens, room), ends)
        try:
            await self._engine.run(job)
        finally:
            self._engine.release(cache)
        return job.written


def message_opening(codec: TextCodec) -> tuple[int, ...]:
    """Return the ids after which a user speaks.

    Raises: InvalidField naming --prompts if the template does not show where that is.
    """
    if not codec.has_chat_template:
        raise InvalidField("--prompts", "needed: the target has no chat template to speak in")
    text = codec.render_chat([{"role": "user", "content": MARK}])
    before, found, _ = text.partition(MARK)
    if not found or not before:
        raise InvalidField("--prompts", "needed: the template does not show where a user speaks")
    return tuple(codec.encode_plain(before))


def _num_lines(path: Path) -> int:
    """Return the number of whole lines, after cutting off one that was interrupted."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    return data.count(b"\n")
