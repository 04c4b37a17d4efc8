"""Claims for whole GPUs: prepared together the short way, and waiting for Fabric Manager on boards with NVSwitches."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ClaimReplacedError,
    DeviceInUseError,
    DeviceLostError,
    DriverUnavailableError,
    FabricNotReadyError,
    StorageError,
    UnknownDeviceError,
)
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.model.mig import PartitionId
from dra_driver.hardware.cdi.spec import CdiSpec
from dra_driver.hardware.gpu.backend import MIG_MODE
from dra_driver.node.claims.entry import AssignedDevice, AssignedPartition, AttemptToken, State
from dra_driver.node.claims.journal import Journal
from tests.fakes.claims import FakeClock, claim, gpu, ref, result, uid
from tests.harness.raising import fails
from tests.unit.node.claims.conftest import SMALL, ClaimsNode, Run, hardware
from tests.unit.node.claims.test_journal import assigned

FULL = StorageError("the disk is full")


class Statements:
    """The SQL statements of a journal."""

    def __init__(self, run: Run) -> None:
        self.seen: list[str] = []
        run.journal._connection.set_trace_callback(self.seen.append)

    def count(self, what: str) -> int:
        return sum(statement.startswith(what) for statement in self.seen)


def test_all_claims_of_a_call_share_one_transaction(run: Run) -> None:
    refs = [run.node.api.put(claim(number, result(f"gpu-{number}"))).ref for number in range(4)]
    statements = Statements(run)
    answers = run.service.prepare(refs)
    assert all(isinstance(answers[of.uid], tuple) for of in refs)
    assert statements.count("COMMIT") == 1
    assert set(run.node.writer.files) == {of.uid for of in refs}
    assert set(run.service.unprepare(refs).values()) == {None}
    assert statements.count("COMMIT") == 2
    assert run.node.writer.files == {}
    assert run.journal.uids() == set()


def test_each_claim_of_a_call_gets_its_own_answer(run: Run) -> None:
    api = run.node.api
    repeated = run.prepare(claim(1, result("gpu-1")))
    for number, device in ((2, "gpu-2"), (3, "gpu-2"), (4, "gpu-3"), (6, "gpu-9")):
        api.put(claim(number, result(device)))
    answers = run.service.prepare([ref(number) for number in (1, 2, 3, 4, 5, 6)])
    assert answers[uid(1)] == repeated
    assert isinstance(answers[uid(2)], tuple)
    assert isinstance(answers[uid(3)], DeviceInUseError), "the same call has given its device to claim 2"
    assert isinstance(answers[uid(4)], tuple)
    assert isinstance(answers[uid(5)], ClaimReplacedError)
    assert isinstance(answers[uid(6)], UnknownDeviceError)
    assert run.journal.uids() == {uid(1), uid(2), uid(4)} == set(run.node.writer.files)


@pytest.mark.parametrize("failure", [None, DriverUnavailableError("no driver")])
def test_the_base_document_is_checked_while_the_api_server_reads(
    run: Run, failure: DriverUnavailableError | None
) -> None:
    """Each answer is received, also after a failure: its connection is used again."""
    run.node.api.put(claim(1))
    order: list[str] = []
    ask, ensure = run.node.api.ask_all, run.node.provider.ensure_base

    def asked(*args: Any, **options: Any) -> Any:
        receive = ask(*args, **options)
        order.append("sent")

        def received() -> Any:
            order.append("received")
            return receive()

        return received

    def ensured() -> bool:
        order.append("checked")
        return ensure()

    run.node.provider.failure = failure
    run.node.api.ask_all = asked  # type: ignore[method-assign]
    run.node.provider.ensure_base = ensured  # type: ignore[method-assign]
    assert isinstance(run.answer(ref(1)), tuple if failure is None else DriverUnavailableError)
    assert order[:3] == ["sent", "checked", "received"]


def test_a_claim_that_was_read_is_not_read_again_the_long_way(run: Run) -> None:
    """A cluster of partitions and shares must not ask the API server twice for each claim."""
    run.node.api.put(claim(1, result("gpu-1")))
    run.prepare(claim(2, result("gpu-1", admin_access=True)))
    before = run.node.api.reads
    run.journal.set_gpu_note(gpu(1).uuid, MIG_MODE, "on")
    run.node.clock.wait(0.1)
    run.answer(ref(1))
    assert run.node.api.reads == before + 1


def test_a_claim_whose_turn_comes_late_is_read_again(node: ClaimsNode) -> None:
    """Its pod may have ended meanwhile, and the scheduler may have given the claim another device."""

    def slow(_: Run, of: str) -> None:
        if of == uid(1):
            node.clock.wait(5.0)
            node.api.put(claim(2, result("gpu-3")))

    run = with_writes(node, slow)
    for number in (1, 2):
        node.api.put(claim(number, result(f"gpu-{number}")))
        run.journal.begin(ref(10 + number), [whole(number)])  # an attempt that did not end: not for the short way
    answers = run.service.prepare([ref(1), ref(2)])
    assert [answers[uid(number)][0].device for number in (1, 2)] == ["gpu-1", "gpu-3"]  # type: ignore[index]


def test_a_claim_whose_file_alone_fails_is_undone(node: ClaimsNode) -> None:
    def fails(_: Run, of: str) -> None:
        raise FULL

    run = with_writes(node, fails)
    assert isinstance(run.refusal(claim(1)), StorageError)
    assert run.journal.uids() == set()
    assert node.writer.files == {}


def test_no_other_process_changes_the_journal_while_files_are_written(node: ClaimsNode) -> None:
    """Another process would remove the files of a claim that has no entry yet, and its container could not start."""
    refused: list[str] = []

    def begin_elsewhere(_: Run, of: str) -> None:
        with closing(sqlite3.connect(node.folder / "state.db", timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                refused.append(of)

    run = with_writes(node, begin_elsewhere)
    run.prepare(claim(1))
    assert refused == [uid(1)]


def with_writes(node: ClaimsNode, before: Callable[[Run, str], None]) -> Run:
    """A run that calls ``before`` at each write of a claim's file."""
    run = node.run()
    write = node.writer.write_claim

    def wrapped(of: str, spec: CdiSpec) -> bool:
        before(run, of)
        return write(of, spec)

    node.writer.write_claim = wrapped  # type: ignore[method-assign]
    return run


