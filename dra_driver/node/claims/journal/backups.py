"""A backup of what this driver changed on GPUs: one small file per GPU, for a journal that is lost or damaged.

``<plugin directory>/made/<gpu uuid>.json`` (0600) has the partitions that the driver created, with their claims, and
the GPU's notes. The hardware does not record who created an instance or switched a mode, so without the backup a lost
journal would also lose the right to undo these changes. `gpu_notes` writes backups, and `rebuild` uses them.

Files are replaced in one step and not synced: after a power cut the instances in them no longer exist, and the boot id
shows it (MIG User Guide: instances do not survive a reboot). See docs/decisions/0014.
"""

import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_driver.core.errors import StorageError
from dra_driver.core.files import UNFINISHED, replace_file
from dra_driver.core.model.ids import DeviceName, GpuUuid, MigUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.node.claims.entry import AssignedPartition, InstanceIds, OrphanedPartition
from dra_driver.node.claims.journal import values

log = logging.getLogger(__name__)

MAX_FILE = 256 * 1024
"""A GPU has at most eight partitions and three notes: some 4 KiB."""
_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z-]")
_SUFFIX = ".json"
_MISTAKES = (ValueError, KeyError, TypeError, AttributeError, RecursionError, sqlite3.DatabaseError)


class NoteBackup(Struct, frozen=True, kw_only=True):
    """One GPU note as it is in the journal."""

    key: str
    value: str
    boot_id: str


class PartitionBackup(Struct, frozen=True, kw_only=True):
    """A partition that was created, or is about to be, for the claim's result at ``orphan.position``."""

    orphan: OrphanedPartition
    device: DeviceName


class GpuStateBackup(Struct, frozen=True, kw_only=True):
    """The backup of one GPU. ``boot_id`` is that of the boot in which it was written."""

    gpu: GpuUuid
    boot_id: str
    notes: tuple[NoteBackup, ...] = ()
    partitions: tuple[PartitionBackup, ...] = ()


class GpuStateBackups:
    """The files in one folder, which is created when it is needed (0700). Write one GPU's file at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, proof: GpuStateBackup) -> None:
        """Replace the GPU's file; remove it when the backup is empty. Raises `StorageError`."""
        path = self._path(proof.gpu)
        try:
            if not proof.notes and not proof.partitions:
                path.unlink(missing_ok=True)
                return
            data = json.dumps(_to_wire(proof), indent=1).encode() + b"\n"
            if _read(path) != data:
                self._replace(path, data)
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {(error.strerror or str(error)).lower()}; "
                "check the plugin directory's path, permissions and free space"
            ) from error

    def read(self) -> Iterator[GpuStateBackup]:
        """The backups of all files. A file that cannot be read is logged and skipped."""
        for path in self._files(_SUFFIX):
            try:
                data = _read(path)
                if data is not None:
                    yield _from_wire(json.loads(data))
            except (*_MISTAKES, OSError) as error:
                facts = {"path": str(path), "reason": f"{type(error).__name__}: {error}"}
                log.warning("GPU state backup cannot be read", extra=facts)

    def keep_only(self, gpus: Iterable[GpuUuid]) -> None:
        """Remove the files of other GPUs, and temporary files of a process that died while it wrote."""
        kept = {self._path(gpu) for gpu in gpus}
        with suppress(OSError):  # best effort: the next start tries again
            for path in [*self._files(_SUFFIX), *self._files(UNFINISHED)]:
                if path not in kept:
                    path.unlink(missing_ok=True)

    def _files(self, suffix: str) -> list[Path]:
        return sorted(self._folder.glob(f"*{suffix}"))

    def _path(self, gpu: GpuUuid) -> Path:
        return self._folder / f"{_NOT_IN_NAMES.sub('_', gpu)[:100]}{_SUFFIX}"

    def _replace(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, data)


def _read(path: Path) -> bytes | None:
    """The content of a small regular file; None when it does not exist.

    Follows no link and does not wait for a FIFO.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        return file.read(MAX_FILE)


def _to_wire(proof: GpuStateBackup) -> dict[str, Any]:
    return {
        "gpu": proof.gpu,
        "boot": proof.boot_id,
        "notes": [{"key": note.key, "value": note.value, "boot": note.boot_id} for note in proof.notes],
        "partitions": [_partition_to_wire(each) for each in proof.partitions],
    }


def _partition_to_wire(proven: PartitionBackup) -> dict[str, Any]:
    orphan, assigned = proven.orphan, proven.orphan.partition
    wire: dict[str, Any] = {
        "claim": orphan.uid,
        "position": orphan.position,
        "device": proven.device,
        "profile": assigned.id.profile_id,
        "profileName": assigned.profile_name,
        "start": assigned.id.start,
        "size": assigned.size,
    }
    if assigned.live is not None:
        wire["live"] = {"gi": assigned.live.gi_id, "ci": assigned.live.ci_id, "uuid": assigned.live.uuid}
    return wire


def _from_wire(wire: Any) -> GpuStateBackup:
    """Raises one of `_MISTAKES` for what `_to_wire` never writes."""
    gpu = GpuUuid(_parse_text(wire["gpu"]))
    notes = (
        NoteBackup(key=_parse_text(each["key"]), value=_parse_text(each["value"]), boot_id=_parse_text(each["boot"]))
        for each in wire["notes"]
    )
    partitions = tuple(_partition_from_wire(gpu, each) for each in wire["partitions"])
    return GpuStateBackup(gpu=gpu, boot_id=_parse_text(wire["boot"]), notes=tuple(notes), partitions=partitions)


def _partition_from_wire(gpu: GpuUuid, wire: Any) -> PartitionBackup:
    live = wire.get("live")
    assigned = AssignedPartition(
        id=PartitionId(gpu, _parse_int(wire["profile"]), _parse_int(wire["start"])),
        profile_name=_parse_text(wire["profileName"]),
        size=_parse_int(wire["size"], least=1),
        created_by_driver=True,
        live=None if live is None else _live_from_wire(live),
    )
    orphan = OrphanedPartition(
        uid=values.parse_uid(wire["claim"]), position=_parse_int(wire["position"]), partition=assigned
    )
    return PartitionBackup(orphan=orphan, device=DeviceName(_parse_text(wire["device"])))


def _live_from_wire(wire: Any) -> InstanceIds:
    return InstanceIds(
        gi_id=_parse_int(wire["gi"]), ci_id=_parse_int(wire["ci"]), uuid=MigUuid(_parse_text(wire["uuid"]))
    )


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 512:
        raise ValueError(f"expected a string, found {repr(value)[:80]}")
    return value


def _parse_int(value: object, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ValueError(f"expected an integer, found {repr(value)[:80]}")
    return value
