"""Creating and destroying partitions on hardware that works, fails, or is used by other programs."""

import pytest

from dra_driver.core.errors import (
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    HardwareError,
    MigUnsupportedError,
    NoRoomError,
    ResetRequiredError,
    StorageError,
)
from dra_driver.hardware.mig.manager import LONG_WAITS, MigManager
from tests.harness.raising import fails
from tests.unit.hardware.mig.conftest import ALL, DOUBLE, FOUR, ONE, THREE, TWO, Node


def test_create_returns_the_device_and_destroy_leaves_nothing(node: Node) -> None:
    made = node.create(TWO, 4)
    assert made == node.manager.find(node.at(TWO, 4)) == node.instances[0]
    assert made.device is not None
    assert (made.start, made.size, made.profile_name) == (4, 2, "2g.20gb")
    node.destroy(TWO, 4)
    assert node.untouched


def test_the_note_is_on_disk_before_the_mode_is_on(node: Node) -> None:
    """A mode that is on without a note counts as an administrator's and would stay on for ever."""
    node.create(ONE, 6)
    steps = node.counter.steps
    assert steps.index("set_gpu_note") < steps.index("set_mig_mode") < steps.index("create_gpu_instance")
    node.destroy(ONE, 6)
    assert steps[-2:] == ["set_mig_mode", "clear_gpu_note"]


def test_an_administrators_mode_is_left_on() -> None:
    node = Node("1xa100-sxm4-40gb+mig")
    node.create(FOUR, 0)
    node.destroy(FOUR, 0)
    assert node.mode
    assert not node.noted
    assert node.notes.log == []


def test_foreign_instances_keep_the_mode_on(node: Node) -> None:
    node.create(ONE, 6)
    foreign = node.foreign(TWO, 0, "none")
    node.destroy(ONE, 6)
    assert node.instances == (foreign,)
    assert not node.manager.restore_mode(node.gpu)
    node.backend.foreign_destroy(node.gpu, foreign.gi_id)
    assert node.manager.restore_mode(node.gpu)
    assert node.untouched


@pytest.mark.parametrize("compute", ["full", "partial", "none"])
def test_a_foreign_instance_is_never_taken_over(compute: str) -> None:
    node = Node("1xh100-sxm5-80gb+mig")
    foreign = node.foreign(THREE, 4, compute)
    with fails(NoRoomError, "PlacementTaken", match=r"GPU instance 2 \(3g\.40gb at memory slices 4-7\)"):
        node.create(THREE, 4)
    assert node.instances == (foreign,)
    assert node.mode


def test_overlap_is_refused_by_name() -> None:
    node = Node("1xh100-sxm5-80gb+mig")
    foreign = node.foreign(ONE, 2)
    with pytest.raises(NoRoomError, match=r"memory slices 0 to 3, .* taken by GPU instance 9 \(1g.10gb at"):
        node.create(FOUR, 0)
    assert node.instances == (foreign,)


def test_engines_are_refused_by_the_hardware(node: Node) -> None:
    node.manager.create(node.at(20, 6), 1, within_s=1)
    with pytest.raises(NoRoomError, match="at most 1"):
        node.manager.create(node.at(20, 0), 1, within_s=1)
    assert len(node.instances) == 1
    node.destroy(20, 6)
    assert node.untouched


@pytest.mark.parametrize(
    ("spec", "profile_id", "start", "error"),
    [
        ("1xh100-sxm5-80gb", 77, 0, MigUnsupportedError),
        ("1xh100-sxm5-80gb", TWO, 6, MigUnsupportedError),
        ("1xa100-sxm4-80gb", TWO, 0, ResetRequiredError),
        ("1xl4-24gb", TWO, 0, MigUnsupportedError),
    ],
)
def test_what_the_gpu_cannot_do_leaves_nothing(
    spec: str, profile_id: int, start: int, error: type[HardwareError]
) -> None:
    node = Node(spec)
    with pytest.raises(error):
        node.manager.create(node.at(profile_id, start), 2, within_s=1)
    assert node.waits == []
    assert not node.noted
    assert not node.backend.snapshot().gpus[0].mig_enabled


def test_a_failed_compute_instance_takes_the_gpu_instance_with_it(node: Node) -> None:
    node.backend.fail_next("create_compute_instance", DeviceLostError("injected-1"))
    with pytest.raises(DeviceLostError, match="injected-1") as caught:
        node.create(ALL, 0)
    assert node.untouched
    assert not caught.value.left_over


@pytest.mark.parametrize("method", ["create_gpu_instance", "create_compute_instance"])
def test_an_error_after_the_work_was_done_leaves_nothing(node: Node, method: str) -> None:
    node.backend.fail_next(method, DriverUnavailableError("answer lost"), after=True)
    with pytest.raises(DriverUnavailableError, match="answer lost"):
        node.create(TWO, 4)
    assert node.untouched


