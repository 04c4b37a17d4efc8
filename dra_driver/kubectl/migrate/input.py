"""Documents as they were read, paths in them, and how paths are written for people. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

Path = tuple[str | int, ...]
"""Keys and indexes from the top of a document."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class InputDocument(Struct, frozen=True, kw_only=True):
    """One document of a file, as plain values.

    ``number`` counts the file's documents from 1. ``lines`` has the line of each value where it is known. ``inside`` is
    where in another document this one was a text, as in a ConfigMap.
    """

    source: str
    number: int
    value: Any
    line: int = 1
    lines: Mapping[Path, int] = field(default_factory=dict)
    inside: str = ""

    @property
    def kind(self) -> str:
        return text_at(self.value, "kind")

    @property
    def api_version(self) -> str:
        return text_at(self.value, "apiVersion")

    @property
    def name(self) -> str:
        return text_at(self.value, "metadata", "name") or text_at(self.value, "metadata", "generateName")

    @property
    def namespace(self) -> str:
        return text_at(self.value, "metadata", "namespace")

    @property
    def label(self) -> str:
        """``Deployment team-a/train`` for messages; the number of the document where it is no object."""
        if not self.kind:
            return f"document {self.number}{f' in {self.inside}' if self.inside else ''}"
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name or '(no name)'}"

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}: document {self.number}"

    def line_of(self, path: Path) -> int:
        """The line of the value, or of the nearest value above it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return self.line


def at(value: Any, *path: str | int) -> Any:
    """The value below ``path``; None where there is none."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, Mapping) else None
        else:
            value = value[step] if isinstance(value, list) and 0 <= step < len(value) else None
    return value


def text_at(value: Any, *path: str | int) -> str:
    """The text below ``path``; "" where there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def mapping_at(value: Any, *path: str | int) -> Mapping[str, Any]:
    """The mapping below ``path``; empty where there is none."""
    found = at(value, *path)
    return found if isinstance(found, Mapping) else {}


def list_at(value: Any, *path: str | int) -> list[Any]:
    """The list below ``path``; empty where there is none."""
    found = at(value, *path)
    return found if isinstance(found, list) else []


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each scalar and each empty mapping or list, with its path."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def path_text(path: Path) -> str:
    """``spec.containers[0].resources.limits["nvidia.com/gpu"]``."""
    parts = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_KEY.fullmatch(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f'["{step}"]')
    return "".join(parts) or "(all)"
