"""Outputs, receipts and workers are shown as they are, with nothing empty in between."""

from io import StringIO

import pytest
from rich.console import Console

from outrider.cli.render import (
    legend,
    logprobs_table,
    plain_console,
    print_chunk,
    receipt_table,
)
from outrider.cli.status import policy_line, worker_table
from outrider.v1 import common_pb2
from outrider.v1 import generation_pb2 as pb

ACCEPTED, RECOVERED, ONLY = (
    pb.TOKEN_ORIGIN_ACCEPTED,
    pb.TOKEN_ORIGIN_RECOVERED,
    pb.TOKEN_ORIGIN_ONLY,
)


def shown(renderable: object) -> str:
    console = plain_console()
    console.file = StringIO()
    console.width = 200
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("pieces", "origins", "expected"),
    [
        (["a", "b", "c"], [ACCEPTED, ACCEPTED, RECOVERED], "‹ab›c"),
        (["a", "b"], [RECOVERED, ACCEPTED], "a‹b›"),
        ([".", ""], [RECOVERED, ACCEPTED], "."),
        (["a", "", "b"], [ACCEPTED, RECOVERED, ACCEPTED], "‹ab›"),
        (["[/b]", ":smile:"], [ONLY, ACCEPTED], "[/b]‹:smile:›"),
    ],
)
def test_brackets_hold_accepted_text(pieces, origins, expected):
    console = plain_console()
    console.file = StringIO()
    print_chunk(console, pb.GenerateChunk(pieces=pieces, origins=origins))
    assert console.file.getvalue() == expected


@pytest.mark.parametrize(("colors", "has_brackets"), [(None, True), ("standard", False)])
def test_the_legend_explains_the_marks_in_use(colors, has_brackets):
    console = Console(color_system=colors, force_terminal=colors is not None, file=StringIO())
    assert ("‹" in legend(console).plain) is has_brackets
    print_chunk(console, pb.GenerateChunk(pieces=["a"], origins=[ACCEPTED]))
    assert ("‹" in console.file.getvalue()) is has_brackets


def test_no_acceptance_length_without_drafts():
    nothing = pb.Receipt(mean_acceptance_length=1.0)
    assert "length –" in shown(receipt_table(nothing))
    some = pb.Receipt(mean_acceptance_length=2.5, num_spec_steps=2)
    assert "length 2.50" in shown(receipt_table(some))


def test_a_refusal_is_shown_with_its_reason_and_no_figures():
    refused = pb.Receipt(outcome="refused", status_code="INVALID_ARGUMENT", error="n: [/x] 0")
    rows = [line.split() for line in shown(receipt_table(refused)).splitlines() if line.strip()]
    assert rows == [["finish", "refused:", "INVALID_ARGUMENT,", "n:", "[/x]", "0"]]


def test_what_drafts_would_have_done_is_shown():
    judged = pb.Receipt(outcome="stop", shadow=pb.ShadowResults(judged_by="output"))
    judged.shadow.num_passes_saved, judged.shadow.num_covered_tokens = 7, 20
    assert "7 passes saved over 20 tokens" in shown(receipt_table(judged))
    assert "shadow" not in shown(receipt_table(pb.Receipt(outcome="stop")))


def test_a_policy_whose_file_was_refused_since_says_so():
    policy = pb.PolicyInfo(version="7", digest="abc", path="p.yaml")
    assert policy_line(policy).plain == "policy 7 (abc) p.yaml"
    policy.error = "p.yaml: line 3: [/x]"
    assert policy_line(policy).plain.endswith("was refused since: p.yaml: line 3: [/x]")


def test_log_probabilities_stand_beside_their_text():
    tokens = [
        common_pb2.TokenLogprobs(token_id=i, logprob=-i, top_ids=[1, 2], top_logprobs=[-0.5, -1.25])
        for i in (7, 8)
    ]
    chunks = [pb.GenerateChunk(pieces=[" a", ""], logprobs=tokens)]
    lines = shown(logprobs_table(chunks)).splitlines()
    rows = [line.split() for line in lines if "." in line]
    assert rows == [
        ["'", "a'", "7", "-7.000", "1", "-0.500", "2", "-1.250"],
        ["''", "8", "-8.000", "1", "-0.500", "2", "-1.250"],
    ]


def test_a_worker_without_a_model_shows_no_model():
    worker = pb.WorkerInfo(address="a:1", role="drafter", state="ready", sources=["ngram"])
    worker.identity.name = "ngram"
    rows = [line.split() for line in shown(worker_table(worker)).splitlines() if line.strip()]
    assert rows == [["drafter", "a:1", "ready"], ["sources", "ngram"]]


def test_a_worker_s_texts_are_no_markup():
    worker = pb.WorkerInfo(address="a:1", role="drafter", state="refused", reason="[/x] :smile:")
    worker.identity.name = "[bold]name"
    worker.identity.architecture = "Model"
    table = shown(worker_table(worker))
    assert "[/x] :smile:" in table
    assert "[bold]name" in table
