"""Text to token ids and back: templates, streaming, stop strings; no torch, no transformers."""

from outrider.text.codec import TextCodec
from outrider.text.stop import StopMatch, StopMatcher
from outrider.text.stream import TextStream
from outrider.text.template import ChatTemplate

__all__ = ["ChatTemplate", "StopMatch", "StopMatcher", "TextCodec", "TextStream"]
