"""The device-taint eviction controller: deletes pods whose claims have a device with a NoExecute taint.

Follows kubernetes/kubernetes 1.36 pkg/controller/devicetainteviction, with its peculiarities: only tolerations that
name the effect NoExecute count, of several the one with the fewest seconds; the time is that of the taint; claims for
extended resources are not looked at (kubernetes#141290); the pod is deleted, whatever its PodDisruptionBudget says.
DeviceTaintRules are not served by the embedded cluster.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from dra_driver.core.errors import NotFoundError
from dra_driver.core.time import parse_time
from dra_driver.kube.devices import newest_slices, pool_of
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, dig, entries, utc_now
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.loop import Controller
from dra_driver.sim.objects import (
    claim_names,
    generated_claims,
    is_deleted,
    is_finished,
    is_reserved,
    key,
    owned_by,
    set_condition,
    uid,
)

NO_EXECUTE = "NoExecute"
_EVENT = "DeviceTaintManagerEviction"

Device = tuple[str, str, str]
"""Driver, pool and name."""


class DeviceTaintController(Controller):
    def __init__(self, store: Store, clock: Clock = utc_now) -> None:
        super().__init__("device-taints", store, (RESOURCE_SLICES, RESOURCE_CLAIMS, PODS), "device-taint-eviction")
        self._clock = clock
        self._planned: set[str] = set()

    def step(self) -> float | None:
        """Delete the pods that are due; returns seconds until the next one is, None if none is expected."""
        # Without copies: most clusters have no such taint, and every change of a pod comes here.
        tainted = _tainted([record.obj for record in self._store.read_all(RESOURCE_SLICES)[0]])
        if not tainted and not self._planned:
            return None
        claims = {key(claim): claim for claim in self._store.list(RESOURCE_CLAIMS).items}
        times = {name: at for name, claim in claims.items() if (at := _eviction_time(claim, tainted)) is not None}
        wait_s: float | None = None
        for pod in self._store.list(PODS).items:
            at = min((times[name] for name in _claims_of(pod, claims) if name in times), default=None)
            if at is None:
                self._cancel(pod)
            elif (left_s := (at - self._clock()).total_seconds()) > 0:
                self._planned.add(uid(pod))
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            else:
                self._evict(pod)
        return wait_s

    def _cancel(self, pod: Obj) -> None:
        if uid(pod) in self._planned:
            self._planned.discard(uid(pod))
            if not is_deleted(pod):
                self._recorder.normal(pod, _EVENT, "Cancelling deletion")

    def _evict(self, pod: Obj) -> None:
        self._planned.discard(uid(pod))
        if is_deleted(pod):
            return
        self._recorder.normal(pod, _EVENT, "Marking for deletion")
        message = "Device Taint manager: deleting due to NoExecute taint"
        changed = set_condition(
            pod, "DisruptionTarget", "True", self._clock(), reason="DeletionByDeviceTaintManager", message=message
        )
        namespace, name = key(pod)
        with suppress(NotFoundError):
            if changed:
                self._store.update_status(PODS, pod)
            self._store.delete(PODS, name, namespace, DeleteOptions(uid=uid(pod)))


def _tainted(slices: Sequence[Obj]) -> dict[Device, list[Obj]]:
    """The NoExecute taints of each device in the newest generation of its pool."""
    found: dict[Device, list[Obj]] = {}
    for item in newest_slices(slices):
        for device in entries(item, "spec", "devices"):
            taints = [taint for taint in entries(device, "taints") if taint.get("effect") == NO_EXECUTE]
            if taints:
                found[*pool_of(item), device["name"]] = taints
    return found


def _eviction_time(claim: Obj, tainted: dict[Device, list[Obj]]) -> datetime | None:
    """The earliest time at which a device of the claim evicts its pods, None if none does."""
    times = []
    for result in entries(claim, "status", "allocation", "devices", "results"):
        for taint in tainted.get((result["driver"], result["pool"], result["device"]), ()):
            seconds = _tolerated_s(taint, entries(result, "tolerations"))
            added = parse_time(taint.get("timeAdded"))
            if seconds is not None and added is not None:
                times.append(added + timedelta(seconds=seconds))
    return min(times, default=None)


def _tolerated_s(taint: Obj, tolerations: Sequence[Obj]) -> float | None:
    """Seconds for which the taint is tolerated, None for ever."""
    seconds = [item.get("tolerationSeconds") for item in tolerations if _tolerates(item, taint)]
    if None in seconds:
        return None
    return float(max(0, min((each for each in seconds if each is not None), default=0)))


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") != NO_EXECUTE or toleration.get("key", "") not in {"", taint.get("key")}:
        return False
    exists = toleration.get("operator", "Equal") == "Exists"
    return exists or bool(toleration.get("value", "") == taint.get("value", ""))


def _claims_of(pod: Obj, claims: dict[tuple[str, str], Obj]) -> Iterator[tuple[str, str]]:
    """The claims of a scheduled pod that are reserved for it."""
    if not dig(pod, "spec", "nodeName") or is_finished(pod):
        return
    generated = generated_claims(pod)
    for name, claim_name in claim_names(pod):
        claim = claims.get((key(pod)[0], claim_name or ""))
        if claim is not None and is_reserved(claim, pod) and (name not in generated or owned_by(claim, pod)):
            yield key(claim)
