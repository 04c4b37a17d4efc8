"""Two records of one node, and times that cannot be."""

from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.node.health.fault import FaultKey, HealthFault, HealthRecord
from dra_driver.node.health.storage import until
from tests.unit.node.health.world import GPU, WALL

KEY = FaultKey(None, HealthCause.LOST)


def test_no_time_of_a_record_is_later_than_now() -> None:
    """A clock that was set back must not keep a fault for years, or give a taint a time to come."""
    late = HealthFault(severity=Severity.EVICT, since=WALL + 900, opened=900, seen=900, recovered=901, ended=902)
    found = until(HealthRecord(gpus={GPU: {KEY: late}}, forgotten={GPU: 77.0}), 10, WALL + 10)
    fault = found.gpus[GPU][KEY]
    assert (fault.since, fault.opened, fault.seen, fault.ended) == (WALL + 10, 10, 10, 10)
    assert fault.recovered is not None
    assert 10 < fault.recovered < 10.001, "it was seen before it recovered"
    assert found.forgotten == {GPU: 10}


def test_times_that_can_be_stay_as_they_are() -> None:
    """Otherwise the file would win over the process that read it."""
    fault = HealthFault(severity=Severity.EVICT, since=WALL, opened=1, seen=10, recovered=10.000000000000002)
    record = HealthRecord(gpus={GPU: {KEY: fault}})
    assert until(record, 10, WALL + 10) == record
