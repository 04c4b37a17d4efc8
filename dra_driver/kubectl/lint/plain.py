"""Documents as plain values with the line of each value, for commands that translate manifests.

The same reader as for checks: size, depth and aliases are limited, tags have no effect, and after an error reading goes
on with the next document.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.kubectl.lint.nodes import YamlNode
from dra_driver.kubectl.lint.reading import YamlProblem, read
from dra_driver.kubectl.lint.sources import ManifestSource

MAX_DOCUMENTS: Final = 5_000
_HELM: Final = "; a Helm template must be rendered first (helm template RELEASE CHART)"

_Place = tuple[str | int, ...]


class PlainDocument(Struct, frozen=True, kw_only=True):
    """One document: its number in the text from 1, the line it begins at, and the line of each value by its path."""

    number: int
    line: int
    value: Any
    lines: Mapping[_Place, int]


def plain_documents(source: ManifestSource, most: int = MAX_DOCUMENTS) -> tuple[list[PlainDocument], list[str]]:
    """The documents of a text, and sentences about what could not be read, with file and line. Never raises.

    No more than ``most`` documents are read.
    """
    if source.problem:
        return [], [f"{source.name}: the file {source.problem}"]
    problems: list[str] = []
    separators = _separators(source.text)

    def number_of(line: int) -> int:
        """Which document a line is in; an error is often seen at the separator after it."""
        return bisect_left(separators, line) + 1

    def report(problem: YamlProblem) -> None:
        place = f"{source.name}:{problem.line}:{problem.column}: document {number_of(problem.line)}"
        hint = _HELM if "{{" in source.text and not problem.duplicate else ""
        problems.append(f"{place}: {problem.message}{hint}")

    found: list[PlainDocument] = []
    for node in read(source.text, report):
        if len(found) == most:
            problems.append(f"{source.name}:{node.line}: more than {most} documents; the rest is not read")
            break
        lines: dict[_Place, int] = {}
        value = _plain(node, (), lines)
        # A document begins below its separator, or beside it.
        number = bisect_right(separators, node.line) + 1
        found.append(PlainDocument(number=number, line=node.line, value=value, lines=lines))
    return found, problems


def _plain(node: YamlNode, path: _Place, lines: dict[_Place, int]) -> Any:
    """The value of a node. The reader bounds depth and number of nodes, so recursion is bounded too."""
    lines[path] = node.line
    if node.kind == "map":
        return {key.text: _plain(value, (*path, key.text), lines) for key, value in node.pairs}
    if node.kind == "list":
        return [_plain(item, (*path, index), lines) for index, item in enumerate(node.items)]
    return node.value


def _separators(text: str) -> list[int]:
    """The lines from 1 that begin another document; a separator above the first document is none."""
    found = []
    begun = False
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("---"):
            if begun:
                found.append(number)
            begun = True
        elif line.strip() and not line.startswith("#"):
            begun = True
    return found
