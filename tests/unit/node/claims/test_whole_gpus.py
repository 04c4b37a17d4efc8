"""Claims for whole GPUs, all of a call together: what the short way takes, and what it leaves to the long one."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, ClaimReplacedError, DeviceInUseError, StorageError
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.model.mig import PartitionId
from dra_driver.hardware.cdi.spec import CdiSpec
from dra_driver.hardware.gpu.backend import MIG_MODE
from dra_driver.node.claims.entry import AssignedDevice, AssignedPartition, AttemptToken, State
from dra_driver.node.claims.journal import Journal
from tests.fakes.claims import claim, gpu, ref, result, uid
from tests.unit.node.claims.conftest import ClaimsNode, Run
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
    assert "is not on this node" in str(answers[uid(6)])
    assert run.journal.uids() == {uid(1), uid(2), uid(4)} == set(run.node.writer.files)


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
    found = run.journal.record_prepared([(ref(1), [whole(0)]), (ref(9), [whole(1)])])
    assert set(found) == {uid(9)}
    assert run.journal.uids() == before | {uid(9)}


def test_admin_access_stands_against_nothing(run: Run) -> None:
    claims = [(ref(1), [whole(0)]), (ref(2), [whole(0, admin=True)]), (ref(3), [whole(0, admin=True)])]
    assert set(run.journal.record_prepared(claims)) == {uid(1), uid(2), uid(3)}


def test_no_claim_is_new_while_a_rebuild_is_pending(node: ClaimsNode) -> None:
    node.api.outage = ApiUnreachableError("down")
    node.writer.files[uid(5)] = b"{}"
    run = node.run()
    assert run.journal.rebuild_pending
    assert run.journal.unrecorded([uid(1)]) == frozenset()


def test_nothing_is_recorded_in_a_file_that_was_removed(run: Run) -> None:
    """Another process may use the file that is in its place: two claims would get one GPU."""
    (run.node.folder / "state.db").unlink()
    with pytest.raises(StorageError, match="was removed or replaced"):
        run.journal.record_prepared([(ref(1), [whole(0)])])


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
