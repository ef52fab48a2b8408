"""The command ``outrider generate``: its flags."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.flags import DEFAULT_ADDRESS, Address, biases, check_biases
from outrider.cli.generate import GenerateOptions, Prompt, read_tools, run_generate
from outrider.cli.structured import read_constraint
from outrider.client import generate_request
from outrider.sampling import AcceptanceRule, SamplingParams


def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue, or what to say with --chat.")],
    address: Address = DEFAULT_ADDRESS,
    model: Annotated[str, typer.Option(help="Name of the target; empty: the only one.")] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a user message.")
    ] = False,
    system: Annotated[str, typer.Option(help="System message, with --chat.")] = "",
    tools: Annotated[
        Path | None,
        typer.Option(
            help="File with a JSON array of tools that the model is told of, with --chat.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    target_only: Annotated[bool, typer.Option("--target-only", help="Do not speculate.")] = False,
    drafter: Annotated[
        str, typer.Option(help='Draft source, such as "model" or "ngram"; empty: the policy\'s.')
    ] = "",
    k: Annotated[
        int,
        typer.Option(
            "--k",
            help="Tokens per draft, up to the server's limit (32 unless it was told another);"
            " 0: the policy's.",
            min=0,
            max=1024,
        ),
    ] = 0,
    min_draft_tokens: Annotated[
        int | None, typer.Option(help="Fewest tokens of a draft, where the policy chooses.")
    ] = None,
    max_draft_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a draft, where the policy chooses.")
    ] = None,
    rule: Annotated[
        AcceptanceRule | None,
        typer.Option(help="What decides about draft tokens; empty: the policy's rule."),
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Choices, each with a seed of its own.")] = 1,
    truncate_prompt_tokens: Annotated[
        int | None, typer.Option(help="Keep only so many last tokens of the prompt.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest output.")] = 128,
    min_tokens: Annotated[int, typer.Option(help="Shortest output.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely ids kept; 0 is off.")] = 0,
    min_p: Annotated[float, typer.Option(help="Least share of the best id; 0 is off.")] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from logits of tokens in the output; 0 is off.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="The same, once for each time; 0 is off.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides logits of tokens in prompt and output; 1 is off.")
    ] = 1.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            help="Added to the logit of an id; may repeat.",
            metavar="ID=VALUE",
            callback=check_biases,
        ),
    ] = None,
    allow_token: Annotated[
        list[int] | None, typer.Option(help="Sample no id but these; may repeat.")
    ] = None,
    ban_token: Annotated[
        list[int] | None, typer.Option(help="Never sample this id; may repeat.")
    ] = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Text never to be completed; may repeat.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes a sampled output repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may repeat.")] = None,
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Keep what ended the output in the text.")
    ] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after EOS.")] = False,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            help="File with a JSON schema that the output must satisfy.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    json_object: Annotated[
        bool, typer.Option("--json-object", help="The output must be a JSON object.")
    ] = False,
    regex: Annotated[
        str, typer.Option(help="Regular expression that the whole output must match.")
    ] = "",
    grammar: Annotated[
        Path | None,
        typer.Option(
            help="File with a grammar that the output must follow: Lark's notation, or GBNF.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="Text that the output may be; may repeat.")
    ] = None,
    after: Annotated[
        str, typer.Option(help="Free text up to this string; the form holds behind it.")
    ] = "",
    logprobs: Annotated[
        int | None,
        typer.Option(help="Print log probabilities of the tokens and of so many likeliest ids."),
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first; -100 to 100.")] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with text, ids and receipt.")
    ] = False,
    timeout_s: Annotated[float, typer.Option(help="Deadline of the request.", min=0.001)] = 300.0,
) -> None:
    """Generate text; accepted draft tokens are marked in the stream."""
    sampling = SamplingParams(
        n=n,
        truncate_prompt_tokens=truncate_prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=biases(logit_bias or []),
        allowed_token_ids=tuple(allow_token or ()),
        banned_token_ids=tuple(ban_token or ()),
        bad_words=tuple(bad_word or ()),
        seed=seed,
        stop=tuple(stop or ()),
        include_stop_str_in_output=include_stop,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        constraint=read_constraint(
            json_schema=json_schema,
            json_object=json_object,
            regex=regex,
            grammar=grammar,
            choices=choice or (),
            after=after,
        ),
    )
    request = generate_request(
        Prompt(prompt, chat, system, tools).messages_or_text,
        sampling,
        model=model,
        tools=[] if tools is None else read_tools(tools),
        target_only=target_only,
        sources=[drafter] if drafter else [],
        num_draft_tokens=k or None,
        min_draft_tokens=min_draft_tokens,
        max_draft_tokens=max_draft_tokens,
        acceptance_rule=rule,
        priority=priority,
    )
    asyncio.run(run_generate(GenerateOptions(address, request, json, timeout_s)))
