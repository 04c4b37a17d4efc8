"""Unprepare needs only the reference; teardown under doubt: an overtaken attempt, an unknown boot, a second process."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

import pytest

from dra_driver.core.errors import DeviceLostError, DraError, StorageError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.telemetry import metrics
from dra_driver.node.claims.entry import State
from dra_driver.node.claims.waiting import GpuLocks
from dra_driver.node.claims.workflow.recover import recover
from tests.fakes.claims import claim, ref, result, uid
from tests.fakes.fuse import Fuse, Fused
from tests.fakes.stand_in import present
from tests.unit.node.claims.conftest import SMALL, ClaimsNode, Run, simulated
from tests.unit.node.claims.test_kill_hardware import FILES


def test_unprepare_needs_only_the_reference_and_frees_the_device(run: Run) -> None:
    """The claim object is deleted by then; a call that waits for the device is woken."""
    run.prepare(claim(1))
    reads, wakes = run.node.api.reads, run.node.clock.wakes
    run.node.api.remove(ref(1))
    assert run.unprepare(ref(1)) is None
    assert (run.node.api.reads, run.node.clock.wakes) == (reads, wakes + 1)
    assert (run.journal.entries(), run.node.writer.files) == ((), {})
    run.prepare(claim(2))


def test_a_file_without_an_entry_is_removed(run: Run) -> None:
    """After the loss of the journal the kubelet's call is enough."""
    run.prepare(claim(1))
    data = run.node.writer.files[uid(1)]
    run.unprepare(ref(1))
    run.node.writer.files[uid(1)] = data
    assert run.unprepare(ref(1)) is None
    assert run.node.writer.files == {}


def test_a_missing_file_does_not_matter(run: Run) -> None:
    run.prepare(claim(1))
    run.node.writer.files.clear()
    assert run.unprepare(ref(1)) is None
    assert run.journal.entries() == ()


def test_a_read_only_disk_is_an_error_and_the_next_call_continues(run: Run) -> None:
    run.prepare(claim(1))
    run.node.writer.failure = StorageError("read-only")
    assert isinstance(run.unprepare(ref(1)), StorageError)
    assert run.entry(1).state is State.UNPREPARING
    run.node.writer.failure = None
    assert run.unprepare(ref(1)) is None
    assert run.journal.entries() == ()


def test_a_prepare_after_a_failed_unprepare_begins_anew(run: Run) -> None:
    """The kubelet may want the claim again for another pod."""
    run.prepare(claim(1))
    run.node.writer.failure = StorageError("read-only")
    run.unprepare(ref(1))
    run.node.writer.failure = None
    reads = run.node.api.reads
    run.prepare(ref(1))
    assert run.node.api.reads == reads + 1


def test_what_another_run_prepared_is_unprepared_here(node: ClaimsNode) -> None:
    node.run("run-1").prepare(claim(1))
    assert node.run("run-2", alive=("run-1",)).unprepare(ref(1)) is None
    assert node.writer.files == {}


def test_each_claim_of_a_call_has_its_own_answer(run: Run) -> None:
    run.prepare(claim(1))
    run.prepare(claim(2, result("gpu-1")))
    remove = run.node.writer.remove_claim

    def picky(of: str) -> bool:
        if of == uid(1):
            raise StorageError("a directory stands in the file's place")
        return remove(of)

    run.node.writer.remove_claim = picky  # type: ignore[method-assign]
    answers = run.service.unprepare([ref(1), ref(2), ref(3)])
    assert isinstance(answers[uid(1)], StorageError)
    assert (answers[uid(2)], answers[uid(3)]) == (None, None)
    assert run.journal.uids() == {uid(1)}


