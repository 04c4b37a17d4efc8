"""Reads YAML text into trees with positions.

Uses the events of the parser, not its objects, so that size, depth and aliases are limited before memory grows (a few
bytes of aliases can expand to gigabytes). Scalars are resolved like in Kubernetes' YAML library (sigs.k8s.io/yaml,
YAML 1.1), except that times stay text. After an error, reading continues at the next ``---``.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import yaml
from msgspec import Struct

from dra_driver.kubectl.lint.nodes import YamlNode

MAX_DEPTH: Final = 100
MAX_NODES: Final = 400_000
MAX_EXPANDED: Final = 100_000
_MAX_ERRORS: Final = 20
_MAX_DIGITS: Final = 40

_STR: Final = "tag:yaml.org,2002:str"
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_OTHER_INT: Final = re.compile(r"([-+]?)0(b[01]+|o?[0-7]+|x[0-9a-fA-F]+)\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_DOCUMENT: Final = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)
_WORDS: Final[dict[str, Any]] = {
    **{word: None for base in ("null", "~", "") for word in (base, base.upper(), base.capitalize())},
    **{word: True for base in ("true", "yes", "on") for word in (base, base.upper(), base.capitalize())},
    **{word: False for base in ("false", "no", "off") for word in (base, base.upper(), base.capitalize())},
}


class YamlProblem(Struct, frozen=True):
    """A problem in the YAML text. ``duplicate`` marks a duplicate key."""

    line: int
    column: int
    message: str
    duplicate: bool = False


class _StopReading(Exception):  # noqa: N818 - ends the reading of one document
    """Ends the reading of a document; with ``last`` also of all later ones."""

    def __init__(self, mark: Any, message: str, *, last: bool = False) -> None:
        super().__init__(message)
        self.mark = mark
        self.last = last


def read(text: str, report: Callable[[YamlProblem], None]) -> Iterator[YamlNode]:
    """Yields the documents of a text that are not empty, in order. Problems are passed to ``report``."""
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


def _place(mark: Any) -> tuple[int, int]:
    return (mark.line, mark.column) if mark is not None else (0, 0)


def _sentence(error: yaml.YAMLError) -> str:
    context, problem = getattr(error, "context", None), getattr(error, "problem", None)
    if problem is None:
        reason, character = getattr(error, "reason", ""), getattr(error, "character", None)
        return (
            f"a character that YAML does not allow ({character!r})" if character is not None else str(reason or error)
        )
    return f"not valid YAML: {problem}" + (f" ({context})" if context else "")


def _next_document(text: str, offset: int, line: int) -> int | None:
    """Returns the offset of the first line from ``line`` (counted from ``offset``) that begins another document."""
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
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        for event in yaml.parse(text, Loader=loader):
            self._take(event)
            if isinstance(event, yaml.DocumentEndEvent):
                if self._root is not None and not self._root.is_null:
                    yield self._root
                self._root, self._anchors, self._open = None, {}, set()

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._put(event, self._aliased(event))
        elif isinstance(event, yaml.ScalarEvent):
            node = self._new("scalar", event)
            node.text, node.style = event.value, event.style or ""
            node.end = self._end(event)
            node.value = _resolved(event)
            self._anchor(event, node)
            self._put(event, node)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            node = self._new("map" if isinstance(event, yaml.MappingStartEvent) else "list", event)
            if len(self._stack) >= MAX_DEPTH:
                raise _StopReading(event.start_mark, f"nested more than {MAX_DEPTH} levels deep")
            self._anchor(event, node)
            self._open.add(id(node))
            self._stack.append(node)
            self._pending.append(None)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            node = self._stack.pop()
            self._pending.pop()
            self._open.discard(id(node))
            node.end = self._end(event)
            if node.kind == "map":
                self._finish(node)
            self._put(event, node)

    def _new(self, kind: Any, event: Any) -> YamlNode:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _StopReading(event.start_mark, f"more than {MAX_NODES} values in one file", last=True)
        mark = event.start_mark
        return YamlNode(kind, self._lines + mark.line + 1, mark.column + 1, self._offset + mark.index)

    def _end(self, event: Any) -> int:
        index: int = event.end_mark.index
        return self._offset + index

    def _anchor(self, event: Any, node: YamlNode) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = node

    def _aliased(self, event: Any) -> YamlNode:
        node = self._anchors.get(event.anchor)
        if node is None:
            raise _StopReading(event.start_mark, f"no anchor &{event.anchor[:60]} before this alias")
        if id(node) in self._open:
            raise _StopReading(event.start_mark, f"the alias *{event.anchor[:60]} contains itself")
        self._expanded += node.size
        if self._expanded > MAX_EXPANDED:
            raise _StopReading(event.start_mark, f"aliases expand to more than {MAX_EXPANDED} values")
        return node

    def _put(self, event: Any, node: YamlNode) -> None:
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
        """Resolves merge keys (``<<``), which have the lowest precedence, and reports duplicate keys."""
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


def _resolved(event: Any) -> Any:
    """Returns the scalar's value. Numbers with too many digits stay text."""
    text: str = event.value
    if event.tag == _STR or event.style in {"'", '"', "|", ">"}:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS or not text[:1] or text[0] not in "+-.0123456789":
        return text
    if _INT.match(text):
        return int(text)
    if other := _OTHER_INT.match(text):
        digits = other[2].removeprefix("o")
        base = {"b": 2, "x": 16}.get(digits[0], 8)
        return int(other[1] + digits.lstrip("bx"), base)
    return float(text) if _FLOAT.match(text) else text
