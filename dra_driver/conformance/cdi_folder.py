"""Resolve CDI device ids as a container runtime does (cncf-tags/container-device-interface SPEC.md, pkg/cdi).

Later directories win; a name in two files of one directory does not resolve. Does not use `dra_driver.hardware.cdi`,
which writes such files: a shared mistake would hide itself.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.conformance.cdi_edits import Edits, Wire, form_problem, least_version
from dra_driver.core import yaml_text

MAX_FILES: Final = 4096
MAX_BYTES: Final = 4 * 2**20
QUALIFIED: Final = re.compile(
    r"[A-Za-z]([\w.-]*[A-Za-z0-9])?/[A-Za-z]([\w.-]*[A-Za-z0-9])?=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?", re.ASCII
)
"""``vendor/class=name`` (pkg/parser/parser.go of the CDI library)."""
VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


class CdiFile(Struct, frozen=True, kw_only=True):
    """One file: the edits of the devices that it defines, or why it cannot be used."""

    path: Path
    devices: Mapping[str, tuple[Wire, ...]] = {}
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
        f"{name}: {len(conflicts[name])} files of one folder define it"
        if name in conflicts
        else f"{name}: no file defines it{hint}"
        for name in dict.fromkeys(names)
        if name not in known
    ]


def resolved(folders: Sequence[Path]) -> set[str]:
    return set(_index(folders)[0])


def edits(folders: Sequence[Path], names: Sequence[str]) -> Edits:
    """The edits of these device ids together; ids that do not resolve have none."""
    known = _index(folders)[0]
    return Edits.merged(part for name in dict.fromkeys(names) for part in known.get(name, ()))


def _index(folders: Sequence[Path]) -> tuple[dict[str, tuple[Wire, ...]], dict[str, list[Path]], list[CdiFile]]:
    known: dict[str, tuple[Wire, ...]] = {}
    conflicts: dict[str, list[Path]] = {}
    broken: list[CdiFile] = []
    for folder in folders:
        here: dict[str, list[Path]] = {}
        found: dict[str, tuple[Wire, ...]] = {}
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
        document: Any = json.loads(data) if path.suffix == ".json" else yaml_text.load(data)
    except (OSError, ValueError, RecursionError) as error:
        return CdiFile(path=path, problem=f"cannot be read: {type(error).__name__}")
    if problem := _problem(document):
        return CdiFile(path=path, problem=problem)
    common = document.get("containerEdits") or {}
    named = ((f"{document['kind']}={device['name']}", device["containerEdits"]) for device in document["devices"])
    return CdiFile(path=path, devices={name: (common, own) for name, own in named})


def _problem(document: Any) -> str:
    if not isinstance(document, dict):
        return "not an object"
    if str(document.get("cdiVersion", "")).removeprefix("v") not in VERSIONS:
        return f"cdiVersion {str(document.get('cdiVersion'))[:20]!r} is unknown"
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        return "no devices"
    names = [device.get("name") if isinstance(device, dict) else None for device in devices]
    for name, device in zip(names, devices, strict=True):
        if not isinstance(name, str) or not is_qualified(f"{document.get('kind')}={name}"):
            return f"{str(document.get('kind'))[:80]}={str(name)[:80]} is not vendor/class=name"
        if not isinstance(device.get("containerEdits"), dict) or not device["containerEdits"]:
            return f"device {name} has no containerEdits"
        if problem := form_problem(device["containerEdits"]):
            return f"device {name}: {problem}"
    if problem := form_problem(document.get("containerEdits") or {}):
        return problem
    if VERSIONS.index(least := least_version(document)) > VERSIONS.index(str(document["cdiVersion"]).removeprefix("v")):
        return f"cdiVersion {document['cdiVersion']} lacks a field of the file, expected {least}"
    return "" if len(set(names)) == len(names) else "a device is defined twice"
