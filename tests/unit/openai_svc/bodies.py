"""What a body becomes: the requests of the orchestrator, or the error that a client reads."""

import json

from pydantic import ValidationError

from openai_svc.chat import ChatBody
from openai_svc.completions import CompletionBody
from openai_svc.errors import ApiError, from_field, from_validation
from outrider.client import generate_request
from outrider.errors import InvalidField
from outrider.v1 import generation_pb2 as pb

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: object) -> pb.GenerateRequest:
    """The request of a conversation."""
    (request,) = requests(ChatBody, {"messages": HELLO, **fields})
    return request


def completion(**fields: object) -> pb.GenerateRequest:
    """The request of a text."""
    (request,) = requests(CompletionBody, {"prompt": "hello", **fields})
    return request


def requests(kind: type[ChatBody | CompletionBody], fields: object) -> list[pb.GenerateRequest]:
    """The requests of a body; Raises: ApiError."""
    try:
        body = kind.model_validate_json(json.dumps(fields))
        try:
            sampling = body.sampling()
            return [generate_request(each, sampling, **body.options()) for each in body.prompts]
        except InvalidField as error:
            raise from_field(error, body.param) from error
    except ValidationError as error:
        raise from_validation(error) from error


def refused(kind: type[ChatBody | CompletionBody], fields: object) -> ApiError:
    """The error of a body that is refused."""
    try:
        found = requests(kind, fields)
    except ApiError as error:
        return error
    raise AssertionError(f"not refused: {found}")
