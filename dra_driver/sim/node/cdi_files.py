"""Reads CDI documents as a container runtime does: priorities of folders, conflicts, and the order of edits.

Follows the CDI specification and cncf-tags/container-device-interface pkg/cdi (cache.go, container-edits.go). Does not
import `dra_driver.hardware.cdi`, which writes such files: a shared mistake would hide itself.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dra_driver.core.errors import RetryableError

Wire = dict[str, Any]


class _Found(Struct, frozen=True):
    """A device and the document that defines it."""

    path: Path
    document: Wire
    device: Wire


class Edits(Struct, kw_only=True):
    """Container edits collected for one container, in the order of application."""

    env: dict[str, str] = field(default_factory=dict)
    device_nodes: dict[str, Wire] = field(default_factory=dict)
    mounts: dict[str, Wire] = field(default_factory=dict)
    hooks: list[Wire] = field(default_factory=list)

    def add(self, wire: Wire) -> None:
        """Add one ``containerEdits``: variables replace by name, device nodes by path, mounts by target."""
        for item in wire.get("env") or ():
            name, _, value = item.partition("=")
            self.env[name] = value
        for node in wire.get("deviceNodes") or ():
            self.device_nodes[node["path"]] = node
        for mount in wire.get("mounts") or ():
            self.mounts.pop(mount["containerPath"], None)
            self.mounts[mount["containerPath"]] = mount
        self.hooks.extend(wire.get("hooks") or ())

    @property
    def sorted_mounts(self) -> list[Wire]:
        """Mounts by depth of their target, so that no mount hides a deeper one."""
        return sorted(self.mounts.values(), key=lambda mount: mount["containerPath"].rstrip("/").count("/"))


def inject(directories: Sequence[Path], names: Iterable[str]) -> Edits:
    """The edits for qualified device names. Raises RetryableError with containerd's message if one does not resolve.

    Later ``directories`` win over earlier ones. Repeated names count once.
    """
    devices = _load(directories)
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in devices]
    if missing:
        raise RetryableError(
            "failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
            + ", ".join(missing)
        )
    edits, seen = Edits(), set()
    for name in wanted:
        found = devices[name]
        if found.path not in seen:
            seen.add(found.path)
            edits.add(found.document.get("containerEdits") or {})
        edits.add(found.device.get("containerEdits") or {})
    return edits


def _load(directories: Sequence[Path]) -> dict[str, _Found]:
    """Resolvable devices by qualified name; leaves out a name that two documents of one directory define."""
    devices: dict[str, _Found] = {}
    for directory in directories:
        here: dict[str, list[_Found]] = {}
        for path in sorted(directory.glob("*.json")):
            document = _read(path)
            for device in document.get("devices") or ():
                found = _Found(path, document, device)
                here.setdefault(f"{document.get('kind')}={device.get('name')}", []).append(found)
        for name, definitions in here.items():
            devices.pop(name, None)
            if len(definitions) == 1:
                devices[name] = definitions[0]
    return devices


def _read(path: Path) -> Wire:
    """The document, an empty one if it cannot be read: it must not affect the others."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
