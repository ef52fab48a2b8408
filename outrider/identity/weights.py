"""Digests of what computes the logits: the weights and the configuration that shapes them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

from outrider.identity.tokenizer import DIGEST_BYTES, canonical_json

# Fixed, since the digest depends on it: segments are hashed side by side, then their digests.
SEGMENT_BYTES = 64 * 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
# The first pattern that matches is what transformers loads, too.
WEIGHT_PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin")
# Notes of whoever saved the model; the worker states the dtype it computes in on its own.
_CONFIG_NOTES = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}


def weights_digest(folder: str | Path, *, num_threads: int = 4) -> str:
    """Return the digest of the weight files and ``config.json`` in hexadecimal.

    Raises: FileNotFoundError if the folder has no weight files or no ``config.json``.
    """
    paths = weight_paths(Path(folder))
    segments = [
        (path, start)
        for path in paths
        for start in range(0, max(path.stat().st_size, 1), SEGMENT_BYTES)
    ]
    digest = blake2b(_canonical_config(Path(folder)).encode(), digest_size=DIGEST_BYTES)
    with ThreadPoolExecutor(num_threads) as pool:  # hashing releases the interpreter lock
        for (path, start), part in zip(segments, pool.map(_segment, segments), strict=True):
            digest.update(f"\n{path.name}@{start}:".encode() + part)
    return digest.hexdigest()


def dummy_weights_digest(folder: str | Path, seed: int) -> str:
    """Return the digest of weights that are drawn from the configuration and a seed.

    Raises: FileNotFoundError if the folder has no ``config.json``.
    """
    text = f"dummy weights, seed {seed}: {_canonical_config(Path(folder))}"
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def weight_paths(folder: Path) -> list[Path]:
    """Return the files that hold the weights, by name.

    Raises: FileNotFoundError if there are none.
    """
    for pattern in WEIGHT_PATTERNS:
        if paths := sorted(folder.glob(pattern)):
            return paths
    raise FileNotFoundError(f"{folder} has no weights: no {' and no '.join(WEIGHT_PATTERNS)}")


def _canonical_config(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_bytes())
    return canonical_json({k: v for k, v in config.items() if k not in _CONFIG_NOTES})


def _segment(segment: tuple[Path, int]) -> bytes:
    path, start = segment
    digest = blake2b(digest_size=DIGEST_BYTES)
    for chunk in _chunks(path, start):
        digest.update(chunk)
    return digest.digest()


def _chunks(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        left = SEGMENT_BYTES
        while left and (chunk := file.read(min(READ_BYTES, left))):
            left -= len(chunk)
            yield chunk
