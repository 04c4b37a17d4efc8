"""A Container Device Interface document: its fields, its JSON form, its validity rules and its decoding.

One invalid entry makes a consumer refuse the whole file, and only the runtime's log reports it. Sources: SPEC.md; the
reference library's ``specs-go/{config,version}.go``, and for the rules
``pkg/cdi/{spec,device,container-edits,qualified-device}.go`` and ``internal/validation``. Its JSON schema accepts
nearly all of these mistakes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from dra_driver.core.convert import convert
from dra_driver.core.errors import InvalidSpecError

KNOWN_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions that consumers accept, oldest first. They match exactly: 0.6.1 and 0.9.0 are not accepted."""


HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_NODE_TYPES = ("", "b", "c", "u", "p")
_MIDDLE_OF_KIND = re.compile(r"[A-Za-z0-9_.-]*")
_MIDDLE_OF_DEVICE = re.compile(r"[A-Za-z0-9_.:-]*")
_ALNUM = re.compile(r"[A-Za-z0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_CLOS_ID_LIMIT = 4096
_DEVICE_NUMBER_LIMIT = 2**32
_PERMISSION_BITS = 0o7777

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Uint32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]


def _wire_name(name: str) -> str:
    first, *rest = name.split("_")
    return "closID" if name == "clos_id" else first + "".join(word.title() for word in rest)


