"""The resourceclaim controller and the device taint eviction of kube-controller-manager.

The first creates a ResourceClaim for each template that a pod names, removes finished pods from ``status.reservedFor``,
deallocates claims without users, and deletes generated claims of finished pods (kubernetes/kubernetes
pkg/controller/resourceclaim/controller.go).

The second follows pkg/controller/devicetainteviction of 1.36: only tolerations that name NoExecute count, of several
the shortest; the time is that of the taint; claims for extended resources are ignored (kubernetes#141290); the pod is
deleted, whatever its PodDisruptionBudget. DeviceTaintRules are not served.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from dra_driver.core.errors import ConflictError, DraError, NotFoundError
from dra_driver.core.time import parse_time
from dra_driver.kube.devices import newest_slices, pool_of
from dra_driver.scheduler.allocation import EXTENDED_CLAIM_ANNOTATION
from dra_driver.sim import objects
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, dig, entries, mapping, utc_now
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.loop import Controller

# Claims generated for one pod: from a template by this controller, or for extended resources by the scheduler.
_GENERATED = frozenset({objects.CLAIM_ANNOTATION, EXTENDED_CLAIM_ANNOTATION})


class ClaimController(Controller):
    def __init__(self, store: Store) -> None:
        kinds = (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES)
        super().__init__("claim-controller", store, kinds, "resource_claim")
        self._reported: set[tuple[str, str]] = set()

    def step(self) -> float | None:
        """Reconcile all pods and claims once; returns 1 s when a write failed."""
        # List claims first: every pod that a claim is reserved for is then in the later list of pods, or deleted. In
        # reverse order, a pod created between the two lists would lose its reservation.
        claims = self._store.list(RESOURCE_CLAIMS).items
        pods = self._store.list(PODS).items
        failed = False
        for pod in pods:
            if not objects.is_deleted(pod) and not objects.is_finished(pod):
                failed |= not self._ensure_claims(pod, claims)
        users = {objects.uid(pod): pod for pod in pods}
        for claim in claims:
            try:
                self._release(claim, users)
            except (ConflictError, NotFoundError):
                failed = True
        return 1.0 if failed else None

    def _ensure_claims(self, pod: Obj, claims: list[Obj]) -> bool:
        wanted = [item for item in entries(pod, "spec", "resourceClaims") if item.get("resourceClaimTemplateName")]
        statuses = list(entries(pod, "status", "resourceClaimStatuses"))
        known = {item["name"] for item in statuses}
        missing = [item for item in wanted if item["name"] not in known]
        if not missing:
            return True
        for item in missing:
            try:
                claim = self._generated(pod, item["name"], claims) or self._generate(pod, item)
            except DraError as error:
                if (about := (objects.uid(pod), item["name"])) not in self._reported:
                    self._reported.add(about)
                    text = f"PodResourceClaim {item['name']}: failed to create ResourceClaim: {error}"
                    self._recorder.warning(pod, "FailedResourceClaimCreation", text)
                return False
            statuses.append({"name": item["name"], "resourceClaimName": claim["metadata"]["name"]})
        pod.setdefault("status", {})["resourceClaimStatuses"] = statuses
        self._store.update_status(PODS, pod)
        return True

    @staticmethod
    def _generated(pod: Obj, name: str, claims: list[Obj]) -> Obj | None:
        """A claim of an earlier step that failed before it wrote the pod's status."""
        own = (claim for claim in claims if objects.owned_by(claim, pod))
        return next(
            (claim for claim in own if dig(claim, "metadata", "annotations", objects.CLAIM_ANNOTATION) == name), None
        )

    def _generate(self, pod: Obj, item: Obj) -> Obj:
        namespace, pod_name = objects.key(pod)
        template = self._store.get(RESOURCE_CLAIM_TEMPLATES, item["resourceClaimTemplateName"], namespace)
        given = mapping(template, "spec", "metadata")
        # Cut a long pod name, not the claim's name, so that generated names stay readable.
        prefix = f"{pod_name[:200]}-{item['name']}-"
        metadata = {
            "generateName": prefix,
            "labels": mapping(given, "labels"),
            "annotations": {**mapping(given, "annotations"), objects.CLAIM_ANNOTATION: item["name"]},
            "ownerReferences": [objects.owner_reference(pod)],
        }
        claim = {"metadata": metadata, "spec": mapping(template, "spec", "spec")}
        return self._store.create(RESOURCE_CLAIMS, claim, namespace=namespace)

    def _release(self, claim: Obj, pods: dict[str, Obj]) -> None:
        reserved = entries(claim, "status", "reservedFor")
        kept = [user for user in reserved if _uses(user, pods.get(user.get("uid", "")))]
        if kept and kept != reserved:
            claim["status"]["reservedFor"] = kept
            self._store.update_status(RESOURCE_CLAIMS, claim)
        if kept:
            return
        freed = bool(reserved) or dig(claim, "status", "allocation") is not None
        if freed:
            for field in ("reservedFor", "allocation", "devices"):
                claim["status"].pop(field, None)
            claim = self._store.update_status(RESOURCE_CLAIMS, claim)
        # Otherwise the scheduler has just added the finalizer and is about to allocate the claim.
        if (freed or objects.is_deleted(claim)) and objects.FINALIZER in entries(claim, "metadata", "finalizers"):
            claim["metadata"]["finalizers"].remove(objects.FINALIZER)
            claim = self._store.update(RESOURCE_CLAIMS, claim)
        self._delete_generated(claim, pods)

    def _delete_generated(self, claim: Obj, pods: dict[str, Obj]) -> None:
        """Delete the claim of a finished pod now: the garbage collector would wait until the pod is deleted."""
        if objects.is_deleted(claim) or _GENERATED.isdisjoint(mapping(claim, "metadata", "annotations")):
            return
        owner = next((pods.get(item.get("uid", "")) for item in entries(claim, "metadata", "ownerReferences")), None)
        if owner is not None and _done(owner):
            self._store.delete(
                RESOURCE_CLAIMS, objects.key(claim)[1], objects.key(claim)[0], DeleteOptions(uid=objects.uid(claim))
            )


