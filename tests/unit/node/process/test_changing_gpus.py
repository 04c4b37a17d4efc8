"""A GPU counts as changing while a call changes it, and a while longer, because the next call follows soon."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.core.errors import GpuBusyError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.node.process.changing_gpus import LINGER_S, ChangingGpus, NotedControl
from dra_driver.node.process.exporter_turn import WAIT_S, ExporterTurn
from tests.unit.node.process.exporter import Exporter

GPU = GpuUuid("GPU-a")


class Changes:
    def __init__(self, folder: Path) -> None:
        self.now, self.begun = 100.0, 0
        self.exporter = Exporter(folder / "driver.lock")
        turn = ExporterTurn(self.exporter.path, sleep=self.exporter.sleep, clock=self.exporter.clock)
        self.gpus = ChangingGpus(self.begin, turn, lambda: self.now)

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
    assert changes.gpus.calm_in_s() is None
    for _ in range(2):
        with changes.gpus.during(GPU):
            assert changes.gpus.current() == {GPU}
        changes.now += 1
    assert changes.begun == 1
    assert changes.gpus.current() == {GPU}
    assert changes.gpus.calm_in_s() == LINGER_S - 1
    changes.now += LINGER_S - 1
    assert changes.gpus.current() == frozenset()
    assert changes.gpus.calm_in_s() is None
    with changes.gpus.during(GPU):
        assert changes.begun == 2


def test_a_call_that_fails_ends_too(changes: Changes) -> None:
    """And the error is the caller's."""
    with pytest.raises(GpuBusyError), changes.gpus.during(GPU):
        raise GpuBusyError("in use")
    changes.now += LINGER_S
    assert changes.gpus.current() == frozenset()


def noted(changes: Changes) -> tuple[NotedControl, GpuUuid]:
    gpus = SimulatedBackend.from_spec("1xh100-sxm5-80gb", "n")
    return NotedControl(gpus, changes.gpus), gpus.snapshot().gpus[0].uuid


def partition(control: NotedControl, gpu: GpuUuid) -> None:
    control.set_mig_mode(gpu, True)
    gi = control.create_gpu_instance(gpu, 19, 0)
    ci = control.create_compute_instance(gpu, gi)
    assert len(control.mig_instances(gpu)) == 1
    control.destroy_compute_instance(gpu, gi, ci.ci_id)
    control.destroy_gpu_instance(gpu, gi)


@pytest.mark.parametrize("work", [partition])
def test_cutting_a_gpu_is_a_change(changes: Changes, work: Callable[[NotedControl, GpuUuid], None]) -> None:
    """From MIG mode to the last instance, which the exporter would hold open."""
    control, gpu = noted(changes)
    work(control, gpu)
    assert changes.gpus.current() == {gpu}
    assert changes.begun == 1


def test_looking_and_the_compute_mode_are_none(changes: Changes) -> None:
    """The driver allows them while others have the GPU open."""
    control, gpu = noted(changes)
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


def held(changes: Changes) -> tuple[NotedControl, GpuUuid, Held]:
    gpus = Held.from_spec("1xh100-sxm5-80gb", "n")
    assert isinstance(gpus, Held)
    gpus.exporter = changes.exporter
    changes.exporter.open()
    return NotedControl(gpus, changes.gpus), gpus.snapshot().gpus[0].uuid, gpus


def test_a_change_of_mode_waits_for_the_exporter(changes: Changes) -> None:
    """The driver is not asked while the exporter has it open: it may leave a mode pending that it refuses."""
    control, gpu, gpus = held(changes)
    control.set_mig_mode(gpu, True)
    assert (control.mig_mode(gpu), gpus.refused) == (True, 0)
    assert changes.exporter.waited_s > 0


def test_a_partition_is_made_at_once_or_as_soon_as_the_exporter_let_go(changes: Changes) -> None:
    """It does not wait where the driver allows it beside the exporter."""
    control, gpu, gpus = held(changes)
    changes.exporter.close()
    control.set_mig_mode(gpu, True)
    gi_id = control.create_gpu_instance(gpu, 19, 0)
    assert (gpus.refused, changes.exporter.waited_s) == (0, 0)
    changes.exporter.open()
    changes.exporter.told = True
    control.destroy_gpu_instance(gpu, gi_id)
    assert gpus.refused == 1
    assert changes.exporter.waited_s > 0


def test_a_stuck_exporter_delays_one_change_and_prevents_none_that_the_driver_allows(changes: Changes) -> None:
    """The busy GPU is the caller's to try again."""
    control, gpu, gpus = held(changes)
    changes.exporter.is_stuck = True
    for _ in range(2):
        with pytest.raises(GpuBusyError):
            control.set_mig_mode(gpu, True)
    assert gpus.refused == 2
    assert changes.exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)
    with pytest.raises(GpuBusyError):
        control.create_gpu_instance(gpu, 19, 0)
    assert changes.exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)
