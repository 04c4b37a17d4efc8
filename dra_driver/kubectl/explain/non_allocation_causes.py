"""Finds causes that need no device to be evaluated: in the pod, its claims, classes, volumes and the node's driver.

Also reads what the control plane reported itself (conditions and events).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from dra_driver.core.text import listed
from dra_driver.kube.devices import results_of, users_of
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.causes import Cause, CauseCode
from dra_driver.kubectl.explain.objects import (
    Wire,
    allocation_of,
    condition_of,
    is_reserved_for,
    label_of,
    name_of,
    namespace_of,
    spec_of,
    status_of,
    uid_of,
)
from dra_driver.kubectl.explain.requests import RequestSpec
from dra_driver.kubectl.explain.subject import Subject

DEFAULT_SCHEDULER: Final = "default-scheduler"
_PREPARE_REASONS: Final = ("FailedPrepareDynamicResources", "FailedToPrepareDynamicResources")
_MAX_TEXT: Final = 600


def scheduler_message(pod: Wire) -> str:
    """Returns the scheduler's message about a pod that is not scheduled, "" when there is none."""
    condition = condition_of(pod, "PodScheduled")
    return str(condition.get("message") or "")[:_MAX_TEXT] if condition.get("status") == "False" else ""


def gaps_that_matter(state: ClusterState, pod: Wire | None) -> list[str]:
    """Returns what could not be read; gaps about volumes only when the pod has volumes."""
    volumes = any(item.get("persistentVolumeClaim") for item in spec_of(pod or {}).get("volumes") or ())
    return [gap for gap in state.gaps if volumes or not gap.startswith(("persistentvolumeclaims:", "storageclasses:"))]


def before_scheduling(state: ClusterState, pod: Wire) -> Iterator[Cause]:
    """Yields causes that keep the scheduler from considering the pod."""
    gates = [str(gate.get("name")) for gate in spec_of(pod).get("schedulingGates") or ()]
    if gates:
        yield Cause(
            code=CauseCode.SCHEDULING_GATES,
            message=f"the pod has scheduling gates that are not removed yet: {listed(gates)}",
            fix="the controller that set them has to remove them from spec.schedulingGates",
        )
    scheduler = spec_of(pod).get("schedulerName") or DEFAULT_SCHEDULER
    if scheduler != DEFAULT_SCHEDULER:
        yield Cause(
            code=CauseCode.OTHER_SCHEDULER,
            message=f"the pod waits for scheduler {scheduler}; this explanation is valid for {DEFAULT_SCHEDULER}",
            blocks=False,
        )
    yield from _volumes(state, pod)


def _volumes(state: ClusterState, pod: Wire) -> Iterator[Cause]:
    known = {name_of(item): item for item in state.pvcs if namespace_of(item) == namespace_of(pod)}
    unreadable = any(gap.startswith("persistentvolumeclaims:") for gap in state.gaps)
    for volume in spec_of(pod).get("volumes") or ():
        name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if not name or (unreadable and name not in known):
            continue
        found = known.get(name)
        if found is None:
            yield Cause(
                code=CauseCode.VOLUME_WAITING,
                message=f"not caused by devices: PersistentVolumeClaim {name} does not exist",
                fix=f"create PersistentVolumeClaim {name}",
                object=f"pvc/{name}",
            )
        elif status_of(found).get("phase") != "Bound":
            waits = _waits_for_consumer(state, found)
            phase = status_of(found).get("phase") or "Pending"
            why = "its storage class binds it after the pod has a node" if waits else "it has to be bound first"
            yield Cause(
                code=CauseCode.VOLUME_WAITING,
                message=f"not caused by devices: PersistentVolumeClaim {name} is {phase}; {why}",
                fix="" if waits else f"run kubectl describe pvc {name}",
                object=f"pvc/{name}",
                blocks=not waits,
            )


def _waits_for_consumer(state: ClusterState, claim: Wire) -> bool:
    """Whether the volume is bound only after the pod is scheduled (the binder's IsDelayBindingMode)."""
    name = spec_of(claim).get("storageClassName")
    found = next((item for item in state.storage_classes if name_of(item) == name), None)
    return found is not None and found.get("volumeBindingMode") == "WaitForFirstConsumer"


def missing_classes(state: ClusterState, specs: Sequence[RequestSpec]) -> Iterator[Cause]:
    """Yields a cause for each DeviceClass that a request names and that does not exist."""
    unreadable = next((gap for gap in state.gaps if gap.startswith("deviceclasses:")), "")
    missing = dict.fromkeys(spec.class_name for spec in specs if spec.device_class is None and spec.class_name)
    for name in missing:
        known_names = listed(sorted(name_of(item) for item in state.classes), 5)
        yield Cause(
            code=CauseCode.CLASS_MISSING,
            message=f"DeviceClass {name} does not exist" + (f" ({unreadable})" if unreadable else ""),
            fix=f"create it or name another one; existing classes: {known_names or 'none'}",
            object=f"class/{name}",
        )


