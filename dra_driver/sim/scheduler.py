"""The embedded cluster's scheduler: find a node and devices for each pod, write both, or report why none fits.

Follows kubernetes/kubernetes pkg/scheduler and framework/plugins/dynamicresources: claims are allocated and reserved
before the pod is bound; if a step fails, the claim controller deallocates them. `allocation` decides what fits on one
node; the message for a pod that fits nowhere has the form of FitError.Error().

Order of writes for extended resources (KEP-5004; extendeddynamicresources.go): the claim, its allocation and its user,
then ``status.extendedResourceClaimStatus`` of the pod, then the binding. A failed attempt deletes the claim, or else
the next attempt does.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic

from msgspec import Struct

from dra_driver.core.errors import AllocationError, ConfigurationError, ConflictError, DraError, NotFoundError
from dra_driver.scheduler.allocation import (
    EXTENDED_CLAIM_ANNOTATION,
    Allocator,
    ExtendedClaim,
    NodeUsage,
    Question,
    extended_claim,
    node_matches,
    resource_classes,
    unfit_reason,
    usage_by_node,
)
from dra_driver.sim import objects
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, entries, mapping, utc_now
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.state import ObjectChange
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.loop import Controller


class ExtendedClaims:
    """Claims for extended resources in ``store``. Raises KubernetesApiError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, pod: Obj, planned: ExtendedClaim, allocation: Obj) -> Obj:
        """Create the claim, allocated and reserved for ``pod``, and name it in the pod's status; deletes it if a later
        step fails."""
        namespace, name = objects.key(pod)
        body = copy_json(dict(planned.claim))
        del body["metadata"]["name"]  # the API server generates one from generateName
        # With the finalizer from the start: an allocated claim must always have it.
        body["metadata"]["finalizers"] = [objects.FINALIZER]
        claim = self._store.create(RESOURCE_CLAIMS, body, namespace=namespace)
        try:
            user = {"resource": "pods", "name": name, "uid": objects.uid(pod)}
            claim["status"] = {"allocation": allocation, "reservedFor": [user]}
            claim = self._store.update_status(RESOURCE_CLAIMS, claim)
            pod.setdefault("status", {})["extendedResourceClaimStatus"] = {
                "resourceClaimName": claim["metadata"]["name"],
                "requestMappings": [dict(item) for item in planned.mappings],
            }
            self._store.update_status(PODS, pod)
        except DraError:
            with suppress(DraError):
                self._discard(claim)
            raise
        return claim

    def discard_for(self, pod: Obj) -> None:
        """Delete the claims that earlier attempts left for this pod. It is on no node, so no container uses them."""
        for record in self._store.read_all(RESOURCE_CLAIMS)[0]:
            annotations = mapping(record.obj, "metadata", "annotations")
            if EXTENDED_CLAIM_ANNOTATION in annotations and objects.owned_by(record.obj, pod):
                self._discard(copy_json(record.obj))

    def _discard(self, claim: Obj) -> None:
        namespace, name = objects.key(claim)
        with suppress(NotFoundError):
            current = self._store.get(RESOURCE_CLAIMS, name, namespace)
            if current.get("status"):
                current["status"] = {}
                current = self._store.update_status(RESOURCE_CLAIMS, current)
            if objects.FINALIZER in entries(current, "metadata", "finalizers"):
                current["metadata"]["finalizers"].remove(objects.FINALIZER)
                self._store.update(RESOURCE_CLAIMS, current)
            self._store.delete(RESOURCE_CLAIMS, name, namespace, DeleteOptions(uid=objects.uid(claim)))


class UnschedulableError(Exception):
    """The pod fits on no node now. The message goes into its PodScheduled condition."""


class NodeChoice(Struct, frozen=True, kw_only=True):
    """The node chosen for a pod, with an allocation for each of its unallocated claims, in their order. ``extended`` is
    the claim to create for extended resources that devices provide on this node, None without any;
    ``extended_allocation`` is its allocation."""

    node: str
    allocations: Sequence[Obj]
    extended: ExtendedClaim | None = None
    extended_allocation: Obj | None = None


