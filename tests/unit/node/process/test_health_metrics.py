"""Health as metrics."""

from typing import Any

from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.telemetry import metrics
from dra_driver.node.health import DeviceHealth, HealthState, HealthStatus
from dra_driver.node.process.health_metrics import HealthMetrics
from tests.unit.node.slices.gpus import gpu, snapshot

SICK, WELL = gpu(40), gpu(41)
CONDITION = HealthCondition(
    cause=HealthCause.ECC, gpu_uuid=SICK.uuid, severity=Severity.EVICT, value="", since=1.0, message=""
)


def status(**changes: Any) -> HealthStatus:
    device = DeviceHealth(gpu_uuid=SICK.uuid, gi_id=None, state=HealthState.EVICT, seconds=5.0)
    given = {"devices": (device,), "xids": {(SICK.uuid, "79"): 2}, "recoveries": {(SICK.uuid, HealthCause.ECC): 1}}
    return HealthStatus(**{**given, **changes})


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


def test_every_device_has_one_state() -> None:
    """Healthy ones too, so that a query over the fleet needs no other series."""
    HealthMetrics().update(status(), [CONDITION], snapshot(SICK, WELL))
    states = {state: value("dra_driver_gpu_health", device="gpu-40", state=state.value) for state in HealthState}
    assert states == {state: float(state is HealthState.EVICT) for state in HealthState}
    assert value("dra_driver_gpu_health", device="gpu-41", state="healthy") == 1
    assert value("dra_driver_gpu_health_state_seconds", device="gpu-40") == 5.0
    assert value("dra_driver_gpu_conditions", cause="ecc") == 1
    assert value("dra_driver_gpu_conditions", cause="xid") == 0


def test_a_device_that_is_gone_has_no_series() -> None:
    """Devices come and go with partitions."""
    shown = HealthMetrics()
    shown.update(status(), [CONDITION], snapshot(SICK, WELL))
    shown.update(status(devices=()), [], snapshot(WELL))
    assert value("dra_driver_gpu_health", device="gpu-40", state="evict") is None
    assert value("dra_driver_gpu_health_state_seconds", device="gpu-40") is None


def test_counts_grow_by_the_difference() -> None:
    """They are told as totals."""
    labels = {"device": "gpu-40", "xid": "79"}
    before = value("dra_driver_gpu_xids_total", **labels) or 0.0
    shown = HealthMetrics()
    for count in (2, 2, 7):
        shown.update(status(xids={(SICK.uuid, "79"): count}), [], snapshot(SICK))
    assert value("dra_driver_gpu_xids_total", **labels) == before + 7
    assert (value("dra_driver_gpu_recoveries_total", device="gpu-40", cause="ecc") or 0.0) >= 1
