"""A Container Device Interface document as frozen values, its JSON form, and the lowest version that covers it.

Source: the CDI specification, SPEC.md, and the reference library's ``specs-go/config.go`` for the JSON field names.
A field's wire name is its name here in camelCase unless ``WIRE_NAMES`` says otherwise, and an empty field is left
out, as the reference library does.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

KNOWN_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions that consumers accept, oldest first. They match exactly: 0.6.1 and 0.9.0 are not accepted."""

WIRE_NAMES = {"clos_id": "closID"}
"""Wire names that are not plain camelCase of the field."""


def wire_name(name: str) -> str:
    """The JSON key of a field: ``container_path`` -> ``containerPath``."""
    first, *rest = name.split("_")
    return WIRE_NAMES.get(name, first + "".join(word.title() for word in rest))


class _Element:
    """Base of all parts of a document: fields in declared order, empty fields left out."""

    __slots__ = ()

    def to_wire(self) -> dict[str, Any]:
        """A new dict of JSON values, keys in the specification's order."""
        pairs = [(key, getattr(self, name)) for name, key in _keys(self.__class__)]  # type: ignore[arg-type]
        return {key: _wire_value(value) for key, value in pairs if not _is_empty(value)}


@functools.cache
def _keys(kind: Any) -> tuple[tuple[str, str], ...]:
    """Names of the fields and their JSON keys; the same for every element of a kind, and needed in every prepare."""
    return tuple((name, wire_name(name)) for name in kind.__struct_fields__)


def _is_empty(value: object) -> bool:
    """None, "", (), {} and an element without fields are empty; 0 and False are values (a minor may be 0)."""
    if isinstance(value, ContainerEdits):
        return value.empty
    return value is None or (isinstance(value, str | tuple | Mapping) and not value)


def _wire_value(value: object) -> object:
    if isinstance(value, _Element):
        return value.to_wire()
    if isinstance(value, tuple):
        return [_wire_value(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


class DeviceNode(_Element, Struct, frozen=True, kw_only=True):
    """A device node to create in the container.

    ``host_path`` is the node on the host from which the runtime takes the numbers when ``type`` or ``major`` is
    missing; it is needed only when it differs from ``path``. ``file_mode`` is the permission bits as a decimal number
    (438 is 0666). ``permissions`` are the cgroup's: a subset of ``rwm``.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Element, Struct, frozen=True, kw_only=True):
    """A mount. CDI adds no option by itself: without ``bind`` or ``rbind`` no container starts."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Element, Struct, frozen=True, kw_only=True):
    """An OCI hook. ``args[0]`` is the program's own name; ``timeout`` is in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_Element, Struct, frozen=True, kw_only=True):
    """Intel Resource Director Technology. This driver never writes it; it is here so that validation covers the whole
    document."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool | None = None


class NetDevice(_Element, Struct, frozen=True, kw_only=True):
    """A host network interface moved into the container. This driver never writes it, see `IntelRdt`."""

    host_interface_name: str
    name: str


class ContainerEdits(_Element, Struct, frozen=True, kw_only=True):
    """Changes of a container: for one device or, at the top of a document, for any of its devices."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()
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


class CdiDevice(_Element, Struct, frozen=True, kw_only=True):
    """One device of a document; a container requests it as ``<kind>=<name>``."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    container_edits: ContainerEdits


class CdiSpec(_Element, Struct, frozen=True, kw_only=True):
    """A whole document. ``kind`` is ``<vendor>/<class>``; the version is computed."""

    kind: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[CdiDevice, ...] = ()
    container_edits: ContainerEdits = _NOTHING

    def to_wire(self) -> dict[str, Any]:
        """The document as JSON values, declaring the lowest version that covers it.

        The lowest and not the newest because a consumer refuses a version that it does not know, even for a document
        that uses nothing of it (podman 4.3 ends at 0.5.0).
        """
        return {"cdiVersion": minimum_version(self), **super(CdiSpec, self).to_wire()}  # noqa: UP008 - slots: a new class

    def all_edits(self) -> Iterator[ContainerEdits]:
        """The document's own edits, then each device's."""
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
