"""Small models made from files at hand, for the first start, tests and measurements.

Everything else takes any folder that transformers can load.
"""

from outrider.checkpoints.cut import cut_layers, default_layers
from outrider.checkpoints.gguf import convert_gguf
from outrider.checkpoints.smollm2 import Prepared, prepare, smollm2_gguf

__all__ = [
    "Prepared",
    "convert_gguf",
    "cut_layers",
    "default_layers",
    "prepare",
    "smollm2_gguf",
]