def whole(minor: int, *, device: str | None = None, admin: bool = False) -> AssignedDevice:
    return replace(assigned(minor, admin=admin), device=DeviceName(device or f"gpu-{minor}"))


def partition(minor: int) -> AssignedDevice:
    return replace(
        whole(minor, device=f"gpu-{minor}-mig-19-0"),
        partition=AssignedPartition(
            id=PartitionId(gpu(minor).uuid, 19, 0), profile_name="1g.10gb", size=1, created_by_driver=True
        ),
    )


STANDING: dict[str, Callable[[Journal], object]] = {
    "the claim has an entry": lambda journal: journal.begin(ref(1), [whole(3)]),
    "a claim has the GPU": lambda journal: journal.begin(ref(2), [whole(0, device="gpu-7")]),
    "a claim has the name": lambda journal: journal.begin(ref(2), [whole(3, device="gpu-0")]),
    "the GPU has a note": lambda journal: journal.set_gpu_note(gpu(0).uuid, MIG_MODE, "on"),
    "the GPU is cut for a claim": lambda journal: journal.begin(ref(2), [partition(0)]),
    "the GPU has a partition without a claim": lambda journal: orphan(journal, 2),
    "a partition of the claim is left": lambda journal: orphan(journal, 1, minor=2),
}


def orphan(journal: Journal, number: int, minor: int = 0) -> None:
    attempt = journal.begin(ref(number), [partition(minor)])
    assert isinstance(attempt, AttemptToken)
    assert journal.forget(uid(number), attempt, partitions_left=True)


