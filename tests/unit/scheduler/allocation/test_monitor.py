"""Devices for admin access only, next to a GPU whose counters are used up, as the scheduler allocates them."""

from typing import Any

import pytest

from dra_driver.core.model.terms import GpuTerms
from dra_driver.scheduler.allocation import V1_36, V1_37, Allocator, SchedulerQuirks
from tests.fakes.dra_objects import DRIVER, claim, device_class, exactly, node
from tests.fakes.published import NODE, classes, having, slices

MONITOR = "monitor.gpu.nvidia.com"
ANY = "any"
TOLERATED = [{"key": "gpu.dra-driver.io/monitor", "operator": "Exists"}]
CLASSES = [
    *classes(),
    device_class(MONITOR, expression=f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "monitor"'),
    device_class(ANY, expression=f'device.driver == "{DRIVER}"'),
]


def devices_for(
    request: dict[str, Any], *, quirks: SchedulerQuirks = V1_36, used: tuple[str, ...] = ("gpu-0",)
) -> list[str] | None:
    """Return the devices that a request gets on a node whose only GPU publishes partitions and a monitor."""
    published = slices(terms=GpuTerms(policy="p", monitor=True))
    allocator = Allocator(slices=published, classes=CLASSES, allocated=[having("user", *used)], quirks=quirks)
    allocations = allocator.allocate(node(NODE), [claim("asks", request)]).allocations
    return None if allocations is None else [each["device"] for each in allocations[0]["devices"]["results"]]


def monitor(**fields: Any) -> dict[str, Any]:
    return exactly("gpu", **{"deviceClassName": MONITOR, "tolerations": TOLERATED, **fields})


@pytest.mark.parametrize("quirks", [V1_36, V1_37], ids=["1.36", "1.37"])
@pytest.mark.parametrize("used", ["gpu-0", "gpu-0-mig-1g10gb-19-0"])
def test_admin_access_gets_the_monitor_of_a_gpu_in_use(quirks: SchedulerQuirks, used: str) -> None:
    """The control: admin access to the GPU itself is charged to its counters, which are used up."""
    assert devices_for(monitor(adminAccess=True), quirks=quirks, used=(used,)) == ["gpu-0-monitor"]
    assert devices_for(monitor(adminAccess=True, allocationMode="All"), quirks=quirks, used=(used,)) == [
        "gpu-0-monitor"
    ]
    assert devices_for(exactly("gpu", adminAccess=True), quirks=quirks, used=(used,)) is None


def test_several_admin_claims_get_the_same_monitor() -> None:
    """A claim without admin access that took the device does not block monitoring."""
    assert devices_for(monitor(adminAccess=True), used=("gpu-0", "gpu-0-monitor")) == ["gpu-0-monitor"]


def test_ordinary_requests_do_not_get_the_monitor() -> None:
    """Not even by a class that selects every device of the driver."""
    assert devices_for(exactly("gpu")) is None
    assert devices_for(exactly("gpu", deviceClassName=ANY)) is None
    assert devices_for(monitor(tolerations=[])) is None


def test_a_tolerating_request_gets_only_what_the_node_refuses() -> None:
    """The scheduler cannot keep it away; tests/unit/node/claims/test_plan.py shows that the node prepares nothing."""
    assert devices_for(monitor()) == ["gpu-0-monitor"]
