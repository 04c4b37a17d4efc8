"""The embedded cluster's scheduler: finds a node and devices for each pod, writes both, or reports why none fits.

`placement` and `allocation` decide what fits; this module has the queue and the writes. Follows kubernetes/kubernetes
pkg/scheduler, above all framework/plugins/dynamicresources: claims are allocated and reserved before the pod is bound,
so a pod on a node always has its devices. If a step fails, the claim controller deallocates the claims.
"""

import logging
from time import monotonic

from msgspec import Struct

from dra_driver.core.errors import AllocationError, ConfigurationError, ConflictError, NotFoundError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, utc_now
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.state import ObjectChange
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.extended import ExtendedClaims
from dra_driver.sim.loop import ControllerLoop
from dra_driver.sim.objects import FINALIZER, claim_names, is_deleted, is_finished, key, owned_by, set_condition, uid
from dra_driver.sim.placement import SchedulingSnapshot, UnschedulableError
from dra_driver.sim.recorder import StoreEventRecorder

log = logging.getLogger(__name__)

DEFAULT_NAME = "default-scheduler"
# kube-scheduler waits 1 s and 10 s; an embedded cluster has few pods and can retry sooner.
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 2.0
MAX_RESERVED = 256


class _WaitingError(Exception):
    """The pod's claims do not exist yet; when the claim controller creates them, the pod is tried again."""


class _Attempts(Struct):
    """When to try a pod again. ``seen`` is the hash of the cluster state in which the last attempt failed."""

    count: int = 0
    not_before: float = 0.0
    seen: int = -1


