"""Read the boards that can be simulated from ``models.yaml``.

Real GPUs never use these values: NVML reports names, sizes and MIG profiles, which differ between driver releases. File
and YAML library are loaded at the first call, so a node with real GPUs loads neither.
"""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import msgspec
from msgspec import Struct

from dra_driver.core import yaml_text
from dra_driver.core.convert import convert
from dra_driver.core.errors import ConfigurationError

MODELS_FILE = Path(__file__).with_name("models.yaml")


class Engines(Struct, frozen=True, array_like=True):
    copy: int | None
    decoder: int | None
    encoder: int | None
    jpeg: int | None
    ofa: int | None


_PROFILE_WIRE: Final = {
    "compute_slices": "compute",
    "memory_slices": "memory",
    "max_instances": "max",
    "memory_mib": "memoryMiB",
    "compute_instance_enum": "computeInstance",
}


class CatalogProfile(Struct, frozen=True, kw_only=True, rename=_PROFILE_WIRE):
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
    """MIG partitions of a board. ``resetless``: MIG mode can be switched without resetting the GPU."""

    compute_slices: int
    memory_slices: int
    resetless: bool
    profiles: tuple[CatalogProfile, ...]


class NvLinkTable(Struct, frozen=True, kw_only=True):
    """Number of NVLinks of a board. They connect to NVSwitches, or to another GPU through a bridge."""

    to: Literal["switch", "bridge"]
    links: int

    @property
    def to_switches(self) -> bool:
        return self.to == "switch"


_MODEL_WIRE: Final = {
    "product_name": "name",
    "cuda_compute_capability": "computeCapability",
    "memory_mib": "memoryMiB",
    "reserved_mib": "reservedMiB",
    "pci_device_id": "pciDeviceId",
    "addressing_mode": "addressingMode",
}


class GpuModel(Struct, frozen=True, kw_only=True, rename=_MODEL_WIRE):
    """One board. ``pci_device_id`` is the lower 16 bits. None is an unknown value."""

    key: str
    product_name: str
    brand: str = "Nvidia"
    architecture: str
    cuda_compute_capability: tuple[int, int]
    memory_mib: int | None
    reserved_mib: int | None = None
    pci_device_id: int
    addressing_mode: str | None
    mig: MigTable | None = None
    nvlink: NvLinkTable | None = None


class _Geometry(Struct, rename="camel"):
    compute_slices: int
    memory_slices: int
    profiles: dict[int, dict[str, object]]


class _MigTable(Struct):
    geometry: str
    resetless: bool
    profiles: dict[int, dict[str, object]]


class _File(Struct, rename="camel"):
    schema: Literal[1]
    geometries: dict[str, _Geometry]
    mig_tables: dict[str, _MigTable]
    models: dict[str, dict[str, object]]


@functools.cache
def models() -> Mapping[str, GpuModel]:
    """All boards by key, in the order of the file. Read once per process; immutable."""
    try:
        file = convert(load_yaml(MODELS_FILE.read_text(encoding="utf-8")), _File, str_keys=True)
        tables = {name: _table(entry, file.geometries[entry.geometry]) for name, entry in file.mig_tables.items()}
        return MappingProxyType({key: _model(key, entry, tables) for key, entry in file.models.items()})
    except (msgspec.ValidationError, KeyError) as error:
        raise ConfigurationError(
            f"{MODELS_FILE}: expected a catalogue of GPU models with schema 1; reinstall the package"
        ) from error


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
    """Parse one YAML document. Raises ConfigurationError."""
    try:
        return yaml_text.load(text)
    except ValueError as error:
        raise ConfigurationError(f"not valid YAML: {error}") from error


def _table(entry: _MigTable, geometry: _Geometry) -> MigTable:
    rows = ({**geometry.profiles[number], **body, "profile_id": number} for number, body in entry.profiles.items())
    return MigTable(
        compute_slices=geometry.compute_slices,
        memory_slices=geometry.memory_slices,
        resetless=entry.resetless,
        profiles=convert(tuple(rows), tuple[CatalogProfile, ...]),
    )


def _model(key: str, entry: Mapping[str, object], tables: Mapping[str, MigTable]) -> GpuModel:
    capability = [int(number) for number in str(entry["computeCapability"]).split(".")]
    table = tables[str(entry["mig"])] if "mig" in entry else None
    return convert({**entry, "key": key, "computeCapability": capability, "mig": table}, GpuModel)
