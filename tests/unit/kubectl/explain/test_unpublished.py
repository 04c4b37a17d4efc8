"""Classes that match nothing because the API server's feature gates are off."""

from typing import Any

import pytest

from dra_driver.kubectl.explain import explain
from dra_driver.kubectl.explain.scheduler import scheduler_of
from dra_driver.kubectl.explain.subject import subject_of
from tests.fakes.dra_objects import DRIVER, claim, device_class, exactly, gpu, resource_slice
from tests.unit.kubectl.explain.clusters import A, cluster, pod

WHOLE = {**gpu("gpu-0"), "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}}}
MIG = f'device.driver == "{DRIVER}" && {A}.type == "mig"'
SHARED = f'device.driver == "{DRIVER}" && {A}.sharingStrategy == "MPS"'


def messages(selector: str, version: str, *devices: Any, gates: dict[str, bool] | None = None) -> list[str]:
    state = cluster(
        classes=[device_class("wanted", expression=selector)],
        slices=[resource_slice("a", *(devices or (WHOLE,)))],
        claims=[claim("c", exactly(deviceClassName="wanted"))],
    )
    waiting = pod(claim="c")
    report = explain(state, subject_of(state, waiting), scheduler=scheduler_of(version, gates or {}, state.slices))
    return [f"{cause.message}; {cause.fix}" for cause in report.causes if cause.code == "gateOff"]


@pytest.mark.parametrize(("selector", "gate"), [(MIG, "DRAPartitionableDevices"), (SHARED, "DRAConsumableCapacity")])
def test_a_class_of_unpublished_devices_names_the_gate(selector: str, gate: str) -> None:
    """Asking for another class would not help: no class of partitions matches anything on this cluster."""
    (message,) = messages(selector, "v1.35.6")
    assert "DeviceClass wanted matches no published device" in message
    assert f"enable {gate} in the API server" in message
    assert messages(selector, "v1.36.2") == []
    assert messages(selector, "v1.36.2", gates={gate: False}) != []


def test_a_class_that_matches_or_would_never_match_is_not_the_gates_fault() -> None:
    """An instance that exists is published; a class of another driver has nothing to do with this."""
    instance = {**gpu("gpu-0-mig-1"), "attributes": {"type": {"string": "mig"}, "uuid": {"string": "MIG-1"}}}
    assert messages(MIG, "v1.35.6", WHOLE, instance) == []
    assert messages('device.driver == "other.example.com"', "v1.35.6") == []


def test_fields_that_the_api_server_kept_show_gates_that_are_on() -> None:
    """Kubernetes 1.35 with its alpha gates on needs no --feature-gates."""
    tainted = {**WHOLE, "taints": [{"key": "x", "effect": "NoSchedule"}]}
    counted = {**resource_slice("a"), "spec": {"sharedCounters": [{"name": "s", "counters": {}}]}}
    found = scheduler_of("v1.35.6", {}, [resource_slice("a", tainted), counted]).features
    assert (found.device_taints, found.partitionable_devices) == (True, True)
    assert (found.consumable_capacity, found.binding_conditions) == (False, False)
    assert not scheduler_of(
        "v1.35.6", {"DRADeviceTaints": False}, [resource_slice("a", tainted)]
    ).features.device_taints
