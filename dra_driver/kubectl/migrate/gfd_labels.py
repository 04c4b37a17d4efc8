"""Translate node labels of GPU Feature Discovery (GFD) to CEL conditions on a device.

Source: NVIDIA/k8s-device-plugin internal/lm (resource.go, mig-strategy.go, nvml.go), v0.20. If the GPUs of a node
differ, the label names one model, and the condition selects GPUs of that model.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.core.semver import from_loose
from dra_driver.hardware.gpu import catalog

PREFIX: Final = "nvidia.com/"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,11}")
_SIGNED: Final = re.compile(r"[-+]?[0-9]{1,12}")
_REVISION: Final = re.compile(r"[0-9]{2,6}")
_UNWANTED: Final = re.compile(r"[^A-Za-z0-9-_. ]")
_OF_PROFILE: Final = re.compile(
    r"nvidia\.com/mig-([0-9][0-9a-z.]*gb(?:[.-][a-z.]+?)?)"
    r"\.(product|count|replicas|sharing-strategy|memory|multiprocessors|slices\.(?:gi|ci)|engines\.[a-z]+)"
)
_PRODUCT: Final = re.compile(
    r"(?P<name>.+?)(?:-MIG-(?P<profile>[0-9][0-9a-z.]*gb(?:[.-][a-z.]+)?))?(?P<shared>-SHARED)?"
)

# getArchFamily of resource.go: compute capability to family.
_FAMILIES: Final[Mapping[str, str]] = {
    "tesla": "{0}.major() == 1",
    "fermi": "{0}.major() == 2",
    "kepler": "{0}.major() == 3",
    "maxwell": "{0}.major() == 5",
    "pascal": "{0}.major() == 6",
    "volta": "{0}.major() == 7 && {0}.minor() < 5",
    "turing": "{0}.major() == 7 && {0}.minor() >= 5",
    "ampere": "{0}.major() == 8 && {0}.minor() < 9",
    "ada-lovelace": "{0}.major() == 8 && {0}.minor() >= 9",
    "hopper": "{0}.major() == 9",
    "blackwell": "({0}.major() == 10 || {0}.major() == 12)",
    "rubin": "{0}.major() == 13",
}
_STRATEGIES: Final = {"time-slicing": "TimeSlicing", "mps": "MPS"}
_ENGINES: Final = {
    "multiprocessors": "multiprocessors",
    "engines.copy": "copyEngines",
    "engines.decoder": "decoders",
    "engines.encoder": "encoders",
    "engines.jpeg": "jpegEngines",
    "engines.ofa": "ofaEngines",
}
# Labels without a corresponding device attribute.
OF_NODES: Final[Mapping[str, str]] = {
    "gpu.count": "node GPU count, not a device attribute",
    "gpu.replicas": "device plugin replica count, not a device attribute",
    "gpu.machine": "machine type, not a device attribute",
    "gpu.mode": "the display mode of a node's GPUs is not published",
    "gpu.clique": "the NVLink clique of a node is not published",
    "mig.capable": "MIG support of the node, not a device attribute",
    "mig.strategy": "this driver does not use the device plugin's MIG strategy",
    "mig.config": "this driver does not use mig-parted's layout",
    "mig.config.state": "this driver does not use mig-parted's state",
    "mps.capable": "this driver does not use the device plugin's MPS support",
    "device-plugin.config": "this driver does not use the device plugin's configuration",
    "vgpu.present": "this driver does not support vGPU",
    "vgpu.host-driver-version": "this driver does not support vGPU",
    "vgpu.host-driver-branch": "this driver does not support vGPU",
    "gfd.timestamp": "label timestamp, not a device attribute",
}


class UntranslatableLabelError(Exception):
    """The label has no equivalent condition on a device; the message is the reason."""


class DeviceForm(Struct, frozen=True, kw_only=True):
    """The devices of a container: ``whole``, ``partition`` of a profile such as ``1g.10gb+me``, or ``share``.

    ``single``: the device plugin offers partitions as ``nvidia.com/gpu`` (MIG strategy ``single``), so the labels
    ``gpu.*`` are of the partition.
    """

    form: str = "whole"
    profile: str = ""
    single: bool = False


class _Label(Struct, frozen=True, kw_only=True):
    """Conditions of a label: for a value (``equals``), for any value, for "greater than" (True) or "less than" a
    number.
    """

    equals: Callable[[str], str]
    present: str = ""
    number: Callable[[bool, int], str] | None = None


class ProductLabel(Struct, frozen=True, kw_only=True):
    """Parts of a value of ``gpu.product``: ``NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`` or ``Tesla-T4-SHARED``."""

    name: str
    profile: str = ""
    shared: bool = False


def is_gfd(key: str) -> bool:
    name = key.removeprefix(PREFIX)
    return name != key and (name.startswith(("gpu.", "mig", "cuda.", "vgpu.")) or name in OF_NODES)


def sanitised(product_name: str) -> str:
    """Return the product name as GFD writes it into a label (resource.go, sanitise)."""
    return "-".join(_UNWANTED.sub("", product_name).split())


def product_label(value: str) -> ProductLabel:
    found = _PRODUCT.fullmatch(value)
    if found is None:
        return ProductLabel(name=value)
    return ProductLabel(name=found["name"], profile=plus(found["profile"] or ""), shared=bool(found["shared"]))


def plus(profile: str) -> str:
    """Return ``1g.5gb.me`` as NVML writes it, ``1g.5gb+me``: names of labels and resources cannot have a "+"."""
    head, gigabytes, attributes = profile.partition("gb.")
    return f"{head}gb+{attributes}" if gigabytes and attributes else profile


def condition(key: str, operator: str, values: Sequence[str], wanted: DeviceForm, driver: str) -> str:
    """Return the CEL condition on a device for one expression on a node's label; "" if every device of ``wanted`` meets
    it.

    ``operator`` is one of a node selector's: In, NotIn, Exists, DoesNotExist, Gt, Lt. Raises UntranslatableLabelError.
    """
    if key == f"{PREFIX}gpu.present" and operator in {"In", "Exists"} and (operator == "Exists" or "true" in values):
        return ""
    label = _label(key, wanted, driver)
    if operator in {"Exists", "DoesNotExist"}:
        exists = operator == "Exists"
        return (label.present if exists else f"!({label.present})") if label.present else ("" if exists else "false")
    if operator in {"Gt", "Lt"}:
        if label.number is None:
            raise UntranslatableLabelError("its value is not numeric")
        if len(values) != 1 or not _SIGNED.fullmatch(values[0]):
            raise UntranslatableLabelError(f"{operator} needs one integer")
        found = label.number(operator == "Gt", int(values[0]))
        return f"{label.present} && {found}" if label.present else found
    if operator not in {"In", "NotIn"}:
        raise UntranslatableLabelError(f"{operator[:40]!r} is not a node selector operator")
    texts = [label.equals(value) for value in values]
    either = texts[0] if len(texts) == 1 else " || ".join(_grouped(each) for each in texts) or "false"
    found = f"{label.present} && {_grouped(either)}" if label.present else either
    return found if operator == "In" else f"!({found})"


def _grouped(expression: str) -> str:
    return f"({expression})" if " && " in expression or " || " in expression else expression


def _label(key: str, wanted: DeviceForm, driver: str) -> _Label:
    name = key.removeprefix(PREFIX)
    if name in OF_NODES:
        raise UntranslatableLabelError(OF_NODES[name])
    if of_profile := _OF_PROFILE.fullmatch(key):
        if wanted.form != "partition" or plus(of_profile[1]) != wanted.profile:
            raise UntranslatableLabelError("it describes other devices of the node, not the devices of this pod")
        return _of_resource(of_profile[2], wanted, driver, own=True)
    if name.startswith("gpu."):
        return _of_resource(name.removeprefix("gpu."), wanted, driver, own=wanted.form != "partition" or wanted.single)
    found = _versions(f'device.attributes["{driver}"]').get(name)
    if found is None:
        raise UntranslatableLabelError("no equivalent device attribute")
    return found


def _of_resource(suffix: str, wanted: DeviceForm, driver: str, *, own: bool) -> _Label:
    """A label ``<resource>.<suffix>``. ``own``: of the requested device, not of the GPU that contains it."""
    attributes, capacity = f'device.attributes["{driver}"]', f'device.capacity["{driver}"]'
    if suffix == "product":
        return _Label(equals=lambda value: _product(attributes, value, wanted))
    if suffix == "family":
        return _Label(equals=lambda value: _family(f"{attributes}.cudaComputeCapability", value))
    if suffix in {"compute.major", "compute.minor"}:
        return _part(f"{attributes}.cudaComputeCapability", suffix.rpartition(".")[2])
    if suffix == "memory" and own:
        if wanted.form == "share":
            raise UntranslatableLabelError("a shared GPU publishes less memory: only the claimable part")
        return _memory(capacity)
    if suffix == "sharing-strategy":
        return _Label(equals=lambda value: _sharing(attributes, value))
    if suffix in _ENGINES and wanted.form == "partition":
        return _amount(capacity, _ENGINES[suffix])
    if suffix in {"slices.gi", "slices.ci"} and wanted.form == "partition":
        return _Label(equals=lambda value: f'{attributes}.profile.startsWith("{_whole_number(value)}g.")')
    raise UntranslatableLabelError("no equivalent device attribute")


def _product(attributes: str, value: str, wanted: DeviceForm) -> str:
    parts = product_label(value)
    if parts.name.endswith("-MIG-INVALID"):
        raise UntranslatableLabelError("it marks an invalid MIG layout of the node")
    if parts.profile and parts.profile != wanted.profile:
        return "false"  # a device of the wanted profile never has this label
    if parts.shared and wanted.form == "whole":
        return "false"
    names = _products().get(parts.name, ())
    if len(names) == 1:
        return f'{attributes}.productName == "{names[0]}"'
    # GFD removes characters that labels cannot contain, and joins words with "-".
    kept = f'{attributes}.productName.findAll("[A-Za-z0-9_. -]+").join("")'
    quoted = parts.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'{kept}.findAll("[^ ]+").join("-") == "{quoted}"'


@functools.cache
def _products() -> Mapping[str, tuple[str, ...]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for model in catalog.models().values():
        found[sanitised(model.product_name)].add(model.product_name)
    return {label: tuple(sorted(names)) for label, names in found.items()}


def _family(capability: str, value: str) -> str:
    if value not in _FAMILIES:
        raise UntranslatableLabelError(f"{value[:40]!r} is not a GFD family")
    return _FAMILIES[value].format(capability)


def _whole_number(value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise UntranslatableLabelError(f"{value[:40]!r} is not a GFD number")
    return int(value)


def _part(version: str, part: str, parsed: Callable[[str], int] = _whole_number) -> _Label:
    call = f"{version}.{part}()"
    return _Label(
        equals=lambda value: f"{call} == {parsed(value)}",
        number=lambda greater, limit: f"{call} {'>' if greater else '<'} {limit}",
    )


def _memory(capacity: str) -> _Label:
    """GFD rounds down to whole MiB (GetTotalMemoryMiB)."""
    compared = f"{capacity}.memory.compareTo(quantity"

    def equals(value: str) -> str:
        mib = _whole_number(value)
        return f'{compared}("{mib}Mi")) >= 0 && {compared}("{mib + 1}Mi")) < 0'

    def number(greater: bool, limit: int) -> str:
        return f'{compared}("{limit + 1}Mi")) >= 0' if greater else f'{compared}("{limit}Mi")) < 0'

    return _Label(equals=equals, present=f'"memory" in {capacity}', number=number)


def _amount(capacity: str, name: str) -> _Label:
    compared = f"{capacity}.{name}.compareTo(quantity"
    return _Label(
        equals=lambda value: f'{compared}("{_whole_number(value)}")) == 0',
        present=f'"{name}" in {capacity}',
        number=lambda greater, limit: f'{compared}("{limit}")) {">" if greater else "<"} 0',
    )


def _sharing(attributes: str, value: str) -> str:
    if value == "none":
        return f'!("sharingStrategy" in {attributes})'
    if value not in _STRATEGIES:
        raise UntranslatableLabelError(f"{value[:40]!r} is not a GFD sharing strategy")
    return f'"sharingStrategy" in {attributes} && {attributes}.sharingStrategy == "{_STRATEGIES[value]}"'


def _versions(attributes: str) -> Mapping[str, _Label]:
    driver, cuda = f"{attributes}.driverVersion", f"{attributes}.cudaDriverVersion"
    found: dict[str, _Label] = {}
    for part in ("major", "minor"):
        found[f"cuda.driver.{part}"] = found[f"cuda.driver-version.{part}"] = _part(driver, part)
        found[f"cuda.runtime.{part}"] = found[f"cuda.runtime-version.{part}"] = _part(cuda, part)
    revision = _part(driver, "patch", _revision)
    found["cuda.driver.rev"] = found["cuda.driver-version.revision"] = revision
    found["cuda.driver-version.full"] = _Label(equals=lambda value: _same_version(driver, value))
    found["cuda.runtime-version.full"] = _Label(equals=lambda value: _same_version(cuda, value))
    return found


def _same_version(attribute: str, value: str) -> str:
    version = from_loose(value)
    if version is None:
        raise UntranslatableLabelError(f"{value[:40]!r} is not a version")
    return f'{attribute}.compareTo(semver("{version}")) == 0'


def _revision(value: str) -> int:
    """Return the last number of ``580.65.06``; 0 for a version with two numbers."""
    if value and not _REVISION.fullmatch(value):
        raise UntranslatableLabelError(f"{value[:40]!r} is not a revision of two digits or more")
    return int(value or 0)
