"""Compare ResourceSlices as sent and as stored, to find the fields and features that an API server lacks. No I/O.

The API server changes a value without changing its meaning: absent, null and empty are equal; a quantity has several
spellings; it fills in a taint's ``timeAdded`` (measured on Kubernetes 1.36; ``omitempty`` tags of resource/v1/types.go,
apimachinery's Quantity). Gates: pkg/registry/resource/resourceslice/strategy.go (dropDisabledFields).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.json import decode, encode  # noqa: TID251 - no struct

from dra_driver.core.quantity import Quantity
from dra_driver.kube.objects.resource import ResourceSliceSpec

# Below these keys, the strings of those keys are quantities: capacity: {memory: {value: 80Gi, requestPolicy:
# {default: 1Gi}}}.
_QUANTITY_PARENTS = frozenset({"capacity", "counters", "overhead"})
_QUANTITY_KEYS = frozenset({"value", "default", "validValues", "min", "max", "step", "perPod"})
# Field to attribute of Features.
_FIELDS: Final = {
    "sharedCounters": "counters",
    "consumesCounters": "counters",
    "taints": "taints",
    "allowMultipleAllocations": "multi_allocation",
    "requestPolicy": "multi_allocation",
    "ints": "list_attributes",
    "nodeAllocatableResources": "node_overhead",
}


def same(sent: object, found: object) -> bool:
    """Return whether ``found`` (from the API server) has the meaning of ``sent``: structs, or JSON values."""
    sent = decode(encode(sent))
    # The first comparison is a hundred times cheaper and nearly always decides: the driver sends values in the form in
    # which the API server prints them.
    return bool(sent == found or normal(sent, found) == normal(found, sent))


def digest(value: object) -> str:
    """Return the same text for values of the same meaning."""
    text = json.dumps(normal(value), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def normal(value: object, other: object = None, under: str = "") -> object:
    """A form of the value in which equal meaning is equality. ``other`` is the value to compare it with."""
    if isinstance(value, dict):
        return _normal_mapping(value, other if isinstance(other, dict) else {}, under)
    if isinstance(value, list | tuple):
        others = list(other) if isinstance(other, list | tuple) else []
        others += [None] * (len(value) - len(others))
        return [normal(child, opposite, under) for child, opposite in zip(value, others, strict=False)]
    if under == "quantity" and isinstance(value, str):
        with suppress(ValueError):
            return Quantity.parse(value)
    return value


def _normal_mapping(value: Mapping[str, object], other: Mapping[str, object], under: str) -> dict[str, object]:
    result = {}
    for key, child in value.items():
        if key == "timeAdded" and isinstance(child, str) and key not in other:
            continue  # added by the server to a taint that was sent without a time
        below = key if key in _QUANTITY_PARENTS else under
        if under in _QUANTITY_PARENTS and key in _QUANTITY_KEYS:
            below = "quantity"
        shown = normal(child, other.get(key), below)
        # Absent optional booleans are false; ``bool: false`` of an attribute is a value.
        if shown is None or shown in ({}, [], "") or (shown is False and key != "bool"):
            continue
        result[key] = shown
    return result


def dropped_fields(sent: object, found: object, path: str = "") -> Iterator[str]:
    """Paths of fields that were sent and did not come back."""
    sent = decode(encode(sent))
    sent, found = normal(sent, found), normal(found, sent)
    yield from _dropped_fields(sent, found, path)


def _dropped_fields(sent: object, found: object, path: str) -> Iterator[str]:
    if isinstance(sent, dict):
        there = found if isinstance(found, dict) else {}
        for key, child in sent.items():
            if key not in there:
                yield f"{path}.{key}".lstrip(".")
            else:
                yield from _dropped_fields(child, there[key], f"{path}.{key}")
    elif isinstance(sent, list):
        there_list = found if isinstance(found, list) else []
        for index, child in enumerate(sent):
            if index >= len(there_list):
                yield f"{path}[{index}]".lstrip(".")
            else:
                yield from _dropped_fields(child, there_list[index], f"{path}[{index}]")


class ApiServerFeatures(Struct, frozen=True, kw_only=True):
    """The features that the API server keeps: counters (KEP-4815), taints (KEP-5055), multi-allocation (KEP-5075).

    - ``counters_beside_devices``: counter sets must be in the resource slice of the devices that consume them (1.34)
      instead of a resource slice without devices (1.35 and newer).
    - ``counters_refused``: the gate of counters is enabled, but the API server accepts neither; ``counters`` is False.
    - ``shares_hide_counters``: the scheduler does not charge the counters of devices whose shares are allocated (1.35),
      so it would allocate partitions of a GPU next to its shares. Known by the API server's version.
    - ``list_attributes``: attributes may be lists (KEP-5491), and lists are wanted: see `features.FeatureWatch`.
    - ``node_overhead``: devices may state memory of the node per pod (KEP-5517, as in 1.37). The mapping of 1.36 is
      never published: the scheduler then gives a claim to one pod only.
    - ``taints_1_35``: taints may have effect None, and a device 16 of them instead of 4.
    """

    counters: bool = False
    counters_beside_devices: bool = False
    counters_refused: bool = False
    shares_hide_counters: bool = False
    taints: bool = False
    taints_1_35: bool = False
    multi_allocation: bool = False
    list_attributes: bool = False
    node_overhead: bool = False


NO_FEATURES: Final = ApiServerFeatures()
"""Before the API server answered."""


def lists_in(spec: ResourceSliceSpec) -> Iterator[str]:
    """Paths of list attributes, as `lost_with` takes them."""
    for device in spec.devices:
        for name, value in device.attributes.items():
            if value.ints is not None:
                yield f"spec.devices.attributes[{name}].ints"


def lost_with(paths: Iterable[str]) -> frozenset[str]:
    """The features (attributes of `ApiServerFeatures`) of dropped fields; paths as from `dropped_fields`."""
    last = (path.rpartition(".")[2].partition("[")[0] for path in paths)
    return frozenset(_FIELDS[name] for name in last if name in _FIELDS)
