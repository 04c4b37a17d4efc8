"""Back up the state that a lost journal needs: per GPU the driver's changes, and the names of claims.

``<plugin directory>/made/<gpu uuid>.json`` (0600) has the partitions that the driver created, with their claims, and
the GPU's notes: the hardware does not record who made a change. ``<plugin directory>/claim-names`` (0600) has a line
``<uid> <namespace>/<name> .`` per claim, because the API server finds objects by name. Nothing is synced: no container
and no instance survives a power cut (MIG User Guide), and the boot id reveals one. See docs/decisions/0014.
"""

import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dra_driver.core.convert import decode_json
from dra_driver.core.errors import StorageError
from dra_driver.core.files import UNFINISHED, remove_unfinished, replace_file
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, MigUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.node.claims.entry import AssignedPartition, InstanceIds, OrphanedPartition
from dra_driver.node.claims.journal.rows import is_uid, parse_uid

log = logging.getLogger(__name__)

MAX_FILE: Final = 256 * 1024
"""A GPU has at most eight partitions and three notes: some 4 KiB."""
NAMES_FILE: Final = "claim-names"
MAX_NAMES: Final = 16 * 2**20
"""A line has up to 383 bytes, and ten minutes have some thousands of them."""
_END: Final = " ."
_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z-]")
_SUFFIX = ".json"
_MISTAKES = (ValueError, RecursionError, sqlite3.DatabaseError)
_Text = Annotated[str, Meta(max_length=512)]
_Count = Annotated[int, Meta(ge=0, lt=2**31)]


class NoteBackup(Struct, frozen=True, kw_only=True, rename={"boot_id": "boot"}):
    """One GPU note of the journal."""

    key: _Text
    value: _Text
    boot_id: _Text


class PartitionBackup(Struct, frozen=True, kw_only=True):
    """A partition that was created, or is about to be, for the claim's result at ``orphan.position``."""

    orphan: OrphanedPartition
    device: DeviceName


class GpuStateBackup(Struct, frozen=True, kw_only=True):
    """The backup of one GPU, written in boot ``boot_id``."""

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
    """The files in one directory, created on demand (0700). Write one GPU's file at a time."""

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
            if _read(path, MAX_FILE) != data:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(path, data)
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {(error.strerror or str(error)).lower()}; "
                "check the plugin directory's path, permissions and free space"
            ) from error

    def read(self) -> Iterator[GpuStateBackup]:
        """Read all backups. A file that cannot be read is logged and skipped."""
        for path in self._files(_SUFFIX):
            try:
                data = _read(path, MAX_FILE)
                if data is not None:
                    yield _from_file(decode_json(data, _File))
            except (*_MISTAKES, OSError) as error:
                facts = {"path": str(path), "reason": f"{type(error).__name__}: {error}"}
                log.warning("cannot read a GPU state backup", extra=facts)

    def keep_only(self, gpus: Iterable[GpuUuid]) -> None:
        """Remove the files of other GPUs, and temporary files of a process that died while it wrote."""
        kept = {self._path(gpu) for gpu in gpus}
        with suppress(OSError):  # best effort: the next start retries
            for path in [*self._files(_SUFFIX), *self._files(UNFINISHED)]:
                if path not in kept:
                    path.unlink(missing_ok=True)

    def _files(self, suffix: str) -> list[Path]:
        return sorted(self._folder.glob(f"*{suffix}"))

    def _path(self, gpu: GpuUuid) -> Path:
        return self._folder / f"{_NOT_IN_NAMES.sub('_', gpu)[:100]}{_SUFFIX}"


def _read(path: Path, most: int) -> bytes | None:
    """At most ``most`` bytes of a file; None when it does not exist. Follows no link and does not wait for a FIFO."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        return file.read(most)


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
    orphan = OrphanedPartition(uid=parse_uid(found.claim), position=found.position, partition=assigned)
    return PartitionBackup(orphan=orphan, device=DeviceName(found.device))


class ClaimNames:
    """The names in one file, best effort. Call `add` and `keep` inside a transaction of the journal.

    A name is appended when its claim is recorded, and stays until `keep`: replacing the file in each call would cost a
    new inode, which can take a millisecond. Versions before this file wrote none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, ref: ClaimRef) -> None:
        # A line begins with its own newline: the one before it may lack its end.
        self._attempt(lambda: _append(self._path, b"\n" + _lines([ref])))

    def find(self, uids: Collection[ClaimUid]) -> dict[ClaimUid, ClaimRef]:
        found = (ref for line in self._read().split(b"\n") if (ref := _parse(line)) is not None)
        return {ref.uid: ref for ref in found if ref.uid in uids}

    def keep(self, claims: Iterable[ClaimRef], others: Collection[ClaimUid]) -> None:
        """Record these claims, and each of ``others`` whose name is recorded; drop the rest."""
        wanted = self.find(others) | {ref.uid: ref for ref in claims}
        data = _lines(wanted[uid] for uid in sorted(wanted))
        if self._read() != data:
            self._attempt(lambda: replace_file(self._path, data))
        self._attempt(lambda: remove_unfinished(self._path))

    def _read(self) -> bytes:
        with suppress(OSError):
            return _read(self._path, MAX_NAMES) or b""
        return b""

    def _attempt(self, change: Callable[[], object]) -> None:
        try:
            change()
        except OSError as error:
            log.warning("cannot write names of claims; will retry", extra={"path": self._path, "reason": str(error)})


def _lines(claims: Iterable[ClaimRef]) -> bytes:
    return b"".join(f"{ref.uid} {ref.namespace}/{ref.name}{_END}\n".encode() for ref in claims if is_uid(ref.uid))


def _parse(line: bytes) -> ClaimRef | None:
    """Parse a line; None for one that `_lines` never wrote. Reading the claim finds an invalid name."""
    text = line.decode("ascii", "replace")
    uid, _, full_name = text.removesuffix(_END).partition(" ")
    namespace, _, name = full_name.partition("/")
    is_whole = text.endswith(_END) and is_uid(uid) and name
    return ClaimRef(namespace=namespace, name=name, uid=ClaimUid(uid)) if is_whole else None


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
