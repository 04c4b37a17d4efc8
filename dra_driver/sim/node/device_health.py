"""Health of devices as drivers report it on the kubelet's stream, and what the pod's status shows of it.

Follows kubernetes/kubernetes 1.36 pkg/kubelet/cm/dra: healthinfo.go (what is kept, when it is outdated) and manager.go
UpdateAllocatedResourcesStatus. Containers with an extended resource alone have no such status there.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.sim.apiserver.jsonvalue import Obj, entries
from dra_driver.sim.node.kubelet_state import DeviceResponse

DEFAULT_TIMEOUT_S: Final = 30.0
MAX_MESSAGE: Final = 1024
_STATUSES: Final = {1: "Healthy", 2: "Unhealthy"}

DeviceId = tuple[str, str]
"""Pool and device."""


class ReportedHealth(Struct, frozen=True, kw_only=True):
    """``status`` is Healthy, Unhealthy or Unknown; ``until_s`` (monotonic) is when it is outdated."""

    status: str
    message: str = ""
    until_s: float = 0.0


UNKNOWN: Final = ReportedHealth(status="Unknown")


class HealthCache:
    """What all drivers of a node have reported. Thread-safe. ``on_change`` is called without the lock."""

    def __init__(self, on_change: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_change, self._clock = on_change, clock
        self._lock = threading.Lock()  # guards the next
        self._known: dict[str, dict[DeviceId, ReportedHealth]] = {}

    def report(self, driver: str, devices: Iterable[Any]) -> None:
        """Take in one message of a driver: DeviceHealth messages of health v1alpha1 or v1."""
        now = self._clock()
        told = {(item.device.pool_name, item.device.device_name): _reported(item, now) for item in devices}
        with self._lock:
            known = self._known.setdefault(driver, {})
            changed = any(_shown(known.get(key)) != _shown(health) for key, health in told.items())
            known.update(told)
            for key, health in known.items():
                if key not in told and health.status != UNKNOWN.status and health.until_s < now:
                    known[key], changed = UNKNOWN, True
        if changed:
            self._on_change()

    def clear(self, driver: str) -> None:
        """Forget what a driver has reported: its stream has ended."""
        with self._lock:
            had_any = bool(self._known.pop(driver, None))
        if had_any:
            self._on_change()

    def of(self, driver: str, device: DeviceId) -> ReportedHealth:
        """What is known now; `UNKNOWN` for what was not reported or is outdated."""
        with self._lock:
            found = self._known.get(driver, {}).get(device, UNKNOWN)
        return found if found.until_s >= self._clock() else UNKNOWN


def resources_status(container: Obj, devices: Mapping[str, Sequence[DeviceResponse]], health: HealthCache) -> list[Obj]:
    """allocatedResourcesStatus of a container; ``devices`` are those of each claim by its name in the pod."""
    found = []
    for item in entries(container, "resources", "claims"):
        request = item.get("request", "")
        name = f"claim:{item['name']}/{request}" if request else f"claim:{item['name']}"
        resources: dict[str, Obj] = {}
        for device in devices.get(item["name"], ()):
            if request and device.request_names and request not in {r.split("/")[0] for r in device.request_names}:
                continue
            identity = device.cdi_ids[0] if device.cdi_ids else f"{device.driver}/{device.pool}/{device.device}"
            seen = health.of(device.driver, (device.pool, device.device))
            shown: Obj = {"resourceID": identity, "health": seen.status}
            resources.setdefault(identity, shown | ({"message": seen.message} if seen.message else {}))
        if resources:
            found.append({"name": name, "resources": list(resources.values())})
    return found


def _reported(item: Any, now: float) -> ReportedHealth:
    timeout_s = item.health_check_timeout_seconds
    until_s = now + (timeout_s if timeout_s > 0 else DEFAULT_TIMEOUT_S)
    message = item.message[:MAX_MESSAGE]
    return ReportedHealth(status=_STATUSES.get(item.health, UNKNOWN.status), message=message, until_s=until_s)


def _shown(health: ReportedHealth | None) -> ReportedHealth | None:
    return None if health is None else replace(health, until_s=0.0)
