"""Fields of a ResourceSlice that an API server keeps only while a feature gate is on. Pure.

Source: kubernetes/kubernetes pkg/registry/resource/resourceslice/strategy.go (dropDisabledFields).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from dra_driver.kube.objects.resource import ResourceSliceSpec

# Field to attribute of Features.
_FIELDS: Final = {
    "sharedCounters": "counters",
    "consumesCounters": "counters",
    "taints": "taints",
    "allowMultipleAllocations": "multi_allocation",
    "requestPolicy": "multi_allocation",
    "ints": "list_attributes",
}


class ApiServerFeatures(Struct, frozen=True, kw_only=True):
    """Which features the API server keeps: counters (KEP-4815), taints (KEP-5055), multi-allocation (KEP-5075).

    - ``counters_beside_devices``: counter sets have to be in the resource slice of the devices that consume them (1.34)
      instead of a resource slice without devices (1.35 and newer).
    - ``counters_refused``: the gate of counters is on, but the API server accepts neither of the two; then ``counters``
      is False.
    - ``shares_hide_counters``: the scheduler does not charge the counters of devices whose shares are allocated (1.35),
      so it would allocate partitions of a GPU beside its shares. Known by the API server's version.
    - ``list_attributes``: attributes may be lists (KEP-5491), and lists are wanted: see `features.FeatureWatch`.
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


NO_FEATURES: Final = ApiServerFeatures()
"""Before the API server answered."""


def lists_in(spec: ResourceSliceSpec) -> Iterator[str]:
    """Paths of list attributes, as `lost_with` takes them."""
    for device in spec.devices:
        for name, value in device.attributes.items():
            if value.ints is not None:
                yield f"spec.devices.attributes[{name}].ints"


def lost_with(paths: Iterable[str]) -> frozenset[str]:
    """The features (attributes of `ApiServerFeatures`) that an API server lacks when it dropped these fields.

    Paths are those of `compare.dropped_fields`: ``spec.devices[3].consumesCounters``.
    """
    last = (path.rpartition(".")[2].partition("[")[0] for path in paths)
    return frozenset(_FIELDS[name] for name in last if name in _FIELDS)
