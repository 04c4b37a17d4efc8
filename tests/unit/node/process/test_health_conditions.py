"""From conditions to terms."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.health import TAINT_KEYS, HealthCause, HealthCondition, Severity
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, Taint
from dra_driver.core.telemetry import metrics
from dra_driver.node.health import DeviceHealth, HealthState, HealthStatus
from dra_driver.node.process.health_conditions import (
    QUIET_S,
    ConditionEvents,
    HealthMetrics,
    Notice,
    amended,
    sentences,
    taint_of,
)
from dra_driver.node.process.missing_gpus import MissingGpu
from tests.unit.node.health import world
from tests.unit.node.slices.gpus import H100, gpu, instance, mig_gpu, snapshot

FREE = mig_gpu(H100)
CUT = replace(FREE, mig_enabled=True, mig_mode_owned=True, mig_instances=(instance(FREE, 19, 6, owned=True),))
GI = CUT.mig_instances[0].gi_id
SINCE = 1_800_000_000.9
GONE = {FREE.uuid: MissingGpu(since=SINCE)}
WHEN = "2027-01-15T08:00:00Z"
condition = partial(world.condition, gpu_uuid=FREE.uuid, since=SINCE)


def test_conditions_with_one_message_are_one_sentence_with_all_taints() -> None:
    lost = condition(cause=HealthCause.LOST, severity=Severity.EVICT)
    (sentence,) = sentences([condition(), lost], snapshot(FREE))
    effect = "unhealthy, its pods will be evicted"
    assert sentence == f"gpu-0 is {effect} (taint gpu.nvidia.com/xid, gpu.nvidia.com/gpu-lost): XID 79"
    assert len(sentences([condition(), condition(message="XID 48")], snapshot(FREE))) == 2


def test_a_value_that_no_taint_can_have_is_left_out() -> None:
    assert taint_of(condition(value="a b")) == Taint(
        key=TAINT_KEYS[HealthCause.XID], effect="NoSchedule", time_added=WHEN
    )


def test_a_gpus_condition_is_in_addition_to_its_terms() -> None:
    reserved = GpuTerms(policy="p", taints=(Taint(key="example.com/reserved", effect="NoSchedule"),))
    found = amended(snapshot(FREE), {FREE.uuid: reserved}, [condition()], {})
    taint = Taint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule", time_added=WHEN)
    assert found == {FREE.uuid: replace(reserved, condition_taints=(taint,))}


def test_an_instances_condition_is_the_partitions() -> None:
    (terms,) = amended(snapshot(CUT), {}, [condition(gi_id=GI)], {}).values()
    assert terms.condition_taints == ()
    assert [taint.value for taint in terms.partition_taints[PartitionId(FREE.uuid, 19, 6)]] == ["79"]


def test_a_condition_of_a_destroyed_instance_or_one_that_is_only_counted_taints_nothing() -> None:
    for each in (condition(gi_id=GI), condition(severity=Severity.COUNTED)):
        assert amended(snapshot(FREE), {}, [each], {}) == {FREE.uuid: GpuTerms()}


def test_a_healthy_gpu_and_one_that_is_not_published_have_no_terms() -> None:
    assert amended(snapshot(FREE), {}, [], {}) == {}
    assert amended(snapshot(), {}, [condition()], {FREE.uuid: MissingGpu(since=1.0)}) == {}


@pytest.mark.parametrize("cause", [None, HealthCause.LOST, HealthCause.HANG])
def test_a_missing_gpu_is_tainted_before_its_condition_is_known(cause: HealthCause | None) -> None:
    """Between two looks it would otherwise be offered."""
    known = [] if cause is None else [condition(cause=cause, value="", severity=Severity.EVICT)]
    (terms,) = amended(snapshot(FREE), {}, known, GONE).values()
    (taint,) = terms.condition_taints
    assert (taint.key, taint.effect) == (
        (TAINT_KEYS[cause], "NoExecute") if cause is not None else ("gpu.nvidia.com/gpu-lost", "NoSchedule")
    )


def test_a_missing_gpu_is_evicted_from_the_start_where_its_policy_says_so() -> None:
    """Else its taint is written twice: before its condition is known and after. One that may be late evicts nothing."""
    evicts = GpuTerms(health=HealthRules(evicting_causes=frozenset({HealthCause.LOST})))
    for awaited, effect in ((False, "NoExecute"), (True, "NoSchedule")):
        gone = {FREE.uuid: MissingGpu(since=SINCE, awaited=awaited)}
        (terms,) = amended(snapshot(FREE), {FREE.uuid: evicts}, (), gone).values()
        assert [(taint.key, taint.effect) for taint in terms.condition_taints] == [("gpu.nvidia.com/gpu-lost", effect)]


NODE = snapshot(CUT)
STARTED = 1000.0
begun = partial(world.condition, gpu_uuid=FREE.uuid, since=STARTED + 1, message="it fell off the bus")


class Events:
    def __init__(self) -> None:
        self.now = 50.0
        self.told: list[tuple[str, str, str]] = []
        self.notices: list[Notice] = []
        self.events = ConditionEvents(
            lambda *event: self.told.append(event),
            notify=self.notices.append,
            clock=lambda: self.now,
            now=lambda: STARTED,
        )

    def update(self, *conditions: HealthCondition, after_s: float = 0.0) -> list[tuple[str, str, str]]:
        self.now += after_s
        self.told.clear()
        self.events.update(conditions, NODE)
        return list(self.told)


@pytest.fixture
def events() -> Events:
    return Events()


def test_begin_and_end(events: Events) -> None:
    assert events.update(begun()) == [
        ("Warning", "GpuUnhealthy",
         "gpu-0 is unhealthy, new claims do not get it (taint gpu.nvidia.com/xid): it fell off the bus")
    ]  # fmt: skip
    assert [(each.condition, each.gpu, each.message) for each in events.notices] == [(begun(), CUT, events.told[0][2])]
    assert events.update(begun(), after_s=QUIET_S) == []
    assert events.update(after_s=1.0) == [
        ("Normal", "GpuRecovered", "gpu-0: the condition gpu.nvidia.com/xid=79 has ended; its taint is removed")
    ]
    found = events.update(begun(cause=HealthCause.UNMONITORED, value="", message="events need privilege"))
    assert found == [("Warning", "GpuUnmonitored", "gpu-0: events need privilege")]
    assert [each.reason for each in events.notices] == ["GpuUnhealthy", "GpuRecovered", "GpuUnmonitored"]


def test_one_event_per_device_and_cause_in_a_minute(events: Events) -> None:
    assert len(events.update(begun())) == 1
    for _ in range(20):
        assert events.update(after_s=1.0) == []
        assert events.update(begun(), after_s=1.0) == []
    assert events.update(after_s=QUIET_S)[0][1] == "GpuRecovered"
    assert events.update(begun(), after_s=1.0) == []
    assert events.update(after_s=1.0) == []
    assert events.update(after_s=QUIET_S) == []


def test_other_devices_and_causes_have_events_of_their_own(events: Events) -> None:
    found = events.update(
        begun(), begun(cause=HealthCause.ECC), begun(gi_id=7), begun(gi_id=5), begun(gpu_uuid=GpuUuid("GPU-other"))
    )
    assert [message.partition(" is ")[0] for _, _, message in found] == [
        "gpu-0", "gpu-0", "gpu-0-mig-1g10gb-19-6", "gpu-0 (GPU instance 5)", "GPU-other",
    ]  # fmt: skip


def test_a_condition_that_gets_worse_is_an_event(events: Events) -> None:
    events.update(begun())
    worse = begun(severity=Severity.EVICT)
    assert events.update(worse, after_s=1.0) == []
    ((_, _, message),) = events.update(worse, after_s=QUIET_S)
    assert "its pods will be evicted" in message


def test_conditions_from_before_the_start_are_not_reported_again(events: Events) -> None:
    assert events.update(begun(since=STARTED - 1)) == []
    assert events.update(after_s=1.0)[0][1] == "GpuRecovered"


SICK, WELL = gpu(40), gpu(41)
CONDITION = begun(cause=HealthCause.ECC, gpu_uuid=SICK.uuid, severity=Severity.EVICT, value="", message="")


def status(**changes: Any) -> HealthStatus:
    device = DeviceHealth(gpu_uuid=SICK.uuid, gi_id=None, state=HealthState.EVICT, seconds=5.0)
    given = {"devices": (device,), "xids": {(SICK.uuid, "79"): 2}, "recoveries": {(SICK.uuid, HealthCause.ECC): 1}}
    return HealthStatus(**{**given, **changes})


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


def test_every_device_has_one_state_until_it_is_gone() -> None:
    shown = HealthMetrics()
    shown.update(status(), [CONDITION], snapshot(SICK, WELL))
    states = {state: value("dra_driver_gpu_health", device="gpu-40", state=state.value) for state in HealthState}
    assert states == {state: float(state is HealthState.EVICT) for state in HealthState}
    assert value("dra_driver_gpu_health", device="gpu-41", state="healthy") == 1
    assert value("dra_driver_gpu_health_state_seconds", device="gpu-40") == 5.0
    assert value("dra_driver_gpu_conditions", cause="ecc") == 1
    assert value("dra_driver_gpu_conditions", cause="xid") == 0
    shown.update(status(devices=()), [], snapshot(WELL))
    assert value("dra_driver_gpu_health", device="gpu-40", state="evict") is None
    assert value("dra_driver_gpu_health_state_seconds", device="gpu-40") is None


def test_counts_grow_by_the_difference() -> None:
    labels = {"device": "gpu-40", "xid": "79"}
    before = value("dra_driver_gpu_xids_total", **labels) or 0.0
    shown = HealthMetrics()
    for count in (2, 2, 7):
        shown.update(status(xids={(SICK.uuid, "79"): count}), [], snapshot(SICK))
    assert value("dra_driver_gpu_xids_total", **labels) == before + 7
    assert (value("dra_driver_gpu_recoveries_total", device="gpu-40", cause="ecc") or 0.0) >= 1
