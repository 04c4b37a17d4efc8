"""Finds and decodes the texts to check: files, folders, standard input, or the objects of a cluster."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from dra_driver.core.errors import ConfigurationError

MAX_FILE_BYTES: Final = 8 << 20
MAX_FILES: Final = 20_000
STDIN: Final = "-"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


class ManifestSource(Struct, frozen=True, kw_only=True):
    """A text and its name. ``problem`` says why there is no text. ``named_by_user``: not found in a folder."""

    name: str
    text: str = ""
    problem: str = ""
    named_by_user: bool = True


def collect(paths: Sequence[str], read_stdin: Callable[[], bytes]) -> Iterator[ManifestSource]:
    """Yields the texts of ``paths`` in order; folders are searched recursively, in the order of names.

    Raises ConfigurationError for a path that does not exist, before it reads anything.
    """
    for path in paths:
        if path != STDIN and not Path(path).exists():
            raise ConfigurationError(f"{path}: no such file or folder")
    for path in paths:
        if path == STDIN:
            yield _decoded("<stdin>", read_stdin()[: MAX_FILE_BYTES + 1], named_by_user=True)
        elif Path(path).is_dir():
            yield from (_read(file, named_by_user=False) for file in _manifests_below(Path(path)))
        else:
            yield _read(Path(path), named_by_user=True)


def sources_from_objects(objects: Sequence[Mapping[str, Any]], origin: str) -> Iterator[ManifestSource]:
    """Yields each object of a cluster as a text with the object's name."""
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    for item in objects:
        metadata = item.get("metadata") or {}
        name = "/".join(str(part) for part in (metadata.get("namespace"), metadata.get("name")) if part)
        text = yaml.dump(dict(item), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
        yield ManifestSource(name=f"{origin}: {item.get('kind')} {name}", text=text)


def _manifests_below(folder: Path) -> Iterator[Path]:
    """Yields the manifests in a folder; links to folders are not followed, so there are no cycles."""
    count = 0
    for place, folders, files in os.walk(folder):
        folders.sort()
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in sorted(files):
            path = Path(place, name)
            if path.suffix.lower() in _SUFFIXES and path.is_file():
                count += 1
                if count > MAX_FILES:
                    raise ConfigurationError(f"{folder}: more than {MAX_FILES} manifests; choose a smaller folder")
                yield path


def _read(path: Path, *, named_by_user: bool) -> ManifestSource:
    name = os.fsencode(path).decode("utf-8", "replace")  # a file name may be invalid text
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read: {os.strerror(error.errno or 0)}"
        return ManifestSource(name=name, problem=problem, named_by_user=named_by_user)
    return _decoded(name, data, named_by_user=named_by_user)


def _decoded(name: str, data: bytes, *, named_by_user: bool) -> ManifestSource:
    if len(data) > MAX_FILE_BYTES:
        problem = f"is larger than {MAX_FILE_BYTES >> 20} MiB; split it"
        return ManifestSource(name=name, problem=problem, named_by_user=named_by_user)
    try:
        encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"is not UTF-8 text (byte 0x{data[error.start]:02x} in line {line})"
        return ManifestSource(name=name, problem=problem, named_by_user=named_by_user)
    return ManifestSource(name=name, text=text, named_by_user=named_by_user)
