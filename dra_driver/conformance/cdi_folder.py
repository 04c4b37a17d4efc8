"""Resolve CDI device ids as a container runtime does (cncf-tags/container-device-interface SPEC.md, pkg/cdi).

Later directories win; a name in two files of one directory does not resolve. Does not use `dra_driver.hardware.cdi`,
which writes such files: it would not find a mistake that both share.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from dra_driver.conformance.cdi_edits import NO_EDITS, AnsweredEdits, CdiDocument, MergedEdits
from dra_driver.core import yaml_text
from dra_driver.core.convert import convert
from dra_driver.core.text import cut, quoted

MAX_FILES: Final = 4096
MAX_BYTES: Final = 4 * 2**20
QUALIFIED: Final = re.compile(
    r"[A-Za-z]([\w.-]*[A-Za-z0-9])?/[A-Za-z]([\w.-]*[A-Za-z0-9])?=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?", re.ASCII
)
"""``vendor/class=name`` (pkg/parser/parser.go of the CDI library)."""
VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

_Devices = dict[str, tuple[AnsweredEdits, ...]]


class CdiFile(Struct, frozen=True, kw_only=True):
    """One file: the edits of the devices that it defines, or the reason for which it is unusable."""

    path: Path
    devices: _Devices = {}
    problem: str = ""


def is_qualified(name: str) -> bool:
    return QUALIFIED.fullmatch(name) is not None


def files(folders: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    found: dict[Path, tuple[int, int]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*"))[:MAX_FILES]:
            if path.suffix not in {".json", ".yaml", ".yml"} or path.name.startswith("."):
                continue
            try:
                status = path.stat()
            except OSError:
                continue
            found[path] = (status.st_size, status.st_mtime_ns)
    return found


def unresolved(folders: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Return a message for each device id that does not resolve."""
    known, conflicts, broken = _index(folders)
    hint = f" ({'; '.join(f'{one.path}: {one.problem}' for one in broken[:3])})" if broken else ""
    return [
        f"{name}: {len(conflicts[name])} files of one directory define it"
        if name in conflicts
        else f"{name}: no file defines it{hint}"
        for name in dict.fromkeys(names)
        if name not in known
    ]


def resolved(folders: Sequence[Path]) -> set[str]:
    return set(_index(folders)[0])


def edits(folders: Sequence[Path], names: Sequence[str]) -> MergedEdits:
    """The merged edits of these device ids; unresolved ids have none."""
    known = _index(folders)[0]
    return MergedEdits(tuple(part for name in dict.fromkeys(names) for part in known.get(name, ())))


def _index(
    folders: Sequence[Path],
) -> tuple[dict[str, tuple[AnsweredEdits, ...]], dict[str, list[Path]], list[CdiFile]]:
    known: dict[str, tuple[AnsweredEdits, ...]] = {}
    conflicts: dict[str, list[Path]] = {}
    broken: list[CdiFile] = []
    for folder in folders:
        here: dict[str, list[Path]] = {}
        found: _Devices = {}
        for path in files([folder]):
            file = read(path)
            if file.problem:
                broken.append(file)
            for name in file.devices:
                here.setdefault(name, []).append(path)
            found |= file.devices
        for name, paths in here.items():
            known.pop(name, None)
            conflicts.pop(name, None)
            if len(paths) == 1:
                known[name] = found[name]
            else:
                conflicts[name] = paths
    return known, conflicts, broken


def read(path: Path) -> CdiFile:
    """Read one file, of which a runtime uses all or nothing."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return CdiFile(path=path, problem=f"larger than {MAX_BYTES >> 20} MiB")
        raw = json.loads(data) if path.suffix == ".json" else yaml_text.load(data)
        document = convert(raw, CdiDocument)
    except msgspec.ValidationError as error:
        return CdiFile(path=path, problem=str(error))
    except (OSError, ValueError, RecursionError) as error:
        return CdiFile(path=path, problem=f"unreadable: {type(error).__name__}")
    if problem := _problem(document):
        return CdiFile(path=path, problem=problem)
    common = document.container_edits or NO_EDITS
    named: _Devices = {f"{document.kind}={one.name}": (common, one.container_edits) for one in document.devices}
    return CdiFile(path=path, devices=named)


def _problem(document: CdiDocument) -> str:
    version = document.cdi_version.removeprefix("v")
    if version not in VERSIONS:
        return f"cdiVersion {quoted(version, 20)} is unknown"
    for device in document.devices:
        if not is_qualified(name := f"{document.kind}={device.name}"):
            return f"{cut(name, 160)} is not vendor/class=name"
        if device.container_edits == NO_EDITS:
            return f"device {device.name} has no containerEdits"
    if VERSIONS.index(least := document.least_version()) > VERSIONS.index(version):
        return f"cdiVersion {version} lacks a field of the file, expected {least}"
    names = {device.name for device in document.devices}
    return "" if len(names) == len(document.devices) else "a device is defined twice"
