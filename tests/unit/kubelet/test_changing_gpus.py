"""A GPU counts as changing while a call changes it, and a while longer, because the next call follows soon."""

from collections.abc import Callable

import pytest

from dra_driver.errors import GpuBusyError
from dra_driver.gpu.backend import ComputeMode
from dra_driver.gpu.simulated.backend import SimulatedBackend
from dra_driver.kubelet.changing_gpus import LINGER_S, ChangingGpus, NotedControl
from dra_driver.model.ids import GpuUuid

GPU = GpuUuid("GPU-a")


class Changes:
    def __init__(self) -> None:
        self.now, self.begun = 100.0, 0
        self.gpus = ChangingGpus(self.begin, lambda: self.now)

    def begin(self) -> None:
        self.begun += 1


def test_a_gpu_is_changing_during_the_call_and_after_it() -> None:
    """The exporter is told once of tries that follow each other."""
    changes = Changes()
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


def test_a_call_that_fails_ends_too() -> None:
    """And the error is the caller's."""
    changes = Changes()
    with pytest.raises(GpuBusyError), changes.gpus.during(GPU):
        raise GpuBusyError("in use")
    changes.now += LINGER_S
    assert changes.gpus.current() == frozenset()


def noted() -> tuple[NotedControl, GpuUuid, Changes]:
    gpus, changes = SimulatedBackend.from_spec("1xh100-sxm5-80gb", "n"), Changes()
    return NotedControl(gpus, changes.gpus), gpus.snapshot().gpus[0].uuid, changes


def partition(control: NotedControl, gpu: GpuUuid) -> None:
    control.set_mig_mode(gpu, True)
    gi = control.create_gpu_instance(gpu, 19, 0)
    ci = control.create_compute_instance(gpu, gi)
    assert len(control.mig_instances(gpu)) == 1
    control.destroy_compute_instance(gpu, gi, ci.ci_id)
    control.destroy_gpu_instance(gpu, gi)


@pytest.mark.parametrize("work", [partition])
def test_cutting_a_gpu_is_a_change(work: Callable[[NotedControl, GpuUuid], None]) -> None:
    """From MIG mode to the last instance, which the exporter would hold open."""
    control, gpu, changes = noted()
    work(control, gpu)
    assert changes.gpus.current() == {gpu}
    assert changes.begun == 1


def test_looking_and_the_compute_mode_are_none() -> None:
    """The driver allows them while others have the GPU open."""
    control, gpu, changes = noted()
    assert not control.mig_mode(gpu)
    control.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    assert control.compute_mode(gpu) is ComputeMode.EXCLUSIVE_PROCESS
    assert control.fabric(gpu) is not None or control.mig_instances(gpu) == ()
    assert changes.gpus.current() == frozenset()