def test_an_instance_that_cannot_be_removed_is_marked(node: Node) -> None:
    node.backend.fail_next("create_compute_instance", NoRoomError("no compute"))
    node.backend.fail_next("destroy_gpu_instance", GpuBusyError("a monitor looks at it"), times=0)
    with fails(NoRoomError, match="no compute") as caught:
        node.create(TWO, 4)
    assert caught.value.left_over
    assert sum(node.waits) == pytest.approx(2.0)
    assert node.noted
    node.backend.clear_faults()
    node.destroy(TWO, 4)
    assert node.untouched


def test_an_unreadable_gpu_counts_as_left_over(node: Node) -> None:
    """Whether the instance exists is unknown, so the caller must keep its record."""
    node.backend.fail_next("create_compute_instance", DeviceLostError("fell off the bus"))
    node.backend.fail_next("mig_instances", DeviceLostError("fell off the bus"), skip=1, times=3)
    with pytest.raises(DeviceLostError) as caught:
        node.create(TWO, 4)
    assert caught.value.left_over


def test_a_partition_that_is_not_listed_is_an_error(node: Node) -> None:
    make = node.backend.create_compute_instance

    class Vanishing:
        def __getattr__(self, name: str) -> object:
            return getattr(node.backend, name)

        def create_compute_instance(self, gpu: str, gi_id: int) -> object:
            made = make(node.gpu, gi_id)
            node.backend.foreign_destroy(node.gpu, gi_id)
            return made

    node.manager = MigManager(Vanishing(), node.notes)  # type: ignore[arg-type]
    with fails(DeviceLostError, "InstanceNotListed", match="GPU instance 4"):
        node.create(TWO, 2)
    assert node.untouched


def test_destroying_a_partition_that_is_partly_gone(node: Node) -> None:
    made = node.create(TWO, 2)
    node.backend.destroy_compute_instance(node.gpu, made.gi_id, 0)
    node.destroy(TWO, 2)
    assert node.untouched
    node.destroy(TWO, 2)
    made = node.create(TWO, 2)
    node.backend.foreign_destroy(node.gpu, made.gi_id)
    node.destroy(TWO, 2)
    assert node.untouched
    made = node.create(TWO, 2)
    node.backend.foreign_destroy(node.gpu, made.gi_id)
    node.backend.foreign_mig_mode(node.gpu, False)
    node.destroy(TWO, 2)
    assert node.untouched


@pytest.mark.parametrize(("profile", "compute", "left"), [(TWO, "partial", 0), (DOUBLE, "full", 1)])
def test_destroy_removes_unusual_compute_instances_and_no_other_profile(profile: int, compute: str, left: int) -> None:
    node = Node("1xh100-sxm5-80gb+mig")
    node.foreign(profile, 2, compute)
    node.destroy(TWO, 2)
    assert len(node.instances) == left


def test_without_mig_there_is_nothing_to_remove() -> None:
    node = Node("1xl4-24gb")
    node.notes.values[node.gpu, "mig-mode"] = "on"
    assert node.manager.find(node.at(ONE, 0)) is None
    node.destroy(ONE, 0)
    assert not node.noted
    node.manager.ensure_whole(node.gpu, within_s=1)


def test_a_busy_gpu_is_waited_for(node: Node) -> None:
    node.backend.set_busy(node.gpu, "dcgm")
    node.on_wait = lambda: node.backend.set_busy(node.gpu, None) if len(node.waits) == 3 else None
    assert node.create(ONE, 6).device is not None
    assert node.waits == [0.1, 0.2, 0.4]


def test_a_gpu_that_stays_busy_is_an_error_at_the_limit(node: Node) -> None:
    node.backend.set_busy(node.gpu, "dcgm")
    with fails(GpuBusyError, match="5 s: .* dcgm; .*dcgm-exporter"):
        node.create(ONE, 6)
    assert sum(node.waits) == pytest.approx(5.0)
    assert max(node.waits) == 1.0
    assert node.untouched
    node.waits.clear()
    with pytest.raises(GpuBusyError):
        node.create(ONE, 6, within_s=-1)
    assert node.waits == [], "no time is one attempt"


def test_a_partition_in_use_is_not_destroyed(node: Node) -> None:
    made = node.create(TWO, 4)
    node.backend.set_in_use(node.gpu, made.gi_id)
    with fails(GpuBusyError, match=r"2g\.20gb at memory slices 4-5.* 5 s: .*fuser"):
        node.destroy(TWO, 4)
    assert node.instances == (made,)
    node.backend.set_in_use(node.gpu, made.gi_id, False)
    node.destroy(TWO, 4)
    assert node.untouched


def test_a_mode_that_cannot_be_switched_off_does_not_fail_a_destroy(node: Node) -> None:
    """destroy succeeds because the partition is gone; the note stays for the next restore_mode."""
    node.create(ONE, 6)
    node.backend.set_busy(node.gpu, "dcgm")
    node.destroy(ONE, 6)
    assert node.instances == ()
    assert node.noted
    assert not node.manager.restore_mode(node.gpu)
    node.backend.set_busy(node.gpu, None)
    assert node.manager.restore_mode(node.gpu)
    assert node.untouched


