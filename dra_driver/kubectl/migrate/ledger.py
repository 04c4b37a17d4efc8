"""What became of each field of an input: carried over, changed in meaning, or not carried over, and why.

A translator notes what it did with a path; a note counts for everything below it. `Ledger.close` adds a note for every
field without one, so that no field is lost without being named.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.text import cut
from dra_driver.kubectl.migrate.input import InputDocument, Path, path_text

_SHOWN: Final = 60
UNKNOWN: Final = "no translator knows this field"
UNCHANGED: Final = "stays as it is"


class FieldOutcome(StrEnum):
    """``CARRIED``: the same holds afterwards. ``CHANGED``: something near it does. ``NOT_CARRIED``: nothing does."""

    CARRIED = "carried over"
    CHANGED = "changed meaning"
    NOT_CARRIED = "not carried over"


class MigrationNote(Struct, frozen=True, kw_only=True):
    """What became of one field, or of all fields below it. ``path`` leads to it from the top of the document."""

    outcome: FieldOutcome
    source: str
    document: int
    line: int
    subject: str
    path: Path
    value: str
    text: str

    @property
    def field(self) -> str:
        return path_text(self.path)


class Ledger:
    """Collects the notes about one document."""

    def __init__(self, document: InputDocument) -> None:
        self._document = document
        self._notes: list[MigrationNote] = []

    def carried(self, path: Path, text: str) -> None:
        self._add(FieldOutcome.CARRIED, path, text)

    def changed(self, path: Path, text: str) -> None:
        self._add(FieldOutcome.CHANGED, path, text)

    def lost(self, path: Path, text: str) -> None:
        self._add(FieldOutcome.NOT_CARRIED, path, text)

    def note(self, outcome: FieldOutcome, path: Path, text: str) -> None:
        self._add(outcome, path, text)

    def close(self, rest: FieldOutcome = FieldOutcome.NOT_CARRIED, text: str = UNKNOWN) -> tuple[MigrationNote, ...]:
        """All notes, in the order of paths; fields without one get ``rest`` and ``text``."""
        noted = {note.path for note in self._notes}
        above = {path[:length] for path in noted for length in range(len(path))}
        waiting: list[tuple[Path, Any]] = [((), self._document.value)]
        while waiting:
            path, value = waiting.pop()
            if path in noted:
                continue
            if path not in above:
                self._add(rest, path, text)
            elif isinstance(value, Mapping):
                waiting += [((*path, key), item) for key, item in value.items()]
            elif isinstance(value, list):
                waiting += [((*path, index), item) for index, item in enumerate(value)]
        order = sorted(self._notes, key=lambda note: (note.line, [str(step) for step in note.path]))
        return tuple(order)

    def _add(self, outcome: FieldOutcome, path: Path, text: str) -> None:
        document = self._document
        self._notes.append(
            MigrationNote(
                outcome=outcome,
                source=document.source,
                document=document.number,
                line=document.line_of(path),
                subject=document.label,
                path=path,
                value=_shown(document.value, path),
                text=text,
            )
        )


def _shown(value: Any, path: Path) -> str:
    """The value in short; "" for mappings and lists."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return ""
    if isinstance(value, Mapping | list) or value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
    return cut(text, _SHOWN)
