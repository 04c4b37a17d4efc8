"""Claims for whole GPUs of boards with NVSwitches: waiting for Fabric Manager."""

import pytest

from dra_driver.core.errors import DeviceLostError, FabricNotReadyError
from dra_driver.core.model.fabric import Fabric, FabricState
from tests.fakes.claims import FakeClock, claim, ref, result, uid
from tests.unit.node.claims.conftest import SMALL, Run, hardware

NOT_STARTED, IN_PROGRESS, COMPLETED = (Fabric(state=state) for state in FabricState)
FAILED = Fabric(state=FabricState.COMPLETED, status=3)


@pytest.fixture
def board(h100: Run) -> Run:
    """A node whose GPUs are registered in the fabric."""
    for gpu in h100.node.gpus:
        hardware(h100).set_fabric(gpu.uuid, COMPLETED)
    return h100


def waited_s(run: Run) -> float:
    return run.node.clock.now() - FakeClock().now()


def set_fabric(run: Run, fabric: Fabric, after_mig: Fabric | None = None) -> None:
    hardware(run).set_fabric(run.node.gpus[0].uuid, fabric, after_mig=after_mig)


def test_a_whole_gpu_waits_for_the_fabric(board: Run) -> None:
    """CUDA fails with 802 until it is ready; a prepare that fails costs the pod more than a minute."""
    set_fabric(board, NOT_STARTED)
    board.node.clock.after(1.0, lambda: set_fabric(board, IN_PROGRESS))
    board.node.clock.after(5.0, lambda: set_fabric(board, COMPLETED))
    board.prepare(claim(1))
    assert 5.0 <= waited_s(board) < 7.0
    assert board.journal.entry(uid(1)) is not None


def test_the_wait_is_limited(board: Run) -> None:
    set_fabric(board, IN_PROGRESS)
    error = board.refusal(claim(1))
    assert isinstance(error, FabricNotReadyError)
    assert "NVLink fabric" in str(error)
    assert "probe in progress" in str(error)
    assert "802" in str(error)
    assert "nvidia-fabricmanager" in str(error)
    assert 28.0 <= waited_s(board) <= 32.0
    assert board.journal.entries() == ()
    assert board.node.writer.files == {}


@pytest.mark.parametrize(
    ("fabric", "device"),
    [
        (IN_PROGRESS, "gpu-1"),
        (NOT_STARTED, None),  # a partition, which does not use NVLink
        (FAILED, "gpu-0"),  # CUDA works on the GPU alone; a taint keeps new claims away
    ],
    ids=["another GPU", "partition", "failed probe"],
)
def test_a_claim_that_does_not_need_the_probe_does_not_wait(board: Run, fabric: Fabric, device: str | None) -> None:
    set_fabric(board, fabric)
    board.prepare(claim(1, result(device or board.node.part(SMALL, 0))))
    assert waited_s(board) == 0


def test_a_snapshot_from_before_the_last_partition_is_not_believed(board: Run) -> None:
    board.prepare(claim(1, result(board.node.part(SMALL, 0))))
    old = board.deps.snapshot()
    assert old.gpus[0].fabric == COMPLETED
    assert board.unprepare(ref(1)) is None
    set_fabric(board, IN_PROGRESS)
    board.node.outdated = old
    board.node.clock.after(2.0, lambda: set_fabric(board, COMPLETED))
    board.prepare(claim(2))
    assert 2.0 <= waited_s(board) < 4.0


def test_a_leftover_mig_mode_is_switched_off_before_the_fabric_is_looked_at(board: Run) -> None:
    board.prepare(claim(1, result(board.node.part(SMALL, 0))))
    gpu = board.node.gpus[0].uuid
    hardware(board).set_busy(gpu, "dcgm")
    assert board.unprepare(ref(1)) is None
    assert board.node.gpus[0].mig_enabled
    set_fabric(board, IN_PROGRESS)
    hardware(board).set_busy(gpu, None)
    assert isinstance(board.refusal(claim(2)), FabricNotReadyError)
    assert not board.node.gpus[0].mig_enabled
    set_fabric(board, COMPLETED)
    board.prepare(claim(2))


def test_a_fabric_that_cannot_be_read_now_counts_as_last_seen(board: Run) -> None:
    """Trouble with one NVML call neither refuses nor lets through."""
    hardware(board).fail_next("fabric", DeviceLostError("timeout"), times=0)
    set_fabric(board, IN_PROGRESS)
    assert isinstance(board.refusal(claim(1)), FabricNotReadyError)
    set_fabric(board, COMPLETED)
    board.prepare(claim(1))


@pytest.mark.parametrize("fabric", [None, COMPLETED], ids=["no NVSwitches", "ready"])
def test_a_gpu_with_nothing_to_wait_for_is_not_asked(h100: Run, fabric: Fabric | None) -> None:
    """The hot path makes no call to the hardware: the snapshot is enough for a GPU that was not divided."""
    if fabric is not None:
        set_fabric(h100, fabric)
    hardware(h100).fail_next("fabric", DeviceLostError("asked"), times=1)
    h100.prepare(claim(1))
    with pytest.raises(DeviceLostError, match="asked"):
        hardware(h100).fabric(h100.node.gpus[0].uuid)


def test_a_short_call_ends_with_the_reason_that_it_waited_for(board: Run) -> None:
    """A wait ends a moment late, so the last moment has no time for a try, whose error would say only that."""
    set_fabric(board, IN_PROGRESS)
    wait = board.node.clock.wait
    board.node.clock.wait = lambda seconds: wait(seconds + 0.001)  # type: ignore[method-assign]
    of = board.node.api.put(claim(1)).ref
    assert isinstance(board.service.prepare([of], within_s=8.0)[of.uid], FabricNotReadyError)
