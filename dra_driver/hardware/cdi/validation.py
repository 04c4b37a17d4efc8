"""The validity rules of the CDI specification, and additional rules of this driver.

One invalid entry makes a consumer refuse the whole file, and only the runtime's log says so. So every document is
checked before it is written.

Source of the rules: ``pkg/cdi/{spec,device,container-edits,qualified-device}.go`` and ``internal/validation`` of
the CDI reference library. The JSON schema beside it is no substitute: it accepts nearly all of these mistakes. The
rules of `driver_problems` are this driver's: a document that breaks them loads, but then fails or endangers the
container.
"""

import re
from collections.abc import Iterator

from dra_driver.core.errors import InvalidSpecError
from dra_driver.hardware.cdi.spec import (
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
)

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_NODE_TYPES = ("", "b", "c", "u", "p")
_MIDDLE_OF_KIND = re.compile(r"[A-Za-z0-9_.-]*")
_MIDDLE_OF_DEVICE = re.compile(r"[A-Za-z0-9_.:-]*")
_ALNUM = re.compile(r"[A-Za-z0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_CLOS_ID_LIMIT = 4096
_DEVICE_NUMBER_LIMIT = 2**32
_PERMISSION_BITS = 0o7777


def validate(spec: CdiSpec, source: str) -> None:
    """Raise `InvalidSpecError` with all broken rules of the specification and the driver; ``source`` names the file."""
    problems = (*spec_problems(spec), *driver_problems(spec))
    if problems:
        raise InvalidSpecError(f"CDI document {source} would not be usable: " + "; ".join(problems))


def spec_problems(spec: CdiSpec) -> tuple[str, ...]:
    """Every broken rule of the CDI specification, each as ``<device and field>: <what is wrong>``; () when none is."""
    return tuple(_spec_problems(spec))


def driver_problems(spec: CdiSpec) -> tuple[str, ...]:
    """Every broken rule of this driver: CDI accepts these documents, but containers fail or are not safe."""
    return tuple(problem for where, edits in _edits(spec) for problem in _driver_problems_of(edits, where))


def _spec_problems(spec: CdiSpec) -> Iterator[str]:
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
    for field, names in (
        ("hostInterfaceName", [device.host_interface_name for device in devices]),
        ("name", [device.name for device in devices]),
    ):
        yield from (f"{where}: {field} {name!r} is used more than once" for name in _repeated(names))


def _driver_problems_of(edits: ContainerEdits, where: str) -> Iterator[str]:
    yield from (
        f"{where}: env[{i}]: {entry!r} holds a NUL character" for i, entry in enumerate(edits.env) if "\0" in entry
    )
    for i, node in enumerate(edits.device_nodes):
        yield from _driver_node_problems(node, f"{where}: deviceNodes[{i}]")
    for i, mount in enumerate(edits.mounts):
        yield from _path_problems(mount.host_path, f"{where}: mounts[{i}].hostPath")
        yield from _path_problems(mount.container_path, f"{where}: mounts[{i}].containerPath")
        if not mount.type and not {"bind", "rbind"} & set(mount.options):
            yield f"{where}: mounts[{i}].options: neither bind nor rbind for {mount.container_path}: it cannot start"
    for i, hook in enumerate(edits.hooks):
        yield from _path_problems(hook.path, f"{where}: hooks[{i}].path")
        if not hook.env:
            # With an empty environment runc runs the hook as root on the host with the container's environment,
            # LD_PRELOAD included.
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