class EmbeddedScheduler:
    """The scheduler's thread. Start it once, stop it once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorder = StoreEventRecorder(store, DEFAULT_NAME)
        self._extended = ExtendedClaims(store)
        kinds = (PODS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES)
        self._loop = ControllerLoop("scheduler", store, kinds, self.step, observe=self._arrived)
        self._attempts: dict[str, _Attempts] = {}

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def step(self) -> float | None:
        """Try every pending pod that is due; returns the seconds until the next one is, None without one."""
        pods = self._store.list(PODS).items
        waiting = sorted((pod for pod in pods if _is_pending(pod)), key=self._place_in_queue)
        self._attempts = {uid(pod): self._attempts.get(uid(pod), _Attempts()) for pod in waiting}
        delays = []
        for pod in waiting:
            attempts, now = self._attempts[uid(pod)], monotonic()
            # Read before the pod: a change after this line makes the state differ, and the pod is tried again.
            state = self._relevant_state()
            if attempts.seen == state:
                continue
            if attempts.not_before > now:
                delays.append(attempts.not_before - now)
                continue
            current = self._store.find(PODS, key(pod)[1], key(pod)[0])
            if current is not None and uid(current) == uid(pod) and _is_pending(current):
                self._try(current, attempts, state)
        return min(delays) if delays else None

    def _arrived(self, change: ObjectChange) -> None:
        """Remember the order in which pods were created: creationTimestamp has whole seconds only."""
        if change.kind is PODS and change.type == "ADDED":
            self._attempts.setdefault(uid(change.record.obj), _Attempts())

    def _place_in_queue(self, pod: Obj) -> tuple[int, str, int]:
        """First come, first served; pods from before the start of the scheduler by age."""
        known = list(self._attempts)
        place = known.index(uid(pod)) if uid(pod) in self._attempts else len(known)
        return place, pod["metadata"].get("creationTimestamp", ""), int(pod["metadata"]["resourceVersion"])

    def _relevant_state(self) -> int:
        """A hash of everything that decides whether a pod fits. Conditions of pending pods are not part of it."""
        parts: list[object] = []
        for kind in (NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS):
            records, _ = self._store.read_all(kind)
            parts.append(tuple(record.revision for record in records))
        pods, _ = self._store.read_all(PODS)
        parts.append(tuple(dig(pod.obj, "spec", "nodeName") for pod in pods))
        parts.append(tuple(str(entries(pod.obj, "status", "resourceClaimStatuses")) for pod in pods))
        return hash(tuple(parts))

    def _try(self, pod: Obj, attempts: _Attempts, state: int) -> None:
        try:
            self._schedule(pod)
        except (ConflictError, NotFoundError) as error:
            log.debug("pod will be tried again", extra={"pod": "/".join(key(pod)), "reason": error})
            return
        except _WaitingError:
            attempts.seen = state
            return
        except UnschedulableError as error:
            self._report(pod, "Unschedulable", str(error))
        except (AllocationError, ConfigurationError) as error:
            self._report(pod, "SchedulerError", f"running PreFilter/Filter plugin DynamicResources: {error}")
        else:
            self._attempts.pop(uid(pod), None)
            return
        attempts.seen = state
        attempts.not_before = monotonic() + min(FIRST_BACKOFF_S * 2**attempts.count, LONGEST_BACKOFF_S)
        attempts.count += 1

    def _schedule(self, pod: Obj) -> None:
        """Choose a node, write the claims, bind the pod.

        Raises _WaitingError, UnschedulableError, allocation's errors or an API error.
        """
        claims = self._claims(pod)
        self._extended.discard_for(pod)
        unallocated = [claim for claim in claims if dig(claim, "status", "allocation") is None]
        place = SchedulingSnapshot(self._store).choose(pod, claims, unallocated)
        for claim in claims:
            self._reserve(claim, pod, place.allocations[unallocated.index(claim)] if claim in unallocated else None)
        if place.extended is not None and place.extended_allocation is not None:
            self._extended.create(pod, place.extended, place.extended_allocation)
        self._store.bind(*key(pod), place.node)
        self._recorder.normal(pod, "Scheduled", f"Successfully assigned {'/'.join(key(pod))} to {place.node}")

    def _claims(self, pod: Obj) -> list[Obj]:
        found: list[Obj] = []
        generated = {
            item["name"] for item in entries(pod, "spec", "resourceClaims") if item.get("resourceClaimTemplateName")
        }
        for name, claim_name in claim_names(pod):
            if claim_name is None:
                raise _WaitingError
            claim = self._store.find(RESOURCE_CLAIMS, claim_name, key(pod)[0])
            if claim is None:
                raise UnschedulableError(f'resourceclaim "{claim_name}" not found')
            if is_deleted(claim):
                raise UnschedulableError(f'resourceclaim "{claim_name}" is being deleted')
            if name in generated and not owned_by(claim, pod):
                raise UnschedulableError(f"ResourceClaim {claim_name} was not created for pod {'/'.join(key(pod))}")
            users = entries(claim, "status", "reservedFor")
            if len(users) >= MAX_RESERVED and not _is_reserved(claim, pod):
                raise UnschedulableError(f'resourceclaim "{claim_name}" is in use by {MAX_RESERVED} pods')
            if all(claim["metadata"]["uid"] != other["metadata"]["uid"] for other in found):
                found.append(claim)
        return found

    def _reserve(self, claim: Obj, pod: Obj, allocation: Obj | None) -> None:
        """Add the finalizer, then write allocation and user in one update.

        The finalizer comes first because an allocated claim must always have it.
        """
        if allocation is not None and FINALIZER not in entries(claim, "metadata", "finalizers"):
            claim["metadata"].setdefault("finalizers", []).append(FINALIZER)
            claim = self._store.update(RESOURCE_CLAIMS, claim)
        status = claim.setdefault("status", {})
        if allocation is not None:
            status["allocation"] = allocation
        if not _is_reserved(claim, pod):
            user = {"resource": "pods", "name": key(pod)[1], "uid": uid(pod)}
            status["reservedFor"] = [*entries(claim, "status", "reservedFor"), user]
        self._store.update_status(RESOURCE_CLAIMS, claim)

    def _report(self, pod: Obj, reason: str, message: str) -> None:
        self._recorder.warning(pod, "FailedScheduling", message)
        if set_condition(pod, "PodScheduled", "False", utc_now(), reason=reason, message=message):
            self._store.update_status(PODS, pod)


def _is_pending(pod: Obj) -> bool:
    spec = pod["spec"]
    return not (
        spec.get("nodeName")
        or spec.get("schedulingGates")
        or spec.get("schedulerName", DEFAULT_NAME) != DEFAULT_NAME
        or is_deleted(pod)
        or is_finished(pod)
    )


def _is_reserved(claim: Obj, pod: Obj) -> bool:
    return any(user.get("uid") == uid(pod) for user in entries(claim, "status", "reservedFor"))
