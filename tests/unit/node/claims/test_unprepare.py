"""Unpreparing one claim: needs nothing but the reference, and succeeds whenever it can."""

import pytest

from dra_driver.core.errors import DraError, StorageError
from dra_driver.core.telemetry import metrics
from dra_driver.node.claims.entry import State
from tests.fakes.claims import claim, ref, result, uid
from tests.unit.node.claims.conftest import ClaimsNode, Run


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
    """The device stays assigned until its file is gone: a container must not start from it."""
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
    """After an update the new run gets the calls for the old one's claims."""
    node.run("run-1").prepare(claim(1))
    assert node.run("run-2", alive=("run-1",)).unprepare(ref(1)) is None
    assert node.writer.files == {}


def test_each_claim_of_a_call_has_its_own_answer(run: Run) -> None:
    """One claim's error does not keep another pod's device."""
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
    """An unexpected exception becomes the claim's error and a counted log line; the call succeeds."""
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
    assert "still being worked on by an earlier call" in str(answer)
