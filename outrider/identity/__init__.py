"""Which model a worker runs, told by what its files say rather than by their names."""

from outrider.identity.differences import (
    differences,
    template_differences,
    tokenizer_differences,
)
from outrider.identity.files import TokenizerFiles
from outrider.identity.model import IdentityDigests, ModelFacts, ModelIdentity, Numerics
from outrider.identity.probe import tokenizer_probe_digest
from outrider.identity.special import SpecialTokens
from outrider.identity.template import chat_template, chat_template_digest
from outrider.identity.tokenizer import canonical_tokenizer, tokenizer_digest
from outrider.identity.weights import dummy_weights_digest, weights_digest

__all__ = [
    "IdentityDigests",
    "ModelFacts",
    "ModelIdentity",
    "Numerics",
    "SpecialTokens",
    "TokenizerFiles",
    "canonical_tokenizer",
    "chat_template",
    "chat_template_digest",
    "differences",
    "dummy_weights_digest",
    "template_differences",
    "tokenizer_differences",
    "tokenizer_digest",
    "tokenizer_probe_digest",
    "weights_digest",
]
