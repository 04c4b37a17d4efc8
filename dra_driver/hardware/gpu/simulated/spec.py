"""Parse the description of a simulated node: ``8xh100-sxm5-80gb`` or a YAML file (docs/simulated-gpus.md).

Checks the fields and assigns UUID, PCI address, NUMA node and NVLinks to each GPU.
"""

import functools
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.core.errors import ConfigurationError, HardwareError
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import ConfidentialCompute, Gpu, NvLinkPeer, NvLinks
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigProfile
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated import mig as simulated_mig
from dra_driver.hardware.gpu.simulated.faults import FailureMode

MAX_GPUS = 64  # four times the widest machine sold; a typing error must not fill the API server
MAX_MINOR = 247  # /dev/nvidia248 and up are control nodes of major 195 (nvidiactl is 255)
MAX_MEMORY_MIB = 4 * 1024 * 1024
DEFAULT_DRIVER_VERSION = "580.65.06"
DEFAULT_CUDA_VERSION = (13, 0)
NAMESPACE = uuid.UUID("6b0d6e7a-4b1c-5f0e-9a52-2f6c1d7e8a90")  # any constant: UUIDs are the same in every run

GROUP = re.compile(r"(\d{1,4})x([A-Za-z0-9.-]+)(\+mig)?(\+pairs)?")


class SimulatedGpu(Struct, frozen=True, kw_only=True):
    gpu: Gpu
    lost: str | None = None
    troubles: frozenset[FailureMode] = frozenset()


Linked = tuple[SimulatedGpu, str, catalog.GpuModel]
"""A GPU, the destination of its NVLinks (see `_nvlinks`), and its board."""


class NodeSpec(Struct, frozen=True, kw_only=True):
    """The description of one node, GPUs by minor. ``unavailable`` says why the driver cannot be used."""

    driver_version: str = DEFAULT_DRIVER_VERSION
    cuda_driver_version: tuple[int, int] = DEFAULT_CUDA_VERSION
    confidential_compute: ConfidentialCompute | None = None
    unavailable: str | None = None
    gpus: tuple[SimulatedGpu, ...] = ()


def parse_groups(spec: str, node_name: str) -> NodeSpec:
    boards: list[Linked] = []
    for part in spec.split(","):
        match = GROUP.fullmatch(part.strip())
        if match is None:
            raise ConfigurationError(
                f"simulated GPUs {spec!r}: cannot read {part.strip()!r}; expected <count>x<model> "
                "such as 8xh100-sxm5-80gb (4xa100-sxm4-40gb+mig with MIG mode on, 4xa30-24gb+pairs with bridges), "
                "several joined by commas, or the path of a .yaml file"
            )
        count = int(match[1])
        if not 1 <= count <= MAX_GPUS - len(boards):
            raise ConfigurationError(f"simulated GPUs {spec!r}: expected 1 to {MAX_GPUS} GPUs in all")
        model = catalog.model(match[2])
        if match[3] and model.mig is None:
            raise ConfigurationError(f"simulated GPUs {spec!r}: {model.key} does not support MIG; leave out +mig")
        try:
            wishes = _nvlinks(model, PAIRS if match[4] else None, count, len(boards))
        except ConfigurationError as error:
            raise ConfigurationError(f"simulated GPUs {spec!r}: {error}") from error
        for wish in wishes:
            gpu = replace(invent(model, len(boards), node_name), mig_enabled=match[3] is not None)
            boards.append((SimulatedGpu(gpu=gpu), wish, model))
    return NodeSpec(gpus=_linked(boards))


PAIRS: Final = "pairs"
SWITCH: Final = "switch"
NONE: Final = "none"


def _nvlinks(model: catalog.GpuModel, wanted: str | None, gpus: int, first_minor: int) -> tuple[str, ...]:
    """The destination of each GPU's links in one entry: `SWITCH`, `NONE`, or the name of a bridge or pair. Without
    ``wanted``, as the board is sold. Raises ConfigurationError."""
    table = model.nvlink
    if wanted is None:
        wanted = SWITCH if table is not None and table.to_switches else NONE
    if wanted != NONE and (table is None or (table.to_switches and wanted != SWITCH)):
        has = "NVSwitches: switch or none" if table else "no NVLinks: none"
        raise ConfigurationError(f"nvlink: {model.key} has {has}, not {wanted}")
    if wanted == SWITCH and table is not None and not table.to_switches:
        raise ConfigurationError(f"nvlink: {model.key} has no NVSwitches; pairs, bridge-NAME or none")
    if wanted != PAIRS:
        return (wanted,) * gpus
    if gpus % 2:
        raise ConfigurationError(f"nvlink: pairs needs an even number of GPUs, got {gpus}")
    return tuple(f"pair-{first_minor + index // 2 * 2}" for index in range(gpus))


