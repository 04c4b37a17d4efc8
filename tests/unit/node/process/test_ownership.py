"""Which MIG instances of a snapshot are marked as this driver's own."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.node.process.hardware import OwnedBackend
from tests.fakes.stand_in import stand_in

UUID = GpuUuid("GPU-0")
AT_0 = MigInstance(gi_id=1, profile_id=19, profile_name="1g.10gb", start=0, size=1)
AT_4 = replace(AT_0, gi_id=2, start=4)


class FakeJournal:
    def __init__(self, *made: MigInstance, modes: tuple[GpuUuid, ...] = ()) -> None:
        self.made, self.modes = list(made), modes
        self.error: StorageError | None = None

    def created_partitions(self) -> frozenset[PartitionId]:
        if self.error:
            raise self.error
        return frozenset(PartitionId(UUID, one.profile_id, one.start) for one in self.made)

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        assert key == "mig-mode"
        return self.modes


class Hardware:
    """One GPU; ``during`` happens between the two readings of the journal."""

    def __init__(self, *instances: MigInstance) -> None:
        self.instances = instances
        self.during: Callable[[], None] = lambda: None

    def open(self) -> None: ...
    def close(self) -> None: ...
    def wait_for_event(self, timeout_s: float) -> bool:
        return timeout_s < 0

    def snapshot(self) -> Snapshot:
        found = Snapshot(gpus=(Gpu(uuid=UUID, minor=0, mig_capable=True, mig_instances=self.instances),))
        self.during()
        return found


def owned(hardware: Hardware, journal: FakeJournal | None) -> list[bool]:
    backend = OwnedBackend(hardware)
    if journal:
        backend.use_journal(stand_in(journal))
    return [instance.owned for instance in backend.snapshot().gpus[0].mig_instances]


def test_an_instance_is_owned_only_if_the_journal_has_it() -> None:
    """An instance without a journal entry is foreign."""
    assert owned(Hardware(AT_0, AT_4), FakeJournal(AT_0)) == [True, False]
    assert owned(Hardware(AT_0), FakeJournal(AT_4)) == [False]
    assert owned(Hardware(AT_0), None) == [False]


def test_an_instance_destroyed_during_the_read_is_not_marked_as_foreign() -> None:
    """It was read, then destroyed and removed from the journal: as a foreign one it would be published again."""
    hardware, journal = Hardware(AT_0), FakeJournal(AT_0)
    hardware.during = journal.made.clear
    assert owned(hardware, journal) == [True]


def test_an_instance_created_during_the_read_is_not_marked_as_foreign() -> None:
    hardware, journal = Hardware(AT_0), FakeJournal()
    hardware.during = lambda: journal.made.append(AT_0)
    assert owned(hardware, journal) == [True]


def test_mig_mode_that_the_driver_switched_on_is_marked() -> None:
    backend = OwnedBackend(Hardware())
    backend.use_journal(stand_in(FakeJournal(modes=(UUID,))))
    assert backend.snapshot().gpus[0].mig_mode_owned


def test_an_unreadable_journal_fails_the_snapshot() -> None:
    journal = FakeJournal()
    journal.error = StorageError("disk full")
    with pytest.raises(DriverUnavailableError, match="not known which MIG devices this driver created: disk full"):
        owned(Hardware(AT_0), journal)
