"""A YAML document as a tree that knows where each value stands.

Owns the tree and walking it without surprises: every accessor answers None or nothing where the shape is another one.
Refuses to know how it was read (``reading.py``) and what fields mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

MAX_PLAIN_NODES: Final = 20_000


class YamlNode:
    """A mapping, list or scalar at ``line`` and ``column`` (from 1); ``start`` and ``end`` are offsets in the text.

    ``pairs`` hold key nodes too, as places; of two equal keys both are kept. ``value`` is the scalar as JSON has it.
    ``size`` is the number of nodes with all below, aliases expanded.
    """

    __slots__ = ("column", "end", "items", "kind", "line", "pairs", "size", "start", "style", "text", "value")

    def __init__(self, kind: Literal["map", "list", "scalar"], line: int, column: int, start: int) -> None:
        self.kind = kind
        self.line = line
        self.column = column
        self.start = start
        self.end = start
        self.style = ""
        self.text = ""
        self.value: Any = None
        self.pairs: list[tuple[YamlNode, YamlNode]] = []
        self.items: list[YamlNode] = []
        self.size = 1

    def get(self, key: str) -> "YamlNode | None":
        """The value of a key of a mapping (the last one, as decoders have it), else None."""
        return next((value for name, value in reversed(self.pairs) if name.text == key), None)

    def key(self, key: str) -> "YamlNode | None":
        """The node of the key itself."""
        return next((name for name, _ in reversed(self.pairs) if name.text == key), None)

    @property
    def is_null(self) -> bool:
        return self.kind == "scalar" and self.value is None

    @property
    def description(self) -> str:
        """What was seen, for a message."""
        if self.kind == "map":
            return "a mapping"
        if self.kind == "list":
            return "a list"
        if self.value is None:
            return "nothing"
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        shown = self.text if len(self.text) <= 60 else f"{self.text[:59]}…"
        return repr(shown) if isinstance(self.value, str) else shown


@dataclass(frozen=True, slots=True)
class Spot:
    """A node and the path that leads to it, such as ``spec.devices.requests[0]``."""

    node: YamlNode
    path: str = ""

    def get(self, *keys: str) -> "Spot | None":
        """The value below; None where it is missing or null."""
        spot = self
        for key in keys:
            found = spot.node.get(key)
            if found is None or found.is_null:
                return None
            spot = Spot(found, f"{spot.path}.{key}" if spot.path else key)
        return spot

    def each(self, *keys: str) -> list["Spot"]:
        """The elements of the list below; none where it is no list."""
        spot = self.get(*keys)
        if spot is None:
            return []
        return [Spot(item, f"{spot.path}[{index}]") for index, item in enumerate(spot.node.items)]

    def pairs(self) -> Iterator[tuple[YamlNode, "Spot"]]:
        """Key nodes and values of a mapping."""
        for key, value in self.node.pairs:
            yield key, Spot(value, f"{self.path}.{key.text}" if self.path else key.text)

    def string(self, *keys: str) -> str:
        """The text below; empty where it is no text."""
        spot = self.get(*keys)
        return spot.node.value if spot is not None and isinstance(spot.node.value, str) else ""

    def number(self, *keys: str) -> int | None:
        """The whole number below."""
        spot = self.get(*keys)
        value = spot.node.value if spot is not None else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, *keys: str) -> bool:
        """Whether the value below is ``true``."""
        spot = self.get(*keys)
        return spot is not None and spot.node.value is True


def plain(node: YamlNode) -> Any:
    """The tree as dicts, lists and scalars. Raises ValueError when it is larger than any object may be."""
    if node.size > MAX_PLAIN_NODES:
        raise ValueError(f"has {node.size} values, at most {MAX_PLAIN_NODES} are looked at")
    return _plain(node)


def _plain(node: YamlNode) -> Any:
    if node.kind == "map":
        return {key.text: _plain(value) for key, value in node.pairs}
    if node.kind == "list":
        return [_plain(item) for item in node.items]
    return node.value
