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
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

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
_MISTAKES = (ValueError, RecursionError, sqlite3.DatabaseError)
_Text = Annotated[str, Meta(max_length=512)]
_Count = Annotated[int, Meta(ge=0, lt=2**31)]


class NoteBackup(Struct, frozen=True, kw_only=True, rename={"boot_id": "boot"}):
    """One GPU note as it is in the journal."""

    key: _Text
    value: _Text
    boot_id: _Text


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


class _Live(Struct, frozen=True, kw_only=True):
    gi: _Count
    ci: _Count
    uuid: _Text


class _Partition(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    claim: str
    position: _Count
    device: _Text
    profile: _Count
    profile_name: _Text
    start: _Count
    size: Annotated[int, Meta(ge=1, lt=2**31)]
    live: _Live | None = None


class _File(Struct, frozen=True, kw_only=True):
    gpu: _Text
    boot: _Text
    notes: tuple[NoteBackup, ...]
    partitions: tuple[_Partition, ...]


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
            partitions = tuple(_to_partition(each.orphan, each.device) for each in proof.partitions)
            file = _File(gpu=proof.gpu, boot=proof.boot_id, notes=proof.notes, partitions=partitions)
            data = json.dumps(msgspec.to_builtins(file), indent=1).encode() + b"\n"
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
                    yield _from_file(msgspec.json.decode(data, type=_File))
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


def _to_partition(orphan: OrphanedPartition, device: DeviceName) -> _Partition:
    assigned, live = orphan.partition, orphan.partition.live
    return _Partition(
        claim=orphan.uid,
        position=orphan.position,
        device=device,
        profile=assigned.id.profile_id,
        profile_name=assigned.profile_name,
        start=assigned.id.start,
        size=assigned.size,
        live=None if live is None else _Live(gi=live.gi_id, ci=live.ci_id, uuid=live.uuid),
    )


def _from_file(file: _File) -> GpuStateBackup:
    gpu = GpuUuid(file.gpu)
    partitions = tuple(_from_partition(gpu, each) for each in file.partitions)
    return GpuStateBackup(gpu=gpu, boot_id=file.boot, notes=file.notes, partitions=partitions)


def _from_partition(gpu: GpuUuid, found: _Partition) -> PartitionBackup:
    live = found.live
    assigned = AssignedPartition(
        id=PartitionId(gpu, found.profile, found.start),
        profile_name=found.profile_name,
        size=found.size,
        created_by_driver=True,
        live=None if live is None else InstanceIds(gi_id=live.gi, ci_id=live.ci, uuid=MigUuid(live.uuid)),
    )
    orphan = OrphanedPartition(uid=values.parse_uid(found.claim), position=found.position, partition=assigned)
    return PartitionBackup(orphan=orphan, device=DeviceName(found.device))
