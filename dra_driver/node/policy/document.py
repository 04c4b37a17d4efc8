"""Parse the documents of a YAML or JSON text, with the line number of each value.

Line numbers let messages name the place of a wrong field. The parser is stricter than YAML and close to Kubernetes: no
repeated keys, no anchors and aliases (a few lines of them expand to gigabytes), no tags, and scalars as in YAML 1.2's
core schema, so that ``no`` and ``0000:17:00.0`` are text. It works on parser events, so nesting needs no stack.

PyYAML is loaded at the first YAML text and not with this module: most nodes have none.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.config.schema import Step
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import printable

MAX_DEPTH: Final = 32
_WORDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT: Final = re.compile(r"[-+]?[0-9]{1,40}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,3})?")


class Document(Struct, frozen=True):
    """One document. ``lines`` has the line number (from 1) of values by their paths; JSON has none."""

    value: Any
    lines: Mapping[tuple[Step, ...], int] = field(default_factory=dict)

    def line_of(self, path: tuple[Step, ...]) -> int | None:
        """The line of the value, or of its nearest parent with a line."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None


class UnreadableError(ConfigurationError):
    """The text is not YAML or JSON that this module accepts. ``line`` is 0 when no line is known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def read_documents(data: bytes, *, is_json: bool) -> list[Document]:
    """The non-empty documents of a text. Raises UnreadableError with the problem and its line."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not UTF-8 text: byte {error.start} is {data[error.start]:#04x}") from error
    if is_json:
        return [_json(text)] if text.strip() else []
    return _yaml(text)


def _json(text: str) -> Document:
    try:
        return Document(json.loads(text, object_pairs_hook=_once))
    except json.JSONDecodeError as error:
        raise UnreadableError(f"not JSON: {error.msg}", error.lineno) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets without end
        raise UnreadableError(f"not JSON: {printable(str(error))}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is repeated in one object")
        found[key] = value
    return found


def _yaml(text: str) -> list[Document]:
    import yaml  # noqa: PLC0415 - see above

    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(type(event).__name__, event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise UnreadableError(f"not YAML: {printable(str(problem))}", mark.line + 1 if mark else 0) from error
    return [document for document in builder.documents if document.value is not None]


class _Frame:
    """A mapping or list that is being filled."""

    def __init__(self, container: dict[str, Any] | list[Any], path: tuple[Step, ...]) -> None:
        self.container = container
        self.path = path
        self.key: str | None = None


class _Builder:
    """Builds documents from parser events."""

    def __init__(self) -> None:
        self.documents: list[Document] = []
        self._frames: list[_Frame] = []
        self._lines: dict[tuple[Step, ...], int] = {}

    def take(self, kind: str, event: Any) -> None:
        """The next event, by the name of its class."""
        line = event.start_mark.line + 1
        if kind == "AliasEvent" or getattr(event, "anchor", None):
            raise UnreadableError("anchors and aliases are not supported: write the value out", line)
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", "tag:yaml.org,2002:str"):
            raise UnreadableError(f"the tag {printable(str(tag)[:60])} is not supported", line)
        match kind:
            case "ScalarEvent":
                self._scalar(event, line)
            case "MappingStartEvent":
                self._open({}, line)
            case "SequenceStartEvent":
                self._open([], line)
            case "MappingEndEvent" | "SequenceEndEvent":
                self._frames.pop()

    def _scalar(self, event: Any, line: int) -> None:
        frame = self._frames[-1] if self._frames else None
        if frame is None or isinstance(frame.container, list) or frame.key is not None:
            self._place(_resolved(event), line)
            return
        if event.value in frame.container:
            raise UnreadableError(f"the key {event.value!r} is repeated in this mapping", line)
        frame.key = event.value

    def _open(self, container: dict[str, Any] | list[Any], line: int) -> None:
        if len(self._frames) >= MAX_DEPTH:
            raise UnreadableError(f"nested more than {MAX_DEPTH} levels deep", line)
        path = self._place(container, line)
        self._frames.append(_Frame(container, path))

    def _place(self, value: Any, line: int) -> tuple[Step, ...]:
        """Add a value to the open container; returns its path."""
        if not self._frames:
            self._lines = {(): line}
            self.documents.append(Document(value, self._lines))
            return ()
        frame = self._frames[-1]
        step: Step
        if isinstance(frame.container, list):
            step = len(frame.container)
            frame.container.append(value)
        elif frame.key is None:
            raise UnreadableError("a key must be text", line)
        else:
            step, frame.key = frame.key, None
            frame.container[step] = value
        path = (*frame.path, step)
        self._lines[path] = line
        return path


def _resolved(event: Any) -> Any:
    """The scalar's value by YAML 1.2's core schema; a quoted one is text."""
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
