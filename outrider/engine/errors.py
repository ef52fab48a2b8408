"""What the engine refuses or runs out of.

CacheTooShort is no error on the wire: services answer it with ``ContextNeeded``.
"""

from outrider.errors import OutriderError, ResourceExhausted


class UnsupportedModel(OutriderError):
    """The model cannot be served by this engine; the message says why."""


class OutOfBlocks(ResourceExhausted):
    """The KV pool has too few blocks for this job."""


class NoRoomForTree(OutOfBlocks):
    """The blocks that are free do not suffice for the paths of a tree."""


class CacheTooShort(Exception):
    """A job starts behind the end of its cache, for instance after a preemption."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the cache holds {length} positions")
        self.length = length
