"""Preparing one claim: the order of steps, repeats, refusals, waiting, device nodes."""

import threading
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ClaimNotAllocatedError,
    ClaimReplacedError,
    DeviceInUseError,
    DeviceLostError,
    DeviceNodeError,
    DriverUnavailableError,
    ForbiddenError,
    RetryableError,
    ServerBusyError,
    StorageError,
)
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import ClaimUid
from dra_driver.hardware.device_nodes.reconciler import WantedNode
from dra_driver.hardware.gpu.backend import TIME_SLICE
from dra_driver.node.claims.entry import State
from dra_driver.node.claims.waiting import RetryPolicy
from dra_driver.node.claims.workflow.service import ClaimService
from tests.fakes.claims import changed, claim, gpu, ref, result, uid
from tests.unit.node.claims.conftest import ClaimsNode, Run, simulated

FULL = StorageError("the disk is full")


def nothing_left(run: Run, number: int) -> bool:
    return run.journal.entry(uid(number)) is None and uid(number) not in run.node.writer.files


def test_an_answered_claim_has_an_entry_and_a_file(run: Run) -> None:
    devices = run.prepare(claim(1, result("gpu-2")))
    entry = run.entry(1)
    assert (entry.state, entry.ref, entry.devices[0].gpu_uuid) == (State.PREPARED, ref(1), gpu(2).uuid)
    assert run.node.writer.devices(uid(1)) == [f"{uid(1)}-gpu-2"]
    assert devices[0].cdi_device_ids[0].endswith(f"={uid(1)}-gpu-2")
    assert run.node.provider.base_checks == 1


def test_a_repeat_answers_the_same_without_the_api_server(run: Run) -> None:
    """A restarted kubelet prepares again, perhaps while the API server is away."""
    first = run.prepare(claim(1))
    run.node.api.outage = ApiUnreachableError("down")
    assert run.prepare(ref(1)) == first
    assert run.node.api.reads == 1
    assert run.node.provider.base_checks == 2


@pytest.mark.parametrize("damage", [None, b"{}"])
def test_a_repeat_rewrites_a_missing_or_changed_file(run: Run, damage: bytes | None) -> None:
    first = run.prepare(claim(1))
    file = run.node.writer.files.pop(uid(1))
    if damage is not None:
        run.node.writer.files[uid(1)] = damage
    assert run.prepare(ref(1)) == first
    assert run.node.writer.files[uid(1)] == file
    assert "file-rewritten" in run.node.events


def test_a_repeat_notices_that_the_gpu_is_gone(run: Run) -> None:
    run.prepare(claim(1))
    run.node.hardware = changed(run.node.hardware, 0, uuid=gpu(9).uuid)
    assert isinstance(run.refusal(ref(1)), DeviceLostError)
    assert run.journal.entry(uid(1)) is not None


def test_a_device_in_use_is_refused_with_the_name_of_its_claim(run: Run) -> None:
    """Long before the kubelet's own timeout, which would not name the claim."""
    run.prepare(claim(1, name="train"))
    error = run.refusal(claim(2))
    assert isinstance(error, DeviceInUseError)
    assert f"device gpu-0 of claim default/claim-2 (uid {uid(2)}) is already prepared" in str(error)
    assert f"for claim default/train (uid {uid(1)})" in str(error)
    assert 19.0 < sum(run.node.clock.waits) <= 21.0
    assert nothing_left(run, 2)


def test_prepare_waits_for_a_device_that_is_freed_soon(run: Run) -> None:
    run.prepare(claim(1))
    run.node.clock.after(5.0, lambda: run.unprepare(ref(1)))
    run.prepare(claim(2))
    assert 5.0 <= sum(run.node.clock.waits) < 7.0


def test_only_some_calls_wait_so_that_an_unprepare_gets_a_worker(run: Run) -> None:
    """Unprepares use the same workers: if all of them waited, nothing would be freed."""
    impatient = run.replaced(retry_policy=RetryPolicy(waiting=1))
    impatient.prepare(claim(1))
    waits_of_second = []

    def ask_while_the_first_waits() -> None:
        before = len(run.node.clock.waits)
        assert isinstance(impatient.refusal(claim(3)), DeviceInUseError)
        waits_of_second.append(len(run.node.clock.waits) - before)

    run.node.clock.after(1.0, ask_while_the_first_waits)
    assert isinstance(impatient.refusal(claim(2)), DeviceInUseError)
    assert waits_of_second == [0]
    ask_while_the_first_waits()
    assert waits_of_second[1] > 0, "the place is free again"


def test_a_claim_of_the_same_name_with_another_uid_is_another_claim(run: Run) -> None:
    run.prepare(claim(1, result("gpu-0"), name="same"))
    run.prepare(claim(2, result("gpu-1"), name="same"))
    assert run.unprepare(ref(1, "same")) is None
    assert uid(2) in run.node.writer.files
    assert run.journal.uids() == {uid(2)}


