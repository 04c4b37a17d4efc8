"""Find causes outside the devices: pod, claims, classes, volumes, gates and the node's driver."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.core.model.mig import no_compute_instance
from dra_driver.core.text import listed
from dra_driver.kube import devices
from dra_driver.kube.published import names
from dra_driver.kube.published.mig_mode import mig_mode_off, whole_only_gpus
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_parts import LAST_APPLIED, MAX_LAST_APPLIED
from dra_driver.kubectl.explain import queueing
from dra_driver.kubectl.explain import subject as subjects
from dra_driver.kubectl.explain.evaluation import NodeResult
from dra_driver.kubectl.explain.reasons import is_selected_by
from dra_driver.kubectl.explain.report import Cause, CauseCode
from dra_driver.kubectl.explain.subject import RequestSpec, Subject, Wire, name_of, namespace_of, spec_of, status_of
from dra_driver.scheduler.allocation import V1_37, SchedulerFeatures, SchedulerQuirks

# --- Fields that the API server dropped because a feature gate is off, by the annotation of ``kubectl apply``.
#
# The gate of a field: kubernetes/kubernetes pkg/registry/resource/*/strategy.go.

_GATES: Final = {
    "firstAvailable": "DRAPrioritizedList",
    "adminAccess": "DRAAdminAccess",
    "tolerations": "DRADeviceTaints",
    "capacity": "DRAConsumableCapacity",
    "distinctAttribute": "DRAConsumableCapacity",
    "extendedResourceName": "DRAExtendedResource",
}


def dropped_fields(kind: str, item: Wire) -> Iterator[Cause]:
    """Yield a cause for each gated field that was applied but is not stored."""
    applied = _applied(item)
    for path, field in _missing(applied.get("spec"), item.get("spec"), "spec", 0):
        gate = _GATES[field]
        yield Cause(
            code=CauseCode.GATE_OFF,
            message=f"{kind} {name_of(item)} was applied with {path}, but the API server dropped the field because "
            f"feature gate {gate} is off",
            fix=f"enable {gate} in the API server, scheduler, controller manager and kubelets, then apply it again",
            object=f"{kind.lower()}/{name_of(item)}",
            blocks=False,
        )


def _applied(item: Wire) -> Wire:
    note = ((item.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    if not isinstance(note, str) or len(note) > MAX_LAST_APPLIED:
        return {}
    try:
        found = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _resource_applied(item: Wire) -> object:
    spec = _applied(item).get("spec")
    return spec.get("extendedResourceName") if isinstance(spec, dict) else None


def _missing(applied: object, stored: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > 12:  # deeper than any field of these kinds
        return
    if isinstance(applied, dict) and isinstance(stored, dict):
        for name, value in applied.items():
            if name in stored:
                yield from _missing(value, stored[name], f"{path}.{name}", depth + 1)
            elif name in _GATES and value not in (None, [], {}, "", False):
                yield f"{path}.{name}", name
    elif isinstance(applied, list) and isinstance(stored, list):
        for index, (one, other) in enumerate(zip(applied, stored, strict=False)):
            yield from _missing(one, other, f"{path}[{index}]", depth + 1)


# --- Classes that match no device because the API server drops fields of their devices.
#
# Dynamic MIG partitions need counters, shared GPUs need fields of shared devices. Both gates are off by default before
# 1.36 (pkg/features/kube_features.go). The selectors of such a class match a published whole GPU with the attributes of
# a partition or of a shared GPU.


class _Form(NamedTuple):
    """Devices that need a gate, and the attributes that distinguish them from a whole GPU."""

    what: str
    gate: str
    attributes: Mapping[str, Wire]
    shared: bool = False


_PARTITION: Final = _Form(
    what="MIG partitions created on demand",
    gate="DRAPartitionableDevices",
    attributes={names.TYPE: {"string": names.TYPE_MIG}, names.PROFILE: {"string": "1g.10gb"}},
)
_SHARED: Final = tuple(
    _Form(
        what="shared GPUs",
        gate="DRAConsumableCapacity",
        attributes={names.SHARING_STRATEGY: {"string": strategy}},
        shared=True,
    )
    for strategy in ("TimeSlicing", "MPS")
)


def unpublished_forms(
    state: ClusterState, specs: Sequence[RequestSpec], features: SchedulerFeatures
) -> Iterator[Cause]:
    """Yield a cause for each class that matches no published device because a feature gate is off."""
    forms = [] if features.partitionable_devices else [_PARTITION]
    forms += [] if features.consumable_capacity else _SHARED
    if not forms:
        return
    kinds = _kinds(state.slices)
    seen: set[str] = set()
    for spec in specs:
        if spec.class_name in seen or not spec.class_selectors:
            continue
        seen.add(spec.class_name)
        if class_matches(state, spec):
            continue
        form = next((form for form in forms if any(_would_select(spec, form, *kind) for kind in kinds)), None)
        if form is not None:
            yield Cause(
                code=CauseCode.GATE_OFF,
                message=f"DeviceClass {spec.class_name} matches no published device: {form.what} are not published "
                f"while feature gate {form.gate} is off, as it is by default before Kubernetes 1.36",
                fix=f"enable {form.gate} in the API server, scheduler, controller manager and kubelets, upgrade to "
                "Kubernetes 1.36, or request whole GPUs",
                object=f"class/{spec.class_name}",
                blocks=False,
            )


def mig_mode_is_off(state: ClusterState, specs: Sequence[RequestSpec], features: SchedulerFeatures) -> Iterator[Cause]:
    """Yield a cause for each request that a GPU would serve in MIG mode."""
    wanted = [spec for spec in specs if features.partitionable_devices and _takes_partitions(spec)]
    gpus = whole_only_gpus(state.slices) if wanted else []  # reads every device
    for spec in wanted:
        texts = (*spec.class_selectors, *spec.selectors)
        fitting = [
            gpu
            for gpu in gpus
            if any(all(is_selected_by(text, gpu.driver, each) for text in texts) for each in gpu.as_partitions())
        ]
        if fitting:
            seen, fix = mig_mode_off(fitting)
            yield Cause(code=CauseCode.MIG_MODE_OFF, message=seen, fix=fix, blocks=False)


def compute_instances(specs: Sequence[RequestSpec]) -> Iterator[Cause]:
    """Yield a cause for each request that names the profile of a compute instance."""
    for spec in specs:
        texts = (*spec.class_selectors, *spec.selectors)
        if refused := next((found for text in texts if (found := no_compute_instance(text))), None):
            yield Cause(
                code=CauseCode.COMPUTE_INSTANCE, message=refused, object=f"class/{spec.class_name}", blocks=False
            )


def _takes_partitions(spec: RequestSpec) -> bool:
    """Return whether the class of the request can select a partition."""
    partition = {"name": "partition", "attributes": _PARTITION.attributes}
    driver = next(iter(spec.drivers), "")
    return all(is_selected_by(text, driver, partition) is not False for text in spec.class_selectors)


def class_matches(state: ClusterState, spec: RequestSpec) -> bool:
    """Return whether the class of the request selects a kind of published devices."""
    return any(_selects(spec, driver, device) for driver, device in _kinds(state.slices))


def _kinds(slices: Sequence[Wire]) -> Iterable[tuple[str, Wire]]:
    found: dict[tuple[str, ...], tuple[str, Wire]] = {}
    for item in slices:
        driver = str(spec_of(item).get("driver"))
        for device in spec_of(item).get("devices") or ():
            attributes = device.get("attributes") or {}
            marks = (str(attributes.get(name)) for name in (names.TYPE, names.SHARING_STRATEGY))
            found.setdefault((driver, *marks), (driver, device))
    return found.values()


def _selects(spec: RequestSpec, driver: str, device: Wire) -> bool:
    return all(is_selected_by(text, driver, device) for text in spec.class_selectors)


def _would_select(spec: RequestSpec, form: _Form, driver: str, device: Wire) -> bool:
    attributes: Wire = device.get("attributes") or {}
    if (attributes.get(names.TYPE) or {}).get("string") != names.TYPE_GPU:
        return False
    changed = {**device, "attributes": {**attributes, **form.attributes}}
    return _selects(spec, driver, {**changed, "allowMultipleAllocations": True} if form.shared else changed)


# --- Defects of this scheduler version that keep the subject pending: nodes that fit without one of its quirks.

MAX_NODES: Final = 20
_QUIRKS: Final[Mapping[str, str]] = {
    "counters_stay_charged": "a device rejected by a constraint, taint or capacity stays charged to its GPU's counters "
    "for the rest of the attempt",
    "shares_stay_charged": "a released share stays charged to its GPU's counters for the rest of the attempt",
    "counters_by_pool_name": "counters are identified by pool name only, without the driver",
    "distinct_forgets": "distinctAttribute keeps only one value of a request",
    "counter_slices_everywhere": "slices with counters apply to every node, not only to the named node",
    "whole_units": "capacities are counted in whole units",
    "capacity_by_position": "the capacity of the first devices of a resource slice is checked instead of the capacity "
    "of the devices to allocate",
}
"""Fields of `SchedulerQuirks` that can keep a pod away, most frequent first."""
_FIXED_IN: Final[Mapping[str, str]] = {"capacity_by_position": "1.35"}
"""Versions other than 1.37."""

_SHARE_ALL: Final = (
    "ask the administrator to share all GPUs of the node that have no partitions, or none, or to upgrade to "
    "Kubernetes 1.35"
)

Retry = Callable[[SchedulerQuirks, NodeResult], NodeResult]
"""Evaluates one node again with other scheduler quirks."""


def scheduler_fault(
    quirks: SchedulerQuirks, results: Sequence[NodeResult], again: Retry, slices: Sequence[Wire]
) -> Cause | None:
    """Return the scheduler defect that excludes one of the ``results``, nodes that do not fit.

    The cause does not block: it explains the blocking cause.
    """
    if quirks == V1_37:
        return None
    for result in [one for one in results if one.by_devices and one.claims][:MAX_NODES]:
        improved = _retried(again, V1_37, result)
        if improved is None:
            continue
        defects = [name for name in _QUIRKS if _retried(again, replace(quirks, **{name: False}), result) is not None]
        why = _QUIRKS[defects[0]] if defects else "several defects of its allocator together exclude the devices"
        fixed_in = _FIXED_IN.get(defects[0], "1.37") if defects else "1.37"
        assigned = [item for allocation in improved.allocations for item in devices.allocation_results(allocation)]
        shown = ", ".join(f"{item['request']}={item['device']}" for item in assigned[:8])
        return Cause(
            code=CauseCode.SCHEDULER_FAULT,
            message=f"{result.name} has the devices ({shown}), but a defect of this Kubernetes version, fixed in "
            f"{fixed_in}, excludes them: {why}",
            fix=_SHARE_ALL if defects == ["capacity_by_position"] else _fix(slices, assigned),
            blocks=False,
        )
    return None


def _retried(again: Retry, quirks: SchedulerQuirks, result: NodeResult) -> NodeResult | None:
    try:
        found = again(quirks, result)
    except (AllocationError, CelSyntaxError, CelEvaluationError):
        return None
    return found if found.fits else None


def _fix(slices: Sequence[Wire], assigned: Sequence[Wire]) -> str:
    # Devices excluded by selectors are never charged to counters, so selecting the free GPU avoids the defect.
    wanted = {(item["driver"], item["pool"], item["device"]) for item in assigned}
    parents = {
        (spec["driver"], devices.attribute_text(device.get("attributes"), "", names.PARENT_UUID))
        for spec in map(spec_of, slices)
        for device in spec.get("devices") or ()
        if (spec["driver"], spec["pool"]["name"], device["name"]) in wanted
    }
    (driver, uuid), *others = sorted(parents) or [("", "")]
    if others or not uuid:
        return "free the GPUs that are partly in use, or upgrade to Kubernetes 1.37"
    selector = f'device.attributes["{driver}"].parentUUID == "{uuid}"'
    return f"add {selector} to the selectors of each request (excluded devices are not charged), or free other GPUs"


# --- Causes in the pod, its claims, classes, volumes and the node's driver.

DEFAULT_SCHEDULER: Final = "default-scheduler"
_PREPARE_REASONS: Final = ("FailedPrepareDynamicResources", "FailedToPrepareDynamicResources")
_MAX_TEXT: Final = 600


def scheduler_message(pod: Wire) -> str:
    """Return the scheduler's message about an unscheduled pod, or ""."""
    conditions: Sequence[Wire] = status_of(pod).get("conditions") or ()
    condition: Wire = next((item for item in conditions if item.get("type") == "PodScheduled"), {})
    return str(condition.get("message") or "")[:_MAX_TEXT] if condition.get("status") == "False" else ""