class SchedulingSnapshot:
    """Nodes, pods, claims, slices and classes, read once for one scheduling attempt."""

    def __init__(self, store: Store) -> None:
        claims, slices, classes, pods, nodes = (
            [record.obj for record in store.read_all(kind)[0]]
            for kind in (RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES, PODS, NODES)
        )
        self._nodes = nodes
        self._usage = usage_by_node(pods)
        self._allocator = Allocator(slices=slices, classes=classes, allocated=claims)
        self._by_resource = resource_classes(classes)

    def choose(self, pod: Obj, claims: Sequence[Obj], unallocated: Sequence[Obj]) -> NodeChoice:
        """Return the fitting node with the fewest pods. Raises UnschedulableError, or allocation's errors."""
        reasons: Counter[str] = Counter()
        # The extended claim depends on which resources the node offers itself; most nodes share one question.
        questions: dict[str, Question] = {}
        for node in sorted(self._nodes, key=lambda item: (self._usage_of(item).pods, item["metadata"]["name"])):
            extended = extended_claim(pod, node, self._by_resource)
            reason = self._why_not(pod, node, claims, extended)
            if not reason:
                asked = str(extended.claim["spec"]) if extended else ""
                if asked not in questions:
                    more: Sequence[Mapping[str, object]] = [extended.claim] if extended else []
                    questions[asked] = self._allocator.question([*unallocated, *more])
                allocations = questions[asked].on(node).allocations
                if allocations is not None:
                    name = node["metadata"]["name"]
                    if extended is None:
                        return NodeChoice(node=name, allocations=allocations)
                    *rest, last = allocations
                    return NodeChoice(node=name, allocations=rest, extended=extended, extended_allocation=last)
                reason = "cannot allocate all claims"
            reasons[reason] += 1
        raise UnschedulableError(_summary(len(self._nodes), reasons))

    def _why_not(self, pod: Obj, node: Obj, claims: Sequence[Obj], extended: ExtendedClaim | None) -> str:
        served = {mapping["resourceName"] for mapping in extended.mappings} if extended else ()
        reason = unfit_reason(pod, node, self._usage_of(node), served)
        selectors = (dig(claim, "status", "allocation", "nodeSelector") for claim in claims)
        if not reason and any(selector is not None and not node_matches(selector, node) for selector in selectors):
            reason = "resourceclaim not available on the node"
        return reason

    def _usage_of(self, node: Obj) -> NodeUsage:
        return self._usage.get(node["metadata"]["name"]) or NodeUsage()


