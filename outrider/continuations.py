"""What the target deems most likely behind some tokens, for drafters that learn from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.v1 import common_pb2 as pb

MAX_CONTINUATIONS = 16


@dataclass(frozen=True, slots=True)
class Continuations:
    """The most likely ids behind each of some tokens, most likely first.

    Shapes: token_ids [R]; top_ids [R, M] int64.
    """

    token_ids: tuple[int, ...]
    top_ids: npt.NDArray[np.int64]

    def to_proto(self) -> pb.Continuations:
        """Return the message."""
        packed = self.top_ids.astype("<u4").tobytes()
        return pb.Continuations(token_ids=self.token_ids, top_ids=packed)

    @classmethod
    def from_proto(cls, message: pb.Continuations) -> "Continuations | None":
        """Read a message; None for one whose parts do not fit each other."""
        num_rows = len(message.token_ids)
        if not num_rows or not message.top_ids or len(message.top_ids) % (4 * num_rows):
            return None
        ids = np.frombuffer(message.top_ids, dtype="<u4").astype(np.int64)
        return cls(tuple(message.token_ids), ids.reshape(num_rows, -1))

    def is_below(self, vocab_size: int) -> bool:
        """False if some id is none of the vocabulary."""
        return max(self.token_ids) < vocab_size and int(self.top_ids.max()) < vocab_size

    def rows(self) -> Sequence[Sequence[int]]:
        """Return the ids of each row."""
        listed: list[list[int]] = self.top_ids.tolist()
        return listed
