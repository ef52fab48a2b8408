"""Who is measured."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OUTRIDER, TRANSFORMERS, VLLM = "outrider", "transformers", "vllm"
VLLM_PYTHON = Path("build/vllm/venv/bin/python")
# What its manual asks to load first; it comes with its requirements.
VLLM_OPENMP = Path("build/vllm/venv/lib/libiomp5.so")


@dataclass(frozen=True, slots=True)
class Contestant:
    """An engine and one of its ways to decode."""

    engine: str
    mode: str

    @property
    def name(self) -> str:
        """What flags and tables call it."""
        return f"{self.engine}:{self.mode}"

    @property
    def peer(self) -> str:
        """Name of the driver's process; Outrider's modes share their services, as requests do."""
        return self.engine if self.engine == OUTRIDER else self.name

    def plays(self, num_streams: int) -> bool:
        """True if so many streams can be asked of it; transformers answers one after another."""
        return num_streams == 1 or self.engine != TRANSFORMERS


TARGET_ONLY = Contestant(OUTRIDER, "target-only")
DEFAULT = Contestant(OUTRIDER, "default")
PLAIN = "plain"  # another engine without drafts
VLLM_PLAIN = Contestant(VLLM, PLAIN)
BASES = (TARGET_ONLY, VLLM_PLAIN)
"""Whose speed the others are compared with."""

CONTESTANTS = (
    TARGET_ONLY,
    DEFAULT,
    Contestant(OUTRIDER, "suffix+recycling"),
    Contestant(OUTRIDER, "suffix+recycling+eagle3-tree@8"),
    Contestant(TRANSFORMERS, PLAIN),
    Contestant(TRANSFORMERS, "assistant"),
    Contestant(TRANSFORMERS, "prompt-lookup"),
    VLLM_PLAIN,
    Contestant(VLLM, "ngram"),
    Contestant(VLLM, "draft-model"),
)


def contestant(name: str) -> Contestant:
    """Return the contestant that a flag names; Raises: ValueError if there is no such engine."""
    engine, _, mode = name.partition(":")
    if engine not in (OUTRIDER, TRANSFORMERS, VLLM) or not mode:
        raise ValueError(f"{name}: expected ENGINE:MODE, such as {TARGET_ONLY.name}")
    return Contestant(engine, mode)


def commands(
    contestants: Sequence[Contestant], target: Path, draft: Path, *, is_vllm_eager: bool
) -> dict[str, list[str]]:
    """Return the command of every driver that is needed, by the name of its process."""
    found: dict[str, list[str]] = {}
    modes = [each.mode for each in contestants if each.engine == OUTRIDER]
    for each in contestants:
        module = f"bench.peers.{each.engine}_driver"
        if each.engine == OUTRIDER:
            found[each.peer] = [sys.executable, "-m", module, "--modes", *modes]
        else:
            python = _vllm_python() if each.engine == VLLM else [sys.executable]
            flags = ["--mode", each.mode, "--target", str(target), "--draft", str(draft)]
            flags += ["--eager"] if each.engine == VLLM and is_vllm_eager else []
            found[each.peer] = [*python, "-m", module, *flags]
    return found


def _vllm_python() -> list[str]:
    wanted = [str(VLLM_OPENMP.absolute())] if VLLM_OPENMP.exists() else []
    wanted += filter(None, [os.environ.get("LD_PRELOAD")])
    return ["env", f"LD_PRELOAD={':'.join(wanted)}", str(VLLM_PYTHON)]


def rotated(contestants: Sequence[Contestant], repeat: int) -> list[Contestant]:
    """Return the contestants in the order of a repeat: whoever comes next begins."""
    begin = repeat % len(contestants)
    return [*contestants[begin:], *contestants[:begin]]
