"""A GPU counts as changing while a call changes it, and a while longer, because the next call follows soon."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.core.errors import GpuBusyError
from dra_driver.core.files import lock_file
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.node.process.gpu_changes import (
    COOLDOWN_S,
    RETRY_AFTER_TIMEOUT_S,
    WAIT_S,
    ExporterLock,
    GpuChangeTracker,
    TrackedGpuControl,
)
from tests.fakes.simulated_gpus import SimulatedBackend

GPU = GpuUuid("GPU-a")


class Exporter:
    """An exporter with the NVIDIA driver open, according to its lock file; time passes while it is waited for.

    It lets go a moment after it is ``told``, unless it ``is_stuck``.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.told, self.is_stuck, self.waited_s = path, False, False, 0.0
        self.now = 100.0
        self._held: int | None = None

    @property
    def is_open(self) -> bool:
        return self._held is not None

    def open(self) -> None:
        """Raises BlockingIOError while the node process has the lock."""
        self._held = lock_file(self.path, shared=True)

    def close(self) -> None:
        """Also what the kernel does when it dies."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        self.now += seconds
        if self.told and not self.is_stuck:
            self.close()

    def clock(self) -> float:
        return self.now


class Changes:
    def __init__(self, folder: Path) -> None:
        self.now, self.begun = 100.0, 0
        self.exporter = Exporter(folder / "driver.lock")
        turn = ExporterLock(self.exporter.path, sleep=self.exporter.sleep, clock=self.exporter.clock)
        self.gpus = GpuChangeTracker(self.begin, turn, lambda: self.now)

    def begin(self) -> None:
        self.begun += 1
        self.exporter.told = True


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[Changes]:
    found = Changes(tmp_path)
    yield found
    found.exporter.close()


def test_a_gpu_is_changing_during_the_call_and_after_it(changes: Changes) -> None:
    """The exporter is told once of tries that follow each other."""
    assert changes.gpus.next_end_s() is None
    for _ in range(2):
        with changes.gpus.during(GPU):
            assert changes.gpus.current() == {GPU}
        changes.now += 1
    assert changes.begun == 1
    assert changes.gpus.current() == {GPU}
    assert changes.gpus.next_end_s() == COOLDOWN_S - 1
    changes.now += COOLDOWN_S - 1
    assert changes.gpus.current() == frozenset()
    assert changes.gpus.next_end_s() is None
    with changes.gpus.during(GPU):
        assert changes.begun == 2


def test_a_call_that_fails_ends_too(changes: Changes) -> None:
    """And the error is the caller's."""
    with pytest.raises(GpuBusyError), changes.gpus.during(GPU):
        raise GpuBusyError("in use")
    changes.now += COOLDOWN_S
    assert changes.gpus.current() == frozenset()


@pytest.fixture
def control(changes: Changes, backend: "Held") -> TrackedGpuControl:
    return TrackedGpuControl(backend, changes.gpus)


def test_cutting_a_gpu_is_a_change(changes: Changes, control: TrackedGpuControl, gpu: GpuUuid) -> None:
    """From MIG mode to the last instance, which the exporter would hold open."""
    control.set_mig_mode(gpu, True)
    gi = control.create_gpu_instance(gpu, 19, 0)
    ci = control.create_compute_instance(gpu, gi)
    assert len(control.mig_instances(gpu)) == 1
    control.destroy_compute_instance(gpu, gi, ci.ci_id)
    control.destroy_gpu_instance(gpu, gi)
    assert changes.gpus.current() == {gpu}
    assert changes.begun == 1


def test_looking_and_the_compute_mode_are_none(changes: Changes, control: TrackedGpuControl, gpu: GpuUuid) -> None:
    """The driver allows them while others have the GPU open."""
    assert not control.mig_mode(gpu)
    control.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    assert control.compute_mode(gpu) is ComputeMode.EXCLUSIVE_PROCESS
    assert control.fabric(gpu) is not None or control.mig_instances(gpu) == ()
    assert changes.gpus.current() == frozenset()


class Held(SimulatedBackend):
    """GPUs that another process may have open, as the NVIDIA driver treats them; counts the calls that it refuses."""

    exporter: Exporter
    refused = 0

    def _in_use(self) -> None:
        if self.exporter.is_open:
            self.refused += 1
            raise GpuBusyError("In use by another client")

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        self._in_use()
        super().set_mig_mode(gpu, enabled)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        self._in_use()
        return super().create_gpu_instance(gpu, profile_id, start)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        self._in_use()
        super().destroy_gpu_instance(gpu, gi_id)


@pytest.fixture
def backend(changes: Changes) -> Held:
    gpus = Held.from_spec("1xh100-sxm5-80gb", "n")
    assert isinstance(gpus, Held)
    gpus.exporter = changes.exporter
    return gpus


@pytest.fixture
def gpu(backend: Held) -> GpuUuid:
    return backend.snapshot().gpus[0].uuid


