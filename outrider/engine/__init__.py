"""Packed forward passes of any Hugging Face causal model over one paged KV pool."""

from outrider.engine.cache import SequenceCache
from outrider.engine.engine import Engine
from outrider.engine.errors import (
    CacheTooShort,
    NoRoomForTree,
    OutOfBlocks,
    UnsupportedModel,
)
from outrider.engine.job import Finished, Head, Job, JobInput, stacked_logits
from outrider.engine.model import LoadedModel, load_model, wrap_model
from outrider.engine.selftest import SelfTestReport
from outrider.engine.settings import EngineSettings
from outrider.engine.stats import EngineStats

__all__ = [
    "CacheTooShort",
    "Engine",
    "EngineSettings",
    "EngineStats",
    "Finished",
    "Head",
    "Job",
    "JobInput",
    "LoadedModel",
    "NoRoomForTree",
    "OutOfBlocks",
    "SelfTestReport",
    "SequenceCache",
    "UnsupportedModel",
    "load_model",
    "stacked_logits",
    "wrap_model",
]
