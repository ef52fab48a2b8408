"""Log probabilities of tokens that stand, and of the likeliest ones in their places."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider import ranking
from outrider.v1 import common_pb2 as pb


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """At one position; natural logarithms, by the model's logits as they are."""

    token_id: int
    logprob: float
    top_ids: tuple[int, ...] = ()
    """Most likely first, lowest id first among equals."""
    top_logprobs: tuple[float, ...] = ()

    def to_proto(self) -> pb.TokenLogprobs:
        """Return the message."""
        return pb.TokenLogprobs(
            token_id=self.token_id,
            logprob=self.logprob,
            top_ids=self.top_ids,
            top_logprobs=self.top_logprobs,
        )


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], *, num_top: int, vocab_size: int
) -> list[TokenLogprobs]:
    """Return what each row says of the token that stands there, and of the ``num_top`` likeliest.

    Every row is worked out by itself, so that a token has the same whatever else was in the pass.
    Shapes: logits [R, L] float32, L >= vocab_size; token_ids [R].
    """
    rows = logits[:, :vocab_size]
    missing = -vocab_size % ranking.WIDTH_MULTIPLE
    if missing:
        rows = torch.nn.functional.pad(rows, (0, missing), value=-torch.inf)
    log_probs = rows.log_softmax(-1)  # [R, W]
    own = log_probs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0]
    if not num_top:
        return [TokenLogprobs(*each) for each in zip(token_ids, own.tolist(), strict=True)]
    values, ids = ranking.top(log_probs, min(num_top, vocab_size))
    return [
        TokenLogprobs(token_id, logprob, tuple(top_ids), tuple(top_logprobs))
        for token_id, logprob, top_ids, top_logprobs in zip(
            token_ids, own.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]
