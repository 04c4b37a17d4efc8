"""A Container Device Interface document as frozen values, its JSON form, and the lowest version that covers it.

Source: the CDI specification, SPEC.md, and the reference library's ``specs-go/config.go`` for the JSON field names.
A field's wire name is its name here in camelCase unless ``WIRE_NAMES`` says otherwise, and an empty field is left
out, as the reference library does.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

KNOWN_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions that consumers accept, oldest first. They match exactly: 0.6.1 and 0.9.0 are not accepted."""

WIRE_NAMES = {"clos_id": "closID"}
"""Wire names that are not plain camelCase of the field."""

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Uint32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]


def _wire_name(name: str) -> str:
    """The JSON key of a field: ``container_path`` -> ``containerPath``."""
    first, *rest = name.split("_")
    return WIRE_NAMES.get(name, first + "".join(word.title() for word in rest))


class _Element(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename=_wire_name):
    """Base of all parts of a document: fields in declared order, empty fields left out."""

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = json.loads(msgspec.json.encode(self))
        return wire


class DeviceNode(_Element, frozen=True, kw_only=True):
    """A device node of the container. ``host_path`` only where it differs from ``path``: the runtime reads missing
    numbers there. ``file_mode`` is decimal (438 is 0666), ``permissions`` a subset of ``rwm``."""

    path: str
    host_path: str = ""
    type: str = ""
    major: _Int64 | None = None
    minor: _Int64 | None = None
    file_mode: _Uint32 | None = None
    permissions: str = ""
    uid: _Uint32 | None = None
    gid: _Uint32 | None = None


class Mount(_Element, frozen=True, kw_only=True):
    """A mount. CDI adds no option by itself: without ``bind`` or ``rbind`` no container starts."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Element, frozen=True, kw_only=True):
    """An OCI hook. ``args[0]`` is the program's own name; ``timeout`` is in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: _Int64 | None = None


class IntelRdt(_Element, frozen=True, kw_only=True):
    """Intel Resource Director Technology. This driver never writes it; it is here so that validation covers the whole
    document."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool | None = None


class NetDevice(_Element, frozen=True, kw_only=True):
    """A host network interface moved into the container. This driver never writes it, see `IntelRdt`."""

    host_interface_name: str
    name: str


class ContainerEdits(_Element, frozen=True, kw_only=True):
    """Changes of a container: for one device or, at the top of a document, for any of its devices."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[_Uint32, ...] = ()
    intel_rdt: IntelRdt | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing would change. Consumers refuse a file that has a device with empty edits."""
        return self == _NOTHING

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        """Both edits, these first; ``other``'s RDT class wins. Duplicates stay, as in CDI itself."""
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            net_devices=self.net_devices + other.net_devices,
            mounts=self.mounts + other.mounts,
            hooks=self.hooks + other.hooks,
            additional_gids=self.additional_gids + other.additional_gids,
            intel_rdt=other.intel_rdt or self.intel_rdt,
        )


_NOTHING = ContainerEdits()


class CdiDevice(_Element, frozen=True, kw_only=True):
    """One device of a document; a container requests it as ``<kind>=<name>``."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    container_edits: ContainerEdits


class CdiSpec(_Element, frozen=True, kw_only=True):
    """A whole document. ``kind`` is ``<vendor>/<class>``; the version is computed."""

    kind: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[CdiDevice, ...] = ()
    container_edits: ContainerEdits = _NOTHING

    def to_wire(self) -> dict[str, Any]:
        """The document with the lowest version that covers it: a consumer refuses a version that it does not know, even
        for a document that uses nothing of it (podman 4.3 ends at 0.5.0)."""
        return {"cdiVersion": minimum_version(self), **super(CdiSpec, self).to_wire()}  # noqa: UP008 - slots: a new class

    def all_edits(self) -> Iterator[ContainerEdits]:
        yield self.container_edits
        yield from (device.container_edits for device in self.devices)


def minimum_version(spec: CdiSpec) -> str:
    """The lowest of `KNOWN_VERSIONS` that has every feature which ``spec`` uses.

    Source: ``specs-go/version.go`` of the reference library. 0.8.0 and 1.0.0 brought no field, so nothing needs them.
    """
    edits = tuple(spec.all_edits())
    if any(edit.net_devices or _is_new_rdt(edit.intel_rdt) for edit in edits):
        return "1.1.0"
    if any(edit.intel_rdt is not None or edit.additional_gids for edit in edits):
        return "0.7.0"
    has_annotations = spec.annotations or any(device.annotations for device in spec.devices)
    if has_annotations or "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    has_digit_name = any("0" <= device.name[:1] <= "9" for device in spec.devices)
    if has_digit_name or any(node.host_path for edit in edits for node in edit.device_nodes):
        return "0.5.0"
    return "0.4.0" if any(mount.type for edit in edits for mount in edit.mounts) else "0.3.0"


def _is_new_rdt(rdt: IntelRdt | None) -> bool:
    return rdt is not None and bool(rdt.schemata or rdt.enable_monitoring)
