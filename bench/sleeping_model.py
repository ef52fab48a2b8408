"""A model that is calculable by hand and sleeps where others compute; no torch.

The token at position t is ``t % VOCAB_SIZE``, whatever came before.
"""

import asyncio
import time
import uuid
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from outrider import wire
from outrider.identity import (
    IdentityDigests,
    ModelIdentity,
    Numerics,
    TokenizerFiles,
    tokenizer_digest,
    tokenizer_probe_digest,
)

VOCAB_SIZE = 256
MAX_CONTEXT = 1 << 16
NUM_LISTED = 32  # entries of each draft distribution, as the model source sends them


def token_at(position: int) -> int:
    """Return the target's token at a position."""
    return position % VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class Sleep:
    """A duration by rows; with a last stretch that is busy it is kept to some ten microseconds."""

    base_s: float
    row_s: float
    spin_s: float

    def duration_s(self, num_rows: int) -> float:
        """Return what so many rows take."""
        return self.base_s + num_rows * self.row_s

    async def __call__(self, num_rows: int) -> None:
        """Take this long."""
        duration_s = self.duration_s(num_rows)
        end = time.perf_counter() + duration_s
        if duration_s > self.spin_s:
            await asyncio.sleep(duration_s - self.spin_s)
        while self.spin_s and time.perf_counter() < end:
            pass


def draft_distribution(token_id: int) -> tuple[bytes, bytes]:
    """Return what a drafter that is sure of a token would send, as large as the model source's."""
    ids = [(token_id + i) % VOCAB_SIZE for i in range(NUM_LISTED)]
    counts = wire.quantise(ids, [0.5**i for i in range(1, NUM_LISTED + 1)])
    return wire.pack(ids, counts.tolist())


def tokenizer_files() -> TokenizerFiles:
    """Return a tokenizer whose ids 0 to VOCAB_SIZE - 1 read as numbers."""
    words = {f"{i} ": i for i in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="0 "))
    return TokenizerFiles({"tokenizer.json": tokenizer.to_str().encode()})


def sleeping_identity(files: TokenizerFiles) -> ModelIdentity:
    """Return the identity that verifier and drafter share."""
    return ModelIdentity(
        name="sleeping",
        revision="",
        architecture="Sleeping",
        digests=IdentityDigests(tokenizer_digest(files), "", "sleeping"),
        tokenizer_probe_digest=tokenizer_probe_digest(files),
        vocab_size=VOCAB_SIZE,
        logits_size=VOCAB_SIZE,
        max_context_length=MAX_CONTEXT,
        eos_token_ids=(),
        bos_token_id=None,
        pad_token_id=None,
        numerics=Numerics(row_invariant=True),
        incarnation=uuid.uuid4().hex,
    )
