"""Report a migration as text and as JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.core.document import JsonDocument
from dra_driver.core.text import printable
from dra_driver.kubectl.migrate.ledger import UNCHANGED, FieldNote, FieldOutcome
from dra_driver.kubectl.migrate.translation import Translation

_PLACES: Final = 3


def counts(translation: Translation) -> Mapping[FieldOutcome, int]:
    return {outcome: sum(note.outcome is outcome for note in translation.notes) for outcome in FieldOutcome}


def summary(translation: Translation) -> str:
    found = counts(translation)
    made = [
        _several(len(translation.policies), "policy", "policies"),
        _several(len(translation.classes), "class", "classes"),
        _several(len(translation.templates), "template", "templates"),
        _several(len(translation.workloads), "changed object", "changed objects"),
    ]
    said = ", ".join(f"{found[outcome]} {outcome}" for outcome in FieldOutcome)
    problems = f"; {_several(len(translation.problems), 'problem', 'problems')}" if translation.problems else ""
    return f"{_several(translation.inputs, 'document', 'documents')}: {', '.join(made)}. Fields: {said}{problems}"


def as_text(translation: Translation) -> str:
    """Return the report, most urgent notes first. Names and values of inputs are escaped."""
    lines = [f"cannot read: {problem}" for problem in translation.problems]
    for outcome in reversed(FieldOutcome):
        notes = [note for note in translation.notes if note.outcome is outcome]
        if notes:
            lines += ["", f"{outcome.upper()} ({len(notes)})", *_by_document(notes)]
    if translation.hints:
        lines += ["", "BEFORE APPLYING", *(f"  - {hint}" for hint in translation.hints)]
    return "\n".join(printable(line) for line in [*lines, "", summary(translation)]).lstrip("\n")


class MigrationReport(JsonDocument, frozen=True, kw_only=True):
    """The report on every field of the inputs. ``outcomes`` counts the notes by outcome."""

    outcomes: Mapping[str, int]
    problems: Sequence[str]
    hints: Sequence[str]
    items: Sequence[FieldNote]


class Migration(JsonDocument, frozen=True, kw_only=True):
    """``items`` are Kubernetes objects, ``values`` are for this driver's chart."""

    items: Sequence[Mapping[str, Any]]
    values: Mapping[str, Any]
    report: MigrationReport


def report_of(translation: Translation) -> MigrationReport:
    return MigrationReport(
        outcomes={str(outcome): count for outcome, count in counts(translation).items()},
        problems=tuple(translation.problems),
        hints=tuple(translation.hints),
        items=translation.notes,
    )


def _by_document(notes: Sequence[FieldNote]) -> list[str]:
    documents: defaultdict[tuple[str, str], list[FieldNote]] = defaultdict(list)
    for note in notes:
        documents[note.file, note.object].append(note)
    lines = []
    for (source, subject), found in documents.items():
        lines.append(f"  {source}: {subject}")
        said: defaultdict[str, list[FieldNote]] = defaultdict(list)
        for note in found:
            said[note.message].append(note)
        for text, same in said.items():
            if text == UNCHANGED:
                lines.append(f"    {_several(len(same), 'other field', 'other fields')}: {UNCHANGED}")
            else:
                lines.append(f"    {_fields(same)}: {text}")
    return lines


def _fields(notes: Sequence[FieldNote]) -> str:
    shown = [f"{note.field}={note.value}" if note.value and len(notes) == 1 else note.field for note in notes[:_PLACES]]
    more = f" and {len(notes) - _PLACES} more" if len(notes) > _PLACES else ""
    return f"line {notes[0].line}: {', '.join(shown)}{more}"


def _several(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
