"""The kubelet's checkpoint (users of claims, devices that drivers returned) and the health that drivers report.

The checkpoint is one JSON file, replaced by a rename. Like ``dra_manager_state`` (kubernetes/kubernetes
pkg/kubelet/cm/dra/state) it is written before a driver is called and does not record whether a claim is prepared, so a
restarted kubelet calls the driver again. Health follows pkg/kubelet/cm/dra of 1.36, healthinfo.go and manager.go
UpdateAllocatedResourcesStatus: containers with only an extended resource have no such status.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field, json
from msgspec.structs import replace

from dra_driver.conformance.plugin import AnsweredDevice, ClaimKey
from dra_driver.core.convert import decode_json
from dra_driver.core.errors import RetryableError, StorageError
from dra_driver.core.files import replace_file
from dra_driver.sim.apiserver.jsonvalue import Obj, entries


class NodeClaim(ClaimKey, frozen=True, kw_only=True):
    """A claim that a pod on this node uses; ``drivers`` are those with results in its allocation."""

    drivers: tuple[str, ...]


class DeviceResponse(AnsweredDevice, frozen=True, kw_only=True):
    """One device of a driver's response."""

    driver: str


class ClaimInfo(Struct):
    claim: NodeClaim
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[DeviceResponse, ...]] = field(default_factory=dict)


class _File(Struct):
    claims: list[ClaimInfo]
    version: int = 1


class KubeletState:
    """All claims of this node by UID. Thread-safe; every change is in the file when its method returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards the entries and the file
        self._entries = _load(path)
        self._prepared: set[str] = set()

    def add_user(self, claim: NodeClaim, pod_uid: str) -> None:
        with self._lock:
            for entry in self._entries.values():
                same = (entry.claim.namespace, entry.claim.name) == (claim.namespace, claim.name)
                if same and entry.claim.uid != claim.uid:
                    old = f"old ResourceClaim with same name {claim.name} and different UID {entry.claim.uid}"
                    raise RetryableError(f"{old} is not unprepared yet")
            self._entries.setdefault(claim.uid, ClaimInfo(claim)).pods.add(pod_uid)
            self._save()

    def set_prepared(self, uid: str, driver: str, devices: tuple[DeviceResponse, ...]) -> None:
        """Record a driver's devices for the claim; the claim is prepared once all of its drivers have responded."""
        with self._lock:
            entry = self._entries.get(uid)
            if entry is None:
                return
            entry.devices[driver] = devices
            if set(entry.claim.drivers) <= entry.devices.keys():
                self._prepared.add(uid)
            self._save()

    def is_prepared(self, uid: str) -> bool:
        """Return whether the claim was prepared since this kubelet started."""
        with self._lock:
            return uid in self._prepared

    def devices(self, uid: str) -> tuple[DeviceResponse, ...]:
        with self._lock:
            entry = self._entries.get(uid)
            return tuple(device for devices in entry.devices.values() for device in devices) if entry else ()

    def devices_of(self, namespace: str, name: str) -> tuple[DeviceResponse, ...]:
        with self._lock:
            named = (namespace, name)
            uids = [uid for uid, e in self._entries.items() if (e.claim.namespace, e.claim.name) == named]
        return self.devices(uids[0]) if uids else ()

    def claims_of(self, pod_uid: str) -> list[NodeClaim]:
        with self._lock:
            return [entry.claim for entry in self._entries.values() if pod_uid in entry.pods]

    def drop_user(self, pod_uid: str) -> list[NodeClaim]:
        """Remove the pod from claims that other pods use too; returns the claims that only this pod uses, until
        `forget`."""
        with self._lock:
            last = []
            for entry in self._entries.values():
                if entry.pods == {pod_uid}:
                    self._prepared.discard(entry.claim.uid)
                    last.append(entry.claim)
                else:
                    entry.pods.discard(pod_uid)
            self._save()
            return last

    def forget(self, uids: Iterable[str]) -> None:
        with self._lock:
            for uid in uids:
                self._entries.pop(uid, None)
                self._prepared.discard(uid)
            self._save()

    def pods(self) -> frozenset[str]:
        with self._lock:
            return frozenset(pod for entry in self._entries.values() for pod in entry.pods)

    def _save(self) -> None:
        try:
            replace_file(self._path, json.encode(_File(list(self._entries.values())), order="sorted"))
        except OSError as error:
            raise StorageError(f"the simulated kubelet cannot write {self._path}: {error.strerror}") from error


def _load(path: Path) -> dict[str, ClaimInfo]:
    try:
        document = decode_json(path.read_bytes(), _File)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StorageError(
            f"the simulated kubelet cannot read its state {path}: {error}", reason="StateUnreadable"
        ) from error
    return {entry.claim.uid: entry for entry in document.claims}


DEFAULT_TIMEOUT_S: Final = 30.0
MAX_MESSAGE: Final = 1024
_STATUSES: Final = {1: "Healthy", 2: "Unhealthy"}

DeviceId = tuple[str, str]  # pool and device


class ReportedHealth(Struct, frozen=True, kw_only=True):
    """``status`` is Healthy, Unhealthy or Unknown; ``until_s`` (monotonic) is when it is outdated."""

    status: str
    message: str = ""
    until_s: float = 0.0


UNKNOWN: Final = ReportedHealth(status="Unknown")


class HealthCache:
    """Device health from all drivers of a node. Thread-safe. ``on_change`` is called without the lock."""

    def __init__(self, on_change: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_change, self._clock = on_change, clock
        self._lock = threading.Lock()  # guards the next
        self._known: dict[str, dict[DeviceId, ReportedHealth]] = {}

    def report(self, driver: str, devices: Iterable[Any]) -> None:
        """Take in one message of a driver: DeviceHealth messages of health v1alpha1 or v1."""
        now = self._clock()
        reported = {(item.device.pool_name, item.device.device_name): _reported(item, now) for item in devices}
        with self._lock:
            known = self._known.setdefault(driver, {})
            changed = any(_shown(known.get(key)) != _shown(health) for key, health in reported.items())
            known.update(reported)
            for key, health in known.items():
                if key not in reported and health.status != UNKNOWN.status and health.until_s < now:
                    known[key], changed = UNKNOWN, True
        if changed:
            self._on_change()

    def clear(self, driver: str) -> None:
        """Drop a driver's reports after its stream has ended."""
        with self._lock:
            had_any = bool(self._known.pop(driver, None))
        if had_any:
            self._on_change()

    def of(self, driver: str, device: DeviceId) -> ReportedHealth:
        """Return the reported health; `UNKNOWN` for missing and outdated reports."""
        with self._lock:
            found = self._known.get(driver, {}).get(device, UNKNOWN)
        return found if found.until_s >= self._clock() else UNKNOWN


def resources_status(container: Obj, devices: Mapping[str, Sequence[DeviceResponse]], health: HealthCache) -> list[Obj]:
    """Return allocatedResourcesStatus of a container; ``devices``: devices by claim name in the pod."""
    found = []
    for item in entries(container, "resources", "claims"):
        request = item.get("request", "")
        name = f"claim:{item['name']}/{request}" if request else f"claim:{item['name']}"
        resources: dict[str, Obj] = {}
        for device in devices.get(item["name"], ()):
            if request and device.requests and request not in {r.split("/")[0] for r in device.requests}:
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
