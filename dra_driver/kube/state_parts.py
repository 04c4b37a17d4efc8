"""Reduce objects of a cluster's state to the fields that scheduling and claims need. Other fields are dropped, such as
environment, arguments, commands, volumes and annotations of pods; events with output of containers (probes, hooks) are
dropped whole. Claims, templates and classes keep their opaque parameters."""

import json
from collections.abc import Callable, Mapping
from typing import Final

Wire = Mapping[str, object]

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
MAX_LAST_APPLIED: Final = 512 * 1024
_DRA_MARK: Final = "resource.kubernetes.io"
_METADATA: Final = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "labels",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
    "finalizers",
)
_POD_SPEC: Final = (
    "nodeName",
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    "resourceClaims",
    "resources",
    "overhead",
    "runtimeClassName",
    "restartPolicy",
    "hostNetwork",
    "os",
)
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_PORT: Final = ("hostPort", "protocol", "hostIP")
_POD_STATUS: Final = (
    "phase",
    "reason",
    "message",
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
)
_CONDITION: Final = ("type", "status", "reason", "message", "lastTransitionTime")
_EVENT: Final = ("type", "reason", "message", "count", "eventTime", "firstTimestamp", "lastTimestamp")

# Written by the control plane about scheduling, claims and devices; their texts are the control plane's own.
_EVENT_REASONS: Final = frozenset(
    {
        "FailedScheduling",
        "FailedResourceClaimCreation",
        "FailedPrepareDynamicResources",
        "FailedUnprepareDynamicResources",
        "FailedToPrepareDynamicResources",
        "DeviceTaintManagerEviction",
        "DRAPluginNotRegistered",
        "GpuUnhealthy",
        "GpuUnmonitored",
        "GpuRecovered",
    }
)
_EVENT_OBJECTS: Final = frozenset(
    {"ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass", "DeviceTaintRule"}
)


def reduced(kind: str, item: Wire) -> dict[str, object]:
    """A new dict with the kept fields of the object; deeper parts are shared with the original."""
    reduce = _REDUCERS.get(kind)
    body = reduce(item) if reduce is not None else {}
    return {"metadata": _metadata(item.get("metadata"), with_last_applied=kind in _DRA_KINDS), **body}


def is_relevant_event(event: Wire) -> bool:
    """Return whether an event is about scheduling, claims or devices."""
    about = _mapping(event.get("involvedObject"))
    return event.get("reason") in _EVENT_REASONS or about.get("kind") in _EVENT_OBJECTS


def _metadata(metadata: object, *, with_last_applied: bool) -> dict[str, object]:
    found = _pick(metadata, _METADATA)
    annotations = {
        name: value
        for name, value in _mapping(_mapping(metadata).get("annotations")).items()
        if _DRA_MARK in str(name) or (with_last_applied and name == LAST_APPLIED)
    }
    if LAST_APPLIED in annotations:
        annotations[LAST_APPLIED] = _applied_spec(annotations[LAST_APPLIED])
    return {**found, "annotations": annotations} if annotations else found


def _applied_spec(note: object) -> str:
    """The spec alone of an object as it was applied, without the metadata of a template; "{}" if it cannot be read."""
    try:
        text = note if isinstance(note, str) and len(note) <= MAX_LAST_APPLIED else ""
        spec = _mapping(json.loads(text)).get("spec")
    except (ValueError, RecursionError):
        spec = None
    return json.dumps({"spec": _without_metadata(spec)} if isinstance(spec, dict) else {})


def _without_metadata(spec: Wire) -> dict[str, object]:
    return {name: value for name, value in spec.items() if name != "metadata"}


def _pod(pod: Wire) -> dict[str, object]:
    spec, status = _mapping(pod.get("spec")), _mapping(pod.get("status"))
    kept = _pick(spec, _POD_SPEC)
    for group in ("initContainers", "containers"):
        if spec.get(group):
            kept[group] = [_container(container) for container in _dicts(spec[group])]
    volumes = [volume for item in _dicts(spec.get("volumes")) if (volume := _volume(item))]
    if volumes:
        kept["volumes"] = volumes
    state = _pick(status, _POD_STATUS)
    if status.get("conditions"):
        state["conditions"] = [_pick(item, _CONDITION) for item in _dicts(status["conditions"])]
    return {"spec": kept, "status": state}


def _container(container: Wire) -> dict[str, object]:
    kept = _pick(container, _CONTAINER)
    ports = [_pick(port, _PORT) for port in _dicts(container.get("ports")) if port.get("hostPort")]
    return {**kept, "ports": ports} if ports else kept


def _volume(volume: Wire) -> dict[str, object]:
    """Only volumes that a pod can wait for."""
    if volume.get("persistentVolumeClaim"):
        source = _pick(volume["persistentVolumeClaim"], ("claimName",))
        return {"name": volume.get("name"), "persistentVolumeClaim": source}
    return {"name": volume.get("name"), "ephemeral": {}} if volume.get("ephemeral") else {}


def _node(node: Wire) -> dict[str, object]:
    status = _mapping(node.get("status"))
    kept = _pick(status, ("allocatable", "capacity"))
    kept["conditions"] = [_pick(item, _CONDITION) for item in _dicts(status.get("conditions"))]
    kept["nodeInfo"] = _pick(status.get("nodeInfo"), ("kubeletVersion", "containerRuntimeVersion"))
    return {"spec": _pick(node.get("spec"), ("unschedulable", "taints")), "status": kept}


def _event(event: Wire) -> dict[str, object]:
    about = _pick(event.get("involvedObject"), ("kind", "namespace", "name", "uid"))
    component = _mapping(event.get("source")).get("component") or event.get("reportingComponent") or ""
    return {**_pick(event, _EVENT), "involvedObject": about, "source": {"component": component}}


def _claim(claim: Wire) -> dict[str, object]:
    """Without ``status.devices[].data``, which belongs to the driver that wrote it."""
    status = dict(_mapping(claim.get("status")))
    if status.get("devices"):
        status["devices"] = [
            {name: value for name, value in item.items() if name != "data"} for item in _dicts(status["devices"])
        ]
    return {**_spec(claim), "status": status} if status else _spec(claim)


def _volume_claim(claim: Wire) -> dict[str, object]:
    spec = _pick(claim.get("spec"), ("storageClassName", "volumeName"))
    return {"spec": spec, "status": _pick(claim.get("status"), ("phase",))}


def _spec(item: Wire) -> dict[str, object]:
    return {"spec": item.get("spec") or {}}


def _template(item: Wire) -> dict[str, object]:
    """Without the annotations and labels that claims get from it."""
    return {"spec": _without_metadata(_mapping(item.get("spec")))}


def _pick(value: object, names: tuple[str, ...]) -> dict[str, object]:
    found = _mapping(value)
    return {name: found[name] for name in names if found.get(name) is not None}


def _mapping(value: object) -> Wire:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[Wire]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_REDUCERS: Final[Mapping[str, Callable[[Wire], dict[str, object]]]] = {
    "Node": _node,
    "Pod": _pod,
    "ResourceClaim": _claim,
    "ResourceClaimTemplate": _template,
    "DeviceClass": _spec,
    "ResourceSlice": _spec,
    "DeviceTaintRule": _spec,
    "Event": _event,
    "PersistentVolumeClaim": _volume_claim,
    "StorageClass": lambda item: _pick(item, ("volumeBindingMode",)),
    "GpuNode": lambda item: _pick(item, ("status",)),
    "ResourceQuota": lambda item: _pick(item, ("spec", "status")),
}
_DRA_KINDS: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"})
