"""Recovery: reboots, interrupted calls, missing files, lost journals, stale claims."""

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ClaimError,
    DraError,
    DriverUnavailableError,
    ForbiddenError,
    StorageError,
)
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.entry import State
from dra_driver.node.claims.workflow.recover import GRACE_S, MOST_S, StaleClaimCollector, recover
from tests.fakes.claims import FakeClaims, claim, gpu, machine, ref, result, uid
from tests.unit.node.claims.conftest import ClaimsNode, Run, simulated
from tests.unit.node.claims.test_prepare import left_preparing


@pytest.fixture
def two(run: Run) -> Run:
    """A run that has prepared claims for the first two GPUs, and has looked after their files once."""
    run.prepare(claim(1))
    run.prepare(claim(2, result("gpu-1")))
    assert run.service.rewrite_missing_files() == ()
    return run


@pytest.fixture
def lost(node: ClaimsNode) -> ClaimsNode:
    """A node that has prepared claim 1 and lost its journal."""
    node.run("run-1").prepare(claim(1))
    node.lose_journal()
    return node


def test_after_a_reboot_nothing_is_prepared(node: ClaimsNode) -> None:
    node.run("run-1").prepare(claim(1))
    run = node.run("run-2", boot_id="boot-2")
    assert (run.journal.entries(), node.writer.files) == ((), {})
    run.prepare(claim(2))


def test_an_interrupted_prepare_is_torn_down(node: ClaimsNode) -> None:
    left_preparing(node, 1)
    node.writer.files[uid(1)] = b"half done"
    run = node.run("run-1")
    assert run.journal.entries() == ()
    assert node.writer.files == {}


def test_an_interrupted_unprepare_is_finished(node: ClaimsNode) -> None:
    first = node.run("run-0")
    first.prepare(claim(1))
    first.journal.start_unprepare(uid(1))
    run = node.run("run-1")
    assert run.journal.entries() == ()
    assert node.writer.files == {}


def test_a_claim_in_another_living_run_is_left_alone(node: ClaimsNode) -> None:
    left_preparing(node, 1)
    node.writer.files[uid(1)] = b"being written"
    run = node.run("run-1", alive=("run-0",))
    assert run.journal.uids() == {uid(1)}
    assert uid(1) in node.writer.files


def test_files_that_vanish_while_running_are_written_again(two: Run) -> None:
    files = dict(two.node.writer.files)
    del two.node.writer.files[uid(1)]
    before = two.node.provider.base_checks
    assert two.service.rewrite_missing_files() == ()
    assert two.node.writer.files == files
    assert two.node.provider.base_checks == before + 1, "the base file may have gone the same way"


def test_files_are_not_listed_when_none_can_have_gone(two: Run) -> None:
    del two.node.writer.files[uid(1)]
    two.service.rewrite_missing_files(may_miss=False)
    assert uid(1) not in two.node.writer.files
    two.node.provider.driver_identity = 511
    two.service.rewrite_missing_files(may_miss=False)
    assert b"511" in two.node.writer.files[uid(2)]


def test_files_follow_a_driver_that_changed_before_the_start(node: ClaimsNode) -> None:
    node.run("run-1").prepare(claim(1))
    node.provider.driver_identity = 511
    second = node.run("run-2")
    assert second.service.rewrite_missing_files() == ()
    assert b"511" in node.writer.files[uid(1)]


def test_a_file_that_cannot_be_checked_now_is_checked_later(run: Run) -> None:
    run.prepare(claim(1))
    run.service.rewrite_missing_files()
    run.node.provider.driver_identity = 511
    run.node.writer.failure = StorageError("read-only")
    assert run.service.rewrite_missing_files() == ()
    assert b"511" not in run.node.writer.files[uid(1)]
    run.node.writer.failure = None
    run.service.rewrite_missing_files()
    assert b"511" in run.node.writer.files[uid(1)]


