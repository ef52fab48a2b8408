"""The errors that a peer can cause or must hear of, each with its one gRPC status code.

OutriderError
├── InvalidField        INVALID_ARGUMENT    a field is wrong or not supported; names field and limit
├── IdentityMismatch    FAILED_PRECONDITION digests differ from those expected
├── NotFound            NOT_FOUND           no such model
├── PolicyError         FAILED_PRECONDITION a policy file is wrong; names every fault
├── ResourceExhausted   RESOURCE_EXHAUSTED  queue, leases or KV are full
└── Unavailable         UNAVAILABLE         loading, draining or no worker; may say when to retry

A short KV cache is no error: workers answer it with ``ContextNeeded`` on the open stream.
"""

from collections.abc import Sequence

import grpc


class OutriderError(Exception):
    """Root of the tree; never raised itself."""

    code = grpc.StatusCode.INTERNAL


class InvalidField(OutriderError):
    """A field of a message is out of its range or asks for what is not built."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Two arguments, of which the root keeps one text: processes hand errors on."""
        return type(self), (self.field, str(self).removeprefix(f"{self.field}: "))


class IdentityMismatch(OutriderError):
    """A model is not the one that the peer expects."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class NotFound(OutriderError):
    """The named thing does not exist here."""

    code = grpc.StatusCode.NOT_FOUND


class PolicyError(OutriderError):
    """A policy file cannot be used; the message has a line for every fault."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, name: str, faults: Sequence[str]) -> None:
        super().__init__("\n".join(f"{name}: {fault}" for fault in faults))
        self.faults = tuple(faults)


class ResourceExhausted(OutriderError):
    """A bounded resource is full; retry later or elsewhere."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(OutriderError):
    """The service cannot serve now; retry, after ``retry_after_s`` seconds where it is given."""

    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
