"""Stop strings in a text that arrives piece by piece."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that was found."""

    stop: str
    token_index: int
    """Index of the token whose text completed the stop string."""


@dataclass(slots=True)
class _Node:
    """A prefix of one or more stop strings."""

    depth: int
    children: dict[str, "_Node"] = field(default_factory=dict)
    longest_suffix: "_Node | None" = None
    """The node of the longest proper suffix that is a prefix of a stop string; None at the root."""
    stop: str | None = None
    """The longest stop string that ends here."""


class StopMatcher:
    """Passes text on up to the first stop string and holds back what may be the beginning of one.

    The stop string that is complete first wins, and of several that end at the same character the
    longest. So the result depends on the text alone, not on where tokens or messages are cut.
    ``keeps_match`` passes the matched stop string on as well; nothing behind it ever is.

    Raises: ValueError if a stop string is empty.
    Paper: Aho and Corasick 1975, doi:10.1145/360825.360855.
    """

    __slots__ = ("_held", "_keeps_match", "_node", "_root", "match")

    def __init__(self, stops: Sequence[str], *, keeps_match: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string is empty")
        self._keeps_match = keeps_match
        self._root = _automaton(stops)
        self._node = self._root
        self._held = ""
        self.match: StopMatch | None = None

    def push(self, piece: str, token_index: int) -> str:
        """Take the text of one token and return what may be passed on; sets ``match`` on a match.

        After a match the returned text ends just before the stop string, or with it where it is
        kept, and nothing may be pushed.
        """
        assert self.match is None, "text after a stop string"
        if not self._root.children:
            return piece
        text = self._held + piece
        for end, character in enumerate(piece, start=len(self._held) + 1):
            self._node = self._step(character)
            if (stop := self._node.stop) is not None:
                self.match = StopMatch(stop, token_index)
                self._held = ""
                return text[: end if self._keeps_match else end - len(stop)]
        # The node's depth is the length of the longest suffix that may still grow into a stop.
        certain = len(text) - self._node.depth
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return what is held back; the text has ended, so it is no stop string."""
        held, self._held = self._held, ""
        self._node = self._root
        return held

    def _step(self, character: str) -> _Node:
        node: _Node | None = self._node
        while node is not None:
            if (child := node.children.get(character)) is not None:
                return child
            node = node.longest_suffix
        return self._root


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.children.setdefault(character, _Node(depth=node.depth + 1))
        node.stop = stop
    queue = deque([root])
    while queue:  # by depth, so that every suffix is linked before its node
        node = queue.popleft()
        for character, child in node.children.items():
            suffix = node.longest_suffix
            while suffix is not None and character not in suffix.children:
                suffix = suffix.longest_suffix
            child.longest_suffix = root if suffix is None else suffix.children[character]
            child.stop = child.stop or child.longest_suffix.stop
            queue.append(child)
    return root
