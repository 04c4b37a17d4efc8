"""Find Kubernetes objects in texts, and their claims, classes and pods (in objects of any kind)."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.lint.reading import Place, YamlNode, YamlProblem, plain_with_lines, read

DRA_GROUP: Final = "resource.k8s.io"
DEFAULT_NAMESPACE: Final = "default"
MAX_OBJECTS: Final = 50_000
_MAX_SEARCHED: Final = 20_000


class ManifestText(Struct, frozen=True):
    """A file's name and text. ``allowed`` maps lines to the rules that comments suppress there."""

    name: str
    text: str
    allowed: dict[int, frozenset[str]]
    allowed_in_file: frozenset[str] = frozenset()


class Manifest(Struct, frozen=True):
    text: ManifestText
    node: YamlNode
    path: str = ""
    api_version: str = ""
    kind: str = ""
    namespace: str = DEFAULT_NAMESPACE
    name: str = ""

    @property
    def spot(self) -> "Spot":
        return Spot(self, self.node, self.path)

    @property
    def group(self) -> str:
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def is_dra(self) -> bool:
        return self.group == DRA_GROUP

    @property
    def label(self) -> str:
        """``ResourceClaim team-a/gpu`` for messages."""
        namespace = self.spot.string("metadata", "namespace")
        return f"{self.kind} {namespace + '/' if namespace else ''}{self.name or '(no name)'}"


class Spot(Struct, frozen=True):
    """A node of an object, and the path that leads to it, such as ``spec.devices.requests[0]``."""

    manifest: Manifest
    node: YamlNode
    path: str = ""

    def get(self, *keys: str) -> "Spot | None":
        """Return the value below; None if it is missing or null."""
        spot = self
        for key in keys:
            found = spot.node.get(key)
            if found is None or found.is_null:
                return None
            spot = Spot(self.manifest, found, f"{spot.path}.{key}" if spot.path else key)
        return spot

    def each(self, *keys: str) -> list["Spot"]:
        """Return the elements of the list below; empty if it is not a list."""
        spot = self.get(*keys)
        if spot is None:
            return []
        return [Spot(self.manifest, item, f"{spot.path}[{index}]") for index, item in enumerate(spot.node.items)]

    def pairs(self) -> Iterator[tuple[YamlNode, "Spot"]]:
        for key, value in self.node.pairs:
            yield key, Spot(self.manifest, value, f"{self.path}.{key.text}" if self.path else key.text)

    def string(self, *keys: str) -> str:
        spot = self.get(*keys)
        return spot.node.value if spot is not None and isinstance(spot.node.value, str) else ""

    def number(self, *keys: str) -> int | None:
        spot = self.get(*keys)
        value = spot.node.value if spot is not None else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, *keys: str) -> bool:
        spot = self.get(*keys)
        return spot is not None and spot.node.value is True


def objects_of(text: ManifestText, root: YamlNode) -> Iterator[Manifest]:
    """Yield the object of a document, or the items of a list; nothing if it is not a Kubernetes object."""
    waiting = [Manifest(text, root)]
    for one in waiting:
        spot = one.spot
        if spot.node.kind != "map" or len(waiting) > MAX_OBJECTS:
            continue
        kind, version = spot.string("kind") or one.kind, spot.string("apiVersion") or one.api_version
        items = spot.get("items")
        if kind.endswith("List") and items is not None and items.node.kind == "list":
            # A typed list has kind and version once; a plain List has them per item.
            usual = {"kind": kind.removesuffix("List"), "api_version": version if kind != "List" else ""}
            waiting += [Manifest(text, item.node, item.path, **usual) for item in items.each()]
        elif kind and version:
            namespace = spot.string("metadata", "namespace") or DEFAULT_NAMESPACE
            name = spot.string("metadata", "name") or spot.string("metadata", "generateName")
            yield replace(one, kind=kind, api_version=version, namespace=namespace, name=name)


def claim_devices(manifest: Manifest) -> Spot | None:
    steps = {"ResourceClaim": ("spec", "devices"), "ResourceClaimTemplate": ("spec", "spec", "devices")}
    found = steps.get(manifest.kind) if manifest.is_dra else None
    return manifest.spot.get(*found) if found else None


def pod_specs(manifest: Manifest) -> Iterator[Spot]:
    """Yield each mapping with a list ``containers`` in an object of any kind: Deployments, Jobs, training operators'
    kinds.
    """
    if manifest.is_dra:
        return
    waiting, looked_at = [manifest.spot], 0
    while waiting and looked_at < _MAX_SEARCHED:
        spot = waiting.pop()
        looked_at += 1
        containers = spot.node.get("containers")
        if containers is not None and containers.kind == "list":
            yield spot
        else:
            waiting += [*(value for _, value in spot.pairs() if value.node.kind != "scalar"), *spot.each()]