def test_a_replaced_or_unallocated_claim_is_refused_at_once(run: Run) -> None:
    run.node.api.put(claim(2, name="same"))
    assert isinstance(run.refusal(ref(1, "same")), ClaimReplacedError)
    run.node.api.deallocate(ref(1))
    assert isinstance(run.refusal(ref(1)), ClaimNotAllocatedError)
    assert run.node.clock.waits == []


def test_prepare_waits_for_an_api_server_that_comes_back(run: Run) -> None:
    """A restart of the API server does not fail pods."""
    run.node.api.outage = ApiUnreachableError("connection refused")

    def back() -> None:
        run.node.api.outage = None

    run.node.clock.after(12.0, back)
    run.prepare(claim(1))
    assert 12.0 <= sum(run.node.clock.waits) < 14.0


@pytest.mark.parametrize("slowest_s", [0.5, 5.0, 15.0, 60.0])
def test_all_claims_of_a_call_are_answered_in_time_however_long_a_read_takes(run: Run, slowest_s: float) -> None:
    """After 45 s the kubelet reports its own timeout, which does not mention the API server."""
    began = run.node.clock.now()
    run.node.api.hangs = lambda within_s: run.node.clock.wait(min(slowest_s, within_s))
    refs = [run.node.api.put(claim(number, result(f"gpu-{number % 4}"))).ref for number in range(8)]
    answers = run.service.prepare(refs)
    assert run.node.clock.now() - began <= 40.0
    assert all(isinstance(answers[of.uid], ApiUnreachableError | RetryableError) for of in refs)
    assert isinstance(answers[refs[0].uid], ApiUnreachableError), "the first one says what was in the way"


def test_time_that_a_call_spent_in_a_queue_counts(run: Run) -> None:
    """The kubelet's 45 s begin when it sends the call, not when a worker thread is free."""
    began = run.node.clock.now()
    run.node.api.hangs = run.node.clock.wait
    of = run.node.api.put(claim(1)).ref
    assert isinstance(run.service.prepare([of], within_s=12.0)[of.uid], ApiUnreachableError)
    assert run.node.clock.now() - began <= 10.0
    assert isinstance(run.service.prepare([of], within_s=0.5)[of.uid], RetryableError)
    assert isinstance(run.service.unprepare([of], within_s=0.5)[of.uid], RetryableError)
    run.node.api.hangs = None
    assert isinstance(run.service.prepare([of], within_s=12.0)[of.uid], tuple)


def test_no_read_begins_without_time_for_its_answer(run: Run) -> None:
    """A request that is cancelled before its answer only adds to the API server's load."""
    run.node.api.put(claim(1))
    left: list[float] = []

    def slow(within_s: float) -> None:
        left.append(within_s)
        run.node.clock.wait(min(9.0, within_s))

    run.node.api.hangs = slow
    run.refusal(ref(1))
    assert min(left) >= run.deps.retry_policy.read_s


def test_retry_after_of_a_busy_api_server_is_honoured(run: Run) -> None:
    run.node.api.outage = ServerBusyError("try later", status=429, retry_after_s=7.0)
    run.refusal(claim(1))
    assert run.node.clock.waits[1] == 7.0
    assert sum(run.node.clock.waits) <= 40.0


def test_a_refusal_of_the_api_server_is_not_retried(run: Run) -> None:
    run.node.api.outage = ForbiddenError("not allowed", status=403)
    assert isinstance(run.refusal(claim(1)), ForbiddenError)
    assert run.node.clock.waits == []


def test_prepare_waits_for_a_driver_that_is_being_loaded(run: Run) -> None:
    ready, run.node.hardware = run.node.hardware, Snapshot()

    def loaded() -> None:
        run.node.hardware = ready

    run.node.clock.after(3.0, loaded)
    run.prepare(claim(1))


def test_a_missing_driver_fails_with_its_reason(run: Run) -> None:
    """No CDI file without the driver's files: the container would start without a GPU."""
    run.node.provider.failure = DriverUnavailableError("no libcuda.so.1 below /")
    assert str(run.refusal(claim(1))) == "no libcuda.so.1 below /"
    assert nothing_left(run, 1)


def test_the_next_claim_tears_down_what_a_failing_disk_left(run: Run) -> None:
    run.node.writer.failure = FULL
    run.refusal(claim(1))
    assert run.journal.entry(uid(1)) is not None
    run.node.writer.failure = None
    run.prepare(claim(2))
    assert run.journal.entry(uid(1)) is None


def left_preparing(node: ClaimsNode, number: int, owner: str = "run-0") -> None:
    """Leave what a run leaves that is killed after ``begin``."""
    run = node.run(owner)
    run.prepare(claim(number))
    devices = run.entry(number).devices
    run.unprepare(ref(number))
    run.journal.begin(ref(number), devices)
    run.journal.close()


def test_a_device_left_by_a_dead_run_is_taken_over(node: ClaimsNode) -> None:
    run = node.run("run-1")
    left_preparing(node, 1)
    run.prepare(claim(2))
    assert run.journal.uids() == {uid(2)}