def test_a_lost_gpu_does_not_undo_a_destroy(node: Node) -> None:
    node.create(ONE, 6)
    node.backend.fail_next("mig_mode", DeviceLostError("fell off the bus"), times=2)
    node.destroy(ONE, 6)
    assert node.noted
    with pytest.raises(DeviceLostError):
        node.manager.restore_mode(node.gpu)


def test_a_full_disk_keeps_the_mode_off(node: Node) -> None:
    node.notes.full = True
    with pytest.raises(StorageError):
        node.create(ONE, 6)
    assert node.untouched


def test_ensure_whole_switches_an_owned_mode_off(node: Node) -> None:
    node.create(ONE, 6)
    node.backend.set_busy(node.gpu, "dcgm")
    node.destroy(ONE, 6)
    node.on_wait = lambda: node.backend.set_busy(node.gpu, None)
    node.manager.ensure_whole(node.gpu, within_s=2)
    assert node.untouched
    before = node.counter.steps.count("set_mig_mode")
    node.manager.ensure_whole(node.gpu, within_s=2)
    assert node.counter.steps.count("set_mig_mode") == before


def test_ensure_whole_refuses_a_gpu_with_instances(node: Node) -> None:
    node.create(ONE, 6)
    with pytest.raises(GpuBusyError, match=r"it still has GPU instance 13 \(1g.10gb at memory slices 6-6\)"):
        node.manager.ensure_whole(node.gpu, within_s=5)
    assert node.waits == []


def test_ensure_whole_leaves_an_administrators_mode() -> None:
    node = Node("1xh100-sxm5-80gb+mig")
    with fails(GpuBusyError, "MigModeForeign", match="-mig 0"):
        node.manager.ensure_whole(node.gpu, within_s=5)
    assert node.mode


def test_ensure_whole_gives_up_at_the_limit(node: Node) -> None:
    node.create(ONE, 6)
    node.backend.set_busy(node.gpu, "nv-hostengine")
    node.destroy(ONE, 6)
    with fails(GpuBusyError, match="2 s: .*nv-hostengine"):
        node.manager.ensure_whole(node.gpu, within_s=2)
    assert node.noted


def test_a_stale_note_is_cleared(node: Node) -> None:
    node.notes.values[node.gpu, "mig-mode"] = "on"
    assert node.manager.restore_mode(node.gpu)
    assert node.untouched
    assert node.manager.restore_mode(node.gpu)


def test_a_first_instance_that_is_refused_is_tried_again(node: Node) -> None:
    """The driver refuses a GPU's first instance while a monitor uses it, although the mode could be switched."""
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use by another client"), times=3)
    node.backend.fail_next("create_compute_instance", GpuBusyError("in use"), times=1)
    assert node.create(ONE, 6).device is not None
    assert node.waits == [0.1, 0.2, 0.4, 0.1]
    assert node.counter.steps.count("set_mig_mode") == 1, "the mode stays on between the tries"


def test_a_creation_that_stays_refused_is_an_error_at_the_limit() -> None:
    node = Node(holders="open in nv-hostengine (process 4711); nv-hostengine: stop DCGM on this node")
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use by another client"), times=0)
    with fails(GpuBusyError, match=r"slice 6 of GPU-\S+ .* 5 s: .*nv-hostengine \(process 4711\)"):
        node.create(ONE, 6)
    assert sum(node.waits) == pytest.approx(5.0)
    assert node.untouched


def test_a_refused_creation_leaves_what_appears_meanwhile(node: Node) -> None:
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use"), times=0)

    def other_program() -> None:
        if not node.instances:
            node.foreign(ONE, 6, "none")

    node.on_wait = other_program
    with pytest.raises(GpuBusyError):
        node.create(ONE, 6, within_s=1)
    assert len(node.instances) == 1


def test_who_has_the_gpu_open_is_looked_up_after_the_last_try() -> None:
    node = Node(holders="open in Xorg (process 9)")
    node.backend.fail_next("create_gpu_instance", GpuBusyError("in use"), times=2)
    made = node.create(ONE, 6)
    assert node.looked_up == []
    node.backend.set_in_use(node.gpu, made.gi_id)
    with fails(GpuBusyError, match=r"5 s: .*Xorg \(process 9\)"):
        node.destroy(ONE, 6)
    assert node.looked_up == [node.gpu]


def test_the_watch_is_told_how_each_creation_ended(node: Node) -> None:
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
        node.on_wait = one_more if len(ends) + LONG_WAITS > len(begun) else lambda: None
        begun.append(sum(node.waits))
        with pytest.raises(GpuBusyError):
            node.create(ONE, 6, within_s=30)
        ends.append(sum(node.waits) - begun.pop())

    begun: list[float] = []
    one_more()
    assert [round(took) for took in ends] == [5, 30, 30, 30, 30]