def test_a_claim_whose_gpu_is_gone_keeps_its_file(two: Run, caplog: pytest.LogCaptureFixture) -> None:
    two.node.provider.driver_identity = 511
    two.node.hardware = Snapshot(gpus=tuple(one for one in two.node.hardware.gpus if one.minor != 0))
    for _ in range(2):
        assert two.service.rewrite_missing_files() == ()
    assert b"511" in two.node.writer.files[uid(2)]
    assert caplog.text.count("cannot update the CDI file") == 1


def renumbered(run: Run) -> Snapshot:
    """The hardware of the run after its first two GPUs were bound again in another order."""
    first, second, *others = run.node.hardware.gpus
    return Snapshot(gpus=(replace(second, minor=0), replace(first, minor=1), *others))


def test_files_follow_a_gpu_that_comes_back_with_another_minor(run: Run) -> None:
    run.prepare(claim(1))
    run.service.rewrite_missing_files()
    after = renumbered(run)
    run.node.hardware = replace(after, gpus=tuple(one for one in after.gpus if one.minor != 1))
    run.service.rewrite_missing_files()
    run.node.hardware = after
    run.service.rewrite_missing_files()
    assert b"/dev/nvidia1" in run.node.writer.files[uid(1)]


def test_files_that_cannot_be_written_are_logged_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.prepare(claim(1))
    run.node.writer.files.clear()
    run.node.writer.failure = StorageError("read-only")
    for _ in range(3):
        (problem,) = run.service.rewrite_missing_files()
        assert "default/claim-1" in problem
        assert "read-only" in problem
    assert caplog.text.count("CDI file cannot be restored") == 1
    run.node.writer.failure = None
    assert run.service.rewrite_missing_files() == ()


def test_a_claim_that_is_being_prepared_gets_no_file(node: ClaimsNode) -> None:
    run = node.run("run-1", alive=("run-0",))
    left_preparing(node, 1)
    assert run.service.rewrite_missing_files() == ()
    assert node.writer.files == {}


def test_orphaned_files_are_removed(node: ClaimsNode) -> None:
    run = node.run("run-1")
    run.prepare(claim(1))
    node.writer.files[uid(2)] = b"orphan"
    assert recover(run.deps).orphans == (uid(2),)
    assert set(node.writer.files) == {uid(1)}


def test_a_lost_journal_is_rebuilt_from_files_and_claims(node: ClaimsNode) -> None:
    answer = node.run("run-1").prepare(claim(1, result(request="main/small")))
    node.api.put(claim(2, result("gpu-1")))
    node.lose_journal()
    run = node.run("run-2")
    assert [(entry.ref, entry.state) for entry in run.journal.entries()] == [(ref(1), State.PREPARED)]
    assert run.prepare(ref(1)) == answer
    assert run.refusal(claim(3)).reason == "DeviceInUse"
    assert not run.journal.rebuild_pending


def test_a_rebuild_removes_files_of_claims_that_are_over(node: ClaimsNode) -> None:
    first = node.run("run-1")
    for number in (1, 2, 3):
        first.prepare(claim(number, result(f"gpu-{number}")))
    node.lose_journal()
    node.api.remove(ref(2))
    node.api.deallocate(ref(3))
    assert node.run("run-2").journal.uids() == {uid(1)}
    assert set(node.writer.files) == {uid(1)}


def test_without_the_api_server_files_are_kept_until_it_answers(lost: ClaimsNode) -> None:
    lost.api.outage = ApiUnreachableError("down")
    run = lost.run("run-2")
    assert set(lost.writer.files) == {uid(1)}
    assert "down" in recover(run.deps).problems
    run.journal.close()
    lost.run("run-3")
    assert set(lost.writer.files) == {uid(1)}
    lost.api.outage = None
    assert lost.run("run-4").journal.uids() == {uid(1)}


def test_a_pending_rebuild_is_retried_within_half_a_minute(lost: ClaimsNode) -> None:
    lost.api.outage = ApiUnreachableError("down")
    run = lost.run("run-2")
    for _ in range(40):
        lost.clock.time += 30.0
        run.service.finish_rebuild()
    assert run.service.rebuild_pending
    lost.api.outage = None
    lost.clock.time += 29.0
    run.service.finish_rebuild()
    assert run.service.rebuild_pending
    lost.clock.time += 1.0
    run.service.finish_rebuild()
    assert not run.service.rebuild_pending
    assert run.refusal(claim(3)).reason == "DeviceInUse"


