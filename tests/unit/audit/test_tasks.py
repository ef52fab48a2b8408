"""Programs are run and cannot do harm; sums are read out of answers."""

import time
from fractions import Fraction

import pytest

from outrider.audit import sums
from outrider.audit.programs import load_programs
from outrider.audit.sandbox import has_no_network, runs_well
from outrider.questions import Question


def test_a_program_that_ends_well():
    assert runs_well("assert sum(range(4)) == 6")


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "raise SystemExit(3)",
        "x = (",
        "import torch",
        "x = bytearray(2**30)",
        "open('large', 'wb').write(bytes(2**22))",
        "[open(f'{i}', 'w') for i in range(100)]; files = [open(f'{i}') for i in range(100)]",
    ],
)
def test_programs_that_do_not(program):
    assert not runs_well(program)


def test_an_endless_program_is_ended_with_what_it_started(tmp_path):
    began = time.monotonic()
    witness = tmp_path / "alive"
    child = f"import time; time.sleep(2.5); open({str(witness)!r}, 'w')"
    assert not runs_well(
        f"import subprocess, sys\n"
        f"try: subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"except OSError: pass\n"
        f"while True: pass",
        timeout_s=1.0,
    )
    assert time.monotonic() - began < 10
    time.sleep(2.0)
    assert not witness.exists()


def test_a_program_leaves_nothing_behind_and_sees_no_secrets(monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    assert runs_well("import os; assert not os.listdir('.') and 'SECRET' not in os.environ")


def test_there_is_no_network_where_it_can_be_taken_away():
    if not has_no_network():
        pytest.skip("this system does not let us")
    connects = "import socket; socket.create_connection(('127.0.0.1', PORT), timeout=1)"
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert not runs_well(connects.replace("PORT", port))
    assert runs_well("import socket; socket.socket()")


def test_humaneval_is_judged_by_running_it():
    first, *others = load_programs(4)
    assert first.task_id == "HumanEval/0"
    assert [each.task_id for each in others] == [f"HumanEval/{n}" for n in (41, 82, 123)]
    right = (
        "    return any(abs(a - b) < threshold for i, a in enumerate(numbers) "
        "for b in numbers[i + 1 :])\n"
    )
    assert first.is_solved_by(right)
    assert not first.is_solved_by("    return True\n")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 * 5 = 60 eggs in 5 boxes.", 60),
        ("There are 5 boxes, so the answer is 1,250.", 1250),
        ("She has $45.50", Fraction(91, 2)),
        ("It is -3 degrees", -3),
        ("Three quarters: 3/4", Fraction(3, 4)),
        ("5 boxes of 12 make 60", 60),
        ("no number", None),
        ("1/0", None),
    ],
)
def test_numbers_are_read_out_of_answers(text, number):
    assert sums.extracted(text) == number


def test_our_sums_have_answers_that_are_numbers():
    for question in sums.OWN:
        assert sums.is_right(question, f"The answer is {question.answer}.")
        assert not sums.is_right(question, "The answer is 123456.")


def test_sums_are_theirs_and_ours():
    theirs = [Question("math", "1 + 1?"), Question("qa", "Who?"), Question("math", "2 + 2?", "4")]
    found = sums.load_sums(theirs, 6)
    assert [each.text for each in found[:2]] == ["1 + 1?", "2 + 2?"]
    assert found[2:] == list(sums.OWN[:4])
    assert sums.load_sums([], 3) == list(sums.OWN[:3])
