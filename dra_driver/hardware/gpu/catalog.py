"""The boards that can be simulated, as values read from ``models.yaml``.

Real GPUs never use these values: NVML reports names, sizes and MIG profiles, and they differ between driver releases.
The file and the YAML library are loaded at the first call, so a node with real GPUs loads neither.
"""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.yaml_nesting import check_nesting

MODELS_FILE = Path(__file__).with_name("models.yaml")


class Engines(Struct, frozen=True, kw_only=True):
    copy: int | None
    decoder: int | None
    encoder: int | None
    jpeg: int | None
    ofa: int | None


class CatalogProfile(Struct, frozen=True, kw_only=True):
    """One MIG profile of a board. ``enum`` is the argument of nvmlDeviceGetGpuInstanceProfileInfo, ``profile_id`` its
    answer. ``compute_instance_enum`` is the compute instance profile that spans the GPU instance."""

    name: str
    profile_id: int
    enum: int
    compute_slices: int
    memory_slices: int
    max_instances: int
    starts: tuple[int, ...]
    memory_mib: int | None
    multiprocessors: int | None
    engines: Engines
    compute_instance_enum: int


class MigTable(Struct, frozen=True, kw_only=True):
    """How a board divides. ``resetless``: MIG mode can be switched without resetting the GPU."""

    compute_slices: int
    memory_slices: int
    max_devices: int
    resetless: bool
    profiles: tuple[CatalogProfile, ...]


class NvLinkTable(Struct, frozen=True, kw_only=True):
    """How many NVLinks a board has. They lead to NVSwitches, or to another GPU where a bridge is fitted."""

    to_switches: bool
    links: int


class GpuModel(Struct, frozen=True, kw_only=True):
    """One board. ``pci_device_id`` is the lower 16 bits. None means that a value is not known."""

    key: str
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: tuple[int, int]
    memory_mib: int | None
    reserved_mib: int | None
    multiprocessors: int | None
    pci_device_id: int
    addressing_mode: str | None
    mig: MigTable | None
    nvlink: NvLinkTable | None = None


@functools.cache
def models() -> Mapping[str, GpuModel]:
    """All boards by key, in the order of the file. Read once per process; immutable."""
    raw = _read(MODELS_FILE)
    tables = {name: _table(entry, raw["geometries"]) for name, entry in raw["migTables"].items()}
    return MappingProxyType({key: _model(key, entry, tables) for key, entry in raw["models"].items()})


def model(key: str) -> GpuModel:
    found = models().get(key)
    if found is None:
        raise ConfigurationError(f"unknown GPU model {key!r}: {suggest(key, models())}")
    return found


def suggest(wrong: str, known: Iterable[str], limit: int = 4) -> str:
    """A sentence that offers the names nearest to ``wrong``, or all of them when none is near."""
    import difflib  # noqa: PLC0415 - only for error messages

    names = sorted(known)
    near = [name for name in names if wrong and name.startswith(wrong.lower())][:limit]
    near = near or difflib.get_close_matches(wrong.lower(), names, n=limit, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known are {', '.join(names)}"


def load_yaml(text: str) -> object:
    """Parse one YAML document, with libyaml where it is built in (five times faster). Raises ConfigurationError."""
    import yaml  # noqa: PLC0415 - a node with real GPUs never needs YAML

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        check_nesting(text)
        return yaml.load(text, Loader=loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"not valid YAML: {' '.join(str(error).split())}") from error


def _read(path: Path) -> dict[str, Any]:
    raw = load_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(raw, dict) or raw.get("schema") != 1:
        raise ConfigurationError(f"{path}: expected a catalogue of GPU models with schema 1; reinstall the package")
    return raw


def _table(entry: Mapping[str, Any], geometries: Mapping[str, Any]) -> MigTable:
    geometry = geometries[entry["geometry"]]
    return MigTable(
        compute_slices=geometry["computeSlices"],
        memory_slices=geometry["memorySlices"],
        max_devices=geometry["maxDevices"],
        resetless=entry["resetless"],
        profiles=tuple(_profile(pid, geometry["profiles"][pid], body) for pid, body in entry["profiles"].items()),
    )


def _profile(profile_id: int, cut: Mapping[str, Any], body: Mapping[str, Any]) -> CatalogProfile:
    copy, decoder, encoder, jpeg, ofa = body["engines"]
    return CatalogProfile(
        name=body["name"],
        profile_id=profile_id,
        enum=cut["enum"],
        compute_slices=cut["compute"],
        memory_slices=cut["memory"],
        max_instances=cut["max"],
        starts=tuple(cut["starts"]),
        memory_mib=body["memoryMiB"],
        multiprocessors=body["multiprocessors"],
        engines=Engines(copy=copy, decoder=decoder, encoder=encoder, jpeg=jpeg, ofa=ofa),
        compute_instance_enum=body["computeInstance"],
    )


def _nvlink(entry: Mapping[str, Any]) -> NvLinkTable:
    return NvLinkTable(to_switches=entry["to"] == "switch", links=entry["links"])


def _model(key: str, entry: Mapping[str, Any], tables: Mapping[str, MigTable]) -> GpuModel:
    major, minor = entry["computeCapability"].split(".")
    return GpuModel(
        key=key,
        product_name=entry["name"],
        brand=entry["brand"],
        architecture=entry["architecture"],
        cuda_compute_capability=(int(major), int(minor)),
        memory_mib=entry["memoryMiB"],
        reserved_mib=entry.get("reservedMiB"),
        multiprocessors=entry["multiprocessors"],
        pci_device_id=entry["pciDeviceId"],
        addressing_mode=entry["addressingMode"],
        mig=tables[entry["mig"]] if "mig" in entry else None,
        nvlink=_nvlink(entry["nvlink"]) if "nvlink" in entry else None,
    )
