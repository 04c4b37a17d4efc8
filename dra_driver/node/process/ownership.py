"""Marks in snapshots which MIG instances and MIG modes this driver created.

A GPU does not record who created an instance (MIG UUIDs are derived from GPU and instance ids and repeat), so the
hardware is compared with the journal. The journal is read before and after the hardware: an intent is noted before an
instance is created and removed after it is destroyed. An instance that is in neither reading is foreign, whatever this
or another node process (a rolling update) did in between.
"""

import threading

from msgspec.structs import replace

from dra_driver.core.errors import DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.hardware.gpu.backend import MIG_MODE, Backend
from dra_driver.node.claims import Journal


class OwnedBackend:
    """A ``gpu.backend.Backend`` that marks what this driver created. Thread-safe.

    Call ``use_journal`` before the first snapshot.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()  # guards _journal
        self._journal: Journal | None = None

    def use_journal(self, journal: Journal) -> None:
        """Compare with this journal from now on; before that, every instance counts as foreign."""
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
        """See ``Backend.snapshot``. Raises DriverUnavailableError also when the journal cannot be read: the published
        devices then stay, and this driver's own instances are not taken for foreign ones."""
        with self._lock:
            journal = self._journal
        if journal is None:
            return self._backend.snapshot()
        try:
            before = _Own(journal)
            snapshot = self._backend.snapshot()
            after = _Own(journal)
        except StorageError as error:
            raise DriverUnavailableError(f"it is not known which MIG devices this driver created: {error}") from error
        own, modes = before.partitions | after.partitions, before.modes | after.modes
        return replace(snapshot, gpus=tuple(_marked(gpu, own, modes) for gpu in snapshot.gpus))


class _Own:
    """One reading of the journal."""

    def __init__(self, journal: Journal) -> None:
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
