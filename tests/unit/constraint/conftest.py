"""Vocabularies to constrain: plain bytes with merges, merges across characters, and pieces."""

import pytest
from tokenizers import Tokenizer

from outrider.constraint import Constraints
from tests.toy import toy_tokenizer
from tests.unit.text.conftest import byte_level, metaspace

__all__ = ["byte_level", "metaspace"]


@pytest.fixture(scope="session")
def toy() -> Tokenizer:
    return toy_tokenizer()


@pytest.fixture(scope="session")
def constraints(toy: Tokenizer) -> Constraints:
    return Constraints(toy)
