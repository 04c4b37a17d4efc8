"""When a prepared claim counts as stale and is freed."""

import pytest

from dra_driver.core.errors import ApiUnreachableError, ClaimError, DraError, ForbiddenError
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.workflow.recover import GRACE_S, StaleClaimCollector
from tests.fakes.claims import claim, ref, result, uid
from tests.unit.node.claims.conftest import Run


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


def test_a_claim_in_use_is_never_freed(run: Run, collector: StaleClaimCollector) -> None:
    assert looks(run, collector, 5) == [()] * 5
    assert uid(1) in run.node.writer.files


@pytest.mark.parametrize("ending", ["gone", "replaced", "deallocated", "moved"])
def test_a_claim_that_is_over_is_freed_at_the_second_look(
    run: Run, collector: StaleClaimCollector, ending: str
) -> None:
    """The device is free, the file is gone, and the first look changes nothing."""
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
    """A pod deleted by force may still have containers for a while."""
    run.node.api.remove(ref(1))
    collector.collect()
    run.node.clock.time += GRACE_S - 1
    assert collector.collect() == ()


@pytest.mark.parametrize(
    "outage", [ApiUnreachableError("down"), ForbiddenError("no", status=403), ClaimError("malformed")]
)
def test_an_error_is_no_evidence(run: Run, collector: StaleClaimCollector, outage: DraError) -> None:
    """Only an answer frees a device; an error does not count as the second look either."""
    run.node.api.outage = outage
    assert looks(run, collector) == [(), ()]
    run.node.api.outage = None
    run.node.api.remove(ref(1))
    collector.collect()
    run.node.api.outage = outage
    run.node.clock.time += GRACE_S
    assert collector.collect() == ()


def test_a_claim_that_comes_back_is_not_suspected_any_more(run: Run, collector: StaleClaimCollector) -> None:
    """The grace period begins anew, for example with an API server that was restored from a backup."""
    run.node.api.remove(ref(1))
    looks(run, collector, 1)
    run.node.api.put(claim(1))
    looks(run, collector, 1)
    run.node.api.remove(ref(1))
    assert looks(run, collector, 1)[0] == ()


def test_a_claim_prepared_anew_starts_without_suspicion(run: Run, collector: StaleClaimCollector) -> None:
    """A suspicion belongs to one attempt at preparing a claim."""
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
    """Many claims do not delay the stop."""
    reads = run.node.api.reads
    assert collector.collect(lambda: True) == ()
    assert run.node.api.reads == reads


def test_maintenance_frees_stale_claims(run: Run) -> None:
    """The process calls one method every ten minutes."""
    run.prepare(claim(1))
    run.node.api.remove(ref(1))
    run.service.maintain()
    run.node.clock.time += GRACE_S
    run.service.maintain()
    assert run.journal.entries() == ()
    assert "collected" in run.node.events


def test_maintenance_outlives_a_closed_journal(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The thread that calls it survives errors of the disk."""
    run.journal.close()
    run.service.maintain()
    assert "maintenance of claims failed" in caplog.text
