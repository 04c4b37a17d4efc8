"""GPUs that cannot be used for a while: one that a monitor keeps open, and one that is not ready in the NVLink fabric.

A real node process with simulated GPUs; the allocator of the scheduler sees what it publishes.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.core.errors import GpuBusyError
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.sim.apiserver.kinds import EVENTS
from tests.fakes.live_claims import Scheduler, gpu, partition
from tests.fakes.live_node import LiveNode, until

SMALL = "1g.10gb"
SHORT_CALL_S = 8.0
"""The deadline of a kubelet's call that has little time left for waiting: the driver keeps some for its answer."""
REFUSED, FABRIC = "gpu.dra-driver.io/creation-refused", "gpu.dra-driver.io/fabric-not-ready"
NOT_STARTED, IN_PROGRESS, COMPLETED = (Fabric(state=state) for state in FabricState)


def tainted(node: LiveNode, key: str) -> set[str]:
    devices = [device for item in node.slices() for device in item["spec"].get("devices") or ()]
    return {each["name"] for each in devices if any(taint["key"] == key for taint in each.get("taints") or ())}


def published(node: LiveNode, minor: int) -> set[str]:
    devices = [device["name"] for item in node.slices() for device in item["spec"].get("devices") or ()]
    return {name for name in devices if name == f"gpu-{minor}" or name.startswith(f"gpu-{minor}-")}


def event(node: LiveNode, reason: str) -> str:
    """The message of the Node's event, '' without one."""
    found = [item for item in node.store.list(EVENTS).items if item["reason"] == reason]
    assert all(item["involvedObject"]["name"] == node.name for item in found)
    return str(found[0]["message"]) if found else ""


@pytest.fixture
def node() -> Iterator[LiveNode]:
    with LiveNode("2xh100-sxm5-80gb") as running:
        yield running


def test_new_claims_avoid_a_gpu_that_a_monitor_keeps_from_being_cut(node: LiveNode) -> None:
    """Three refusals withhold its partitions; the claims that wait for some get them when the monitor has gone."""
    scheduler, (busy, free) = Scheduler(node), node.gpus
    node.hardware.set_busy_on_create(busy, "dcgm-exporter")
    waiting = [scheduler.allocate_soon(partition(SMALL, of=[busy])) for _ in range(3)]
    for claim in waiting:
        error = node.prepare(claim, timeout_s=SHORT_CALL_S).error
        assert "cannot be created, tried for" in error
        assert "in use by dcgm-exporter" in error
    assert node.leftovers() == []

    until(lambda: tainted(node, REFUSED), "the taint of partitions")
    assert tainted(node, REFUSED) == published(node, 0) - {"gpu-0"}
    until(lambda: event(node, "PartitionsWithheld"), "an event")
    assert "partitions of gpu-0 that do not exist yet are withheld" in event(node, "PartitionsWithheld")
    assert "dcgm-exporter" in event(node, "PartitionsWithheld")
    assert scheduler.allocate(gpu(of=[busy])) is None, "claims that wait for partitions have their part of the GPU"
    other = scheduler.allocate_soon(partition(SMALL))
    assert other["devices"][0].startswith("gpu-1-mig-")
    assert node.prepare(other).error == ""
    assert free in {uuid for uuid, *_ in node.instances()}

    node.hardware.set_busy_on_create(busy, None)
    for claim in waiting:
        assert node.prepare(claim).error == ""
    until(lambda: not tainted(node, REFUSED), "the taint to go")
    for claim in (*waiting, other):
        assert node.unprepare(claim) == ""
    assert node.leftovers() == []


@pytest.mark.slow
def test_a_partition_that_exists_stays_open_to_claims(node: LiveNode) -> None:
    scheduler, (busy, _) = Scheduler(node), node.gpus
    first = scheduler.allocate_soon(partition(SMALL, of=[busy]))
    assert node.prepare(first).error == ""
    node.hardware.fail_next("create_gpu_instance", GpuBusyError("in use by another client"), gpu=busy, times=0)
    for _ in range(3):
        second = scheduler.allocate_soon(partition(SMALL, of=[busy]))
        assert "cannot be created" in node.prepare(second, timeout_s=SHORT_CALL_S).error
    until(lambda: tainted(node, REFUSED), "the taint of partitions")
    assert first["devices"][0] not in tainted(node, REFUSED)
    assert first["devices"][0] in published(node, 0)
    assert node.prepare(first).error == ""


def test_gpus_wait_for_fabric_manager_at_the_start_and_after_mig(tmp_path: Path) -> None:
    """Not registered: tainted. Registered: given out. Probed again after a partition: waited for."""
    spec = tmp_path / "gpus.yaml"
    spec.write_text("gpus:\n- {model: h100-sxm5-80gb, fabric: not started}\n- {model: h100-sxm5-80gb}\n")
    with LiveNode(str(spec)) as node:
        scheduler, (first, _) = Scheduler(node), node.gpus
        assert tainted(node, FABRIC) == {"gpu-0"}
        until(lambda: event(node, "FabricNotReady"), "an event")
        assert "probe not started" in event(node, "FabricNotReady")
        other = scheduler.allocate_soon(gpu())
        assert other["devices"] == ["gpu-1"]
        assert node.prepare(other).error == ""
        part = scheduler.allocate_soon(partition(SMALL, of=[first]))
        assert node.prepare(part).error == "", "partitions do not use the fabric"

        node.hardware.set_fabric(first, COMPLETED, after_mig=IN_PROGRESS)
        until(lambda: not tainted(node, FABRIC), "the taint to go")
        assert node.unprepare(part) == ""
        scheduler.release(part)
        assert node.hardware.fabric(first) == IN_PROGRESS
        whole = scheduler.allocate_soon(gpu())
        assert whole["devices"] == ["gpu-0"], "a probe of some seconds changes no slices"
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(node.prepare, whole)
            time.sleep(1.0)
            assert not call.done()
            node.hardware.set_fabric(first, COMPLETED)
            assert call.result().error == ""
        for claim in (whole, other):
            assert node.unprepare(claim) == ""
        assert node.leftovers() == []