def _done(pod: Obj) -> bool:
    """Return whether the pod will never use a claim again: it has finished, or was deleted before it was bound."""
    return objects.is_finished(pod) or (objects.is_deleted(pod) and not dig(pod, "spec", "nodeName"))


def _uses(user: Obj, pod: Obj | None) -> bool:
    if user.get("resource") != "pods" or user.get("apiGroup"):
        return True  # the controller that added a user of another kind removes it
    return pod is not None and not _done(pod)


NO_EXECUTE = "NoExecute"
_EVENT = "DeviceTaintManagerEviction"

Device = tuple[str, str, str]  # driver, pool and name


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
        claims = {objects.key(claim): claim for claim in self._store.list(RESOURCE_CLAIMS).items}
        times = {name: at for name, claim in claims.items() if (at := _eviction_time(claim, tainted)) is not None}
        wait_s: float | None = None
        for pod in self._store.list(PODS).items:
            at = min((times[name] for name in _claims_of(pod, claims) if name in times), default=None)
            if at is None:
                self._cancel(pod)
            elif (left_s := (at - self._clock()).total_seconds()) > 0:
                self._planned.add(objects.uid(pod))
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            else:
                self._evict(pod)
        return wait_s

    def _cancel(self, pod: Obj) -> None:
        if objects.uid(pod) in self._planned:
            self._planned.discard(objects.uid(pod))
            if not objects.is_deleted(pod):
                self._recorder.normal(pod, _EVENT, "Cancelling deletion")

    def _evict(self, pod: Obj) -> None:
        self._planned.discard(objects.uid(pod))
        if objects.is_deleted(pod):
            return
        self._recorder.normal(pod, _EVENT, "Marking for deletion")
        message = "Device Taint manager: deleting due to NoExecute taint"
        changed = objects.set_condition(
            pod, "DisruptionTarget", "True", self._clock(), reason="DeletionByDeviceTaintManager", message=message
        )
        namespace, name = objects.key(pod)
        with suppress(NotFoundError):
            if changed:
                self._store.update_status(PODS, pod)
            self._store.delete(PODS, name, namespace, DeleteOptions(uid=objects.uid(pod)))


def _tainted(slices: Sequence[Obj]) -> dict[Device, list[Obj]]:
    found: dict[Device, list[Obj]] = {}
    for item in newest_slices(slices):
        for device in entries(item, "spec", "devices"):
            taints = [taint for taint in entries(device, "taints") if taint.get("effect") == NO_EXECUTE]
            if taints:
                found[*pool_of(item), device["name"]] = taints
    return found


def _eviction_time(claim: Obj, tainted: dict[Device, list[Obj]]) -> datetime | None:
    times = []
    for result in entries(claim, "status", "allocation", "devices", "results"):
        for taint in tainted.get((result["driver"], result["pool"], result["device"]), ()):
            seconds = _tolerated_s(taint, entries(result, "tolerations"))
            added = parse_time(taint.get("timeAdded"))
            if seconds is not None and added is not None:
                times.append(added + timedelta(seconds=seconds))
    return min(times, default=None)


def _tolerated_s(taint: Obj, tolerations: Sequence[Obj]) -> float | None:
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
    if not dig(pod, "spec", "nodeName") or objects.is_finished(pod):
        return
    generated = objects.generated_claims(pod)
    for name, claim_name in objects.claim_names(pod):
        claim = claims.get((objects.key(pod)[0], claim_name or ""))
        if (
            claim is not None
            and objects.is_reserved(claim, pod)
            and (name not in generated or objects.owned_by(claim, pod))
        ):
            yield objects.key(claim)