def _linked(boards: Sequence[Linked]) -> tuple[SimulatedGpu, ...]:
    """The GPUs with their links. GPUs on the same bridge share the links of their board evenly."""
    found = []
    for item, wish, model in boards:
        links = NvLinks()
        if model.nvlink is not None and wish == SWITCH:
            links = NvLinks(switch_links=model.nvlink.links)
        elif model.nvlink is not None and wish != NONE:
            others = [other.gpu for other, its_wish, _ in boards if its_wish == wish and other is not item]
            each = max(1, model.nvlink.links // max(1, len(others)))
            addresses = sorted(other.pci_bus_id for other in others if other.pci_bus_id)
            links = NvLinks(peers=tuple(NvLinkPeer(pci_bus_id=address, links=each) for address in addresses))
        found.append(replace(item, gpu=replace(item.gpu, nvlinks=links)))
    return tuple(found)


def parse_document(text: str, node_name: str) -> NodeSpec:
    """The file form. Raises ConfigurationError that names the path of the wrong field."""
    raw = catalog.load_yaml(text)
    if not isinstance(raw, dict):
        raise ConfigurationError(f"expected a mapping with a list named gpus, got {_kind(raw)}")
    fields = _fields(raw, NODE_FIELDS, "")
    entries = raw.get("gpus")
    if not isinstance(entries, list):
        raise ConfigurationError(f"gpus: expected a list (empty for a node without GPUs), got {_kind(entries)}")
    boards: list[Linked] = []
    for index, entry in enumerate(entries):
        boards.extend(_entry(entry, f"gpus[{index}]", [item for item, _, _ in boards], node_name))
        if len(boards) > MAX_GPUS:
            raise ConfigurationError(f"gpus[{index}]: more than {MAX_GPUS} GPUs on one node")
    gpus = _linked(boards)
    _refuse_duplicates(gpus)
    return replace(NodeSpec(gpus=tuple(sorted(gpus, key=lambda item: item.gpu.minor))), **fields)


def invent(model: catalog.GpuModel, minor: int, node_name: str) -> Gpu:
    """The GPU ``minor`` of ``node_name``: always the same. Two share a PCIe root and four a NUMA node."""
    root_bus = 8 * (minor // 2) % 256
    return Gpu(
        uuid=GpuUuid(f"GPU-{uuid.uuid5(NAMESPACE, f'{node_name}/{minor}')}"),
        minor=minor,
        product_name=model.product_name,
        brand=model.brand,
        architecture=model.architecture,
        cuda_compute_capability=model.cuda_compute_capability,
        memory_bytes=None if model.memory_mib is None else model.memory_mib * 2**20,
        reserved_bytes=None if model.reserved_mib is None else model.reserved_mib * 2**20,
        pci_bus_id=f"{minor // 64:04x}:{root_bus + 1 + minor % 2:02x}:00.0",
        pcie_root=f"pci{minor // 64:04x}:{root_bus:02x}",
        numa_node=minor // 4 % 2,
        addressing_mode=model.addressing_mode,
        mig_capable=model.mig is not None,
        mig_resetless=None if model.mig is None else model.mig.resetless,
        mig_profiles=() if model.mig is None else profiles(model.mig),
    )


@functools.cache
def profiles(table: catalog.MigTable) -> tuple[MigProfile, ...]:
    ordered = sorted(table.profiles, key=lambda profile: profile.profile_id)
    return tuple(
        replace(
            convert(profile, MigProfile, from_attributes=True),
            memory_bytes=None if profile.memory_mib is None else profile.memory_mib * 2**20,
            copy_engines=profile.engines.copy,
            decoders=profile.engines.decoder,
            encoders=profile.engines.encoder,
            jpeg_engines=profile.engines.jpeg,
            ofa_engines=profile.engines.ofa,
        )
        for profile in ordered
    )


class _Entry(Struct, frozen=True, kw_only=True):
    """The fields of an entry that are not properties of a `Gpu`."""

    model: str
    count: int = 1
    minor: int | None = None
    nvlink: str | None = None
    instances: list[object] = []
    lost: str | None = None
    troubles: frozenset[FailureMode] = frozenset()


def _entry(raw: object, path: str, before: Sequence[SimulatedGpu], node_name: str) -> Iterator[Linked]:
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), str):
        raise ConfigurationError(f"{path}.model: expected the name of a GPU model such as h100-sxm5-80gb")
    fields = _fields(raw, GPU_FIELDS, path)
    entry = convert(fields, _Entry)
    described = {name: value for name, value in fields.items() if name not in _Entry.__struct_fields__}
    if "count" in raw and not {"minor", "uuid", "pciBusId"}.isdisjoint(raw):
        raise ConfigurationError(
            f"{path}.count: cannot be combined with minor, uuid or pciBusId, which belong to one GPU"
        )
    minors = [item.gpu.minor for item in before]
    first = max(minors, default=-1) + 1 if entry.minor is None else entry.minor
    last = first + entry.count - 1
    try:
        model = catalog.model(entry.model)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}.model: {error}") from error
    if described.get("mig_enabled") and model.mig is None:
        raise ConfigurationError(f"{path}.migEnabled: {model.key} does not support MIG")
    if entry.instances and not described.get("mig_enabled"):
        raise ConfigurationError(f"{path}.instances: they need migEnabled: true")
    if last > MAX_MINOR:
        raise ConfigurationError(f"{path}.minor: {last} exceeds the highest device minor {MAX_MINOR}")
    try:
        wishes = _nvlinks(model, entry.nvlink, entry.count, first)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}.{error}") from error
    for minor, wish in enumerate(wishes, first):
        gpu = replace(invent(model, minor, node_name), **described)
        if gpu.memory_bytes is None:
            gpu = replace(gpu, reserved_bytes=None)
        gpu = _cut(gpu, entry.instances, f"{path}.instances")
        yield SimulatedGpu(gpu=gpu, lost=entry.lost, troubles=entry.troubles), wish, model


