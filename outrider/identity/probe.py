"""Ids of a fixed text in many scripts: what a tokenizer does, whatever its files seem to say."""

from hashlib import blake2b

import numpy as np
from tokenizers import Tokenizer

from outrider.identity.files import TokenizerFiles
from outrider.identity.tokenizer import DIGEST_BYTES

# Changing a line changes every probe digest. Escapes keep joiners and combining marks visible.
PROBE_LINES = (
    "The quick brown fox jumps over the lazy dog. It's what they'd said, wasn't it?",
    *map(chr, range(32, 127)),
    "0 7 42 365 2024 31415926 1,000,000.50 -3.2e-10 0xFF \u0663\u0661\u0664 \u00b2\u00b3 \u2167",
    " leading, trailing \t tab\n\nnew\r\nlines   three    four     five\u00a0no-break\u3000wide ",
    "def f(x: int) -> str:\n    if x != 0 and (y := x % 3):\n\t\treturn f'{x!r:>8}'  # done\n",
    '{"key": [1, 2.5, null], "path": "C:\\\\tmp", "url": "https://example.org/a?b=c&d=%20#e"}',
    "na\u00efve fa\u00e7ade \u00dcbergr\u00f6\u00dfe se\u00f1or \u0141\u00f3d\u017a "
    "\u0130stanbul \u1e9e \ufb01n",
    "e\u0301 n\u0303 a\u030a\u0323 q\u0307\u0323 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u3053\u3093\u306b\u3061\u306f "
    "\u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 \U00020bb7\u91ce\u5bb6",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0651\u0629 \u05e9\u05dc\u05d5\u05dd "
    "\u0641\u0627\u0631\u0633\u06cc\u200c\u0632\u0628\u0627\u0646",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0393\u03b5\u03b9\u03ac "
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 "
    "\u10d2\u10d0\u10db \u12a0\u121b\u122d\u129b",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 "
    "\U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1e9\U0001f1ea \u2200x\u2208\u211d: "
    "\u221a2\u2248\u222b",
    "<s> </s> <|im_start|>user <|endoftext|> [INST] <bos> <start_of_turn> \u2581under \u0120byte",
)


def tokenizer_probe_digest(files: TokenizerFiles, *, tokenizer: Tokenizer | None = None) -> str:
    """Return the digest in hexadecimal; special tokens are added as for any plain text."""
    tokenizer = files.tokenizer() if tokenizer is None else tokenizer
    digest = blake2b(digest_size=DIGEST_BYTES)
    for encoding in tokenizer.encode_batch(list(PROBE_LINES)):
        digest.update(np.asarray([len(encoding.ids), *encoding.ids], dtype="<i4").tobytes())
    return digest.hexdigest()
