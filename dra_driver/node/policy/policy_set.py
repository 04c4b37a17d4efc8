"""Combine the policies of a node, from files and GpuPolicy objects of the API server, to one valid set, and save it.

Nothing here needs GPUs, so the command line can check files offline (`examine`). Of each object a node keeps compact
JSON. It drops policies whose ``select.nodeNames`` exclude it first, so that 1,000 policies of one node each are no
flood, and keeps further ones by name only.

The file of the last good set is JSON with mode 0600, replaced atomically; a crash leaves the old one and at most a
temporary file. ``objects`` has the generations of objects, absent if unknown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.config.policy import API_VERSION, KIND, MAX_BYTES, Fields, GpuPolicy, policy_of, policy_problems
from dra_driver.config.schema import FieldProblem
from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import remove_unfinished, replace_file
from dra_driver.core.text import printable
from dra_driver.node.policy.folder import PolicyFile, UnreadableError, read_documents
from dra_driver.node.policy.resolve import first_of, like

MAX_POLICIES: Final = 128
_MAX_SHOWN: Final = 5
MAX_SAVED_BYTES: Final = 8 * 1024 * 1024
_FORMAT: Final = 1
MAX_KEPT_BYTES: Final = 1024 * 1024
"""All objects of one node together, as much as a ConfigMap with policy files."""


class PolicyObject(Struct, frozen=True, kw_only=True):
    """One object. ``data`` is its JSON without status and unused metadata, None for an object that is kept by name;
    ``size`` is in bytes."""

    name: str
    generation: int | None
    data: bytes | None
    size: int


class ReadObject(Struct, frozen=True, kw_only=True):
    """An object as a mapping, or the ``problem`` with it in one sentence."""

    name: str
    generation: int | None
    written: Fields | None = None
    problem: str | None = None


def kept(item: Mapping[str, object], node_name: str, others: Iterable[PolicyObject], most: int) -> PolicyObject | None:
    """The part of an object that a node keeps; None if the object is not for this node.

    It is kept by name with ``most`` others with content, or more bytes than `MAX_KEPT_BYTES` in all.
    """
    metadata = _mapping(item.get("metadata"))
    name, generation = str(metadata.get("name", ""))[:253], metadata.get("generation")
    patterns = _mapping(_mapping(item.get("spec")).get("select")).get("nodeNames")
    # Only a list of patterns none of which is the node's: whatever makes no sense is judged later.
    if isinstance(patterns, list) and all(isinstance(each, str) for each in patterns) and not like(node_name, patterns):
        return None
    whole = {
        "apiVersion": item.get("apiVersion", API_VERSION),  # lists leave it out of their items in some versions
        "kind": item.get("kind", KIND),
        "metadata": {"name": name},
        "spec": item.get("spec"),
    }
    data = json.dumps(whole, separators=(",", ":"), sort_keys=True).encode()
    beside = [other for other in others if other.name != name and other.data is not None]
    fits = len(beside) < most and sum(other.size for other in beside) + len(data) <= MAX_KEPT_BYTES
    return PolicyObject(
        name=name,
        generation=generation if isinstance(generation, int) and not isinstance(generation, bool) else None,
        data=data if fits and len(data) <= MAX_BYTES else None,
        size=len(data),
    )


def read_objects(objects: Sequence[PolicyObject]) -> list[ReadObject]:
    """The objects in order of their names, each valid or with its problem."""
    return [_read(found) for found in sorted(objects, key=lambda found: found.name)]


def _read(found: PolicyObject) -> ReadObject:
    name, generation = printable(found.name), found.generation
    if found.data is None:
        problem = f"the object has {found.size} bytes, and is not kept: expected at most {MAX_BYTES}"
        if found.size <= MAX_BYTES:
            problem = "the object is not kept beside so many others"
        return ReadObject(name=name, generation=generation, problem=problem)
    written: Fields = json.loads(found.data)
    if wrong := policy_problems(written):
        more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return ReadObject(name=name, generation=generation, problem=f"{wrong[0]}{more}")
    return ReadObject(name=name, generation=generation, written=written)


def _mapping(found: object) -> Mapping[str, object]:
    return found if isinstance(found, Mapping) else {}


class PolicySet(Struct, frozen=True):
    """Policies: files in their order, then objects; ``written`` as in the files or objects.

    ``generations`` has the ``metadata.generation`` of objects by name; None where objects are unknown or disabled.
    """

    policies: tuple[GpuPolicy, ...] = ()
    written: tuple[Fields, ...] = ()
    generations: Mapping[str, int | None] | None = None


class Complaint(Struct, frozen=True):
    """A problem in a file; ``line`` is None if unknown."""

    file: str
    line: int | None
    problem: FieldProblem

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.problem}"


class RefusedSetError(ConfigurationError):
    """Files and objects that are not a set. ``reasons`` has the problem of each wrong object."""

    def __init__(self, message: str, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


def read_set(files: Sequence[PolicyFile]) -> PolicySet:
    """Raises ConfigurationError with the first problems."""
    found, wrong = examine(files)
    if wrong:
        raise ConfigurationError(first_of([str(complaint) for complaint in wrong], _MAX_SHOWN))
    return found


def merge(files: PolicySet, objects: Sequence[ReadObject]) -> PolicySet:
    """Files and objects as one set. Raises RefusedSetError with the first problems.

    An object that equals a file of its name replaces it, so that policies can be moved from files to objects; a
    different one is refused.
    """
    specs = {item["metadata"]["name"]: item["spec"] for item in files.written}
    reasons: dict[str, str] = {}
    for found in objects:
        if found.written is not None and found.name in specs and specs[found.name] != found.written["spec"]:
            reasons[found.name] = "a file on this node defines a policy of the same name otherwise: remove one of them"
        elif found.problem is not None:
            reasons[found.name] = found.problem
    good = [found.written for found in objects if found.written is not None and found.name not in reasons]
    named = {item["metadata"]["name"] for item in good}
    written = [*(item for item in files.written if item["metadata"]["name"] not in named), *good]
    total = len(written) + len(reasons)
    if total > MAX_POLICIES:
        raise RefusedSetError(
            f"{total} policies are for this node, at most {MAX_POLICIES} are accepted: delete some, or select with"
            " spec.select.nodeNames, which nodes check first",
            reasons,
        )
    if reasons:
        shown = [f"GpuPolicy {name}: {reason}" for name, reason in reasons.items()]
        raise RefusedSetError(first_of(shown, _MAX_SHOWN), reasons)
    return PolicySet(
        policies=tuple(policy_of(item) for item in written),
        written=tuple(written),
        generations={found.name: found.generation for found in objects},
    )


def decode_set(written: Sequence[object], generations: object = None) -> PolicySet:
    """The set that an earlier run saved. Raises ConfigurationError if it is not valid now."""
    for item in written:
        if wrong := policy_problems(item):
            raise ConfigurationError(str(wrong[0]))
    objects = tuple(item for item in written if isinstance(item, Mapping))
    known = None
    if isinstance(generations, Mapping):
        known = {str(name): found if isinstance(found, int) else None for name, found in generations.items()}
    return PolicySet(tuple(policy_of(item) for item in objects), objects, known)


def examine(files: Sequence[PolicyFile]) -> tuple[PolicySet, list[Complaint]]:
    """The valid policies and all problems, in order of files and documents."""
    wrong: list[Complaint] = []
    places: dict[str, str] = {}
    written: list[Fields] = []
    for file in files:
        try:
            documents = read_documents(file.data, is_json=file.is_json)
        except UnreadableError as error:
            wrong.append(Complaint(file.name, error.line or None, FieldProblem((), str(error))))
            continue
        for document in documents:
            found = policy_problems(document.value)
            name = "" if found else document.value["metadata"]["name"]
            if name in places:
                twice = f"policy {name} is defined already in {places[name]}"
                found = [FieldProblem(("metadata", "name"), twice)]
            if found:
                complaints = [Complaint(file.name, document.line_of(problem.path), problem) for problem in found]
                wrong += sorted(complaints, key=lambda complaint: complaint.line or 0)
                continue
            line = document.line_of(("metadata", "name"))
            places[name] = printable(f"{file.name}:{line}" if line else file.name)
            written.append(document.value)
    if len(written) > MAX_POLICIES:
        wrong.append(Complaint(files[-1].name, None, FieldProblem((), f"more than {MAX_POLICIES} policies together")))
    return PolicySet(tuple(policy_of(item) for item in written), tuple(written)), wrong


def save_set(path: Path, found: PolicySet) -> None:
    """Save the set, durable on return. Raises StorageError."""
    content: dict[str, object] = {"format": _FORMAT, "policies": found.written}
    if found.generations is not None:
        content["objects"] = dict(found.generations)
    data = json.dumps(content, separators=(",", ":")).encode()
    try:
        remove_unfinished(path)
        replace_file(path, data, durable=True)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", reason="NotWritten") from error


def load_set(path: Path) -> PolicySet | None:
    """The saved set, or None. Raises StorageError or ConfigurationError for an unusable file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SAVED_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        found = json.loads(data) if len(data) <= MAX_SAVED_BYTES else None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not isinstance(found.get("policies"), list):
        raise ConfigurationError(f"{path} does not contain policies of format {_FORMAT}")
    try:
        return decode_set(found["policies"], found.get("objects"))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