class _Cut(Struct, frozen=True):
    profile: str
    start: int
    compute: str = "full"


def _cut(gpu: Gpu, cuts: Sequence[object], path: str) -> Gpu:
    """``gpu`` with the listed instances, which must follow the rules of MIG."""
    state = simulated_mig.described(gpu)
    for index, raw in enumerate(cuts):
        where = f"{path}[{index}]"
        if not isinstance(raw, dict):
            raise ConfigurationError(f"{where}: expected a mapping with profile and start, got {_kind(raw)}")
        fields = _fields(raw, INSTANCE_FIELDS, where)
        if not {"profile", "start"} <= fields.keys():
            raise ConfigurationError(f"{where}: expected a profile such as 3g.20gb and the memory slice of its start")
        cut = convert(fields, _Cut)
        profile = next((profile for profile in gpu.mig_profiles if profile.name == cut.profile), None)
        if profile is None:
            names = ", ".join(profile.name for profile in reversed(gpu.mig_profiles))
            raise ConfigurationError(f"{where}.profile: this board has {names}, not {cut.profile}")
        if cut.compute == "partial" and profile.compute_slices == 1:
            raise ConfigurationError(f"{where}.compute: one compute slice cannot be divided")
        try:
            state, gi_id = simulated_mig.add_instance(gpu, state, profile.profile_id, cut.start)
            if cut.compute != "none":
                state, _ = simulated_mig.add_compute(gpu, state, gi_id, spans=cut.compute == "full")
        except HardwareError as error:
            raise ConfigurationError(f"{where}: {error}") from error
    return simulated_mig.apply(gpu, state)


def _refuse_duplicates(gpus: Sequence[SimulatedGpu]) -> None:
    for field in ("minor", "uuid", "pci_bus_id"):
        seen: set[object] = set()
        for item in gpus:
            value = getattr(item.gpu, field)
            if value is not None and value in seen:
                raise ConfigurationError(f"gpus: two GPUs have the {field.replace('_', ' ')} {value}")
            seen.add(value)


class _Field(Struct, frozen=True):
    """Target and parser of a YAML field; ``read`` raises ValueError with the expected form."""

    target: str
    read: Callable[[object], object]
    nullable: bool = False


