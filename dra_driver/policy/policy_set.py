"""All policies of a node as one value: decoded, and as they were written.

In a set every document is a valid GpuPolicy and names are unique. Nothing here needs GPUs, so the command line can
check files offline (`examine`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.config.policy import GpuPolicy, policy_of, policy_problems
from dra_driver.config.schema import FieldProblem, printable
from dra_driver.errors import ConfigurationError
from dra_driver.policy.document import Document, UnreadableError, read_documents
from dra_driver.policy.folder import PolicyFile

MAX_POLICIES: Final = 128
_MAX_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Policies in the order of their files. ``written`` are the objects as in the files."""

    policies: tuple[GpuPolicy, ...] = ()
    written: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Complaint:
    """A problem in a file; ``line`` is None when it is not known."""

    file: str
    line: int | None
    problem: FieldProblem

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.problem}"


def read_set(files: Sequence[PolicyFile]) -> PolicySet:
    """The set of the files. Raises ConfigurationError with the first problems."""
    found, wrong = examine(files)
    if wrong:
        more = len(wrong) - _MAX_SHOWN
        shown = [str(complaint) for complaint in wrong[:_MAX_SHOWN]]
        raise ConfigurationError("; ".join([*shown, *([f"and {more} more"] if more > 0 else [])]))
    return found


def decode_set(written: Sequence[object]) -> PolicySet:
    """The set of objects that an earlier version saved. Raises ConfigurationError when they are not valid now."""
    for item in written:
        if wrong := policy_problems(item):
            raise ConfigurationError(str(wrong[0]))
    objects = tuple(item for item in written if isinstance(item, Mapping))
    return PolicySet(tuple(policy_of(item) for item in objects), objects)


def examine(files: Sequence[PolicyFile]) -> tuple[PolicySet, list[Complaint]]:
    """The valid policies and all problems, in order of files and documents."""
    wrong: list[Complaint] = []
    places: dict[str, str] = {}
    written: list[Mapping[str, Any]] = []
    for file in files:
        for document in _documents(file, wrong):
            if found := _problems(document, places):
                places_of = [(document.line_of(problem.path), problem) for problem in found]
                places_of.sort(key=lambda item: item[0] or 0)
                wrong.extend(Complaint(file.name, line, problem) for line, problem in places_of)
                continue
            places[document.value["metadata"]["name"]] = _place(file, document)
            written.append(document.value)
    if len(written) > MAX_POLICIES:
        wrong.append(Complaint(files[-1].name, None, FieldProblem((), f"more than {MAX_POLICIES} policies together")))
    return PolicySet(tuple(policy_of(item) for item in written), tuple(written)), wrong


def _documents(file: PolicyFile, wrong: list[Complaint]) -> Iterator[Document]:
    try:
        yield from read_documents(file.data, is_json=file.is_json)
    except UnreadableError as error:
        wrong.append(Complaint(file.name, error.line or None, FieldProblem((), str(error))))


def _problems(document: Document, places: Mapping[str, str]) -> list[FieldProblem]:
    if found := policy_problems(document.value):
        return found
    name = document.value["metadata"]["name"]
    if name in places:
        return [FieldProblem(("metadata", "name"), f"policy {name} is defined already in {places[name]}")]
    return []


def _place(file: PolicyFile, document: Document) -> str:
    line = document.line_of(("metadata", "name"))
    return printable(f"{file.name}:{line}" if line else file.name)