def unknown_resources(state: ClusterState, subject: Subject) -> Iterator[Cause]:
    """Yields a cause for each extended resource that no node offers and no DeviceClass provides."""
    for request in subject.extended_requests:
        offered = any((status_of(node).get("allocatable") or {}).get(request.resource) for node in state.nodes)
        if request.class_name is None and not offered:
            yield Cause(
                code=CauseCode.RESOURCE_UNKNOWN,
                message=f"no node offers resource {request.resource}, and no DeviceClass provides it "
                f"(spec.extendedResourceName)",
                fix=f"create a DeviceClass with extendedResourceName: {request.resource}, or use a ResourceClaim",
                object=f"resource/{request.resource}",
            )


def silent_drivers(state: ClusterState, specs: Sequence[RequestSpec]) -> Iterator[Cause]:
    """Yields a cause for each driver that requests name and that has published no devices."""
    if not specs:
        return
    if not state.slices:
        unreadable = next((gap for gap in state.gaps if gap.startswith("resourceslices:")), "")
        yield Cause(
            code=CauseCode.NO_SLICES,
            message=unreadable or "no driver has published devices: the cluster has no ResourceSlices",
            fix="check that the driver's pods run on the nodes with devices, and read their logs",
        )
        return
    publishing = {str(spec_of(item).get("driver")) for item in state.slices}
    for driver in sorted({name for spec in specs for name in spec.drivers if len(spec.drivers) == 1}):
        if driver not in publishing:
            yield Cause(
                code=CauseCode.DRIVER_SILENT,
                message=f"driver {driver} has published no devices; drivers with devices: {listed(sorted(publishing))}",
                fix=f"check that the pods of {driver} run, or correct the driver in the selector",
                object=f"driver/{driver}",
            )


def causes_on_node(state: ClusterState, subject: Subject) -> Iterator[Cause]:
    """Yields device-related causes why a pod on a node does not start."""
    pod = subject.pod or {}
    node = str(spec_of(pod).get("nodeName") or "")
    for claim in subject.claims:
        if claim.problem is not None:
            yield claim.problem
        elif claim.claim is not None and claim.exists:
            yield from _causes_of_placed_claim(state, pod, node, claim.claim)
    event = latest_event(state, pod, _PREPARE_REASONS)
    if event is not None:
        yield Cause(
            code=CauseCode.PREPARE_FAILING,
            message=f"preparing the devices on node {node} fails: {str(event.get('message') or '')[:_MAX_TEXT]}",
            fix="the kubelet retries after 60 to 90 s; read the log of the driver's pod on that node",
            object=f"node/{node}",
        )


def _causes_of_placed_claim(state: ClusterState, pod: Wire, node: str, claim: Wire) -> Iterator[Cause]:
    where = f"claim/{name_of(claim)}"
    if allocation_of(claim) is None:
        yield Cause(
            code=CauseCode.CLAIM_NOT_ALLOCATED,
            message=f"the pod is on node {node}, but its claim {label_of(claim)} has no devices: spec.nodeName was not "
            "set by the scheduler",
            fix="remove spec.nodeName from the pod; select the node with spec.nodeSelector instead",
            object=where,
        )
        return
    if not is_reserved_for(claim, pod):
        users = listed([str(user.get("name")) for user in users_of(claim)])
        yield Cause(
            code=CauseCode.CLAIM_NOT_RESERVED,
            message=f"claim {label_of(claim)} is not reserved for this pod" + (f", but for {users}" if users else ""),
            fix="remove spec.nodeName from the pod, so that the scheduler reserves the claim for it",
            object=where,
        )
    known_names = {str(spec_of(item).get("driver")) for item in state.slices if _is_on(item, node)}
    for driver in sorted({str(result.get("driver")) for result in results_of(claim)} - known_names):
        yield Cause(
            code=CauseCode.DRIVER_NOT_ON_NODE,
            message=f"driver {driver} publishes no devices on node {node}; it is probably not running there",
            fix=f"check that the pod of {driver} on node {node} runs",
            object=f"node/{node}",
            # A controller may publish devices for many nodes, so this alone is no proof.
            blocks=False,
        )


def _is_on(item: Wire, node: str) -> bool:
    spec = spec_of(item)
    if spec.get("nodeName"):
        return bool(spec["nodeName"] == node)
    return bool(spec.get("devices"))


def latest_event(state: ClusterState, about: Wire, reasons: Sequence[str]) -> Wire | None:
    """Returns the newest event with one of these reasons about the object; matched by UID if the object has one."""
    uid = uid_of(about)
    found = [
        event
        for event in state.events
        if event.get("reason") in reasons
        and (event.get("involvedObject") or {}).get("name") == name_of(about)
        and (event.get("involvedObject") or {}).get("namespace", "default") == namespace_of(about)
        and (not uid or (event.get("involvedObject") or {}).get("uid") in (None, uid))
    ]
    return max(found, key=_moment, default=None)


def _moment(event: Wire) -> str:
    """Time of an event. RFC 3339 in UTC compares as text."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