def _fields(raw: Mapping[str, object], known: Mapping[str, _Field | None], path: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in raw.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in known:
            raise ConfigurationError(f"{where}: unknown field; {catalog.suggest(str(name), known)}")
        field = known[name]
        if field is None:
            continue
        try:
            values[field.target] = None if value is None and field.nullable else field.read(value)
        except ValueError as error:
            raise ConfigurationError(f"{where}: expected {error}, got {value!r:.60}") from error
    return values


def _whole(low: int, high: int, unit: str = "") -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a whole number{unit} from {low} to {high}")
        return value

    return read


def _mib(least: int) -> Callable[[object], int]:
    return lambda value: _whole(least, MAX_MEMORY_MIB, " of MiB")(value) * 2**20


def _text(pattern: str, what: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValueError(what)
        return value

    return read


T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)


def _is_a(kind: type[T], what: str) -> Callable[[object], T]:
    def read(value: object) -> T:
        if not isinstance(value, kind):
            raise ValueError(what)  # noqa: TRY004 - the caller turns ValueError into a sentence
        return value

    return read


def _one_of(kind: type[Choice]) -> Callable[[object], Choice]:
    def read(value: object) -> Choice:
        word = ("on" if value else "off") if isinstance(value, bool) else value  # YAML reads on as true
        if word not in list(kind):
            raise ValueError(f"one of {', '.join(kind)}")
        return kind(str(word))

    return read


def _cuda_version(value: object) -> tuple[int, int]:
    found = _text(r"\d{1,3}\.\d", 'a quoted version such as "13.0"')(value)
    major, minor = found.split(".")
    return int(major), int(minor)


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


_REASON = _text(r"[^\x00-\x1f]{1,200}", "a reason of at most 200 characters on one line")
# NVML keeps names in 96 bytes (NVML_DEVICE_NAME_V2_BUFFER_SIZE); the last byte ends the string.
_NAME = _text(r"[\x20-\x7e]{1,95}", "a name of 1 to 95 printable ASCII characters")
_NVLINK = _text(
    r"none|switch|pairs|bridge-[a-z0-9]{1,16}",
    "none, switch, pairs, or bridge-NAME on each GPU that a bridge connects",
)
_LIST = _is_a(list, "a list")
_HEX = "[0-9a-f]"

NODE_FIELDS: Mapping[str, _Field | None] = MappingProxyType(
    {
        "gpus": None,
        "driverVersion": _Field("driver_version", _text(r"\d{1,4}(\.\d{1,4}){1,2}", "a version such as 580.65.06")),
        "cudaDriverVersion": _Field("cuda_driver_version", _cuda_version),
        "confidentialCompute": _Field("confidential_compute", _one_of(ConfidentialCompute), nullable=True),
        "driverUnavailable": _Field("unavailable", _REASON, nullable=True),
    }
)
GPU_FIELDS: Mapping[str, _Field | None] = MappingProxyType(
    {
        "model": _Field("model", str),
        "count": _Field("count", _whole(1, MAX_GPUS)),
        "minor": _Field("minor", _whole(0, MAX_MINOR)),
        "uuid": _Field("uuid", _text(f"GPU-{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}", "GPU- and a lower-case UUID")),
        "productName": _Field("product_name", _NAME, nullable=True),
        "memoryMiB": _Field("memory_bytes", _mib(1), nullable=True),
        "reservedMiB": _Field("reserved_bytes", _mib(0), nullable=True),
        "pciBusId": _Field("pci_bus_id", _text(rf"{_HEX}{{4}}(:{_HEX}{{2}}){{2}}\.[0-7]", "such as 0000:65:00.0")),
        "pcieRoot": _Field("pcie_root", _text(rf"pci{_HEX}{{4}}:{_HEX}{{2}}", "such as pci0000:64"), nullable=True),
        "numaNode": _Field("numa_node", _whole(0, 1023), nullable=True),
        "addressingMode": _Field("addressing_mode", _text("HMM|ATS|None", 'HMM, ATS or "None"'), nullable=True),
        "fabric": _Field("fabric", lambda v: Fabric(state=_one_of(FabricState)(v)), nullable=True),
        "nvlink": _Field("nvlink", _NVLINK),
        "migEnabled": _Field("mig_enabled", _is_a(bool, "true or false")),
        "instances": _Field("instances", _LIST),
        "lost": _Field("lost", _REASON, nullable=True),
        "troubles": _Field("troubles", lambda v: faults.parse_failure_modes(_LIST(v))),
    }
)
INSTANCE_FIELDS: Mapping[str, _Field | None] = MappingProxyType(
    {
        "profile": _Field("profile", _text(r"[0-9a-z.+-]{1,32}", "the name of a MIG profile such as 3g.20gb")),
        "start": _Field("start", _whole(0, 63)),
        "compute": _Field("compute", _text("full|none|partial", "full, none or partial")),
    }
)
