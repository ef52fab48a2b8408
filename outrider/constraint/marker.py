"""The string behind which the constrained part of a text begins."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marker:
    """Looks for the first occurrence of ``text`` in what tokens write.

    How far a text has come is told by how many bytes at its end begin the marker.
    """

    text: bytes

    def read(self, progress: int, piece: bytes) -> tuple[int, bytes | None]:
        """Return the progress behind a token's bytes, or what of them lies behind the marker."""
        end = self.text[:progress] + piece
        place = end.find(self.text)
        if place >= 0:
            return 0, end[place + len(self.text) :]
        longest = min(len(end), len(self.text) - 1)
        return next(n for n in range(longest, -1, -1) if end.endswith(self.text[:n])), None

    def completes(self, progress: int) -> tuple[bytes, ...]:
        """Return what the bytes of a token begin with that completes a begun marker."""
        begun = self.text[:progress]
        return tuple(self.text[n:] for n in range(1, progress + 1) if begun.endswith(self.text[:n]))