def test_a_defect_ends_in_the_claims_answer(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.prepare(claim(1))

    def broken(of: str) -> bool:
        raise RuntimeError("a defect")

    run.node.writer.remove_claim = broken  # type: ignore[method-assign]
    counted = metrics.internal_errors_total.labels("claims")._value.get()
    answers = run.service.unprepare([ref(1), ref(2)])
    assert all(type(answers[uid(number)]) is DraError for number in (1, 2))
    assert "unexpected RuntimeError" in str(answers[uid(1)])
    assert metrics.internal_errors_total.labels("claims")._value.get() == counted + 3, "once together"
    assert "RuntimeError: a defect" in caplog.text


def test_an_unprepare_behind_a_hanging_call_is_an_error(run: Run) -> None:
    """A worker that hangs in the disk must not make the kubelet's next call hang."""
    service_deadline = run.deps.retry_policy.call_s
    run.prepare(claim(1))
    with run.deps.locks.acquire(uid(1), 0.0):
        run.node.clock.time -= service_deadline  # so that no time is left to wait for the lock
        late = run.node.clock.now()
        run.node.clock.now = lambda: late + next(ticks)  # type: ignore[method-assign]
        ticks = iter([0.0, 0.0, service_deadline])
        answer = run.unprepare(ref(1))
    assert present(answer).reason == "ClaimLocked"


@pytest.fixture
def prepared(node: ClaimsNode) -> Run:
    """A run that has prepared claim 1 with a partition."""
    node.backend = simulated()
    run = node.run("run-1")
    run.prepare(claim(1, result(node.part(SMALL, 0))))
    return run


def state_of(run: Run) -> State | None:
    entry = run.journal.entry(uid(1))
    return entry.state if entry else None


def instances(node: ClaimsNode) -> int:
    return sum(len(gpu.mig_instances) for gpu in node.gpus)


class OvertakenLocks(GpuLocks):
    """GPU locks; ``meanwhile`` runs once before the next one is acquired, as while a call waits for it."""

    meanwhile: Callable[[], object] | None = None

    @contextmanager
    def acquire(self, gpus: Iterable[GpuUuid], timeout_s: float) -> Iterator[bool]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        with super().acquire(gpus, timeout_s) as acquired:
            yield acquired


def test_an_overtaken_teardown_leaves_the_claim_that_was_prepared_anew(prepared: Run) -> None:
    node = prepared.node
    other = node.run("run-2", alive=("run-1",))

    def prepare_anew() -> None:
        assert other.unprepare(ref(1)) is None
        other.prepare(ref(1))

    locks = OvertakenLocks(node.folder / "locks")
    waiting = prepared.replaced(gpu_locks=locks)
    locks.meanwhile = prepare_anew
    assert waiting.unprepare(ref(1)) is None
    assert state_of(other) is State.PREPARED
    assert instances(node) == 1
    assert uid(1) in node.writer.files


@pytest.mark.parametrize(("before", "after"), [("boot-1", ""), ("", "boot-1")], ids=["now", "then"])
def test_an_unknown_boot_id_keeps_prepared_claims(node: ClaimsNode, before: str, after: str) -> None:
    """Without both boot ids a reboot cannot be seen, so a container may still run."""
    node.backend = simulated()
    node.run("run-1", boot_id=before).prepare(claim(1, result(node.part(SMALL, 0))))
    again = node.run("run-2", boot_id=after)
    assert state_of(again) is State.PREPARED
    assert instances(node) == 1
    assert uid(1) in node.writer.files


def test_no_gpu_counts_as_gone_while_no_gpu_can_be_read(prepared: Run) -> None:
    """While the NVIDIA driver is reloaded the node looks empty: the claim keeps its entry, and the call is repeated."""
    prepared.node.simulation.fail_next("destroy_compute_instance", DeviceLostError("no answer"))
    run = prepared.replaced(snapshot=Snapshot)
    assert isinstance(run.unprepare(ref(1)), DeviceLostError)
    assert state_of(run) is State.UNPREPARING
    assert run.unprepare(ref(1)) is None
    assert prepared.node.is_whole_again()


def test_files_change_only_while_no_other_process_can_begin_a_claim(run: Run) -> None:
    """Otherwise a file that another process writes between the look at the entry and the change would be lost."""
    run.prepare(claim(1))
    fuse, locked = Fuse(), list[bool]()

    def look() -> None:
        with closing(sqlite3.connect(run.node.folder / "state.db", timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                locked.append(True)
            else:
                locked.append(False)

    fuse.step = look  # type: ignore[method-assign]
    writer = Fused(run.node.writer, fuse, FILES)
    watched = run.replaced(writer=writer).deps

    writer.files[uid(2)] = b"without an entry"
    assert run.replaced(writer=writer).unprepare(ref(2)) is None
    assert uid(2) not in writer.files
    assert locked
    assert all(locked), "removing the file of a claim without an entry"

    locked.clear()
    writer.files[uid(3)] = b"orphan"
    assert recover(watched).orphans == (uid(3),)
    assert locked[0], "removing orphaned files"

    locked.clear()
    del writer.files[uid(1)]
    assert recover(watched).rewritten == (uid(1),)
    assert locked[0], "writing a missing file"
