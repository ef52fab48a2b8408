"""``outrider policy``: checks a policy file, and explains what it decides."""

import json
from dataclasses import dataclass
from pathlib import Path

import typer
from google.protobuf.json_format import ParseDict, ParseError
from rich.console import Console
from rich.text import Text

from outrider.cli.render import plain_console
from outrider.errors import InvalidField
from outrider.policy import (
    Explanation,
    Policy,
    SpeculationOptions,
    Traits,
    declared_metadata,
    explain,
    features_of,
    policy_of_flags,
    read_policy,
)
from outrider.sampling import SamplingParams
from outrider.serving.request_id import REQUEST_ID_KEY
from outrider.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """What the flags say; None stands for what is not known."""

    request: Path
    policy: Path | None
    num_prompt_tokens: int | None
    as_json: bool


def run_check(path: Path) -> None:
    """Read a policy file and print its classes; Raises: PolicyError with all faults."""
    policy = read_policy(path)
    console = plain_console()
    console.print(f"{path}: version {policy.version}, digest {policy.digest}", soft_wrap=True)
    for each in policy.classes:
        told = f"  {each.name}: {each.speculation.value}"
        about = " (takes every request)" if each.when.takes_all else ""
        console.print(told + about, soft_wrap=True)
    if not policy.classes[-1].when.takes_all:
        console.print("  requests that none of them takes are target-only")


def run_explain(options: ExplainOptions) -> None:
    """Print what is decided about a request, and why.

    Raises: InvalidField for a request that cannot be read or would be refused; PolicyError;
        typer.Exit where something would have to be known.
    """
    policy = policy_of_flags() if options.policy is None else read_policy(options.policy)
    message, metadata = read_request(options.request)
    explanation = explanation_of(policy, message, metadata, options.num_prompt_tokens)
    console = plain_console()
    if options.as_json:
        console.print_json(data=in_json(explanation))
    else:
        where = "built in" if options.policy is None else str(options.policy)
        console.print(f"policy {policy.version} ({policy.digest}), {where}", soft_wrap=True)
        print_lines(console, explanation)
    if explanation.decision is None:
        raise typer.Exit(1)


def read_request(path: Path) -> tuple[pb.GenerateRequest, dict[str, str]]:
    """Return the request of a file, and the metadata that stands beside its fields."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidField(str(path), error.strerror or str(error)) from None
    except ValueError as error:  # of JSON, or of UTF-8
        raise InvalidField(str(path), f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidField(str(path), "must be an object with the fields of a GenerateRequest")
    metadata = value.pop("metadata", {})
    is_text = isinstance(metadata, dict) and all(
        isinstance(each, str) for each in metadata.values()
    )
    if not is_text:
        raise InvalidField("metadata", "must be an object of strings")
    message = pb.GenerateRequest()
    try:
        ParseDict(value, message)
    except ParseError as error:
        raise InvalidField(str(path), str(error)) from None
    return message, {key.lower(): each for key, each in metadata.items()}


def explanation_of(
    policy: Policy,
    message: pb.GenerateRequest,
    metadata: dict[str, str],
    num_prompt_tokens: int | None,
) -> Explanation:
    """Return the explanation of a request that nobody has tokenised; Raises: InvalidField."""
    sampling = SamplingParams.from_proto(message.sampling_params)
    options = SpeculationOptions.from_proto(message.speculation)
    if num_prompt_tokens is None and message.HasField("tokenized"):
        num_prompt_tokens = len(message.tokenized.input_ids)
    traits = Traits(
        model=message.model,
        is_greedy=sampling.is_greedy,
        temperature=sampling.temperature,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=sampling.max_tokens,
        priority=message.priority,
        features=features_of(
            sampling,
            has_tools=bool(message.chat.tools_json),
            is_traced=bool(options.num_traced_ids),
        ),
        metadata=declared_metadata(policy, metadata),
    )
    return explain(policy, traits, options, metadata.get(REQUEST_ID_KEY, ""))


def print_lines(console: Console, explanation: Explanation) -> None:
    """Print an explanation, the class that took the request in bold."""
    for line in explanation.lines:
        is_match = line.startswith("class ") and ": yes: " in line
        console.print(Text(line, style="bold" if is_match else ""), soft_wrap=True)


def in_json(explanation: Explanation) -> dict[str, object]:
    """Return an explanation for programs."""
    tests = [
        {
            "class": test.class_name,
            "holds": test.holds,
            "conditions": [
                {
                    "key": condition.key,
                    "wanted": condition.wanted,
                    "found": condition.found,
                    "holds": condition.holds,
                }
                for condition in test.conditions
            ],
        }
        for test in explanation.tests
    ]
    decision = explanation.decision
    if decision is None:
        return {"classes": tests, "decision": None, "obstacle": explanation.obstacle}
    return {
        "classes": tests,
        "decision": {
            "policy_version": decision.policy.version,
            "policy_digest": decision.policy.digest,
            "workload_class": decision.class_name,
            "speculation": decision.speculation.value,
            "reason": decision.reason,
            "acceptance_rule": decision.rule.value,
            "sources": list(decision.sources),
            "draft_tokens": decision.length,
            "min_draft_tokens": decision.min_draft_tokens,
            "max_draft_tokens": decision.max_draft_tokens,
            "lookup": decision.lookup,
            "narrowed": list(decision.narrowed),
            "hangs_on_request_id": explanation.hangs_on_id,
        },
    }