def test_a_device_that_a_living_run_is_preparing_is_not_taken(node: ClaimsNode) -> None:
    run = node.run("run-1", alive=("run-0",))
    left_preparing(node, 1)
    error = run.refusal(claim(2))
    assert isinstance(error, DeviceInUseError)
    assert "preparing" in str(error)
    assert run.journal.uids() == {uid(1)}


def test_prepare_waits_for_another_run_that_prepares_the_claim(node: ClaimsNode) -> None:
    """The kubelet calls the new run for a claim that the old one has nearly prepared."""
    run = node.run("run-1", alive=("run-0",))
    left_preparing(node, 1)

    def finish() -> None:
        assert run.journal.finish(uid(1), run.entry(1).attempt)

    node.clock.after(2.0, finish)
    assert run.prepare(ref(1))
    assert 2.0 <= sum(node.clock.waits) < 4.0


def test_a_claim_that_is_unprepared_meanwhile_is_not_answered_as_prepared(node: ClaimsNode) -> None:
    """Answering after another run tore the claim down would start a container without its file."""
    node.backend = simulated()
    run, other = node.run("run-1", alive=("run-2",)), node.run("run-2", alive=("run-1",))
    write = node.writer.write_claim

    class Slow:
        def write_claim(self, of: str, spec: object) -> bool:
            other.unprepare(ref(1))
            return write(of, spec)  # type: ignore[arg-type]

        def __getattr__(self, name: str) -> object:
            return getattr(node.writer, name)

    late = run.replaced(writer=Slow())
    run.journal.set_gpu_note(node.gpus[0].uuid, TIME_SLICE, "Long")
    error = late.refusal(claim(1))
    assert isinstance(error, RetryableError)
    assert error.reason == "ClaimTakenOver"
    assert nothing_left(run, 1)


def test_overlapping_calls_for_one_claim_get_one_answer(run: Run) -> None:
    """The kubelet repeats a call after its timeout while the first call still runs."""
    run.node.api.put(claim(1))
    inside, go_on = threading.Event(), threading.Event()
    ensure = run.node.provider.ensure_base

    def slow() -> bool:
        inside.set()
        assert go_on.wait(10)
        return ensure()

    run.node.provider.ensure_base = slow  # type: ignore[method-assign]
    answers: list[object] = []
    first = threading.Thread(target=lambda: answers.append(run.answer(ref(1))))
    second = threading.Thread(target=lambda: answers.append(run.answer(ref(1))))
    first.start()
    assert inside.wait(10)
    second.start()
    go_on.set()
    first.join(10)
    second.join(10)
    assert answers[0] == answers[1]
    assert run.node.api.reads == 1


def test_the_same_gpu_normally_and_as_admin_is_one_device_in_the_file(run: Run) -> None:
    """A document with one name twice would be refused by every runtime."""
    devices = run.prepare(claim(1, result(request="work"), result(request="watch", admin_access=True)))
    assert len(devices) == 2
    assert run.node.writer.devices(uid(1)) == [f"{uid(1)}-gpu-0"]
    assert run.prepare(ref(1)) == devices


def test_a_uid_that_is_a_path_touches_no_file(run: Run) -> None:
    hostile = replace(ref(1), uid=ClaimUid("../../etc/passwd"))
    run.node.api.put(replace(claim(1), ref=hostile))
    assert "is not a Kubernetes UID" in str(run.refusal(hostile))
    assert run.node.writer.files == {}


class Nodes:
    """Remembers what was asked for, and whether the claim's file existed by then."""

    def __init__(self, node: ClaimsNode) -> None:
        self.node = node
        self.asked: list[list[str]] = []
        self.failure: DeviceNodeError | None = None

    def ensure(self, nodes: Iterable[WantedNode]) -> None:
        self.asked.append([node.path for node in nodes])
        assert not self.node.writer.files
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def nodes(run: Run) -> Nodes:
    """The run's service keeps them."""
    found = Nodes(run.node)
    run.service = ClaimService(replace(run.deps, device_nodes=found))
    return found


def test_the_claims_own_nodes_are_there_before_its_file(run: Run, nodes: Nodes) -> None:
    run.prepare(claim(1, result("gpu-2")))
    assert nodes.asked == [["/dev/nvidia2"]]


def test_a_repeat_looks_again(run: Run, nodes: Nodes) -> None:
    run.prepare(claim(1))
    run.node.writer.files.clear()
    run.prepare(ref(1))
    assert len(nodes.asked) == 2


def test_a_node_that_is_something_else_refuses_the_claim_and_leaves_nothing(run: Run, nodes: Nodes) -> None:
    nodes.failure = DeviceNodeError("the host's /dev/nvidia0 is a symbolic link")
    assert run.refusal(claim(1)) is nodes.failure
    assert run.journal.entry(uid(1)) is None
    assert run.node.writer.files == {}
    nodes.failure = None
    assert run.prepare(claim(1))
