"""Read the policy files of one directory as one consistent set, and parse their YAML or JSON with line numbers.

Policy files are ``*.yaml``, ``*.yml`` and ``*.json``, without hidden ones. A ConfigMap mount has links into ``..data``,
itself a link that the kubelet replaces atomically (k8s.io/kubernetes ``pkg/volume/util/atomic_writer.go``): files are
read from its target. Another directory is read again until it does not change during the read.

The parser is stricter than YAML: no repeated keys, no anchors and aliases (a few lines of them expand to gigabytes), no
tags, and scalars as in YAML 1.2's core schema, so that ``no`` and ``0000:17:00.0`` are text. PyYAML, which most nodes
do not need, is imported at the first YAML text.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from dra_driver.config.schema import Step
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import printable

if TYPE_CHECKING:
    from yaml import Event

MAX_FILES: Final = 64
MAX_FILE_BYTES: Final = 256 * 1024
MAX_BYTES: Final = 2 * 1024 * 1024
"""All files together. A ConfigMap has at most 1 MiB."""
_ENDINGS: Final = (".yaml", ".yml", ".json")
_ATTEMPTS: Final = 3

Print = tuple[object, ...]


class PolicyFile(Struct, frozen=True):
    """A file's name without its directory, and its bytes."""

    name: str
    data: bytes

    @property
    def is_json(self) -> bool:
        return self.name.endswith(".json")


def fingerprint(folder: Path) -> Print:
    """A value that differs when a file may have changed. Raises nothing, also for an unreadable directory."""
    try:
        base = _base(folder)
        found = ((name, (base / name).stat()) for name in _names(base))
        return (str(base), *((name, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns) for name, of in found))
    except (OSError, ConfigurationError) as error:
        return ("unreadable", str(error))


def read_folder(folder: Path) -> tuple[PolicyFile, ...]:
    """The files by name. Raises ConfigurationError that names the directory or file."""
    for _ in range(_ATTEMPTS):
        before = fingerprint(folder)
        try:
            base = _base(folder)
            files = tuple(read_file(base / name) for name in _names(base))
        except FileNotFoundError as error:
            if fingerprint(folder) != before:
                continue  # replaced since the listing
            raise ConfigurationError(f"{error.filename or folder} does not exist", reason="Missing") from error
        except OSError as error:
            raise ConfigurationError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
        if sum(len(file.data) for file in files) > MAX_BYTES:
            raise ConfigurationError(f"the policy files of {base} have more than {MAX_BYTES // 1024} KiB together")
        if fingerprint(folder) == before:
            return files
    raise ConfigurationError(f"the files of {folder} change while they are read: write them elsewhere and rename them")


def read_file(path: Path) -> PolicyFile:
    """One file of any name. Raises OSError, or ConfigurationError for a special or a large file."""
    # O_NONBLOCK: opening a FIFO would wait for its writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Before os.fdopen, whose error for a folder names only the descriptor's number.
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigurationError(f"{path} is not a regular file", reason="NotAFile")
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_FILE_BYTES // 1024} KiB", reason="TooLarge")
    return PolicyFile(printable(path.name), data)


def _base(folder: Path) -> Path:
    swapped = folder / "..data"
    return Path(os.path.realpath(swapped, strict=True)) if swapped.is_symlink() else folder


def _names(base: Path) -> list[str]:
    names = [name for name in os.listdir(base) if name.endswith(_ENDINGS) and not name.startswith(".")]  # noqa: PTH208 - names alone
    if len(names) > MAX_FILES:
        raise ConfigurationError(
            f"{base} has {len(names)} policy files, at most {MAX_FILES} are read", reason="TooManyFiles"
        )
    return sorted(names)


MAX_DEPTH: Final = 32
_WORDS: Final[Mapping[str, object]] = {
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
    """The text is not YAML or JSON that this module accepts. ``line`` is 0 for an unknown line."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def read_documents(data: bytes, *, is_json: bool) -> list[Document]:
    """The non-empty documents of a text. Raises UnreadableError."""
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


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is repeated in one object")
        found[key] = value
    return found


def _yaml(text: str) -> list[Document]:
    import yaml  # noqa: PLC0415 - see above

    events = yaml.parse(text, Loader=yaml.SafeLoader)
    documents: list[Document] = []
    try:
        for event in events:
            if isinstance(event, yaml.NodeEvent):
                lines: dict[tuple[Step, ...], int] = {}
                documents.append(Document(_value(event, events, (), lines), lines))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise UnreadableError(f"not YAML: {printable(str(problem))}", mark.line + 1 if mark else 0) from error
    return [document for document in documents if document.value is not None]


def _value(
    event: "Event", events: "Iterator[Event]", path: tuple[Step, ...], lines: dict[tuple[Step, ...], int]
) -> object:
    """The value that begins with ``event``; adds its lines to ``lines``."""
    import yaml  # noqa: PLC0415 - see above

    line = lines[path] = _line(event)
    if isinstance(event, yaml.ScalarEvent):
        return _resolved(event.value) if event.implicit[0] else event.value
    if len(path) >= MAX_DEPTH:
        raise UnreadableError(f"nested more than {MAX_DEPTH} levels deep", line)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[object] = []
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            items.append(_value(inner, events, (*path, len(items)), lines))
        return items
    found: dict[str, object] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        line = _line(key)
        if not isinstance(key, yaml.ScalarEvent):
            raise UnreadableError("a key must be text", line)
        if key.value in found:
            raise UnreadableError(f"the key {key.value!r} is repeated in this mapping", line)
        found[key.value] = _value(next(events), events, (*path, key.value), lines)
    return found


def _line(event: "Event") -> int:
    """Raises UnreadableError for an event with an anchor, an alias or a tag."""
    line = event.start_mark.line + 1 if event.start_mark is not None else 0
    if getattr(event, "anchor", None):  # an alias has the name of its anchor
        raise UnreadableError("anchors and aliases are not supported: write the value out", line)
    tag = getattr(event, "tag", None)
    if tag not in (None, "!", "tag:yaml.org,2002:str"):
        raise UnreadableError(f"the tag {printable(str(tag)[:60])} is not supported", line)
    return line


def _resolved(text: str) -> object:
    """The value of a plain scalar by YAML 1.2's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
