"""Hidden states of the target at committed positions, for drafters that read them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.v1 import common_pb2 as pb

MAX_CHUNK_BYTES = 1 << 20
MAX_FEATURE_LAYERS = 8
VALUE_BYTES = 2  # bfloat16


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Hidden states of consecutive positions from ``start`` on.

    Shapes: values [positions, layers * hidden] uint16, the bit patterns of bfloat16 numbers.
    """

    start: int
    values: npt.NDArray[np.uint16]

    @property
    def end(self) -> int:
        """Position behind the last."""
        return self.start + len(self.values)

    @property
    def num_bytes(self) -> int:
        """Bytes on the wire."""
        return self.values.size * VALUE_BYTES

    def chunks(self, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator["Features"]:
        """Yield parts of whole positions, each of at most ``max_bytes``.

        A position that takes more is a part of its own.
        """
        width_bytes = self.values.shape[1] * VALUE_BYTES
        step = max(1, max_bytes // width_bytes)
        for begin in range(0, len(self.values), step):
            yield Features(self.start + begin, self.values[begin : begin + step])

    def to_proto(self) -> pb.FeatureChunk:
        """Return the message."""
        return pb.FeatureChunk(start=self.start, values=self.values.astype("<u2").tobytes())

    @classmethod
    def from_proto(cls, message: pb.FeatureChunk, width: int) -> "Features | None":
        """Read a message of ``width`` numbers a position; None for one of no whole positions."""
        if width < 1 or not message.values or len(message.values) % (VALUE_BYTES * width):
            return None
        values = np.frombuffer(message.values, dtype="<u2").astype(np.uint16, copy=False)
        return cls(message.start, values.reshape(-1, width))


def objection_to_layers(layers: Sequence[int], max_layer: int | None) -> str:
    """Return why hidden states of these layers cannot be had; empty if they can.

    ``max_layer`` is the number of the model's decoder layers, None where it gives none.
    """
    if max_layer is None:
        return "this model gives no hidden states"
    if not layers:
        return "names no layer"
    if len(layers) > MAX_FEATURE_LAYERS:
        return f"{len(layers)} layers, at most {MAX_FEATURE_LAYERS}"
    if len(set(layers)) < len(layers):
        return "names a layer twice"
    worst = max(layers)
    return f"layer {worst} is above {max_layer}" if worst > max_layer else ""