MAX_FILE_BYTES: Final = 8 << 20
MAX_FILES: Final = 20_000
STDIN: Final = "-"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


class ManifestSource(Struct, frozen=True, kw_only=True):
    """A text and its name. ``problem`` is the reason for a missing text. ``named_by_user``: not from a directory."""

    name: str
    text: str = ""
    problem: str = ""
    named_by_user: bool = True


def collect(paths: Sequence[str], read_stdin: Callable[[int], bytes]) -> Iterator[ManifestSource]:
    """Yield the texts of ``paths`` in order; searches directories recursively, by name. Raises ConfigurationError for a
    missing path, before it reads anything.
    """
    for path in paths:
        if path != STDIN and not Path(path).exists():
            raise ConfigurationError(f"{path}: no such file or directory")
    for path in paths:
        if path == STDIN:
            yield _decoded("<stdin>", read_stdin(MAX_FILE_BYTES + 1), named_by_user=True)
        elif Path(path).is_dir():
            yield from (_read(file, named_by_user=False) for file in _manifests_below(Path(path)))
        else:
            yield _read(Path(path), named_by_user=True)


def _manifests_below(folder: Path) -> Iterator[Path]:
    """Yield the manifests in a directory, without following links to directories."""
    count = 0
    for place, folders, files in os.walk(folder):
        folders.sort()
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in sorted(files):
            path = Path(place, name)
            if path.suffix.lower() in _SUFFIXES and path.is_file():
                count += 1
                if count > MAX_FILES:
                    raise ConfigurationError(f"{folder}: more than {MAX_FILES} manifests; choose a smaller directory")
                yield path


def _read(path: Path, *, named_by_user: bool) -> ManifestSource:
    name = os.fsencode(path).decode("utf-8", "replace")  # a file name may be invalid text
    try:
        with path.open("rb") as handle:
            return _decoded(name, handle.read(MAX_FILE_BYTES + 1), named_by_user=named_by_user)
    except OSError as error:
        problem = f"cannot be read: {os.strerror(error.errno or 0)}"
        return ManifestSource(name=name, problem=problem, named_by_user=named_by_user)


def _decoded(name: str, data: bytes, *, named_by_user: bool) -> ManifestSource:
    text = problem = ""
    try:
        if len(data) > MAX_FILE_BYTES:
            problem = f"is larger than {MAX_FILE_BYTES >> 20} MiB; split it"
        else:
            text = data.decode("utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"is not UTF-8 text (byte 0x{data[error.start]:02x} in line {line})"
    return ManifestSource(name=name, text=text, problem=problem, named_by_user=named_by_user)


MAX_DOCUMENTS: Final = 5_000
_HELM: Final = "; a Helm template must be rendered first (helm template RELEASE CHART)"


class PlainDocument(Struct, frozen=True, kw_only=True):
    """A document: its number in the text (from 1), its first line, and the line of each value by its path."""

    number: int
    line: int
    value: object
    lines: Mapping[Place, int]


def plain_documents(source: ManifestSource, most: int = MAX_DOCUMENTS) -> tuple[list[PlainDocument], list[str]]:
    """Return up to ``most`` documents of a text as plain values, and messages with file and line. Never raises."""
    if source.problem:
        return [], [f"{source.name}: the file {source.problem}"]
    problems: list[str] = []
    separators = _separators(source.text)

    def report(problem: YamlProblem) -> None:
        number = (
            bisect_left(separators, problem.line) + 1
        )  # parsers often report an error at the separator after the document
        place = f"{source.name}:{problem.line}:{problem.column}: document {number}"
        hint = _HELM if "{{" in source.text and not problem.duplicate else ""
        problems.append(f"{place}: {problem.message}{hint}")

    found: list[PlainDocument] = []
    for node in read(source.text, report):
        if len(found) == most:
            problems.append(f"{source.name}:{node.line}: more than {most} documents; the rest is not read")
            break
        lines: dict[Place, int] = {}
        value = plain_with_lines(node, (), lines)
        number = bisect_right(separators, node.line) + 1  # it begins below or next to its separator
        found.append(PlainDocument(number=number, line=node.line, value=value, lines=lines))
    return found, problems


def _separators(text: str) -> list[int]:
    """Return the lines (from 1) that begin another document; a separator above the first document does not."""
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
