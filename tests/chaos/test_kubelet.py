"""The kubelet restarts, calls twice, gives up waiting, or its folders are wiped."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos.stage import CUT, FaultRecord, Stage
from tests.fakes.kubelet import register
from tests.fakes.live_claims import partition
from tests.fakes.live_node import DRIVER, until

HARDWARE_S = 12.0  # how long the hardware takes, where the kubelet waits less


@pytest.mark.fault("kubelet-restart")
def test_a_kubelet_that_restarts_finds_everything(stage: Stage, fault: FaultRecord) -> None:
    until(stage.is_ready, "the first registration", 30.0)
    stage.node._close_channel()
    since = time.monotonic()
    stage.node.remove_slices()
    info = register(stage.node.registration)
    assert info.name == DRIVER
    stage.assert_intact()
    seen = stage.wait_logged("slice created", 30.0)
    stage.finish(fault, since, seen=seen)


@pytest.mark.fault("sockets-wiped")
def test_wiped_socket_folders_are_filled_again(stage: Stage, fault: FaultRecord) -> None:
    until(stage.is_ready, "the first registration", 30.0)
    registry = stage.node.folders.registry
    since = time.monotonic()
    for path in (*registry.iterdir(), stage.node.socket):
        path.unlink()
    until(lambda: list(registry.iterdir()) and stage.node.socket.exists(), "new sockets", 30.0)
    stage.node._close_channel()
    until(lambda: stage.node.is_serving, "the new socket to be served", 30.0)
    stage.assert_intact()
    stage.finish(fault, since, seen=stage.wait_logged("socket"))


@pytest.mark.fault("registry-removed")
def test_a_registry_folder_that_was_removed_is_used_again(stage: Stage, fault: FaultRecord) -> None:
    until(stage.is_ready, "the first registration", 30.0)
    registry = stage.node.folders.registry
    while registry.exists():  # the node process may bind a new socket before the directory is empty
        shutil.rmtree(registry, ignore_errors=True)
    time.sleep(3.0)
    stage.assert_intact()
    since = time.monotonic()
    registry.mkdir(exist_ok=True)
    until(lambda: list(registry.iterdir()), "a new socket", 30.0)
    stage.finish(fault, since, seen=stage.wait_logged("socket|registr"))


@pytest.mark.fault("called-twice")
def test_calls_that_overlap_are_one_prepare_and_one_unprepare(stage: Stage, fault: FaultRecord) -> None:
    claim = stage.scheduler.allocate_soon(partition("1g.10gb", of=[stage.node.gpus[CUT]]))
    since = time.monotonic()
    with ThreadPoolExecutor(4) as calls:
        answers = [each.result(60.0) for each in [calls.submit(stage.node.prepare, claim) for _ in range(4)]]
        assert {answer.error for answer in answers} == {""}
        assert len({str(answer.devices) for answer in answers}) == 1
        assert len(stage.node.instances()) == 2, "that of the stage, and one"
        errors = [each.result(60.0) for each in [calls.submit(stage.node.unprepare, claim) for _ in range(4)]]
    assert set(errors) == {""}
    stage.scheduler.release(claim)
    stage.finish(fault, since, seen="4 prepares at once: one partition, one answer; 4 unprepares at once: no error")


@pytest.mark.fault("deadline-passed")
def test_a_call_whose_deadline_passes_is_not_lost(stage: Stage, fault: FaultRecord) -> None:
    claim = stage.scheduler.allocate_soon(partition("1g.10gb", of=[stage.node.gpus[CUT]]))
    stage.node.hardware.fail_next("create_gpu_instance", delay_s=HARDWARE_S)
    since = time.monotonic() + HARDWARE_S
    seen = stage.prepare(claim, 8.0)
    assert seen, "the call cannot have succeeded"
    answer = stage.node.prepare(claim)
    assert answer.error == ""
    assert len(stage.node.instances()) == 2
    stage.drop(claim)
    stage.finish(fault, since, seen=f"the first call ends with {seen}; the repeated one gets the partition")
