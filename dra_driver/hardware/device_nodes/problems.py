"""What is wrong with device nodes on the host, for events, metrics and readiness."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from msgspec import Struct

KEEP_S: Final = 600.0
"""A problem that a prepare found is forgotten after this time, unless it is found again."""


class ProblemKind(StrEnum):
    """What suffers is in each problem's text."""

    NODE = "node"
    LINK = "link"
    PERMISSION = "permission"


class Problem(Struct, frozen=True, kw_only=True):
    """One problem of the node at ``path``; ``text`` is a sentence with a next step."""

    kind: ProblemKind
    path: str
    text: str


class Problems:
    """The present problems by kind and path. For one thread at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[tuple[str, ProblemKind], tuple[str, float]] = {}

    def put(self, kind: ProblemKind, path: str, text: str | None) -> None:
        """Replace the problem of this kind and path; None for none."""
        if text is None:
            self._found.pop((path, kind), None)
        else:
            self._found[path, kind] = (text, self._clock() + KEEP_S)

    def current(self) -> tuple[Problem, ...]:
        """In the order of the paths."""
        now = self._clock()
        self._found = {key: value for key, value in self._found.items() if value[1] > now}
        return tuple(
            Problem(kind=kind, path=path, text=text) for (path, kind), (text, _) in sorted(self._found.items())
        )