@pytest.mark.parametrize("standing", STANDING)
def test_what_stands_against_a_claim_leaves_it_to_the_long_way(run: Run, standing: str) -> None:
    """The short way resolves nothing: it must see every reason why the long one would not simply go on."""
    STANDING[standing](run.journal)
    before = run.journal.uids()
    written: list[str] = []
    found = run.journal.record_prepared([(ref(1), [whole(0)]), (ref(9), [whole(1)])], written.append)
    assert found == {uid(9)} == set(written)
    assert run.journal.uids() == before | {uid(9)}


def test_admin_access_stands_against_nothing(run: Run) -> None:
    claims = [(ref(1), [whole(0)]), (ref(2), [whole(0, admin=True)]), (ref(3), [whole(0, admin=True)])]
    assert run.journal.record_prepared(claims, lambda _: None) == {uid(1), uid(2), uid(3)}


def test_no_claim_is_new_while_a_rebuild_is_pending(node: ClaimsNode) -> None:
    node.api.outage = ApiUnreachableError("down")
    node.writer.files[uid(5)] = b"{}"
    run = node.run()
    assert run.journal.rebuild_pending
    assert run.journal.unrecorded([uid(1)]) == frozenset()


def test_nothing_is_recorded_in_a_file_that_was_removed(run: Run) -> None:
    """Another process may use the file that is in its place: two claims would get one GPU."""
    (run.node.folder / "state.db").unlink()
    with fails(StorageError, "JournalReplaced"):
        run.journal.record_prepared([(ref(1), [whole(0)])], lambda _: None)


def test_only_prepared_claims_for_whole_gpus_are_forgotten_at_once(run: Run) -> None:
    assert isinstance(run.journal.begin(ref(1), [whole(0)]), AttemptToken)
    assert run.journal.adopt(ref(2), [partition(1)]) is None
    assert run.journal.adopt(ref(3), [whole(2)]) is None
    removed: list[str] = []
    gone = run.journal.forget_prepared([uid(number) for number in (1, 2, 3, 4)], removed.append)
    assert gone == {uid(3)}
    assert removed == [uid(3)]
    assert run.journal.uids() == {uid(1), uid(2)}


@pytest.mark.parametrize("failure", ["file", "transaction"])
def test_an_unprepare_that_fails_leaves_the_claim_prepared(run: Run, failure: str) -> None:
    run.prepare(claim(1))
    if failure == "file":
        run.node.writer.failure = FULL
        assert isinstance(run.unprepare(ref(1)), StorageError)
        run.node.writer.failure = None
    else:
        gone = run.journal.forget_prepared([uid(1)], _failing)
        assert gone == frozenset()
        assert run.entry(1).state is State.PREPARED
    assert run.unprepare(ref(1)) is None


def _failing(_: Any) -> None:
    raise FULL


def test_a_claim_that_another_call_works_on_waits_without_the_others(run: Run) -> None:
    """Two calls whose claims overlap cannot wait for each other: only free claims are taken together."""
    first, second = (run.node.api.put(claim(number, result(f"gpu-{number}"))).ref for number in (1, 2))
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with run.deps.locks.acquire(first.uid, 1.0):
            inside.set()
            done.wait(5)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(5)
    original = run.deps.writer.write_claim

    def written(of: str, spec: CdiSpec) -> bool:
        done.set()  # only now the first claim is free: the second was prepared before
        return original(of, spec)

    run.node.writer.write_claim = written  # type: ignore[method-assign]
    answers = run.service.prepare([first, second])
    holder.join(5)
    assert [type(answers[of.uid]) for of in (first, second)] == [tuple, tuple]


NOT_STARTED, IN_PROGRESS, COMPLETED = (Fabric(state=state) for state in FabricState)
FAILED = Fabric(state=FabricState.COMPLETED, status=3)


@pytest.fixture
def board(h100: Run) -> Run:
    """A node whose GPUs are registered in the fabric."""
    for each in h100.node.gpus:
        hardware(h100).set_fabric(each.uuid, COMPLETED)
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
