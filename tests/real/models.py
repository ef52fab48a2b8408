"""The demo models as services in this process."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.checkpoints import prepare
from outrider.serving.server import Register
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

Opener = Callable[[], AbstractAsyncContextManager[Register]]


def target(dtype: str = "bfloat16") -> Opener:
    """A verifier of the demo target."""
    settings = VerifierSettings(model=str(prepare().target), dtype=dtype)
    return lambda: open_verifier(settings)


def trained_draft(dtype: str = "bfloat16") -> Opener:
    """A drafter with the model that was trained for the target."""
    settings = DrafterSettings(model=str(prepare().draft), dtype=dtype)
    return lambda: open_drafter(settings)


def trained_heads() -> list[Opener]:
    """Drafters with the heads that were trained for the target, one each."""
    all_settings = [DrafterSettings(model=str(folder)) for folder in prepare().heads]
    return [lambda each=each: open_drafter(each) for each in all_settings]


def self_draft(dtype: str = "bfloat16") -> Opener:
    """A drafter that runs the target itself, which always guesses right."""
    settings = DrafterSettings(model=str(prepare().target), dtype=dtype)
    return lambda: open_drafter(settings)
