"""The policy that new requests get, and how it is replaced while the service runs."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from outrider.errors import PolicyError
from outrider.policy import Policy, read_policy

log = structlog.get_logger()


@dataclass(slots=True)
class PolicyInForce:
    """One policy at a time; a request keeps the one that it was admitted under.

    ``path`` is None where settings stand for a file: then there is nothing to read again.
    ``object_to`` says what else speaks against a policy, one fault a text.
    """

    policy: Policy
    path: Path | None = None
    object_to: Callable[[Policy], list[str]] = lambda policy: []
    clock: Callable[[], float] = time.time
    error: str = ""
    """What is wrong with the file, where the last attempt to read it again failed."""
    num_reloads: int = 0
    num_failures: int = 0
    loaded_at_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.loaded_at_s = self.clock()

    @classmethod
    def of_file(cls, path: Path, object_to: Callable[[Policy], list[str]]) -> "PolicyInForce":
        """Read a file; Raises: PolicyError."""
        return cls(_read(path, object_to), path, object_to)

    async def reload(self) -> None:
        """Read the file again, beside the event loop; a bad one changes nothing but counts."""
        if self.path is None:
            return
        try:
            policy = await asyncio.to_thread(_read, self.path, self.object_to)
        except PolicyError as error:
            self.error = str(error)
            self.num_failures += 1
            log.error("policy_refused", faults=error.faults, version_kept=self.policy.version)
            return
        before, self.policy = self.policy, policy
        self.error, self.loaded_at_s = "", self.clock()
        self.num_reloads += 1
        log.info(
            "policy_loaded",
            version=policy.version,
            digest=policy.digest,
            changed=policy.digest != before.digest,
        )


def _read(path: Path, object_to: Callable[[Policy], list[str]]) -> Policy:
    policy = read_policy(path)
    if faults := object_to(policy):
        raise PolicyError(str(path), faults)
    return policy
