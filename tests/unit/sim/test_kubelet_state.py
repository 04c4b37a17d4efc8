"""The simulated kubelet's checkpoint."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.core._pb.health_v1alpha1 import api_pb2 as health
from dra_driver.core.errors import RetryableError, StorageError
from dra_driver.sim.node.kubelet_state import DeviceResponse, HealthCache, KubeletState, NodeClaim, resources_status
from tests.harness.raising import fails

DEVICE = DeviceResponse(driver="d", requests=("r",), pool="p", device="gpu-0", cdi_ids=("k=a", "k=b"))


def claim(uid: str = "u1", name: str = "c") -> NodeClaim:
    return NodeClaim(namespace="n", name=name, uid=uid, drivers=("d",))


def test_a_restart_remembers_users_and_devices_but_not_that_a_claim_is_prepared(tmp_path: Path) -> None:
    state = KubeletState(tmp_path / "s")
    state.add_user(claim(), "pod-1")
    state.set_prepared("u1", "d", (DEVICE,))
    assert state.is_prepared("u1")
    again = KubeletState(tmp_path / "s")
    assert not again.is_prepared("u1")
    assert again.devices("u1") == (DEVICE,)
    assert again.pods() == {"pod-1"}


def test_a_claim_of_the_same_name_waits_for_the_old_one(tmp_path: Path) -> None:
    state = KubeletState(tmp_path / "s")
    state.add_user(claim("old"), "pod-1")
    with pytest.raises(RetryableError, match="different UID old is not unprepared yet"):
        state.add_user(claim("new"), "pod-2")


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("{")
    with fails(StorageError, "StateUnreadable"):
        KubeletState(tmp_path / "s")


HEALTHY, UNHEALTHY = health.HEALTHY, health.UNHEALTHY


class World:
    def __init__(self) -> None:
        self.now, self.changes = 100.0, 0
        self.cache = HealthCache(self.changed, lambda: self.now)

    def changed(self) -> None:
        self.changes += 1

    def status(self, device: str = "gpu-0") -> tuple[str, str]:
        found = self.cache.of("d", ("p", device))
        return found.status, found.message


def told(state: health.HealthStatus, device: str = "gpu-0", *, message: str = "", timeout: int = 0) -> Any:
    identity = health.DeviceIdentifier(pool_name="p", device_name=device)
    return health.DeviceHealth(device=identity, health=state, message=message, health_check_timeout_seconds=timeout)


@pytest.fixture
def world() -> World:
    return World()


def test_a_device_is_unknown_until_it_is_reported_and_when_the_report_is_old(world: World) -> None:
    assert world.status() == ("Unknown", "")
    world.cache.report("d", [told(UNHEALTHY, message="XID 79", timeout=10)])
    assert world.status() == ("Unhealthy", "XID 79")
    world.now += 10.1
    assert world.status() == ("Unknown", "")
    world.cache.report("d", [told(HEALTHY)])  # without a time the kubelet's own counts
    world.now += 30
    assert world.status()[0] == "Healthy"
    world.now += 0.1
    assert world.status()[0] == "Unknown"


def test_only_changes_are_news(world: World) -> None:
    world.cache.report("d", [told(HEALTHY)])
    world.cache.report("d", [told(HEALTHY)])
    assert world.changes == 1
    world.cache.report("d", [told(HEALTHY, message="counting")])
    world.cache.report("d", [])
    assert world.changes == 2


def test_a_device_that_is_no_longer_reported_becomes_unknown_with_the_next_message(world: World) -> None:
    world.cache.report("d", [told(HEALTHY), told(HEALTHY, "gpu-1")])
    world.now += 31
    world.cache.report("d", [told(HEALTHY, "gpu-1")])
    assert (world.status(), world.status("gpu-1"), world.changes) == (("Unknown", ""), ("Healthy", ""), 2)


def test_the_end_of_a_stream_forgets_its_driver_alone(world: World) -> None:
    world.cache.report("d", [told(HEALTHY)])
    world.cache.report("other", [told(HEALTHY)])
    world.cache.clear("d")
    assert world.status()[0] == "Unknown"
    assert world.cache.of("other", ("p", "gpu-0")).status == "Healthy"
    assert world.changes == 3
    world.cache.clear("d")
    assert world.changes == 3


def device(name: str, request: str = "gpu", cdi: str = "") -> DeviceResponse:
    ids = (cdi,) if cdi else ()
    return DeviceResponse(driver="d", requests=(request,), pool="p", device=name, cdi_ids=ids)


def test_the_status_names_devices_by_their_first_cdi_id_and_each_once(world: World) -> None:
    world.cache.report("d", [told(UNHEALTHY, message="ill"), told(HEALTHY, "gpu-1")])
    container = {"resources": {"claims": [{"name": "c"}, {"name": "missing"}]}}
    devices = {"c": [device("gpu-0", cdi="k=a"), device("gpu-0", cdi="k=a"), device("gpu-1")]}
    assert resources_status(container, devices, world.cache) == [
        {
            "name": "claim:c",
            "resources": [
                {"resourceID": "k=a", "health": "Unhealthy", "message": "ill"},
                {"resourceID": "d/p/gpu-1", "health": "Healthy"},
            ],
        }
    ]


def test_a_container_with_one_request_of_a_claim_sees_its_devices_alone(world: World) -> None:
    container = {"resources": {"claims": [{"name": "c", "request": "b"}]}}
    devices = {"c": [device("gpu-0", "a"), device("gpu-1", "b")]}
    assert resources_status(container, devices, world.cache) == [
        {"name": "claim:c/b", "resources": [{"resourceID": "d/p/gpu-1", "health": "Unknown"}]}
    ]