def test_a_claim_that_cannot_be_adopted_slows_the_retries_down(lost: ClaimsNode) -> None:
    """One lost GPU must not cost the API server reads of all claims of the node every half minute."""
    lost.hardware = without_the_first()
    run = lost.run("run-2")
    reads = lost.api.reads
    for _ in range(3600 // 5):
        lost.clock.time += 5.0
        run.service.finish_rebuild()
    assert 5 <= lost.api.reads - reads <= 10
    lost.hardware = machine(4)
    lost.clock.time += 600.0
    run.service.finish_rebuild()
    assert run.journal.uids() == {uid(1)}


def without_the_first() -> Snapshot:
    """The hardware of the node, whose first GPU is lost."""
    return replace(machine(4), gpus=tuple(gpu(minor) for minor in (1, 2, 3)))


def test_a_claim_that_is_unprepared_while_the_api_server_answers_is_not_adopted(lost: ClaimsNode) -> None:
    """What was read is seconds old when it is used, and the kubelet does not unprepare a claim twice."""
    lost.api.outage = ApiUnreachableError("down")
    run = lost.run("run-2")
    lost.api.outage = None

    class Slow(FakeClaims):
        def read(self, of: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim:
            found = lost.api.read(of, within_s=within_s)
            assert run.unprepare(ref(1)) is None
            return found

    assert recover(replace(run.deps, reader=Slow())).adopted == ()
    assert run.journal.entries() == ()


def test_without_hardware_files_are_kept_until_it_is_read(lost: ClaimsNode) -> None:
    """At a node's start the NVIDIA driver may load after this process."""
    hardware, lost.hardware = lost.hardware, Snapshot()
    run = lost.run("run-2")
    assert set(lost.writer.files) == {uid(1)}
    lost.hardware = hardware
    run.service.maintain()
    assert run.journal.uids() == {uid(1)}


def test_two_files_for_one_device_do_not_assign_it_twice(node: ClaimsNode) -> None:
    first = node.run("run-1")
    first.prepare(claim(1))
    first.node.writer.files[uid(2)] = b"a second claim's file"
    node.api.put(claim(2))
    node.lose_journal()
    run = node.run("run-2")
    assert len(run.journal.entries()) == 1
    assert set(node.writer.files) == {uid(1), uid(2)}


def test_a_failure_is_reported_and_the_rest_is_done(two: Run) -> None:
    two.node.writer.files.clear()
    two.node.hardware = without_the_first()
    found = recover(two.deps)
    assert found.rewritten == (uid(2),)
    assert [problem for problem in found.problems if "claim-1" in problem and "no longer exists" in problem]


def test_a_read_only_disk_does_not_stop_a_start(node: ClaimsNode) -> None:
    run = node.run("run-1")
    run.prepare(claim(1))
    run.journal.start_unprepare(uid(1))
    node.writer.failure = StorageError("read-only")
    node.provider.failure = DriverUnavailableError("no driver")
    run.owners.alive.clear()
    assert recover(run.replaced().deps).problems
    assert run.journal.uids() == {uid(1)}


def test_a_start_does_not_wait_for_every_claim(node: ClaimsNode) -> None:
    """A hanging MPS host or NVIDIA driver costs each claim a second; the kubelet is still answered soon."""
    node.backend = simulated("8xh100-sxm5-80gb")
    first = node.run("run-1")
    count = 40
    for number in range(count):
        first.prepare(claim(number, result(node.part("1g.10gb", number % 7, number // 7))))
    for number in range(count):
        first.journal.start_unprepare(uid(number))
    for cut in node.gpus:
        for one in cut.mig_instances:
            node.backend.set_in_use(cut.uuid, one.gi_id)
    before = node.clock.now()
    run = node.run("run-2")
    assert node.clock.now() - before < 2 * MOST_S
    assert len(run.journal.entries()) == count


@pytest.fixture
def collector(run: Run) -> StaleClaimCollector:
    run.prepare(claim(1))
    return StaleClaimCollector(run.deps)


def looks(run: Run, collector: StaleClaimCollector, times: int = 2) -> list[tuple[ClaimUid, ...]]:
    """Looks ten minutes apart."""
    found = []
    for _ in range(times):
        found.append(collector.collect())
        run.node.clock.time += GRACE_S
    return found


@pytest.mark.parametrize("ending", ["gone", "replaced", "deallocated", "moved"])
def test_a_claim_that_is_over_is_freed_at_the_second_look(
    run: Run, collector: StaleClaimCollector, ending: str
) -> None:
    match ending:
        case "gone":
            run.node.api.remove(ref(1))
        case "replaced":
            run.node.api.put(claim(2, name="claim-1"))
        case "deallocated":
            run.node.api.deallocate(ref(1))
        case "moved":
            run.node.api.put(claim(1, result("gpu-0", pool="node-b/gpu.nvidia.com")))
    first, second = looks(run, collector)
    assert first == ()
    assert second == (uid(1),)
    assert run.journal.entries() == ()
    assert run.node.writer.files == {}


def test_two_looks_in_a_row_are_not_enough(run: Run, collector: StaleClaimCollector) -> None:
    run.node.api.remove(ref(1))
    collector.collect()
    run.node.clock.time += GRACE_S - 1
    assert collector.collect() == ()


@pytest.mark.parametrize(
    "outage", [ApiUnreachableError("down"), ForbiddenError("no", status=403), ClaimError("malformed")]
)
def test_an_error_is_no_evidence(run: Run, collector: StaleClaimCollector, outage: DraError) -> None:
    run.node.api.outage = outage
    assert looks(run, collector) == [(), ()]
    run.node.api.outage = None
    run.node.api.remove(ref(1))
    collector.collect()
    run.node.api.outage = outage
    run.node.clock.time += GRACE_S
    assert collector.collect() == ()


def test_a_claim_that_comes_back_is_not_suspected_any_more(run: Run, collector: StaleClaimCollector) -> None:
    """The grace period starting from scratch, for example with an API server that was restored from a backup."""
    run.node.api.remove(ref(1))
    looks(run, collector, 1)
    run.node.api.put(claim(1))
    looks(run, collector, 1)
    run.node.api.remove(ref(1))
    assert looks(run, collector, 1)[0] == ()


def test_a_claim_prepared_anew_starts_without_suspicion(run: Run, collector: StaleClaimCollector) -> None:
    run.node.api.remove(ref(1))
    looks(run, collector, 1)
    run.unprepare(ref(1))
    run.prepare(claim(1))
    run.node.api.remove(ref(1))
    assert looks(run, collector, 1)[0] == ()


def test_a_claim_that_a_call_works_on_is_not_freed(run: Run, collector: StaleClaimCollector) -> None:
    """The kubelet knows the claim, as its call shows."""
    run.node.api.remove(ref(1))
    collector.collect()
    run.node.clock.time += GRACE_S
    with run.deps.locks.acquire(uid(1), 0.0):
        assert collector.collect() == ()
    assert collector.collect() == (uid(1),)


def test_collecting_stops_when_the_process_stops(run: Run, collector: StaleClaimCollector) -> None:
    reads = run.node.api.reads
    assert collector.collect(lambda: True) == ()
    assert run.node.api.reads == reads


def test_maintenance_frees_stale_claims(run: Run) -> None:
    run.prepare(claim(1))
    run.node.api.remove(ref(1))
    run.service.maintain()
    run.node.clock.time += GRACE_S
    run.service.maintain()
    assert run.journal.entries() == ()
    assert "collected" in run.node.events


def test_maintenance_outlives_a_closed_journal(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.journal.close()
    run.service.maintain()
    assert "maintenance of claims failed" in caplog.text