class _Element(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename=_wire_name):
    """A part of a document, encoded in the declared order without empty fields, under camelCase names."""

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
    """A mount. CDI adds no options: containers start only with ``bind`` or ``rbind``."""

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
    """Intel Resource Director Technology. This driver never writes it; validation covers the whole document."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool | None = None


class NetDevice(_Element, frozen=True, kw_only=True):
    """A host network interface moved into the container. This driver never writes it."""

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
        """Return whether nothing would change. Consumers refuse a file that has a device with empty edits."""
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
        """The document with the lowest version that covers it: podman 4.3 refuses versions after 0.5.0."""
        return {"cdiVersion": minimum_version(self), **super(CdiSpec, self).to_wire()}  # noqa: UP008 - slots: a new class

    def all_edits(self) -> Iterator[ContainerEdits]:
        yield self.container_edits
        yield from (device.container_edits for device in self.devices)


def minimum_version(spec: CdiSpec) -> str:
    """The lowest of `KNOWN_VERSIONS` with every feature of ``spec`` (``specs-go/version.go``). 0.8.0 and 1.0.0 added no
    field."""
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


def validate(spec: CdiSpec, source: str) -> None:
    """Raise `InvalidSpecError` with all broken rules of the specification and of this driver; ``source`` is a file."""
    if problems := (*spec_problems(spec), *driver_problems(spec)):
        raise InvalidSpecError(f"CDI document {source} would not be usable: " + "; ".join(problems))


def spec_problems(spec: CdiSpec) -> Iterator[str]:
    """Broken rules of the CDI specification, each as ``<device and field>: <problem>``."""
    vendor, slash, class_ = spec.kind.partition("/")
    if not slash:
        yield f"kind: {spec.kind!r} is not '<vendor>/<class>'"
    else:
        yield from _kind_part_problems("vendor", vendor)
        yield from _kind_part_problems("class", class_)
    if not spec.devices:
        yield "devices: none, at least one is required"
    names = [device.name for device in spec.devices]
    yield from (f"device {name!r}: listed {names.count(name)} times" for name in _repeated(names))
    for device in spec.devices:
        yield from _device_problems(device)
    for where, edits in _edits(spec):
        yield from _edit_problems(edits, where)


def _edits(spec: CdiSpec) -> Iterator[tuple[str, ContainerEdits]]:
    yield "containerEdits", spec.container_edits
    for device in spec.devices:
        yield f"device {device.name!r}", device.container_edits


def _repeated(values: list[str]) -> list[str]:
    return sorted({value for value in values if values.count(value) > 1}) if len(set(values)) < len(values) else []


def _kind_part_problems(part: str, text: str) -> Iterator[str]:
    if len(text) < 2:
        # Released libraries (up to v1.1.0) index past the end of a one-character name and crash the runtime.
        yield f"kind: {part} {text!r} is shorter than 2 characters"
    elif not _LETTER.match(text[0]):
        yield f"kind: {part} {text!r} does not start with a letter"
    elif not _ALNUM.match(text[-1]):
        yield f"kind: {part} {text!r} does not end with a letter or digit"
    elif not _MIDDLE_OF_KIND.fullmatch(text):
        yield f"kind: {part} {text!r} holds a character other than letters, digits, '_', '-' and '.'"


def _device_problems(device: CdiDevice) -> Iterator[str]:
    name = device.name
    if not name:
        yield "device '': the name is empty"
    elif not (_ALNUM.match(name[0]) and _ALNUM.match(name[-1])):
        yield f"device {name!r}: the name does not start and end with a letter or digit"
    elif not _MIDDLE_OF_DEVICE.fullmatch(name):
        yield f"device {name!r}: the name holds a character other than letters, digits, '_', '-', '.' and ':'"
    if device.container_edits.empty:
        yield f"device {name!r}: containerEdits are empty, which makes consumers refuse the file"


def _edit_problems(edits: ContainerEdits, where: str) -> Iterator[str]:
    yield from _env_problems(edits.env, f"{where}: env")
    for i, node in enumerate(edits.device_nodes):
        yield from _node_problems(node, f"{where}: deviceNodes[{i}]")
    for i, mount in enumerate(edits.mounts):
        yield from _mount_problems(mount, f"{where}: mounts[{i}]")
    for i, hook in enumerate(edits.hooks):
        yield from _hook_problems(hook, f"{where}: hooks[{i}]")
    if edits.intel_rdt is not None:
        yield from _rdt_problems(edits.intel_rdt, f"{where}: intelRdt")
    yield from _net_device_problems(edits.net_devices, f"{where}: netDevices")


def _env_problems(env: tuple[str, ...], where: str) -> Iterator[str]:
    for i, entry in enumerate(env):
        if entry.find("=") < 1:
            yield f"{where}[{i}]: {entry!r} is not 'NAME=value'"


def _node_problems(node: DeviceNode, where: str) -> Iterator[str]:
    if not node.path:
        yield f"{where}.path: empty"
    if node.type not in _NODE_TYPES:
        yield f"{where}.type: {node.type!r} for {node.path} is none of b, c, u, p"
    if not set(node.permissions) <= set("rwm"):
        yield f"{where}.permissions: {node.permissions!r} for {node.path} holds more than r, w, m"


def _mount_problems(mount: Mount, where: str) -> Iterator[str]:
    if not mount.host_path:
        yield f"{where}.hostPath: empty"
    if not mount.container_path:
        yield f"{where}.containerPath: empty"


def _hook_problems(hook: Hook, where: str) -> Iterator[str]:
    if hook.hook_name not in HOOK_NAMES:
        yield f"{where}.hookName: {hook.hook_name!r} is none of {', '.join(HOOK_NAMES)}"
    if not hook.path:
        yield f"{where}.path: empty"
    yield from _env_problems(hook.env, f"{where}.env")


def _rdt_problems(rdt: IntelRdt, where: str) -> Iterator[str]:
    name = rdt.clos_id
    is_name = name not in (".", "..") and not set(name) & set("/\n") and len(name) < _CLOS_ID_LIMIT
    if not is_name and name != "/":  # "/" alone is the root class
        yield f"{where}.closID: {name[:40]!r} is not a directory name of less than {_CLOS_ID_LIMIT} characters"


def _net_device_problems(devices: tuple[NetDevice, ...], where: str) -> Iterator[str]:
    for i, device in enumerate(devices):
        if not device.host_interface_name:
            yield f"{where}[{i}].hostInterfaceName: empty"
        if not device.name:
            yield f"{where}[{i}].name: empty"
    hosts, names = [device.host_interface_name for device in devices], [device.name for device in devices]
    yield from (f"{where}: hostInterfaceName {name!r} is used more than once" for name in _repeated(hosts))
    yield from (f"{where}: name {name!r} is used more than once" for name in _repeated(names))


def driver_problems(spec: CdiSpec) -> Iterator[str]:
    """This driver's, as `spec_problems`: CDI accepts these documents, but their containers fail or are unsafe."""
    for where, edits in _edits(spec):
        for i, entry in enumerate(edits.env):
            if "\0" in entry:
                yield f"{where}: env[{i}]: {entry!r} holds a NUL character"
        for i, node in enumerate(edits.device_nodes):
            yield from _driver_node_problems(node, f"{where}: deviceNodes[{i}]")
        for i, mount in enumerate(edits.mounts):
            at = f"{where}: mounts[{i}]"
            yield from _path_problems(mount.host_path, f"{at}.hostPath")
            yield from _path_problems(mount.container_path, f"{at}.containerPath")
            if not mount.type and not {"bind", "rbind"} & set(mount.options):
                yield f"{at}.options: neither bind nor rbind for {mount.container_path}: it cannot start"
        for i, hook in enumerate(edits.hooks):
            yield from _path_problems(hook.path, f"{where}: hooks[{i}].path")
            if not hook.env:  # runc would run it as root of the host with the container's LD_PRELOAD
                yield f"{where}: hooks[{i}].env: empty, so the container's environment would reach a host process"


