"""Creating partitions on a GPU that another process, such as a monitor, has open."""

import pytest

from dra_driver.core.errors import GpuBusyError, NoRoomError
from dra_driver.hardware.mig.manager import LONG_WAITS
from tests.unit.hardware.mig.conftest import DOUBLE, ONE, Node


def test_a_first_instance_that_is_refused_is_tried_again(node: Node) -> None:
    """The driver refuses a GPU's first instance while a monitor uses it, although the mode could be switched."""
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use by another client"), times=3)
    assert node.create(ONE, 6).device is not None
    assert node.waits == [0.1, 0.2, 0.4]
    assert node.counter.steps.count("set_mig_mode") == 1, "the mode stays on between the tries"


def test_a_compute_instance_that_is_refused_is_tried_again(node: Node) -> None:
    """Inside the same time limit as the GPU instance."""
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use"), times=1)
    node.backend.fail_next("create_compute_instance", GpuBusyError("in use"), times=1)
    assert node.create(ONE, 6).device is not None
    assert node.waits == [0.1, 0.1]


def test_a_creation_that_stays_refused_is_an_error_at_the_limit() -> None:
    """It names the partition and who has the GPU open; nothing of it remains."""
    node = Node(holders="open in nv-hostengine (process 4711); nv-hostengine: stop DCGM on this node")
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use by another client"), times=0)
    with pytest.raises(
        GpuBusyError, match=r"slice 6 of GPU-\S+ cannot be created, tried for 5 s: .*nv-hostengine \(process 4711\)"
    ):
        node.create(ONE, 6)
    assert sum(node.waits) == pytest.approx(5.0)
    assert node.untouched


def test_a_refused_creation_leaves_what_appears_meanwhile(node: Node) -> None:
    """Another program creates the instance while this driver waits: it is not removed as the driver's own."""
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use"), times=0)

    def other_program() -> None:
        if not node.instances:
            node.foreign(ONE, 6, "none")

    node.on_wait = other_program
    with pytest.raises(GpuBusyError):
        node.create(ONE, 6, within_s=1)
    assert len(node.instances) == 1


def test_who_has_the_gpu_open_is_looked_up_after_the_last_try() -> None:
    """The search takes up to a second: it does not run when a creation works at once or after a wait."""
    node = Node(holders="open in Xorg (process 9)")
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use"), times=2)
    made = node.create(ONE, 6)
    assert node.looked_up == []
    node.backend.set_in_use(node.gpu, made.gi_id)
    with pytest.raises(GpuBusyError, match=r"cannot be removed, tried for 5 s: .*Xorg \(process 9\); the driver tries"):
        node.destroy(ONE, 6)
    assert node.looked_up == [node.gpu]


def test_the_watch_is_told_how_each_creation_ended(node: Node) -> None:
    """A refusal counts after all tries; other failures say nothing about who has the GPU open."""
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use"), times=1)
    node.create(ONE, 6)
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use"), times=0)
    with pytest.raises(GpuBusyError):
        node.create(ONE, 5)
    node.backend.clear_faults()
    with pytest.raises(NoRoomError):
        node.create(DOUBLE, 6)
    assert node.told == [("created", node.at(ONE, 6)), ("refused", node.at(ONE, 5))]


def test_only_some_creations_wait_long(node: Node) -> None:
    """A monitor has all GPUs of a node open: the other threads that prepare claims stay free for other claims."""
    node.backend.set_busy(node.gpu, "dcgm")
    ends: list[float] = []

    def one_more() -> None:
        """Begin another creation inside the first wait of the one before, as another thread does."""
        node.on_wait = one_more if len(ends) + LONG_WAITS > len(begun) else lambda: None
        begun.append(sum(node.waits))
        with pytest.raises(GpuBusyError):
            node.create(ONE, 6, within_s=30)
        ends.append(sum(node.waits) - begun.pop())

    begun: list[float] = []
    one_more()
    assert [round(took) for took in ends] == [5, 30, 30, 30, 30]
