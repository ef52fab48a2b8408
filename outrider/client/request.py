"""Requests as a program would write them, turned into messages."""

import json
from collections.abc import Mapping, Sequence

from outrider.errors import InvalidField
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.serving.request_id import request_id_metadata
from outrider.v1 import generation_pb2 as pb

Message = tuple[str, str] | Mapping[str, object]
"""(role, content), or a mapping with both and whatever else the model's template reads."""

Prompt = str | Sequence[int] | Sequence[Message]


def generate_request(
    prompt: Prompt,
    sampling: SamplingParams | None = None,
    *,
    model: str = "",
    tools: Sequence[Mapping[str, object]] = (),
    template_kwargs: Mapping[str, object] | None = None,
    continue_final_message: bool = False,
    target_only: bool = False,
    sources: Sequence[str] = (),
    num_draft_tokens: int | None = None,
    min_draft_tokens: int | None = None,
    max_draft_tokens: int | None = None,
    acceptance_rule: AcceptanceRule | None = None,
    trace_top_ids: int = 0,
    report_costs: bool = False,
    cache_salt: str = "",
    priority: int = 0,
) -> pb.GenerateRequest:
    """Build a request from text, from token ids, or from messages.

    ``tools``, ``template_kwargs`` and ``continue_final_message`` go to the chat template and need
    messages.

    Raises: InvalidField for a message without role or text, and for what needs messages and has
        none.
    """
    request = pb.GenerateRequest(model=model, cache_salt=cache_salt, priority=priority)
    if sampling is not None:
        request.sampling_params.CopyFrom(sampling.to_proto())
    speculation = pb.SpeculationOptions(
        target_only=target_only,
        sources=sources,
        num_draft_tokens=num_draft_tokens,
        min_draft_tokens=min_draft_tokens,
        max_draft_tokens=max_draft_tokens,
        acceptance_rule=None if acceptance_rule is None else acceptance_rule.to_proto(),
        trace_top_ids=trace_top_ids,
        report_costs=report_costs,
    )
    if speculation != pb.SpeculationOptions():
        request.speculation.CopyFrom(speculation)
    if isinstance(prompt, str):
        request.text = prompt
    elif prompt and isinstance(prompt[0], tuple | Mapping):
        request.chat.CopyFrom(chat_input(prompt))  # type: ignore[arg-type]
        if tools:
            request.chat.tools_json = to_json(list(tools))
        if template_kwargs:
            request.chat.template_kwargs_json = to_json(template_kwargs)
        request.chat.continue_final_message = continue_final_message
    else:
        request.tokenized.input_ids.extend(prompt)
    if (tools or template_kwargs or continue_final_message) and not request.HasField("chat"):
        raise InvalidField("chat", "tools and template variables need messages as the prompt")
    return request


def chat_input(messages: Sequence[Message]) -> pb.ChatInput:
    """Return the conversation; Raises: InvalidField for a message without role or text."""
    return pb.ChatInput(messages=[_message(index, each) for index, each in enumerate(messages)])


def _message(index: int, message: Message) -> pb.ChatMessage:
    if isinstance(message, Mapping):
        extra = dict(message)
        role, content = extra.pop("role", None), extra.pop("content", None)
    else:
        (role, content), extra = message, {}
    if not isinstance(role, str):
        raise InvalidField(f"chat.messages[{index}].role", f"{role!r} is no text")
    if not isinstance(content, str | None):  # an assistant that only called tools said nothing
        raise InvalidField(f"chat.messages[{index}].content", f"{content!r} is no text")
    return pb.ChatMessage(
        role=role, content=content or "", extra_json=to_json(extra) if extra else ""
    )


def to_json(value: object) -> str:
    """Write a value as templates shall read it back: in its own order, every character as it is."""
    return json.dumps(value, ensure_ascii=False)


def call_metadata(request_id: str, metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call; without a request id the server makes one."""
    named = request_id_metadata(request_id) if request_id else ()
    return (*metadata.items(), *named)


def tokenize_request(prompt: str | Sequence[Message], model: str) -> pb.TokenizeRequest:
    """Ask for the ids of a text, or of messages with the chat template."""
    if isinstance(prompt, str):
        return pb.TokenizeRequest(model=model, text=prompt)
    return pb.TokenizeRequest(model=model, chat=chat_input(prompt))


def detokenize_request(
    token_ids: Sequence[int], model: str, skip_special_tokens: bool
) -> pb.DetokenizeRequest:
    """Ask for the text of ids."""
    return pb.DetokenizeRequest(
        model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
    )
