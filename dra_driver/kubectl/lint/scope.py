"""Look up names in the objects of the input and of the cluster, and resolve the devices of classes."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import CelSyntaxError
from dra_driver.kube.state import KINDS, ClusterState, Wire, identity
from dra_driver.kubectl.lint.catalog_devices import DRIVER, VARYING, KnownDevice, catalog_devices, devices_under
from dra_driver.kubectl.lint.expressions import ParsedSelector, matching_devices, parse_selector
from dra_driver.kubectl.lint.manifest import DEFAULT_NAMESPACE, Manifest, ManifestText, Spot
from dra_driver.kubectl.lint.reading import MAX_PLAIN_NODES, YamlNode, plain

MAX_SHAPES: Final = 2_000
_IDENTITY: Final = VARYING - (
    {"driverVersion", "cudaDriverVersion", "addressingMode", "confidentialCompute", "nvlinkIslandSize", "nvlinkType"}
)


class KnownObjects(Struct, frozen=True, kw_only=True):
    """Known objects by kind, namespace (``default`` without one) and name.

    Unlisted objects of the kinds in ``complete`` do not exist. ``version`` of the API server is (1, 36), None if
    unknown.
    """

    complete: frozenset[str] = frozenset()
    devices: Sequence[KnownDevice] = ()
    cluster_devices: Sequence[KnownDevice] = ()
    objects: Mapping[str, Mapping[tuple[str, str], Wire]] = field(default_factory=dict)
    version: tuple[int, int] | None = None


def known_from_catalog() -> KnownObjects:
    return KnownObjects(devices=catalog_devices())


def known_from_cluster(state: ClusterState) -> KnownObjects:
    """Return the objects of a cluster. Kinds that could not be read are not in ``complete``."""
    missing = {gap.partition(":")[0] for gap in state.gaps}
    return KnownObjects(
        complete=frozenset(kind.kind for kind in KINDS if kind.resource not in missing),
        devices=catalog_devices(),
        cluster_devices=devices_of(state.slices),
        objects={
            kind.kind: {_key(item): item for item in getattr(state, kind.field)}
            for kind in KINDS
            if kind.field in {"classes", "claims", "templates", "namespaces"}
        },
        version=_version(state.server_version),
    )


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d{1,3})\.(\d{1,3})", text)
    return (int(found[1]), int(found[2])) if found else None


def devices_of(slices: Iterable[object]) -> tuple[KnownDevice, ...]:
    """Return one device per shape, to evaluate each once. Ignore UUIDs and other identities."""
    shapes: dict[str, KnownDevice] = {}
    for item in slices:
        spec = item.get("spec") if isinstance(item, Mapping) else None
        if isinstance(spec, Mapping) and isinstance(spec.get("driver"), str):
            for device in spec.get("devices") or () if isinstance(spec.get("devices"), list) else ():
                if isinstance(device, Mapping) and len(shapes) < MAX_SHAPES:
                    _count(shapes, spec["driver"], str(device.get("nodeName") or spec.get("nodeName") or ""), device)
    return tuple(shapes.values())


def _count(shapes: dict[str, KnownDevice], driver: str, node: str, device: Wire) -> None:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if not isinstance(attributes, Mapping) or not isinstance(capacity, Mapping):
        return
    shape = {name: value for name, value in attributes.items() if name not in _IDENTITY}
    shared = bool(device.get("allowMultipleAllocations"))
    key = json.dumps([driver, shape, capacity, shared], sort_keys=True, default=str)
    found = shapes.get(key)
    if found is None:
        label = f"{device.get('name')} on node {node}" if node else f"{device.get('name')} of {driver}"
        found = KnownDevice(driver=driver, label=label, wire=device, varying=_IDENTITY, shared=shared)
        try:
            _ = found.view
        except (ValueError, TypeError, AttributeError, KeyError):
            return  # the API server rejects it
    shapes[key] = replace(found, nodes={**found.nodes, node: found.nodes.get(node, 0) + 1})


def _key(item: Wire) -> tuple[str, str]:
    namespace, name = identity(item)
    return namespace or DEFAULT_NAMESPACE, name


_GUARD: Final = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == '
WELL_KNOWN: Final[Mapping[str, str]] = {
    "gpu.nvidia.com": f'{_GUARD}"gpu"',
    "mig.nvidia.com": f'{_GUARD}"mig"',
    "vfio.gpu.nvidia.com": f'{_GUARD}"vfio"',
    "monitor.gpu.nvidia.com": f'{_GUARD}"monitor"',
    "dranet": 'device.driver == "dra.net"',
}
"""Classes of this driver, of NVIDIA's and of DRANET, used unless the input or the cluster defines them."""