def test_a_change_of_mode_waits_for_the_exporter(
    changes: Changes, control: TrackedGpuControl, gpu: GpuUuid, backend: Held
) -> None:
    """The driver is not asked while the exporter has it open: it may leave a mode pending that it refuses."""
    changes.exporter.open()
    control.set_mig_mode(gpu, True)
    assert (control.mig_mode(gpu), backend.refused) == (True, 0)
    assert changes.exporter.waited_s > 0


def test_a_partition_is_made_at_once_or_as_soon_as_the_exporter_let_go(
    changes: Changes, control: TrackedGpuControl, gpu: GpuUuid, backend: Held
) -> None:
    """It does not wait where the driver allows it beside the exporter."""
    control.set_mig_mode(gpu, True)
    gi_id = control.create_gpu_instance(gpu, 19, 0)
    assert (backend.refused, changes.exporter.waited_s) == (0, 0)
    changes.exporter.open()
    changes.exporter.told = True
    control.destroy_gpu_instance(gpu, gi_id)
    assert backend.refused == 1
    assert changes.exporter.waited_s > 0


def test_a_stuck_exporter_delays_one_change_and_prevents_none_that_the_driver_allows(
    changes: Changes, control: TrackedGpuControl, gpu: GpuUuid, backend: Held
) -> None:
    """The busy GPU is the caller's to try again."""
    changes.exporter.open()
    changes.exporter.is_stuck = True
    for _ in range(2):
        with pytest.raises(GpuBusyError):
            control.set_mig_mode(gpu, True)
    assert backend.refused == 2
    assert changes.exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)
    with pytest.raises(GpuBusyError):
        control.create_gpu_instance(gpu, 19, 0)
    assert changes.exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    found = Exporter(tmp_path / "driver.lock")
    yield found
    found.close()


@pytest.fixture
def turn(exporter: Exporter) -> ExporterLock:
    return ExporterLock(exporter.path, sleep=exporter.sleep, clock=exporter.clock)


def test_it_waits_until_the_exporter_has_let_go_and_keeps_it_away(turn: ExporterLock, exporter: Exporter) -> None:
    exporter.open()
    exporter.told = True
    with turn.acquired() as has_let_go:
        assert (has_let_go, exporter.is_open) == (True, False)
        with pytest.raises(BlockingIOError):
            exporter.open()
    exporter.open()


def test_two_changes_at_once_wait_once(turn: ExporterLock, exporter: Exporter) -> None:
    """The lock is given back after the last of them."""
    exporter.open()
    exporter.told = True
    with turn.acquired():
        waited_s = exporter.waited_s
        with turn.acquired() as has_let_go:
            assert not has_let_go
        with pytest.raises(BlockingIOError):
            exporter.open()
    assert exporter.waited_s == waited_s
    exporter.open()


@pytest.mark.parametrize("ran", [False, True])
def test_without_an_exporter_nothing_waits(turn: ExporterLock, exporter: Exporter, ran: bool) -> None:
    """It was never there, or has died with the driver open."""
    if ran:
        exporter.open()
        exporter.close()
    with turn.acquired() as has_let_go:
        assert not has_let_go
    assert (exporter.waited_s, exporter.path.exists()) == (0, ran)


def test_a_stuck_exporter_is_waited_for_once_in_a_while(turn: ExporterLock, exporter: Exporter) -> None:
    """Each change goes on without it."""
    exporter.open()
    exporter.is_stuck = True
    for _ in range(3):
        with turn.acquired() as has_let_go:
            assert not has_let_go
    assert exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)
    exporter.now += RETRY_AFTER_TIMEOUT_S
    with turn.acquired():
        pass
    assert exporter.waited_s == pytest.approx(2 * WAIT_S, abs=0.2)


def test_it_is_known_whether_the_exporter_has_let_go(turn: ExporterLock, exporter: Exporter) -> None:
    """Before the driver is said to be given up; where none has ever run, too."""
    assert turn.wait_closed()
    exporter.open()
    exporter.is_stuck = True
    assert [turn.wait_closed(), turn.wait_closed()] == [False, False]
    exporter.close()
    assert turn.wait_closed()
    exporter.open()
    exporter.told, exporter.is_stuck = True, False
    exporter.now += RETRY_AFTER_TIMEOUT_S
    assert turn.wait_closed()
    exporter.open()


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_no_lock_file_does_not_keep_a_gpu_from_being_changed(
    turn: ExporterLock, exporter: Exporter, kind: str
) -> None:
    """The exporter may write in that folder."""
    if kind == "folder":
        exporter.path.mkdir()
    else:
        exporter.path.symlink_to("/proc/self/mem")
    with turn.acquired() as has_let_go:
        assert not has_let_go


def test_no_descriptor_is_left(turn: ExporterLock, exporter: Exporter) -> None:
    """Also after a change that failed."""
    exporter.open()
    exporter.close()
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(ZeroDivisionError), turn.acquired():
        _ = 1 / 0
    assert len([*Path("/proc/self/fd").iterdir()]) == before
