"""Checks the shapes of objects from files before other code reads them.

Fields that this program reads must have the types that the API server enforces; other fields pass. Answers of an API
server need no check.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

Shape = Any
"""A type, a dict of named shapes (required with ``!`` at the end), ``[shape]`` a list, ``{str: shape}`` a map."""

_TEXTS: Final = {str: str}
_QUANTITIES: Final = {str: (str, int, float)}
_REQUIREMENT: Final = {"key!": str, "operator!": str, "values": [str]}
_TERM: Final = {"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}
_NODE_SELECTOR: Final = {"nodeSelectorTerms": [_TERM]}
_TOLERATION: Final = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
_TAINT: Final = {"key!": str, "value": str, "effect!": str}
_SELECTOR: Final = {"cel": {"expression": str}}
_CAPACITY_ASKED: Final = {"requests": _QUANTITIES}
_EXACTLY: Final = {
    "deviceClassName": str,
    "selectors": [_SELECTOR],
    "allocationMode": str,
    "count": int,
    "adminAccess": bool,
    "tolerations": [_TOLERATION],
    "capacity": _CAPACITY_ASKED,
}
_REQUEST: Final = {"name!": str, "exactly": _EXACTLY, "firstAvailable": [{"name!": str, **_EXACTLY}]}
_CONSTRAINT: Final = {"requests": [str], "matchAttribute": str, "distinctAttribute": str}
_CONFIG: Final = {"requests": [str], "opaque": {"driver": str}}
_CLAIM_SPEC: Final = {"devices": {"requests": [_REQUEST], "constraints": [_CONSTRAINT], "config": [_CONFIG]}}
_RESULT: Final = {
    "request!": str,
    "driver!": str,
    "pool!": str,
    "device!": str,
    "adminAccess": bool,
    "shareID": str,
    "consumedCapacity": _QUANTITIES,
}
_USER: Final = {"apiGroup": str, "resource": str, "name": str, "uid": str}
_COUNTERS: Final = {str: {"value!": str}}
_PLACEMENT: Final = {"nodeName": str, "allNodes": bool, "nodeSelector": _NODE_SELECTOR}
_POLICY: Final = {
    "default": str,
    "validValues": [str],
    "validRange": {"min": str, "max": str, "step": str},
}
_ATTRIBUTE: Final = {"int": int, "bool": bool, "string": str, "version": str}
_DEVICE: Final = {
    "name!": str,
    "attributes": {str: _ATTRIBUTE},
    "capacity": {str: {"value!": str, "requestPolicy": _POLICY}},
    "consumesCounters": [{"counterSet!": str, "counters": _COUNTERS}],
    "taints": [_TAINT],
    "allowMultipleAllocations": bool,
    "bindsToNode": bool,
    "bindingConditions": [str],
    "bindingFailureConditions": [str],
    **_PLACEMENT,
}
_SLICE_SPEC: Final = {
    "driver!": str,
    "pool!": {"name!": str, "generation": int, "resourceSliceCount": int},
    "devices": [_DEVICE],
    "sharedCounters": [{"name!": str, "counters": _COUNTERS}],
    "perDeviceNodeSelection": bool,
    **_PLACEMENT,
}
_RESOURCES: Final = {"requests": _QUANTITIES, "limits": _QUANTITIES, "claims": [{"name": str, "request": str}]}
_CONTAINER: Final = {"name": str, "resources": _RESOURCES, "restartPolicy": str, "ports": [{"hostPort": int}]}
_CONDITION: Final = {"type": str, "status": str, "reason": str, "message": str}
_AFFINITY: Final = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _NODE_SELECTOR},
    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [dict]},
    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [dict]},
}
_POD_SPEC: Final = {
    "nodeName": str,
    "nodeSelector": _TEXTS,
    "affinity": _AFFINITY,
    "tolerations": [_TOLERATION],
    "topologySpreadConstraints": [{"whenUnsatisfiable": str, "topologyKey": str}],
    "schedulerName": str,
    "schedulingGates": [{"name": str}],
    "resourceClaims": [{"name!": str, "resourceClaimName": str, "resourceClaimTemplateName": str}],
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    "overhead": _QUANTITIES,
    "resources": _RESOURCES,
}
_POD_STATUS: Final = {
    "phase": str,
    "nominatedNodeName": str,
    "conditions": [_CONDITION],
    "resourceClaimStatuses": [{"name": str, "resourceClaimName": str}],
    "extendedResourceClaimStatus": {"resourceClaimName": str},
}
_METADATA: Final = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "labels": _TEXTS,
    "annotations": _TEXTS,
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "ownerReferences": [{"kind": str, "name": str, "uid": str}],
    "finalizers": [str],
}
_SHAPES: Final[dict[str, Shape]] = {
    "Node": {
        "spec": {"unschedulable": bool, "taints": [_TAINT]},
        "status": {
            "allocatable": _QUANTITIES,
            "conditions": [_CONDITION],
            "nodeInfo": {"kubeletVersion": str, "containerRuntimeVersion": str},
        },
    },
    "Pod": {"spec!": _POD_SPEC, "status": _POD_STATUS},
    "Namespace": {},
    "ResourceClaim": {
        "spec!": _CLAIM_SPEC,
        "status": {
            "allocation": {"devices": {"results": [_RESULT], "config": [dict]}, "nodeSelector": _NODE_SELECTOR},
            "reservedFor": [_USER],
            "devices": [dict],
        },
    },
    "ResourceClaimTemplate": {"spec!": {"spec!": _CLAIM_SPEC, "metadata": _METADATA}},
    "DeviceClass": {"spec!": {"selectors": [_SELECTOR], "config": [_CONFIG], "extendedResourceName": str}},
    "ResourceSlice": {"spec!": _SLICE_SPEC},
    "DeviceTaintRule": {
        "spec!": {"deviceSelector": {"driver": str, "pool": str, "device": str}, "taint!": _TAINT},
    },
    "Event": {
        "reason": str,
        "message": str,
        "involvedObject": {"kind": str, "name": str, "namespace": str, "uid": str},
        "source": {"component": str},
        "eventTime": str,
        "lastTimestamp": str,
        "firstTimestamp": str,
    },
    "PersistentVolumeClaim": {"spec": {"storageClassName": str}, "status": {"phase": str}},
    "StorageClass": {"volumeBindingMode": str},
}
_WORDS: Final = {
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


Check = Callable[[Any], bool]


def misfit(kind: str, item: Mapping[str, Any]) -> str:
    """What is wrong with the shape of an object of this kind, with the field's path; "" when it is right."""
    if not _check_of(kind)(item):
        return _misfit(item, _shape_of(kind), "")
    metadata = item["metadata"]
    return "" if metadata.get("name") or metadata.get("generateName") else "metadata.name: missing, expected text"


