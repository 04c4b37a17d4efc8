"""Types of the objects that this project writes as dicts: ResourceSlices, and the object of an event.

Objects that are read are structs (``kube/objects/``). A slice stays a dict, so that fields that are not listed here
survive a read and a write. Source: kubernetes/kubernetes staging/src/k8s.io/api/resource/v1/types.go.
"""

from typing import Any, Literal, NotRequired, TypedDict


class OwnerReference(TypedDict):
    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: NotRequired[bool]


class ObjectMeta(TypedDict, total=False):
    name: str
    generateName: str
    namespace: str
    uid: str
    resourceVersion: str
    creationTimestamp: str | None
    deletionTimestamp: str
    labels: dict[str, str]
    annotations: dict[str, str]
    ownerReferences: list[OwnerReference]
    managedFields: list[dict[str, Any]]


class DeviceAttribute(TypedDict, total=False):
    """Exactly one of them (or, behind a gate, a list of one of them)."""

    int: int
    bool: bool
    string: str
    version: str
    ints: "list[int]"


class CapacityRange(TypedDict):
    """Quantities. ``max`` and ``default`` are whole steps above ``min``."""

    min: str
    max: NotRequired[str]
    step: NotRequired[str]


class CapacityRequestPolicy(TypedDict):
    """The amounts that a share may request (KEP-5075): ``validRange`` or ``validValues``, not both."""

    default: str
    validRange: NotRequired[CapacityRange]
    validValues: NotRequired[list[str]]


class DeviceCapacity(TypedDict):
    value: str
    requestPolicy: NotRequired[CapacityRequestPolicy]


class Counter(TypedDict):
    value: str


class CounterSet(TypedDict):
    """The counters that the partitions of one device consume (KEP-4815)."""

    name: str
    counters: dict[str, Counter]


class DeviceCounterConsumption(TypedDict):
    counterSet: str
    counters: dict[str, Counter]


class DeviceTaint(TypedDict):
    key: str
    value: NotRequired[str]
    effect: str
    timeAdded: NotRequired[str]


class Device(TypedDict):
    name: str
    attributes: NotRequired[dict[str, DeviceAttribute]]
    capacity: NotRequired[dict[str, DeviceCapacity]]
    consumesCounters: NotRequired[list[DeviceCounterConsumption]]
    taints: NotRequired[list[DeviceTaint]]
    allowMultipleAllocations: NotRequired[bool]


class ResourcePool(TypedDict):
    name: str
    generation: int
    resourceSliceCount: int


class ResourceSliceSpec(TypedDict):
    driver: str
    pool: ResourcePool
    nodeName: NotRequired[str]
    devices: NotRequired[list[Device]]
    sharedCounters: NotRequired[list[CounterSet]]


class ResourceSlice(TypedDict):
    apiVersion: Literal["resource.k8s.io/v1"]
    kind: Literal["ResourceSlice"]
    metadata: ObjectMeta
    spec: ResourceSliceSpec


class ObjectReference(TypedDict, total=False):
    """The object of an event."""

    apiVersion: str
    kind: str
    name: str
    namespace: str
    uid: str


class WatchEvent(TypedDict):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]
