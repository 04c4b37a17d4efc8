"""Read YAML text into trees with positions.

Uses the events of the parser, so that size, depth and aliases are limited before memory grows (a few bytes of aliases
can expand to gigabytes). Scalars are resolved like in sigs.k8s.io/yaml (YAML 1.1), except that times stay text. After
an error, reading continues at the next ``---``.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias

import yaml
from msgspec import Struct, field

from dra_driver.core.text import cut
from dra_driver.core.yaml_text import Scalar, scalar

MAX_PLAIN_NODES: Final = 20_000

Place = tuple[str | int, ...]


class YamlNode(Struct, eq=False):
    """A mapping, list or scalar at ``line`` and ``column`` (from 1); ``start`` and ``end`` are offsets in the text.

    ``pairs`` have the key nodes and keep duplicate keys. ``value`` is the scalar as in JSON. ``size`` counts the nodes
    of the tree with aliases expanded. Accessors return None or nothing for values of another shape.
    """

    kind: Literal["map", "list", "scalar"]
    line: int = 0
    column: int = 0
    start: int = 0
    end: int = 0
    style: str = ""
    text: str = ""
    value: object = None
    pairs: list[tuple["YamlNode", "YamlNode"]] = field(default_factory=list)
    items: list["YamlNode"] = field(default_factory=list)
    size: int = 1

    def get(self, key: str) -> "YamlNode | None":
        """Return the value of a key of a mapping (the last one, like decoders), else None."""
        return next((value for name, value in reversed(self.pairs) if name.text == key), None)

    @property
    def is_null(self) -> bool:
        return self.kind == "scalar" and self.value is None

    @property
    def description(self) -> str:
        if self.kind == "map":
            return "a mapping"
        if self.kind == "list":
            return "a list"
        if self.value is None:
            return "nothing"
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        shown = cut(self.text, 60)
        return repr(shown) if isinstance(self.value, str) else shown


def plain(node: YamlNode) -> object:
    """Convert the tree to dicts, lists and scalars. Raises ValueError above `MAX_PLAIN_NODES` values."""
    if node.size > MAX_PLAIN_NODES:
        raise ValueError(f"has {node.size} values; at most {MAX_PLAIN_NODES} are supported")
    return plain_with_lines(node, (), {})


def plain_with_lines(node: YamlNode, path: Place, lines: dict[Place, int]) -> object:
    """Return the value of a node and add its lines by path. The reader bounds depth and size."""
    lines[path] = node.line
    if node.kind == "map":
        return {key.text: plain_with_lines(value, (*path, key.text), lines) for key, value in node.pairs}
    if node.kind == "list":
        return [plain_with_lines(item, (*path, index), lines) for index, item in enumerate(node.items)]
    return node.value


MAX_DEPTH: Final = 100
MAX_NODES: Final = 400_000
MAX_EXPANDED: Final = 100_000
_MAX_ERRORS: Final = 20

_Event: TypeAlias = Any
"""An event or mark of PyYAML; its types declare attributes as None that parsed events always have."""
_DOCUMENT: Final = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)


class YamlProblem(Struct, frozen=True):
    line: int
    column: int
    message: str
    duplicate: bool = False


class _StopReading(Exception):  # noqa: N818 - ends the reading of one document
    """Ends the reading of a document; with ``last`` also of all later ones."""

    def __init__(self, mark: _Event, message: str, *, last: bool = False) -> None:
        super().__init__(message)
        self.mark = mark
        self.last = last


def read(text: str, report: Callable[[YamlProblem], None]) -> Iterator[YamlNode]:
    """Yield the non-empty documents of a text in order. Call ``report`` for each problem."""
    offset = lines = 0
    last = False
    for _ in range(_MAX_ERRORS):
        reader = _Reader(offset, lines, report)
        try:
            yield from reader.documents(text[offset:] if offset else text)
        except _StopReading as error:
            place = _place(error.mark)
            message, last = str(error), error.last
        except yaml.YAMLError as error:
            place = _place(getattr(error, "problem_mark", None) or getattr(error, "context_mark", None))
            message = _sentence(error)
        except UnicodeEncodeError as error:
            before = text[offset : offset + error.start]
            place, message = (before.count("\n"), 0), "an invalid character (half of a surrogate pair)"
        else:
            return
        report(YamlProblem(lines + place[0] + 1, place[1] + 1, message))
        following = None if last else _next_document(text, offset, place[0])
        if following is None:
            return
        lines += text.count("\n", offset, following)
        offset = following


def _place(mark: _Event) -> tuple[int, int]:
    return (mark.line, mark.column) if mark is not None else (0, 0)


def _sentence(error: yaml.YAMLError) -> str:
    context, problem = getattr(error, "context", None), getattr(error, "problem", None)
    if problem is None:
        reason, character = getattr(error, "reason", ""), getattr(error, "character", None)
        return f"invalid character in YAML ({character!r})" if character is not None else str(reason or error)
    return f"not valid YAML: {problem}" + (f" ({context})" if context else "")


def _next_document(text: str, offset: int, line: int) -> int | None:
    """Return the offset of the first line from ``line`` (counted from ``offset``) that begins another document."""
    at = offset
    for _ in range(max(1, line)):
        at = text.find("\n", at) + 1
        if not at:
            return None
    match = _DOCUMENT.search(text, at)
    return None if match is None else match.start()


class _Reader:
    """Builds trees from events with an explicit stack, so that deep documents cause no deep recursion."""

    def __init__(self, offset: int, lines: int, report: Callable[[YamlProblem], None]) -> None:
        self._offset = offset
        self._lines = lines
        self._complain = report
        self._nodes = 0
        self._expanded = 0
        self._stack: list[YamlNode] = []
        self._pending: list[YamlNode | None] = []  # for each open mapping, the key without a value yet
        self._anchors: dict[str, YamlNode] = {}
        self._open: set[int] = set()
        self._root: YamlNode | None = None

    def documents(self, text: str) -> Iterator[YamlNode]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        for event in yaml.parse(text, Loader=loader):
            self._take(event)
            if isinstance(event, yaml.DocumentEndEvent):
                if self._root is not None and not self._root.is_null:
                    yield self._root
                self._root, self._anchors, self._open = None, {}, set()

    def _take(self, event: _Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._put(event, self._aliased(event))
        elif isinstance(event, yaml.ScalarEvent):
            node = self._new("scalar", event)
            node.text, node.style, node.value = event.value, event.style or "", self._scalar(event)
            self._close(event, node)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            node = self._new("map" if isinstance(event, yaml.MappingStartEvent) else "list", event)
            if len(self._stack) >= MAX_DEPTH:
                raise _StopReading(event.start_mark, f"nested more than {MAX_DEPTH} levels deep")
            self._open.add(id(node))
            self._stack.append(node)
            self._pending.append(None)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            node = self._stack.pop()
            self._pending.pop()
            self._open.discard(id(node))
            if node.kind == "map":
                self._finish(node)
            self._close(event, node)

    def _scalar(self, event: _Event) -> Scalar:
        try:
            return scalar(event.value, event.tag, plain=event.implicit[0])
        except ValueError as error:
            raise _StopReading(event.start_mark, str(error)) from error

    def _new(self, kind: Literal["map", "list", "scalar"], event: _Event) -> YamlNode:
        self._nodes += 1
        mark = event.start_mark
        if self._nodes > MAX_NODES:
            raise _StopReading(mark, f"more than {MAX_NODES} values in one file", last=True)
        node = YamlNode(kind, self._lines + mark.line + 1, mark.column + 1, self._offset + mark.index)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _close(self, event: _Event, node: YamlNode) -> None:
        node.end = self._offset + event.end_mark.index
        self._put(event, node)

    def _aliased(self, event: _Event) -> YamlNode:
        node = self._anchors.get(event.anchor)
        if node is None:
            raise _StopReading(event.start_mark, f"no anchor &{event.anchor[:60]} before this alias")
        if id(node) in self._open:
            raise _StopReading(event.start_mark, f"the alias *{event.anchor[:60]} contains itself")
        self._expanded += node.size
        if self._expanded > MAX_EXPANDED:
            raise _StopReading(event.start_mark, f"aliases expand to more than {MAX_EXPANDED} values")
        return node

    def _put(self, event: _Event, node: YamlNode) -> None:
        if not self._stack:
            self._root = node
            return
        parent = self._stack[-1]
        parent.size += node.size
        if parent.kind == "list":
            parent.items.append(node)
            return
        key = self._pending[-1]
        if key is not None:
            parent.pairs.append((key, node))
            self._pending[-1] = None
        elif node.kind == "scalar":
            self._pending[-1] = node
        else:
            raise _StopReading(event.start_mark, f"a key must be text, this is {node.description}")

    def _finish(self, node: YamlNode) -> None:
        """Resolve merge keys (``<<``), which have the lowest precedence, and report duplicate keys."""
        seen: set[str] = set()
        merged: list[tuple[YamlNode, YamlNode]] = []
        own: list[tuple[YamlNode, YamlNode]] = []
        for key, value in node.pairs:
            if key.text == "<<" and not key.style and value.kind != "scalar":
                sources = value.items if value.kind == "list" else [value]
                merged += [pair for source in sources for pair in source.pairs]
                continue
            if key.text in seen:
                text = f"the key {key.description} occurs twice in this mapping"
                self._complain(YamlProblem(key.line, key.column, text, duplicate=True))
            seen.add(key.text)
            own.append((key, value))
        if merged:
            named = {key.text: (key, value) for key, value in reversed(merged) if key.text not in seen}
            node.pairs = [*named.values(), *own]


# --- Position in the file of a character of a scalar's value.
#
# Folding changes only white space, so the n-th other character of the value is the n-th other character of the source
# without quotes, escapes and block headers. If the characters differ, the result is None.

_SPACE: Final = frozenset(" \t\r\n\x85\u2028\u2029\xa0")
_PIECES: Final = {
    "'": re.compile(r"''|.", re.DOTALL),
    '"': re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|.", re.DOTALL),
}
"""Source text of one character in a quoted scalar."""
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*\s+)*")
"""An anchor or tag before a plain scalar."""
_BREAK: Final = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


def offset_in_text(text: str, node: YamlNode, offset: int) -> int | None:
    """Return the offset in the file of character ``offset`` of the value; its end maps past the last character."""
    value = [(at, character) for at, character in enumerate(node.text) if character not in _SPACE]
    source = _characters(text, node)
    if not value or [character for _, character in value] != [character for _, character in source]:
        return None
    for (at, _), (place, _) in zip(value, source, strict=True):
        if at >= offset:
            return place
    return source[-1][0] + 1


def line_and_column(text: str, node: YamlNode, offset: int) -> tuple[int, int]:
    """Return line and column (from 1) of an offset inside a node, with the line breaks of YAML."""
    line, start = node.line, node.start - node.column + 1
    for found in _BREAK.finditer(text, node.start, offset):
        line, start = line + 1, found.end()
    return line, offset - start + 1


def line_at(text: str, offset: int) -> tuple[str, int]:
    starts = [found.end() for found in _BREAK.finditer(text, max(0, offset - 10_000), offset)]
    start = starts[-1] if starts else max(0, offset - 10_000) if offset > 10_000 else 0
    end = _BREAK.search(text, offset)
    return text[start : end.start() if end else len(text)], offset - start


def _characters(text: str, node: YamlNode) -> list[tuple[int, str]]:
    """Return the characters of the source that are part of the value, without white space, with their offsets."""
    start, end = node.start, node.end
    if pieces := _PIECES.get(node.style):
        inside = pieces.finditer(text, text.find(node.style, start) + 1, end - 1)
        found = [(piece.start(), _unescaped(piece[0])) for piece in inside]
        return [(at, character) for at, character in found if character not in _SPACE]
    if node.style in {"|", ">"}:
        header = _BREAK.search(text, start)
        start = header.end() if header else end
    elif node.text[:1] not in {"&", "!"} and (properties := _PROPERTIES.match(text, start)):
        start = properties.end()
    return [(at, text[at]) for at in range(start, min(end, len(text))) if text[at] not in _SPACE]


def _unescaped(piece: str) -> str:
    if len(piece) == 1 or piece == "''":
        return piece[0]
    value: str = yaml.safe_load(f'"{piece}"')
    return value or " "
