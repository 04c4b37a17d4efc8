"""The embedded cluster's scheduler: finds a node and devices for each pod, writes both, says why not.

Owns the queue, the order of writes and the words in conditions and events. What fits is decided by `allocation`.
Follows kubernetes/kubernetes pkg/scheduler, above all framework/plugins/dynamicresources: claims are allocated and
reserved before the pod is bound, so a pod on a node always has its devices; a failed step leaves claims that the claim
controller takes back.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from dra_driver.allocation import Allocator, Question
from dra_driver.allocation.nodes import node_matches
from dra_driver.allocation.pod_fit import Room, rooms, why_not
from dra_driver.errors import AllocationError, ConfigurationError, ConflictError, NotFoundError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, utc_now
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.state import Change
from dra_driver.sim.loop import Loop
from dra_driver.sim.objects import FINALIZER, claim_names, is_deleted, is_finished, key, owned_by, set_condition, uid
from dra_driver.sim.recorder import Recorder
from dra_driver.sim.store import Store

log = logging.getLogger(__name__)

DEFAULT_NAME = "default-scheduler"
# The real ones are 1 s and 10 s; a cluster on a laptop can afford to look sooner.
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
MAX_RESERVED = 256


class _WaitingError(Exception):
    """The pod's claims do not exist yet; the claim controller's write will bring it back."""


class _UnschedulableError(Exception):
    """No node for the pod now; the text is for its condition."""


@dataclass(slots=True)
class _Attempts:
    """When a pod may be tried again. ``seen`` is the state of the cluster that the last attempt failed on."""

    count: int = 0
    not_before: float = 0.0
    seen: int = -1


@dataclass(slots=True, kw_only=True)
class _View:
    """Everything that one attempt looks at."""

    nodes: Sequence[Obj]
    allocator: Allocator
    rooms: dict[str, Room] = field(default_factory=dict)

    def room(self, node: Obj) -> Room:
        return self.rooms.get(node["metadata"]["name"]) or Room()


class Scheduler:
    """Start it once, stop it once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorder = Recorder(store, DEFAULT_NAME)
        kinds = (PODS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES)
        self._loop = Loop("scheduler", store, kinds, self.step, observe=self._arrived)
        self._attempts: dict[str, _Attempts] = {}

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def step(self) -> float | None:
        """Try every pending pod that is due; the seconds until the next one is."""
        pods = self._store.list(PODS).items
        waiting = sorted((pod for pod in pods if _is_pending(pod)), key=self._place_in_queue)
        self._attempts = {uid(pod): self._attempts.get(uid(pod), _Attempts()) for pod in waiting}
        moments = []
        for pod in waiting:
            attempts, now = self._attempts[uid(pod)], monotonic()
            # Before the pod is read again: what changes after this line makes the state differ and brings the pod back.
            state = self._relevant_state()
            if attempts.seen == state:
                continue
            if attempts.not_before > now:
                moments.append(attempts.not_before - now)
                continue
            current = self._store.find(PODS, key(pod)[1], key(pod)[0])
            if current is not None and uid(current) == uid(pod) and _is_pending(current):
                self._try(current, attempts, state)
        return min(moments) if moments else None

    def _arrived(self, change: Change) -> None:
        """Remember the order in which pods came: their time stamps have whole seconds only."""
        if change.kind is PODS and change.type == "ADDED":
            self._attempts.setdefault(uid(change.record.obj), _Attempts())

    def _place_in_queue(self, pod: Obj) -> tuple[int, str, int]:
        """First come, first served; of pods that were there before the scheduler, the older one."""
        known = list(self._attempts)
        place = known.index(uid(pod)) if uid(pod) in self._attempts else len(known)
        return place, pod["metadata"].get("creationTimestamp", ""), int(pod["metadata"]["resourceVersion"])

    def _relevant_state(self) -> int:
        """Changes when anything changes that can make a pod fit; conditions of waiting pods are not among it."""
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
            log.debug("trying the pod again", extra={"pod": "/".join(key(pod)), "reason": error})
            return
        except _WaitingError:
            attempts.seen = state
            return
        except _UnschedulableError as error:
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
        """Node, claims, binding. Raises one of the two private errors, allocation's errors or an API error."""
        claims = self._claims(pod)
        unallocated = [claim for claim in claims if dig(claim, "status", "allocation") is None]
        view = self._view()
        node, allocations = self._choose(pod, claims, unallocated, view)
        for claim in claims:
            allocation = allocations[unallocated.index(claim)] if claim in unallocated else None
            self._reserve(claim, pod, allocation)
        self._store.bind(*key(pod), node)
        self._recorder.normal(pod, "Scheduled", f"Successfully assigned {'/'.join(key(pod))} to {node}")

    def _view(self) -> _View:
        claims = [record.obj for record in self._store.read_all(RESOURCE_CLAIMS)[0]]
        slices = [record.obj for record in self._store.read_all(RESOURCE_SLICES)[0]]
        classes = [record.obj for record in self._store.read_all(DEVICE_CLASSES)[0]]
        pods = [record.obj for record in self._store.read_all(PODS)[0]]
        return _View(
            nodes=[record.obj for record in self._store.read_all(NODES)[0]],
            allocator=Allocator(slices=slices, classes=classes, allocated=claims),
            rooms=rooms(pods),
        )

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
                raise _UnschedulableError(f'resourceclaim "{claim_name}" not found')
            if is_deleted(claim):
                raise _UnschedulableError(f'resourceclaim "{claim_name}" is being deleted')
            if name in generated and not owned_by(claim, pod):
                raise _UnschedulableError(f"ResourceClaim {claim_name} was not created for pod {'/'.join(key(pod))}")
            users = entries(claim, "status", "reservedFor")
            if len(users) >= MAX_RESERVED and not _is_reserved(claim, pod):
                raise _UnschedulableError(f'resourceclaim "{claim_name}" is in use by {MAX_RESERVED} pods')
            if all(claim["metadata"]["uid"] != other["metadata"]["uid"] for other in found):
                found.append(claim)
        return found

    def _choose(
        self, pod: Obj, claims: Sequence[Obj], unallocated: Sequence[Obj], view: _View
    ) -> tuple[str, Sequence[Obj]]:
        """The node with the fewest pods of those that fit, and the allocations there."""
        reasons: Counter[str] = Counter()
        asked: Question | None = None
        for node in sorted(view.nodes, key=lambda item: (view.room(item).pods, item["metadata"]["name"])):
            name = node["metadata"]["name"]
            reason = why_not(pod, node, view.room(node))
            if not reason and not all(_reachable(claim, node) for claim in claims):
                reason = "resourceclaim not available on the node"
            if not reason:
                asked = asked or view.allocator.question(unallocated)
                outcome = asked.on(node)
                if outcome.allocations is not None:
                    return name, outcome.allocations
                reason = "cannot allocate all claims"
            reasons[reason] += 1
        raise _UnschedulableError(_summary(len(view.nodes), reasons))

    def _reserve(self, claim: Obj, pod: Obj, allocation: Obj | None) -> None:
        """Write allocation and user in one update; the finalizer first, so that no allocation is ever without it."""
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


def _reachable(claim: Obj, node: Obj) -> bool:
    selector = dig(claim, "status", "allocation", "nodeSelector")
    return selector is None or node_matches(selector, node)


def _summary(nodes: int, reasons: Counter[str]) -> str:
    """``0/2 nodes are available: 2 cannot allocate all claims. …``, as FitError.Error() prints it."""
    if not nodes:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    helpless = f"0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
    return f"0/{nodes} nodes are available: {listed}. still not schedulable, preemption: {helpless}"
