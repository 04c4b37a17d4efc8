"""What follows from a new snapshot, and in which order."""

from pathlib import Path

from dra_driver.errors import DriverUnavailableError, StorageError
from dra_driver.gpu.simulated import SimulatedBackend
from dra_driver.kubelet.hardware import Follower
from dra_driver.model.gpu import Snapshot

SNAPSHOT = SimulatedBackend.from_spec("2xh100-sxm5-80gb", "node-a").snapshot()
EMPTY = Snapshot(driver_version="580.65.06")


class Files:
    """Driver files that are there, or not; writes what happened into a shared list."""

    def __init__(self, happened: list[str]) -> None:
        self.error: Exception | None = None
        self.happened = happened

    def refresh(self) -> bool:
        self.happened.append("files")
        if self.error is not None:
            raise self.error
        return True


class Slices:
    def __init__(self, happened: list[str]) -> None:
        self.offered: list[Snapshot] = []
        self.happened = happened

    def set_snapshot(self, snapshot: Snapshot) -> None:
        self.happened.append("slices")
        self.offered.append(snapshot)


def made(simulated_root: Path | None = None) -> tuple[Follower, Files, Slices]:
    happened: list[str] = []
    files, slices = Files(happened), Slices(happened)
    return Follower(files, slices, simulated_root), files, slices


def test_driver_files_come_before_slices() -> None:
    """A pod that is scheduled at once must find its CDI files."""
    follower, files, _ = made()
    follower.changed(SNAPSHOT)
    assert files.happened == ["files", "slices"]
    assert follower.problem is None


def test_nothing_is_offered_until_the_drivers_files_are_found() -> None:
    """Pods are better placed on another node than stuck on this one."""
    follower, files, slices = made()
    files.error = DriverUnavailableError("no libcuda")
    follower.changed(SNAPSHOT)
    assert (slices.offered, follower.problem) == ([], "no libcuda")
    follower.retry()
    assert slices.offered == []
    files.error = None
    follower.retry()
    assert (slices.offered, follower.problem) == ([SNAPSHOT], None)


def test_files_that_go_missing_later_take_no_devices_back() -> None:
    """Pods that run hold them; and a changed inventory is still published."""
    follower, files, slices = made()
    follower.changed(SNAPSHOT)
    files.error = StorageError("disk full")
    follower.changed(EMPTY)
    assert (slices.offered, follower.problem) == ([SNAPSHOT, EMPTY], "disk full")


def test_retry_does_nothing_while_all_is_well() -> None:
    """It comes every few seconds and a search of the driver root is not free."""
    follower, files, _ = made()
    follower.retry()
    follower.changed(SNAPSHOT)
    follower.retry()
    assert files.happened == ["files", "slices"]


def test_simulated_root_follows_the_inventory(tmp_path: Path) -> None:
    """A GPU that a spec file loses disappears from nvidia-smi too."""
    follower, _, _ = made(tmp_path)
    follower.changed(SNAPSHOT)
    listed = (tmp_path / "usr/bin/nvidia-smi").read_text()
    assert all(gpu.uuid in listed for gpu in SNAPSHOT.gpus)
    follower.changed(EMPTY)
    assert SNAPSHOT.gpus[0].uuid not in (tmp_path / "usr/bin/nvidia-smi").read_text()
