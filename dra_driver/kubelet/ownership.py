"""Snapshots that say which MIG instances, and which MIG modes, are this driver's own.

Owns the comparison of hardware with journal: nothing on a GPU tells who made an instance (MIG UUIDs are derived from
GPU and instance ids and come again). Refuses to know what follows from it.

The journal is read before and after the hardware. An intent is noted before an instance is made and forgotten after
it is destroyed, so one that is in neither reading is somebody else's, whatever this or another node process (a
rolling update) was doing meanwhile.
"""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from dra_driver.errors import DriverUnavailableError, StorageError
from dra_driver.gpu.backend import Backend
from dra_driver.gpu.notes import MIG_MODE
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import PartitionId


class OwnershipJournal(Protocol):
    """The part of ``claims.journal.journal.Journal`` that tells what is ours. Raises StorageError."""

    def created_partitions(self) -> frozenset[PartitionId]: ...
    def gpus_with_note(self, key: str) -> Iterable[GpuUuid]: ...


class OwnedBackend:
    """A ``gpu.backend.Backend`` that marks what is ours. Thread-safe.

    ``use_journal`` comes before the first snapshot.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()  # guards _journal
        self._journal: OwnershipJournal | None = None

    def use_journal(self, journal: OwnershipJournal) -> None:
        """Compare with these from now on; without any, nothing is ours."""
        with self._lock:
            self._journal = journal

    def open(self) -> None:
        """See ``Backend.open``."""
        self._backend.open()

    def close(self) -> None:
        """See ``Backend.close``."""
        self._backend.close()

    def wait_for_event(self, timeout_s: float) -> bool:
        """See ``Backend.wait_for_event``."""
        return self._backend.wait_for_event(timeout_s)

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. DriverUnavailableError also when the journal cannot be read: what is offered stays
        as it is rather than that our own instances are taken for somebody else's."""
        with self._lock:
            journal = self._journal
        if journal is None:
            return self._backend.snapshot()
        try:
            before = _Own(journal)
            snapshot = self._backend.snapshot()
            after = _Own(journal)
        except StorageError as error:
            raise DriverUnavailableError(f"which MIG devices are this driver's own is not known: {error}") from error
        own, modes = before.partitions | after.partitions, before.modes | after.modes
        return replace(snapshot, gpus=tuple(_marked(gpu, own, modes) for gpu in snapshot.gpus))


class _Own:
    """One reading of the journal."""

    def __init__(self, journal: OwnershipJournal) -> None:
        self.partitions = journal.created_partitions()
        self.modes = frozenset(journal.gpus_with_note(MIG_MODE))


def _marked(gpu: Gpu, own: frozenset[PartitionId], modes: frozenset[GpuUuid]) -> Gpu:
    if not gpu.mig_instances and gpu.uuid not in modes:
        return gpu
    instances = (
        replace(instance, owned=PartitionId(gpu.uuid, instance.profile_id, instance.start) in own)
        for instance in gpu.mig_instances
    )
    return replace(gpu, mig_instances=tuple(instances), mig_mode_owned=gpu.uuid in modes)
