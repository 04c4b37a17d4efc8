"""One suite for what is in use on GPUs: NVML over the C library and the simulation must tell the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.core.errors import DetachedError, DriverUnavailableError
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from tests.contract.hardware.gpu.busy_node import BusyNode, Job, NvmlNode, SimulatedNode

SPEC = "1xh100-sxm5-80gb,1xh100-sxm5-80gb+mig,1xa100-sxm4-40gb+mig"
CARD, CUT, OLD = range(3)
GI = 2**30


@pytest.fixture
def node() -> NodeSpec:
    return parse_groups(SPEC, "node-a")


@pytest.fixture(params=["nvml", "simulated"])
def busy(request: pytest.FixtureRequest, node: NodeSpec, tmp_path: Path) -> Iterator[BusyNode]:
    if request.param == "simulated":
        yield SimulatedNode(node, tmp_path)
        return
    nvml = NvmlNode(
        node, request.getfixturevalue("state"), request.getfixturevalue("nvml_library"), tmp_path
    )  # fmt: skip
    yield nvml
    nvml.nvml.close()


def test_every_gpu_is_told_once_in_order_of_uuid(busy: BusyNode, node: NodeSpec) -> None:
    """With the modes and the memory of its board."""
    busy.run()
    found = busy.source.usage()
    assert [each.gpu_uuid for each in found] == sorted(each.gpu.uuid for each in node.gpus)
    for index, each in enumerate(node.gpus):
        one = busy.look(index)
        assert (one.memory_total, one.memory_reserved) == (each.gpu.memory_bytes, each.gpu.reserved_bytes)
        assert (one.mig_enabled, one.instances, one.problem) == (index != CARD, (), None)


def test_an_idle_gpu_has_zeros_and_not_unknowns(busy: BusyNode) -> None:
    """Nothing runs, which is known."""
    busy.run()
    found = busy.look(CARD)
    assert (found.processes, found.memory_used, found.gpu_percent, found.memory_percent) == ((), 0, 0, 0)


def test_processes_have_what_they_use_and_the_gpu_their_sum(busy: BusyNode) -> None:
    """Bytes and percent, by PID; a process without work has 0."""
    busy.run(
        Job(index=CARD, pid=9, memory=2 * GI, percent=40),
        Job(index=CARD, pid=7, memory=GI, percent=20),
        Job(index=CARD, pid=8, memory=4096),
    )
    busy.source.usage()
    busy.go_on()
    found = busy.look(CARD)
    assert (found.memory_used, found.gpu_percent) == (3 * GI + 4096, 60)
    assert sorted(found.processes or (), key=lambda each: each.pid) == [
        ProcessUsage(pid=7, memory_bytes=GI, sm_percent=20, memory_percent=10),
        ProcessUsage(pid=8, memory_bytes=4096, sm_percent=0, memory_percent=0),
        ProcessUsage(pid=9, memory_bytes=2 * GI, sm_percent=40, memory_percent=20),
    ]
    assert busy.look(CUT).processes == ()


def test_the_first_look_has_no_utilisation_of_processes(busy: BusyNode) -> None:
    """There is no time since the previous one; that of the GPU is known."""
    busy.run(Job(index=CARD, pid=7, memory=GI, percent=20))
    found = busy.look(CARD)
    assert found.processes == (ProcessUsage(pid=7, memory_bytes=GI),)
    assert found.gpu_percent == 20


def test_a_process_that_ends_leaves(busy: BusyNode) -> None:
    """With its memory."""
    busy.run(Job(index=CARD, pid=7, memory=GI, percent=20))
    busy.source.usage()
    busy.run()
    found = busy.look(CARD)
    assert (found.processes, found.memory_used, found.gpu_percent) == ((), 0, 0)


@pytest.mark.parametrize(("index", "percent"), [(CUT, 60), (OLD, None)])
def test_in_mig_mode_instances_tell_and_gpus_do_not(busy: BusyNode, index: int, percent: int | None) -> None:
    """GPM has the utilisation of an instance from Hopper on; none has that of a process."""
    gi_id = busy.cut(index)
    busy.run(Job(index=index, pid=7, memory=GI, percent=60, gi_id=gi_id))
    first = busy.look(index)
    assert (first.gpu_percent, first.memory_percent, first.memory_used) == (None, None, GI)
    assert first.processes == (ProcessUsage(pid=7, gi_id=gi_id, memory_bytes=GI),)
    instance = second_sample(busy, index)
    assert (instance.gi_id, instance.memory_used, instance.sm_percent) == (gi_id, GI, percent)
    assert instance.uuid is not None
    assert instance.memory_total is not None


def test_an_instance_without_processes_uses_nothing(busy: BusyNode) -> None:
    """Beside one that is used; each has its own."""
    gi_id = busy.cut(CUT)
    busy.run()
    (instance,) = busy.look(CUT).instances
    assert (instance.gi_id, instance.memory_used) == (gi_id, 0)


def test_energy_grows_and_numbers_have_their_units(busy: BusyNode) -> None:
    """Millijoules, milliwatts, degrees and megahertz."""
    busy.run(Job(index=CARD, pid=7, memory=GI, percent=20))
    first = numbers(busy.look(CARD))
    busy.go_on()
    second = numbers(busy.look(CARD))
    assert second[0] > first[0]
    assert second[1] >= 10_000
    assert 0 < second[2] < 120
    assert second[3] >= 100
    assert second[4] >= 100


def test_a_lost_gpu_is_unreadable_and_tells_nothing_else(busy: BusyNode, node: NodeSpec) -> None:
    """It is not left out: who looks has to know that it is there."""
    busy.run(Job(index=CARD, pid=7, memory=GI))
    busy.source.usage()
    busy.lose(CUT)
    found = busy.look(CUT)
    assert found.unreadable
    assert found == GpuUsage(gpu_uuid=busy.uuid(CUT), unreadable=found.unreadable)
    assert busy.look(CARD).memory_used == GI
    assert len(busy.source.usage()) == len(node.gpus)


def test_gpus_that_are_all_lost_are_all_told(busy: BusyNode, node: NodeSpec) -> None:
    """The driver answers; none of them does."""
    busy.run()
    busy.source.usage()
    for index in range(len(node.gpus)):
        busy.lose(index)
    assert [bool(each.unreadable) for each in busy.source.usage()] == [True] * len(node.gpus)


def test_without_a_driver_it_says_so(busy: BusyNode) -> None:
    """An empty answer would mean that nothing is in use."""
    busy.run()
    busy.source.usage()
    busy.unload()
    with pytest.raises(DriverUnavailableError):
        busy.source.usage()


def test_a_driver_that_was_given_up_is_not_looked_at_until_it_is_taken_back(busy: BusyNode) -> None:
    """With the reason."""
    busy.run()
    busy.source.usage()
    assert busy.detachable().detach("an upgrade")
    with pytest.raises(DetachedError, match="an upgrade"):
        busy.source.usage()
    busy.detachable().reattach()
    assert busy.look(CARD).processes == ()


def second_sample(busy: BusyNode, index: int) -> InstanceUsage:
    """The instance after a look that compares: GPM's samples lie at least 100 ms apart."""
    for _ in range(2000):
        (found,) = busy.look(index).instances
        if found.sm_percent is not None or index == OLD:
            break
    return found


def numbers(found: GpuUsage) -> list[int]:
    values = (found.energy_mj, found.power_mw, found.temperature_c, found.sm_clock_mhz, found.memory_clock_mhz)
    known = [value for value in values if value is not None]
    assert len(known) == len(values)
    return known
