"""A YAML document as a tree with the position of each value.

Accessors never raise: they return None or nothing when a value has another shape.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

from msgspec import Struct

MAX_PLAIN_NODES: Final = 20_000


class YamlNode:
    """A mapping, list or scalar at ``line`` and ``column`` (from 1); ``start`` and ``end`` are offsets in the text.

    ``pairs`` contain the key nodes, too; duplicate keys are kept. ``value`` is the scalar as in JSON. ``size`` is the
    number of nodes in the tree below, with aliases expanded.
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
        """Returns the value of a key of a mapping (the last one, like decoders do), else None."""
        return next((value for name, value in reversed(self.pairs) if name.text == key), None)

    def key(self, key: str) -> "YamlNode | None":
        """Returns the node of the key itself."""
        return next((name for name, _ in reversed(self.pairs) if name.text == key), None)

    @property
    def is_null(self) -> bool:
        return self.kind == "scalar" and self.value is None

    @property
    def description(self) -> str:
        """Describes the value for a message."""
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


class Spot(Struct, frozen=True):
    """A node and the path that leads to it, such as ``spec.devices.requests[0]``."""

    node: YamlNode
    path: str = ""

    def get(self, *keys: str) -> "Spot | None":
        """Returns the value below; None if it is missing or null."""
        spot = self
        for key in keys:
            found = spot.node.get(key)
            if found is None or found.is_null:
                return None
            spot = Spot(found, f"{spot.path}.{key}" if spot.path else key)
        return spot

    def each(self, *keys: str) -> list["Spot"]:
        """Returns the elements of the list below; empty if it is no list."""
        spot = self.get(*keys)
        if spot is None:
            return []
        return [Spot(item, f"{spot.path}[{index}]") for index, item in enumerate(spot.node.items)]

    def pairs(self) -> Iterator[tuple[YamlNode, "Spot"]]:
        """Yields the key nodes and values of a mapping."""
        for key, value in self.node.pairs:
            yield key, Spot(value, f"{self.path}.{key.text}" if self.path else key.text)

    def string(self, *keys: str) -> str:
        """Returns the text below; "" if it is no text."""
        spot = self.get(*keys)
        return spot.node.value if spot is not None and isinstance(spot.node.value, str) else ""

    def number(self, *keys: str) -> int | None:
        """Returns the whole number below; None if it is none."""
        spot = self.get(*keys)
        value = spot.node.value if spot is not None else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, *keys: str) -> bool:
        """Whether the value below is ``true``."""
        spot = self.get(*keys)
        return spot is not None and spot.node.value is True


def plain(node: YamlNode) -> Any:
    """Converts the tree to dicts, lists and scalars. Raises ValueError above MAX_PLAIN_NODES values."""
    if node.size > MAX_PLAIN_NODES:
        raise ValueError(f"has {node.size} values; at most {MAX_PLAIN_NODES} are supported")
    return _plain(node)


def _plain(node: YamlNode) -> Any:
    if node.kind == "map":
        return {key.text: _plain(value) for key, value in node.pairs}
    if node.kind == "list":
        return [_plain(item) for item in node.items]
    return node.value