class ClassInfo(Struct, frozen=True, kw_only=True):
    """A DeviceClass. ``selectors`` is None when one does not compile.

    ``devices`` are the selected known devices; ``drivers`` are from its selectors, or else from ``devices``.
    """

    name: str
    selectors: Sequence[ParsedSelector] | None
    devices: Sequence[KnownDevice]
    drivers: frozenset[str]
    extended_resource: str = ""


class Scope:
    """Names of one run and their objects. Not thread-safe."""

    def __init__(self, known: KnownObjects, manifests: Sequence[Manifest]) -> None:
        self.known = known
        self._by_kind: dict[str, dict[tuple[str, str], Manifest]] = {}
        for manifest in manifests:
            self._by_kind.setdefault(manifest.kind, {}).setdefault((manifest.namespace, manifest.name), manifest)
        slices = [plain(m.spot.node) for m in self.of_kind("ResourceSlice") if m.spot.node.size <= MAX_PLAIN_NODES]
        self.cluster_devices = (*known.cluster_devices, *devices_of(slices))
        under_policies = devices_under(self.of_kind("GpuPolicy"), known.devices)
        self.devices = (*known.devices, *under_policies, *self.cluster_devices)
        self._classes: dict[str, ClassInfo | None] = {}

    def of_kind(self, kind: str) -> Iterable[Manifest]:
        return self._by_kind.get(kind, {}).values()

    def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the object from the input or else the cluster."""
        found = self._by_kind.get(kind, {}).get((namespace, name))
        stored = self.known.objects.get(kind, {}).get((namespace, name))
        if found is not None or stored is None:
            return found
        return _manifest_of(kind, stored)

    def names(self, kind: str, namespace: str | None = None) -> list[str]:
        places = [*self._by_kind.get(kind, {}), *self.known.objects.get(kind, {})]
        return [name for space, name in places if namespace in {None, space}]

    def class_info(self, name: str) -> ClassInfo | None:
        """Return the class from the input, the cluster or `WELL_KNOWN`, or None."""
        if name not in self._classes:
            self._classes[name] = self._class_info(name)
        return self._classes[name]

    def _class_info(self, name: str) -> ClassInfo | None:
        manifest = next((m for m in self.of_kind("DeviceClass") if m.name == name and m.is_dra), None)
        manifest = manifest or self.find("DeviceClass", DEFAULT_NAMESPACE, name)
        if manifest is None and name in WELL_KNOWN:
            selectors = [{"cel": {"expression": WELL_KNOWN[name]}}]
            manifest = _manifest_of("DeviceClass", {"spec": {"selectors": selectors}})
        if manifest is None:
            return None
        spot = manifest.spot
        chain = compiled(spot.each("spec", "selectors"))
        devices = matching_devices(chain, self.devices) if chain is not None else []
        named = {driver for item in chain or () for driver, _ in item.reads.drivers}
        drivers = frozenset(named or {device.driver for device in devices})
        resource = spot.string("spec", "extendedResourceName")
        return ClassInfo(name=name, selectors=chain, devices=devices, drivers=drivers, extended_resource=resource)


def compiled(entries: Sequence[Spot]) -> list[ParsedSelector] | None:
    """Return the selectors of a list; None when one does not compile."""
    chain = []
    for entry in entries:
        spot = entry.get("cel", "expression")
        if spot is None or not isinstance(spot.node.value, str):
            return None
        try:
            chain.append(parse_selector(spot, spot.node.value))
        except (CelSyntaxError, RecursionError):
            return None
    return chain


def did_you_mean(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else ""


def _manifest_of(kind: str, item: Wire) -> Manifest:
    return Manifest(ManifestText("cluster", "", {}), as_node(item), api_version="resource.k8s.io/v1", kind=kind)


def as_node(value: object) -> YamlNode:
    """Convert a JSON value to a tree without positions."""
    if isinstance(value, Mapping):
        return YamlNode("map", pairs=[(as_node(str(key)), as_node(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return YamlNode("list", items=[as_node(item) for item in value])
    return YamlNode("scalar", value=value, text="" if value is None else str(value))
