"""The identity of a loaded model, computed from its files and from what was loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from outrider.errors import IdentityMismatch
from outrider.identity.files import TokenizerFiles
from outrider.identity.probe import tokenizer_probe_digest
from outrider.identity.special import SpecialTokens
from outrider.identity.template import chat_template_digest
from outrider.identity.tokenizer import tokenizer_digest
from outrider.identity.weights import dummy_weights_digest, weights_digest
from outrider.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class IdentityDigests:
    """Digests in hexadecimal; an empty one is not compared."""

    tokenizer_digest: str = ""
    chat_template_digest: str = ""
    weights_digest: str = ""

    @classmethod
    def from_proto(cls, message: common_pb2.IdentityDigests) -> Self:
        return cls(message.tokenizer_digest, message.chat_template_digest, message.weights_digest)

    def to_proto(self) -> common_pb2.IdentityDigests:
        return common_pb2.IdentityDigests(
            tokenizer_digest=self.tokenizer_digest,
            chat_template_digest=self.chat_template_digest,
            weights_digest=self.weights_digest,
        )

    def mismatches(self, expected: "IdentityDigests") -> list[str]:
        """Return the names of the digests that are expected to be others; empty ones match all."""
        return [
            name
            for name in ("tokenizer_digest", "chat_template_digest", "weights_digest")
            if getattr(expected, name) and getattr(expected, name) != getattr(self, name)
        ]


@dataclass(frozen=True, slots=True)
class Numerics:
    """What computed the logits; rows of two workers are bit-equal only if all of it is equal."""

    dtype: str = ""
    device: str = ""
    kernels: str = ""
    row_invariant: bool = False
    coupled_head_size: int = 0

    @classmethod
    def from_proto(cls, message: common_pb2.Numerics) -> Self:
        return cls(
            dtype=message.dtype,
            device=message.device,
            kernels=message.kernels,
            row_invariant=message.row_invariant,
            coupled_head_size=message.coupled_head_size,
        )

    def to_proto(self) -> common_pb2.Numerics:
        return common_pb2.Numerics(
            dtype=self.dtype,
            device=self.device,
            kernels=self.kernels,
            row_invariant=self.row_invariant,
            coupled_head_size=self.coupled_head_size,
        )


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What only the loaded model and its process can tell."""

    name: str
    incarnation: str
    architecture: str
    logits_size: int
    max_context_length: int
    numerics: Numerics
    revision: str = ""
    eos_token_ids: tuple[int, ...] = ()
    """The model configuration's EOS ids; used where ``generation_config.json`` names none."""
    dummy_seed: int | None = None
    """Seed of drawn weights; None: the weights come from files."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What a worker runs; fields as in ``common.proto``."""

    name: str
    revision: str
    architecture: str
    digests: IdentityDigests
    tokenizer_probe_digest: str
    vocab_size: int
    logits_size: int
    max_context_length: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    numerics: Numerics
    incarnation: str

    @classmethod
    def from_folder(
        cls, folder: str | Path, facts: ModelFacts, *, files: TokenizerFiles | None = None
    ) -> Self:
        """Compute the identity of the model in the folder; reads every weight file once.

        Raises: ValueError if the tokenizer has ids that the head has no rows for, or as the digests
            do; FileNotFoundError if weights or ``config.json`` are missing.
        """
        files = TokenizerFiles.from_folder(folder) if files is None else files
        tokenizer = files.tokenizer()
        special = SpecialTokens.from_files(files, tokenizer=tokenizer)
        # Ids may have gaps, so the count of tokens is not the bound.
        vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        if vocab_size > facts.logits_size:
            raise ValueError(
                f"the tokenizer has ids up to {vocab_size - 1}, the head {facts.logits_size} rows"
            )
        weights = (
            weights_digest(folder)
            if facts.dummy_seed is None
            else dummy_weights_digest(folder, facts.dummy_seed)
        )
        eos_named = files.json("generation_config.json").get("eos_token_id") is not None
        return cls(
            name=facts.name,
            revision=facts.revision,
            architecture=facts.architecture,
            digests=IdentityDigests(tokenizer_digest(files), chat_template_digest(files), weights),
            tokenizer_probe_digest=tokenizer_probe_digest(files, tokenizer=tokenizer),
            vocab_size=vocab_size,
            logits_size=facts.logits_size,
            max_context_length=facts.max_context_length,
            eos_token_ids=special.eos_token_ids
            if eos_named or not facts.eos_token_ids
            else tuple(sorted(set(facts.eos_token_ids))),
            bos_token_id=special.bos_token_id,
            pad_token_id=special.pad_token_id,
            numerics=facts.numerics,
            incarnation=facts.incarnation,
        )

    @classmethod
    def from_proto(cls, message: common_pb2.ModelIdentity) -> Self:
        return cls(
            name=message.name,
            revision=message.revision,
            architecture=message.architecture,
            digests=IdentityDigests.from_proto(message.digests),
            tokenizer_probe_digest=message.tokenizer_probe_digest,
            vocab_size=message.vocab_size,
            logits_size=message.logits_size,
            max_context_length=message.max_context_length,
            eos_token_ids=tuple(message.eos_token_ids),
            bos_token_id=message.bos_token_id if message.HasField("bos_token_id") else None,
            pad_token_id=message.pad_token_id if message.HasField("pad_token_id") else None,
            numerics=Numerics.from_proto(message.numerics),
            incarnation=message.incarnation,
        )

    def to_proto(self) -> common_pb2.ModelIdentity:
        return common_pb2.ModelIdentity(
            name=self.name,
            revision=self.revision,
            architecture=self.architecture,
            digests=self.digests.to_proto(),
            tokenizer_probe_digest=self.tokenizer_probe_digest,
            vocab_size=self.vocab_size,
            logits_size=self.logits_size,
            max_context_length=self.max_context_length,
            eos_token_ids=self.eos_token_ids,
            bos_token_id=self.bos_token_id,
            pad_token_id=self.pad_token_id,
            numerics=self.numerics.to_proto(),
            incarnation=self.incarnation,
        )

    def require(self, expected: IdentityDigests) -> None:
        """Raise IdentityMismatch naming the first digest that is expected to be another."""
        for name in self.digests.mismatches(expected):
            want, have = getattr(expected, name), getattr(self.digests, name)
            raise IdentityMismatch(f"expected.{name}: {want} was expected, {self.name} has {have}")

    def is_equal_verifier(self, other: "ModelIdentity") -> bool:
        """Tell whether the other computes the same logits, so that either may take over."""
        return (
            self.digests == other.digests
            and self.tokenizer_probe_digest == other.tokenizer_probe_digest
            and self.eos_token_ids == other.eos_token_ids
            and self.vocab_size == other.vocab_size
            and self.max_context_length == other.max_context_length
            and self.numerics == other.numerics
        )
