"""The process dies between any two steps on hardware or notes; the next call restores a consistent state."""

from collections.abc import Callable

import pytest

from dra_driver.core.errors import DeviceLostError, GpuBusyError
from tests.unit.hardware.mig.conftest import ONE, THREE, TWO, Node, Stopped

Work = Callable[[Node], object]


def plain() -> Node:
    return Node()


def with_sibling() -> Node:
    node = Node()
    node.create(THREE, 0)
    return node


def with_foreign() -> Node:
    node = Node("1xa100-sxm4-40gb+mig")
    node.foreign(THREE, 0)
    return node


def with_partition(start: Callable[[], Node]) -> Callable[[], Node]:
    def node() -> Node:
        ready = start()
        ready.create(TWO, 4)
        return ready

    return node


def failing() -> Node:
    """A node on which creating the compute instance fails, so that the manager removes everything again."""
    node = Node()
    node.backend.fail_next("create_compute_instance", DeviceLostError("no"))
    return node


def create(node: Node) -> None:
    node.create(TWO, 4)


def create_fails(node: Node) -> None:
    with pytest.raises(DeviceLostError):
        node.create(TWO, 4)


def destroy(node: Node) -> None:
    node.destroy(TWO, 4)


def steps_of(start: Callable[[], Node], work: Work) -> tuple[int, int]:
    """The number of the first step of the work, and the number after its last step."""
    node = start()
    before = len(node.counter.steps)
    work(node)
    return before, len(node.counter.steps)


def cases() -> list[tuple[str, Callable[[], Node], Work, int]]:
    works: list[tuple[str, Callable[[], Node], Work]] = [
        ("create", plain, create),
        ("create beside an owned one", with_sibling, create),
        ("create beside a foreign one", with_foreign, create),
        ("create fails", failing, create_fails),
        ("destroy the last one", with_partition(plain), destroy),
        ("destroy beside an owned one", with_partition(with_sibling), destroy),
        ("destroy beside a foreign one", with_partition(with_foreign), destroy),
    ]
    found = []
    for name, start, work in works:
        first, last = steps_of(start, work)
        assert last - first >= 4, name
        found += [(name, start, work, at) for at in range(first, last)]
    return found


def killed(start: Callable[[], Node], work: Work, at: int) -> Node:
    """A node on which the process died instead of doing step ``at`` of the work."""
    node = start()
    node.counter.stop_at = at
    with pytest.raises(Stopped):
        work(node)
    node.counter.stop_at = None
    node.backend.clear_faults()
    return node


@pytest.mark.parametrize(("name", "start", "work", "at"), cases())
def test_destroy_after_any_death(name: str, start: Callable[[], Node], work: Work, at: int) -> None:
    node = killed(start, work, at)
    neighbours = tuple(one for one in node.instances if one.profile_id == THREE)
    destroy(node)
    assert node.instances == neighbours
    assert node.manager.find(node.at(TWO, 4)) is None
    own_mode = "foreign" not in name
    assert node.noted == (own_mode and bool(neighbours))
    assert node.mode == bool(neighbours)
    assert node.create(TWO, 4).device is not None
    assert node.noted == own_mode


def test_restore_mode_after_any_death() -> None:
    first, last = steps_of(plain, create)
    for at in range(first, last):
        node = killed(plain, create, at)
        if not node.instances:
            assert node.manager.restore_mode(node.gpu)
            assert node.untouched
        else:
            assert not node.manager.restore_mode(node.gpu)
            assert node.noted


def test_a_whole_gpu_after_any_death() -> None:

    def mode_left_on() -> Node:
        node = Node()
        node.create(ONE, 6)
        node.backend.set_busy(node.gpu, "dcgm")
        node.destroy(ONE, 6)
        node.backend.set_busy(node.gpu, None)
        return node

    def whole(node: Node) -> None:
        node.manager.ensure_whole(node.gpu, within_s=1)

    first, last = steps_of(mode_left_on, whole)
    for at in range(first, last):
        node = killed(mode_left_on, whole, at)
        whole(node)
        assert node.untouched


def test_ensure_whole_refuses_a_gpu_with_an_incomplete_instance() -> None:
    first, last = steps_of(plain, create)
    refused = 0
    for at in range(first, last):
        node = killed(plain, create, at)
        if node.instances:
            with pytest.raises(GpuBusyError):
                node.manager.ensure_whole(node.gpu, within_s=0)
            refused += 1
    assert refused >= 2