def _driver_node_problems(node: DeviceNode, where: str) -> Iterator[str]:
    yield from _path_problems(node.path, f"{where}.path")
    if node.host_path:
        yield from _path_problems(node.host_path, f"{where}.hostPath")
    for name, number in (("major", node.major), ("minor", node.minor)):
        if number is not None and not 0 <= number < _DEVICE_NUMBER_LIMIT:
            yield f"{where}.{name}: {number} for {node.path} is not a device number"
    if node.file_mode is not None and not 0 <= node.file_mode <= _PERMISSION_BITS:
        yield f"{where}.fileMode: {node.file_mode} for {node.path} is more than permission bits"


def _path_problems(path: str, where: str) -> Iterator[str]:
    if path and (not path.startswith("/") or "\0" in path or ".." in path.split("/")):
        yield f"{where}: {path!r} is not an absolute path without '..'"


def decode(text: str | bytes, source: str) -> CdiSpec:
    """Decode a JSON document as strictly as the runtimes do: unknown, repeated and wrongly typed fields are errors.

    Raises `InvalidSpecError`, whose message starts with ``source`` and names the field. Checks the declared version and
    drops it: encoding computes the lowest version again.
    """
    try:
        wire = json.loads(text, object_pairs_hook=_unique_keys)
        declared = wire.pop("cdiVersion", "") if isinstance(wire, dict) else ""
        if not isinstance(declared, str):
            raise ValueError(f"cdiVersion: expected a string, found {declared!r}")  # noqa: TRY004, TRY301 - as all mistakes
        spec = convert(wire, CdiSpec)
        problems = (*_version_problems(declared, spec), *spec_problems(spec))
    except (ValueError, RecursionError) as mistake:
        raise InvalidSpecError(f"CDI document {source} cannot be read: {mistake}") from mistake
    if problems:
        raise InvalidSpecError(f"CDI document {source} is invalid: " + "; ".join(problems))
    return spec


def _version_problems(declared: str, spec: CdiSpec) -> tuple[str, ...]:
    version = declared.removeprefix("v")
    if version not in KNOWN_VERSIONS:
        return (f"cdiVersion: {declared!r} is unknown, expected one of {', '.join(KNOWN_VERSIONS)}",)
    needed = minimum_version(spec)
    if KNOWN_VERSIONS.index(version) < KNOWN_VERSIONS.index(needed):
        return (f"cdiVersion: {declared!r} is too low, its fields need at least {needed}",)
    return ()


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is repeated in one object")
    return found
