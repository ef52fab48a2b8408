"""One HTTP request as calls of the orchestrator."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import grpc

from openai_svc.calls import from_rpc, merged
from openai_svc.chat import ChatBody
from openai_svc.chat_reply import ChatReply
from openai_svc.completion_reply import CompletionReply, Echo
from openai_svc.completions import CompletionBody
from openai_svc.errors import from_field
from openai_svc.reply import Delta, Reply
from openai_svc.vocabulary import Vocabularies, Vocabulary, ids_of
from outrider.client import Client, generate_request
from outrider.errors import InvalidField
from outrider.v1 import generation_pb2 as pb

Body = ChatBody | CompletionBody

PROMPT = "prompt"
ASK_S = 10.0
"""Seconds that a question beside the generation may take."""


@dataclass(slots=True)
class Exchange:
    """The calls of a body, one for each prompt, and the reply that they fill."""

    client: Client
    body: Body
    request_id: str
    metadata: Mapping[str, str]
    timeout_s: float
    requests: list[pb.GenerateRequest]
    vocabulary: Vocabulary | None
    reply: Reply

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Run the calls and yield what each response adds; closing this cancels them.

        Raises: ApiError if one fails.
        """
        streams = [self._responses(number) for number in range(len(self.requests))]
        try:
            async with aclosing(merged(streams)) as responses:
                async for prompt, response in responses:
                    await self._learn(response)
                    yield self.reply.take(prompt, response)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self.body.param) from error

    async def _responses(self, number: int) -> AsyncGenerator[pb.GenerateResponse, None]:
        stream = self.client.stream(
            self.requests[number],
            timeout_s=self.timeout_s,
            request_id=self.request_id,
            metadata=self.metadata,
        )
        try:
            async with aclosing(stream) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, partial(self._param, number)) from error

    def _param(self, number: int, field: str) -> str:
        """Return the name of a field in the body; of several prompts say which."""
        param = self.body.param(field)
        if len(self.requests) == 1 or not param.startswith(PROMPT):
            return param
        return f"{PROMPT}[{number}]{param.removeprefix(PROMPT)}"

    async def whole(self) -> dict[str, object]:
        """Run the calls to their end and return the answer; Raises: ApiError."""
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                self.reply.keep(delta)
        return self.reply.whole()

    async def _learn(self, response: pb.GenerateResponse) -> None:
        if self.vocabulary is None:
            return
        ids = {*ids_of(response.chunk.logprobs), *ids_of(response.complete.prompt_logprobs)}
        await self.vocabulary.learn(self.client, self.body.model or "", ids, timeout_s=ASK_S)


async def open_exchange(
    client: Client,
    vocabularies: Vocabularies,
    body: Body,
    *,
    request_id: str,
    metadata: Mapping[str, str],
    timeout_s: float,
) -> Exchange:
    """Return the calls of a body, before any of them is made.

    Raises: ApiError for a parameter that is out of its range or asks for what there is not.
    """
    try:
        sampling, options = body.sampling(), body.options()
        requests = [generate_request(each, sampling, **options) for each in body.prompts]
    except InvalidField as error:
        raise from_field(error, body.param) from error
    names_tokens = (sampling.logprobs, sampling.prompt_logprobs) != (None, None)
    model, vocabulary = body.model or "", None
    try:
        if names_tokens or not model:
            question = pb.GetModelInfoRequest(model=model)
            info = await client.stub.GetModelInfo(question, timeout=ASK_S)
            model = info.identity.name
            vocabulary = vocabularies.of(info.identity) if names_tokens else None
        reply: Reply
        about = {"request_id": request_id, "model": model, "vocabulary": vocabulary}
        if isinstance(body, ChatBody):
            reply = ChatReply(body, **about)
        else:
            echoes = await _echoes(client, body, vocabulary)
            reply = CompletionReply(body, echoes=echoes, **about)
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error, body.param) from error
    return Exchange(client, body, request_id, metadata, timeout_s, requests, vocabulary, reply)


async def _echoes(
    client: Client, body: CompletionBody, vocabulary: Vocabulary | None
) -> list[Echo]:
    """Return the prompts as they come back, none unless they are wanted."""
    if not body.echo:
        return []
    model = body.model or ""
    echoes = [await _echo(client, body, model, prompt) for prompt in body.all_prompts]
    if vocabulary is not None:
        ids = {token_id for echo in echoes for token_id in echo.token_ids}
        await vocabulary.learn(client, model, ids, timeout_s=ASK_S)
    return echoes


async def _echo(client: Client, body: CompletionBody, model: str, prompt: str | list[int]) -> Echo:
    if isinstance(prompt, str):
        return Echo(prompt, await client.tokenize(prompt, model) if body.echoes_logprobs else ())
    return Echo(await client.detokenize(prompt, model), prompt)