def gaps_that_matter(state: ClusterState, pod: Wire | None) -> list[str]:
    """Return the gaps; gaps about volumes only for a pod with volumes."""
    volumes = any(item.get("persistentVolumeClaim") for item in spec_of(pod or {}).get("volumes") or ())
    return [gap for gap in state.gaps if volumes or not gap.startswith(("persistentvolumeclaims:", "storageclasses:"))]


def before_scheduling(state: ClusterState, pod: Wire) -> Iterator[Cause]:
    gates = [str(gate.get("name")) for gate in spec_of(pod).get("schedulingGates") or ()]
    workload = queueing.workload_of(state.workloads, "pod", name_of(pod)) if queueing.GATE in gates else None
    if workload and (queued := queueing.held_back(workload)):
        gates.remove(queueing.GATE)
        yield queued
    if gates:
        yield Cause(
            code=CauseCode.SCHEDULING_GATES,
            message=f"the pod has scheduling gates that are not removed yet: {listed(gates)}",
            fix="the controller that set them must remove them from spec.schedulingGates",
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
    unreadable = bool(subjects.gap_of(state, "persistentvolumeclaims"))
    for volume in spec_of(pod).get("volumes") or ():
        name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if not name or (unreadable and name not in known):
            continue
        found, waits = known.get(name), False
        if found is None:
            problem, fix = "does not exist", f"create PersistentVolumeClaim {name}"
        elif status_of(found).get("phase") == "Bound":
            continue
        else:
            # The binder's IsDelayBindingMode: such a volume is bound only after the pod is scheduled.
            storage = spec_of(found).get("storageClassName")
            modes = [item.get("volumeBindingMode") for item in state.storage_classes if name_of(item) == storage]
            waits = modes[:1] == ["WaitForFirstConsumer"]
            why = "its storage class binds it after scheduling" if waits else "it must be bound first"
            problem, fix = f"is {status_of(found).get('phase') or 'Pending'}; {why}", f"run kubectl describe pvc {name}"
        yield Cause(
            code=CauseCode.VOLUME_WAITING,
            message=f"not caused by devices: PersistentVolumeClaim {name} {problem}",
            fix="" if waits else fix,
            object=f"pvc/{name}",
            blocks=not waits,
        )


def missing_classes(state: ClusterState, specs: Sequence[RequestSpec]) -> Iterator[Cause]:
    unreadable = subjects.gap_of(state, "deviceclasses")
    missing = dict.fromkeys(spec.class_name for spec in specs if spec.device_class is None and spec.class_name)
    for name in missing:
        known_names = listed(sorted(name_of(item) for item in state.classes), 5)
        yield Cause(
            code=CauseCode.CLASS_MISSING,
            message=f"DeviceClass {name} does not exist" + (f" ({unreadable})" if unreadable else ""),
            fix=f"create it or use another class; existing classes: {known_names or 'none'}",
            object=f"class/{name}",
        )


def unknown_resources(state: ClusterState, subject: Subject) -> Iterator[Cause]:
    for request in subject.extended_requests:
        offered = any((status_of(node).get("allocatable") or {}).get(request.resource) for node in state.nodes)
        if request.class_name is not None or offered:
            continue
        # The class of a cluster without DRAExtendedResource.
        stripped = [item for item in state.classes if _resource_applied(item) == request.resource]
        for cause in (cause for item in stripped for cause in dropped_fields("DeviceClass", item)):
            yield replace(cause, blocks=True)
        if not stripped:
            yield Cause(
                code=CauseCode.RESOURCE_UNKNOWN,
                message=f"no node offers resource {request.resource}, and no DeviceClass provides it "
                f"(spec.extendedResourceName)",
                fix=no_compute_instance(request.resource)
                or f"create a DeviceClass with extendedResourceName: {request.resource}, or use a ResourceClaim",
                object=f"resource/{request.resource}",
            )


def several_shares(state: ClusterState, subject: Subject) -> Iterator[str]:
    """Yield a note for each request of several shares: the allocator takes them from different devices."""
    selectors = {name_of(item): subjects.selectors_of(spec_of(item)) for item in state.classes}
    for request in subject.extended_requests:
        wanted = selectors.get(request.class_name or "", ())
        if request.count > 1 and _select_shared(wanted, state):
            yield (
                f"{request.resource}: {request.count} in one container requests shares of {request.count} different "
                "GPUs; to have one larger share, use a ResourceClaim with capacity.requests"
            )


def autoscaler_note(state: ClusterState, pod: Wire | None) -> Iterator[str]:
    """Yield the cluster autoscaler's newest event about a waiting pod: it adds a node, or none would help."""
    if event := _latest_event(state, pod or {}, ("TriggeredScaleUp", "NotTriggerScaleUp")):
        more = " (docs/autoscalers.md)" if event["reason"] == "NotTriggerScaleUp" else ""
        time, message = _time_of(event) or "unknown time", str(event.get("message") or "")[:_MAX_TEXT]
        yield f"cluster autoscaler, {time}: {message}{more}"


def _select_shared(selectors: Sequence[str], state: ClusterState) -> bool:
    """Return whether the selectors of a class name shared devices and select a published one."""
    return any("allowMultipleAllocations" in text for text in selectors) and any(
        device.get("allowMultipleAllocations")
        and all(is_selected_by(text, str(spec.get("driver")), device) for text in selectors)
        for spec in map(spec_of, devices.newest_slices(state.slices))
        for device in spec.get("devices") or ()
    )


def silent_drivers(state: ClusterState, specs: Sequence[RequestSpec]) -> Iterator[Cause]:
    """Yield a cause for each requested driver without published devices."""
    if not specs:
        return
    if not state.slices:
        yield Cause(
            code=CauseCode.NO_SLICES,
            message=subjects.gap_of(state, "resourceslices")
            or "no driver has published devices: the cluster has no ResourceSlices",
            fix="check that the driver's pods run on GPU nodes, and read their logs",
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


def unhealthy_devices(state: ClusterState, subject: Subject) -> Iterator[Cause]:
    """Yield a cause for each unhealthy or unpublished device of the subject."""
    for claim in (item.claim or {} for item in subject.claims):
        wanted = [result for result in devices.results_of(claim) if not result.get("adminAccess")]
        drivers = {str(result.get("driver")) for result in wanted}
        published = {
            (spec["driver"], spec["pool"]["name"], device["name"]): device
            for spec in map(spec_of, devices.newest_slices(state.slices))
            if spec["driver"] in drivers and any(result.get("pool") == spec["pool"]["name"] for result in wanted)
            for device in spec.get("devices") or ()
        }
        for result in wanted:
            key = (str(result.get("driver")), str(result.get("pool")), str(result.get("device")))
            device = published.get(key)
            where = f"device {key[2]} of {key[1]}"
            if device is not None and (taints := devices.unhealthy_by(device)):
                yield Cause(
                    code=CauseCode.DEVICE_UNHEALTHY,
                    message=f"{where} is unhealthy (taint {listed(taints, len(taints))})",
                    object=f"claim/{name_of(claim)}",
                    blocks=False,
                )
            elif device is None and state.slices:
                yield Cause(
                    code=CauseCode.DEVICE_NOT_PUBLISHED,
                    message=f"{where} is not published, so its health is unknown",
                    fix=f"check the pod of driver {key[0]} on the node of the device",
                    object=f"claim/{name_of(claim)}",
                    blocks=False,
                )


def causes_on_node(state: ClusterState, subject: Subject) -> Iterator[Cause]:
    pod = subject.pod or {}
    node = str(spec_of(pod).get("nodeName") or "")
    for claim in subject.claims:
        if claim.problem is not None:
            yield claim.problem
        elif claim.claim is not None and claim.exists:
            yield from _causes_of_placed_claim(state, pod, node, claim.claim)
    event = _latest_event(state, pod, _PREPARE_REASONS)
    if event is not None:
        yield Cause(
            code=CauseCode.PREPARE_FAILING,
            message=f"preparing the devices on node {node} fails: {str(event.get('message') or '')[:_MAX_TEXT]}",
            fix="the kubelet retries after 60 to 90 s; read the log of the driver's pod on that node",
            object=f"node/{node}",
        )


def _causes_of_placed_claim(state: ClusterState, pod: Wire, node: str, claim: Wire) -> Iterator[Cause]:
    where, label = f"claim/{name_of(claim)}", subjects.label_of(claim)
    if subjects.allocation_of(claim) is None:
        yield Cause(
            code=CauseCode.CLAIM_NOT_ALLOCATED,
            message=f"the pod is on node {node}, but its claim {label} has no devices: the scheduler did not set "
            "spec.nodeName",
            fix="remove spec.nodeName from the pod; select the node with spec.nodeSelector instead",
            object=where,
        )
        return
    if not subjects.is_reserved_for(claim, pod):
        users = listed([str(user.get("name")) for user in devices.users_of(claim)])
        yield Cause(
            code=CauseCode.CLAIM_NOT_RESERVED,
            message=f"claim {subjects.label_of(claim)} is not reserved for this pod"
            + (f", but for {users}" if users else ""),
            fix="remove spec.nodeName from the pod, so that the scheduler reserves the claim for it",
            object=where,
        )
    specs = [spec_of(item) for item in state.slices]
    here = [
        spec for spec in specs if spec.get("nodeName") == node or (not spec.get("nodeName") and spec.get("devices"))
    ]
    drivers = {str(result.get("driver")) for result in devices.results_of(claim)}
    for driver in sorted(drivers - {str(spec.get("driver")) for spec in here}):
        yield Cause(
            code=CauseCode.DRIVER_NOT_ON_NODE,
            message=f"driver {driver} publishes no devices on node {node}",
            fix=f"check that the pod of {driver} on node {node} runs",
            object=f"node/{node}",
            # Not blocking: a controller can publish devices for many nodes.
            blocks=False,
        )


def _latest_event(state: ClusterState, pod: Wire, reasons: Sequence[str]) -> Wire | None:
    """Return the newest event with one of these reasons about the pod; matched by UID if the pod has one."""
    found = []
    for event in state.events:
        about: Wire = event.get("involvedObject") or {}
        same = about.get("name") == name_of(pod) and about.get("namespace", "default") == namespace_of(pod)
        own = not subjects.uid_of(pod) or about.get("uid") in (None, subjects.uid_of(pod))
        if same and own and event.get("reason") in reasons:
            found.append(event)
    return max(found, key=_time_of, default=None)


def _time_of(event: Wire) -> str:
    """Return the time, "" without one. RFC 3339 in UTC compares as text."""
    return next((str(event[key]) for key in ("lastTimestamp", "eventTime", "firstTimestamp") if event.get(key)), "")