def _shape_of(kind: str) -> Shape:
    return {"metadata!": _METADATA, **_SHAPES.get(kind, {})}


@lru_cache(maxsize=32)
def _check_of(kind: str) -> Check:
    return _compiled(_shape_of(kind))


def _compiled(shape: Shape) -> Check:
    """A check without an explanation: a large cluster has millions of fields, nearly all of them right."""
    if isinstance(shape, list):
        inner = _compiled(shape[0])
        return lambda value: isinstance(value, list) and all(map(inner, value))
    if not isinstance(shape, dict):
        types = shape if isinstance(shape, tuple) else (shape,)
        if bool in types:
            return lambda value: isinstance(value, types)
        return lambda value: isinstance(value, types) and value is not True and value is not False
    if str in shape:
        every = _compiled(shape[str])
        return lambda value: (
            isinstance(value, dict) and all(isinstance(name, str) and every(item) for name, item in value.items())
        )
    return _compiled_fields(
        {name.removesuffix("!"): _compiled(inner) for name, inner in shape.items()},
        [name.removesuffix("!") for name in shape if name.endswith("!")],
    )


def _compiled_fields(checks: Mapping[str, Check], required: list[str]) -> Check:
    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for name, item in value.items():
            known = checks.get(name)
            if known is not None and item is not None and not known(item):
                return False
        return not required or all(value.get(name) is not None for name in required)

    return check


def _misfit(value: Any, shape: Shape, path: str) -> str:
    """What is wrong with a value, or "". null counts as missing, as in Go, and is wrong for required fields alone."""
    if isinstance(shape, dict):
        return _of_object(value, shape, path)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _says(path, "a list", value)
        return next((p for i, item in enumerate(value) if (p := _misfit(item, shape[0], f"{path}[{i}]"))), "")
    types = shape if isinstance(shape, tuple) else (shape,)
    good = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    return "" if good else _says(path, _WORDS[types[0]], value)


def _of_object(value: Any, shape: Mapping[Any, Shape], path: str) -> str:
    if not isinstance(value, dict):
        return _says(path, "an object", value)
    for name, inner in shape.items():
        problem = _of_map(value, inner, path) if name is str else _of_field(value, name, inner, path)
        if problem:
            return problem
    return ""


def _of_map(value: Mapping[Any, Any], shape: Shape, path: str) -> str:
    for name, item in value.items():
        if not isinstance(name, str):
            return _says(f"{path}.{name}", "text as name", name)
        problem = _misfit(item, shape, f"{path}.{name}")
        if problem:
            return problem
    return ""


def _of_field(value: Mapping[Any, Any], name: str, shape: Shape, path: str) -> str:
    plain = name.removesuffix("!")
    where = f"{path}.{plain}".lstrip(".")
    if value.get(plain) is not None:
        return _misfit(value[plain], shape, where)
    return f"{where}: missing, expected {_expected(shape)}" if name.endswith("!") else ""


def _expected(shape: Shape) -> str:
    kind = shape[0] if isinstance(shape, tuple) else type(shape) if isinstance(shape, dict | list) else shape
    return _WORDS[kind]


def _says(path: str, expected: str, value: Any) -> str:
    return f"{path}: expected {expected}, got {_WORDS.get(type(value), 'nothing')}: {str(value)[:40]!r}"
