"""The texts of token ids, asked of the orchestrator as they are needed."""

from collections.abc import Iterable

from outrider.client import Client
from outrider.v1 import common_pb2, generation_pb2

MAX_TOKENIZERS = 8


class Vocabulary:
    """What the ids of one tokenizer stand for, as far as it was asked for."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def text(self, token_id: int) -> str:
        """Return an id's text; of a part of a character its bytes, as OpenAI writes them."""
        data = self._bytes[token_id]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    async def learn(
        self, client: Client, model: str, token_ids: Iterable[int], *, timeout_s: float
    ) -> None:
        """Ask for those ids that are not known yet."""
        missing = sorted(set(token_ids) - self._bytes.keys())
        if missing:
            request = generation_pb2.DetokenizeRequest(model=model, token_ids=missing)
            answer = await client.stub.Detokenize(request, timeout=timeout_s)
            self._bytes.update(zip(missing, answer.token_bytes, strict=True))


class Vocabularies:
    """Vocabularies by the digest of their tokenizer, so that none outlives a change of models."""

    def __init__(self) -> None:
        self._by_digest: dict[str, Vocabulary] = {}

    def of(self, identity: common_pb2.ModelIdentity) -> Vocabulary:
        """Return the vocabulary of a model."""
        digest = identity.digests.tokenizer_digest
        vocabulary = self._by_digest.pop(digest, None) or Vocabulary()
        self._by_digest[digest] = vocabulary  # the latest stands last
        while len(self._by_digest) > MAX_TOKENIZERS:
            del self._by_digest[next(iter(self._by_digest))]
        return vocabulary


def ids_of(entries: Iterable[common_pb2.TokenLogprobs]) -> Iterable[int]:
    """Yield every id that log probabilities speak of."""
    for entry in entries:
        yield entry.token_id
        yield from entry.top_ids
