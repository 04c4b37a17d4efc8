"""Objects and devices that lint checks against: those of a cluster, and the devices of the catalog.

Equal devices of a cluster are kept once, so each is evaluated only once.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.kube.state import KINDS, ClusterState
from dra_driver.kubectl.lint.catalog_devices import VARYING, KnownDevice, catalog_devices
from dra_driver.scheduler.cel import DeviceView

MAX_SHAPES: Final = 2_000
_IDENTITY: Final = VARYING - (
    {"driverVersion", "cudaDriverVersion", "addressingMode", "confidentialCompute", "nvlinkIslandSize", "nvlinkType"}
)


class KnownObjects(Struct, frozen=True, kw_only=True):
    """Known objects. Objects of the kinds in ``complete`` that are not listed here do not exist in the cluster.

    Namespaces map to their labels. ``version`` of the API server is (1, 36), None when it is not known.
    """

    complete: frozenset[str] = frozenset()
    devices: Sequence[KnownDevice] = ()
    cluster_devices: Sequence[KnownDevice] = ()
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    templates: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: tuple[int, int] | None = None


def known_from_catalog() -> KnownObjects:
    """Returns what is known without a cluster."""
    return KnownObjects(devices=catalog_devices())


def known_from_cluster(state: ClusterState) -> KnownObjects:
    """Returns what is known from a cluster. Kinds that could not be read are not in ``complete``."""
    missing = {gap.partition(":")[0] for gap in state.gaps}
    return KnownObjects(
        complete=frozenset(kind.kind for kind in KINDS if kind.resource not in missing),
        devices=catalog_devices(),
        cluster_devices=devices_of(state.slices),
        classes={_name(item): item for item in state.classes},
        claims={_key(item): item for item in state.claims},
        templates={_key(item): item for item in state.templates},
        namespaces={_name(item): dict((item.get("metadata") or {}).get("labels") or {}) for item in state.namespaces},
        version=_version(state.server_version),
    )


def _version(text: str) -> tuple[int, int] | None:
    """``v1.36.2`` as (1, 36)."""
    found = re.match(r"v?(\d{1,3})\.(\d{1,3})", text)
    return (int(found[1]), int(found[2])) if found else None


def devices_of(slices: Iterable[Mapping[str, Any]]) -> tuple[KnownDevice, ...]:
    """Returns one device per shape; attributes that identify a single device, such as its UUID, do not count."""
    shapes: dict[str, KnownDevice] = {}
    for item in slices:
        spec = item.get("spec") if isinstance(item, Mapping) else None
        if not isinstance(spec, Mapping) or not isinstance(spec.get("driver"), str):
            continue
        for device in spec.get("devices") or () if isinstance(spec.get("devices"), list) else ():
            if isinstance(device, Mapping) and len(shapes) < MAX_SHAPES:
                _count(shapes, spec, device)
    return tuple(shapes.values())


def _count(shapes: dict[str, KnownDevice], spec: Mapping[str, Any], device: Mapping[str, Any]) -> None:
    driver, node = str(spec["driver"]), str(device.get("nodeName") or spec.get("nodeName") or "")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if not isinstance(attributes, Mapping) or not isinstance(capacity, Mapping):
        return
    shape = {name: value for name, value in attributes.items() if name not in _IDENTITY}
    shared = bool(device.get("allowMultipleAllocations"))
    key = json.dumps([driver, shape, capacity, shared], sort_keys=True, default=str)
    found = shapes.get(key)
    if found is None:
        try:
            view = DeviceView(driver, device, lists=True)  # published: the gate is on
        except (ValueError, TypeError, AttributeError, KeyError):
            return  # the API server would refuse it
        label = f"{device.get('name')} on node {node}" if node else f"{device.get('name')} of {driver}"
        found = KnownDevice(driver=driver, label=label, wire=device, view=view, varying=_IDENTITY, shared=shared)
    shapes[key] = replace(found, nodes={**found.nodes, node: found.nodes.get(node, 0) + 1})


def _name(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name") or "")


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")