def _summary(nodes: int, reasons: Counter[str]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    helpless = f"0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
    return f"0/{nodes} nodes are available: {listed}. still not schedulable, preemption: {helpless}"


log = logging.getLogger(__name__)

DEFAULT_NAME = "default-scheduler"
# kube-scheduler waits 1 s and 10 s; an embedded cluster has few pods and can retry sooner.
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 2.0
MAX_RESERVED = 256


class _WaitingError(Exception):
    """The pod's claims do not exist yet; when the claim controller creates them, the pod is tried again."""


class _Attempts(Struct):
    """Time of the next attempt for a pod. ``seen``: hash of the cluster state of the last failed attempt."""

    count: int = 0
    not_before: float = 0.0
    seen: int = -1


class EmbeddedScheduler(Controller):
    """The scheduler's thread."""

    def __init__(self, store: Store) -> None:
        kinds = (PODS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES)
        super().__init__("scheduler", store, kinds, DEFAULT_NAME)
        self._extended = ExtendedClaims(store)
        self._attempts: dict[str, _Attempts] = {}

    def step(self) -> float | None:
        """Try every pending pod that is due; returns the seconds until the next one is, None without one."""
        pods = self._store.list(PODS).items
        waiting = sorted((pod for pod in pods if _is_pending(pod)), key=self._place_in_queue)
        self._attempts = {objects.uid(pod): self._attempts.get(objects.uid(pod), _Attempts()) for pod in waiting}
        delays = []
        for pod in waiting:
            attempts, now = self._attempts[objects.uid(pod)], monotonic()
            # Read before the pod: a change after this line makes the state differ, and the pod is tried again.
            state = self._relevant_state()
            if attempts.seen == state:
                continue
            if attempts.not_before > now:
                delays.append(attempts.not_before - now)
                continue
            current = self._store.find(PODS, objects.key(pod)[1], objects.key(pod)[0])
            if current is not None and objects.uid(current) == objects.uid(pod) and _is_pending(current):
                self._try(current, attempts, state)
        return min(delays) if delays else None

    def observe(self, change: ObjectChange) -> None:
        """Remember the order in which pods were created: creationTimestamp has whole seconds only."""
        if change.kind is PODS and change.type == "ADDED":
            self._attempts.setdefault(objects.uid(change.record.obj), _Attempts())

    def _place_in_queue(self, pod: Obj) -> tuple[int, str, int]:
        known = list(self._attempts)
        place = known.index(objects.uid(pod)) if objects.uid(pod) in self._attempts else len(known)
        return place, pod["metadata"].get("creationTimestamp", ""), int(pod["metadata"]["resourceVersion"])

    def _relevant_state(self) -> int:
        """A hash of everything that decides whether a pod fits. Conditions of pending pods are not part of it."""
        kinds = (NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS)
        revisions = [tuple(record.revision for record in self._store.read_all(kind)[0]) for kind in kinds]
        pods = [record.obj for record in self._store.read_all(PODS)[0]]
        nodes = tuple(dig(pod, "spec", "nodeName") for pod in pods)
        return hash((*revisions, nodes, str([entries(pod, "status", "resourceClaimStatuses") for pod in pods])))

    def _try(self, pod: Obj, attempts: _Attempts, state: int) -> None:
        try:
            self._schedule(pod)
        except (ConflictError, NotFoundError) as error:
            log.debug("pod will be tried again", extra={"pod": "/".join(objects.key(pod)), "reason": error})
            return
        except _WaitingError:
            attempts.seen = state
            return
        except UnschedulableError as error:
            self._report(pod, "Unschedulable", str(error))
        except (AllocationError, ConfigurationError) as error:
            self._report(pod, "SchedulerError", f"running PreFilter/Filter plugin DynamicResources: {error}")
        else:
            self._attempts.pop(objects.uid(pod), None)
            return
        attempts.seen = state
        attempts.not_before = monotonic() + min(FIRST_BACKOFF_S * 2**attempts.count, LONGEST_BACKOFF_S)
        attempts.count += 1

    def _schedule(self, pod: Obj) -> None:
        """Choose a node, write the claims, bind the pod. Raises _WaitingError, UnschedulableError, allocation's errors
        or an API error."""
        claims = self._claims(pod)
        self._extended.discard_for(pod)
        unallocated = [claim for claim in claims if dig(claim, "status", "allocation") is None]
        place = SchedulingSnapshot(self._store).choose(pod, claims, unallocated)
        for claim in claims:
            self._reserve(claim, pod, place.allocations[unallocated.index(claim)] if claim in unallocated else None)
        if place.extended is not None and place.extended_allocation is not None:
            self._extended.create(pod, place.extended, place.extended_allocation)
        self._store.bind(*objects.key(pod), place.node)
        self._recorder.normal(pod, "Scheduled", f"Successfully assigned {'/'.join(objects.key(pod))} to {place.node}")

    def _claims(self, pod: Obj) -> list[Obj]:
        found: list[Obj] = []
        generated = objects.generated_claims(pod)
        for name, claim_name in objects.claim_names(pod):
            if claim_name is None:
                raise _WaitingError
            claim = self._store.find(RESOURCE_CLAIMS, claim_name, objects.key(pod)[0])
            if claim is None:
                raise UnschedulableError(f'resourceclaim "{claim_name}" not found')
            if objects.is_deleted(claim):
                raise UnschedulableError(f'resourceclaim "{claim_name}" is being deleted')
            if name in generated and not objects.owned_by(claim, pod):
                raise UnschedulableError(
                    f"ResourceClaim {claim_name} was not created for pod {'/'.join(objects.key(pod))}"
                )
            users = entries(claim, "status", "reservedFor")
            if len(users) >= MAX_RESERVED and not objects.is_reserved(claim, pod):
                raise UnschedulableError(f'resourceclaim "{claim_name}" is in use by {MAX_RESERVED} pods')
            if all(claim["metadata"]["uid"] != other["metadata"]["uid"] for other in found):
                found.append(claim)
        return found

    def _reserve(self, claim: Obj, pod: Obj, allocation: Obj | None) -> None:
        """Add the finalizer, which an allocated claim must have, then write allocation and user in one update."""
        if allocation is not None and objects.FINALIZER not in entries(claim, "metadata", "finalizers"):
            claim["metadata"].setdefault("finalizers", []).append(objects.FINALIZER)
            claim = self._store.update(RESOURCE_CLAIMS, claim)
        status = claim.setdefault("status", {})
        if allocation is not None:
            status["allocation"] = allocation
        if not objects.is_reserved(claim, pod):
            user = {"resource": "pods", "name": objects.key(pod)[1], "uid": objects.uid(pod)}
            status["reservedFor"] = [*entries(claim, "status", "reservedFor"), user]
        self._store.update_status(RESOURCE_CLAIMS, claim)

    def _report(self, pod: Obj, reason: str, message: str) -> None:
        self._recorder.warning(pod, "FailedScheduling", message)
        if objects.set_condition(pod, "PodScheduled", "False", utc_now(), reason=reason, message=message):
            self._store.update_status(PODS, pod)


def _is_pending(pod: Obj) -> bool:
    spec = pod["spec"]
    ours = spec.get("schedulerName", DEFAULT_NAME) == DEFAULT_NAME
    return ours and not (
        spec.get("nodeName") or spec.get("schedulingGates") or objects.is_deleted(pod) or objects.is_finished(pod)
    )
