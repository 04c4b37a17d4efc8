"""Read the properties of one GPU: through NVML, and its PCIe root and NUMA node from sysfs.

Brand, architecture and addressing mode are the strings of NVIDIA's DRA driver (go-nvlib), so that device classes and
CEL expressions written for it keep working. The PCIe root is the first component below ``/sys/devices`` of the device's
resolved link (k8s.io/dynamic-resource-allocation/deviceattribute). Confidential computing:
nvmlSystemGetConfComputeState (R535), a node-wide mode. NVLinks: nvmlDeviceGetNvLinkState, RemoteDeviceType and
RemotePciInfo_v2; missing calls and silent links shrink the answer.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from ctypes import byref
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import pynvml

from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import NO_LINKS, ConfidentialCompute, Gpu, NvLinkPeer, NvLinks
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance
from dra_driver.hardware.gpu.nvml.errors import ABSENT, DRIVER_TROUBLE, WITHDRAWS, required
from dra_driver.hardware.gpu.nvml.last_values import LastValues
from dra_driver.hardware.gpu.nvml.mig import MigFacts, read_instances

ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read_topology(pci_bus_id: str, sysfs_root: str = "/sys") -> tuple[str | None, int | None]:
    """``(pcie_root, numa_node)`` of ``0000:65:00.0``; None where sysfs has no value, or -1 as the NUMA node."""
    link = Path(sysfs_root, "bus/pci/devices", pci_bus_id)
    return _pcie_root(link, Path(sysfs_root)), _numa_node(link)


def _pcie_root(link: Path, sysfs: Path) -> str | None:
    try:
        below = link.resolve(strict=True).relative_to(sysfs.resolve() / "devices")
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        return None
    return below.parts[0] if below.parts and ROOT.fullmatch(below.parts[0]) else None


def _numa_node(link: Path) -> int | None:
    try:
        node = int((link / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def read_address(handle: pynvml.c_nvmlDevice_t) -> str:
    """The PCI address of a GPU. Raises as `sysfs_address`, and pynvml.NVMLError."""
    return sysfs_address(pynvml.nvmlDeviceGetPciInfo(handle))


def sysfs_address(info: pynvml.nvmlPciInfo_t) -> str:
    """``0000:65:00.0`` of NVML's eight digits in upper case. Raises ValueError for other text."""
    bus_id = info.busId
    domain, _, rest = (bus_id.decode("ascii") if isinstance(bus_id, bytes) else bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def mode_of(driver: LastValues) -> ConfidentialCompute | None:
    """The mode; None where the driver does not know it. ``driver`` has the driver's last answers."""
    return driver.constant(_read_confidential, name="nvmlSystemGetConfComputeState")


def _read_confidential() -> ConfidentialCompute:
    state = pynvml.nvmlSystemGetConfComputeState()
    if state.ccFeature != pynvml.NVML_CC_SYSTEM_FEATURE_ENABLED:
        return ConfidentialCompute.OFF
    tools = state.devToolsMode == pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_ON
    return ConfidentialCompute.DEVTOOLS if tools else ConfidentialCompute.ON


FABRIC: Final = "nvmlDeviceGetGpuFabricInfoV"
_STATES: Final = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: FabricState.NOT_STARTED,
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: FabricState.IN_PROGRESS,
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: FabricState.COMPLETED,
}
_OLDER: Final = frozenset({pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_INVALID_ARGUMENT})
_Info = pynvml.c_nvmlGpuFabricInfo_v3_t | pynvml.c_nvmlGpuFabricInfo_v2_t


def read_fabric(handle: pynvml.c_nvmlDevice_t) -> Fabric | None:
    """The state; None for a GPU without NVLink fabric. Raises pynvml.NVMLError, also for a driver without the call."""
    info = read_info(handle)
    state = _STATES.get(info.state & 0xFF)
    if state is None:
        return None
    return Fabric(state=state, status=info.status if state is FabricState.COMPLETED else 0)


def read_info(handle: pynvml.c_nvmlDevice_t) -> _Info:
    """The newest structure that the driver fills: version 3 comes with driver 580, version 2 with 550. NVML writes
    ``state`` as one byte where pynvml declares four. Raises as `read_fabric`."""
    info: _Info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    except pynvml.NVMLError as error:
        if error.value not in _OLDER:
            raise
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return info


NVLINKS: Final = "NVLinks"
MAX_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS of driver 580; boards up to Blackwell have 18
EVERY: Final = 64
"""Looks between two reads, after the first ones: about ten minutes at the default poll interval."""
_MISSING: Final = ABSENT | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
SWITCH: Final = "switch"


def links_of(handle: pynvml.c_nvmlDevice_t, values: LastValues) -> NvLinks | None:
    """All links that were up at any read of this process; None when they could never be read. Read at the reads 1, 4,
    16 and every `EVERY`: Fabric Manager trains NVSwitch links late, and fifty calls per GPU are costly."""
    return values.growing(NVLINKS, partial(read_links, handle), NvLinks.__or__, every=EVERY)


def read_links(handle: pynvml.c_nvmlDevice_t) -> NvLinks:
    ends = Counter(_link_ends(handle))
    switch_links = ends.pop(SWITCH, 0)
    peers = (NvLinkPeer(pci_bus_id=address, links=links) for address, links in sorted(ends.items()))
    return NvLinks(peers=tuple(peers), switch_links=switch_links, clique=_clique(handle) if switch_links else None)


def link_states(handle: pynvml.c_nvmlDevice_t, last: Mapping[int, bool] | None = None) -> Iterator[tuple[int, bool]]:
    """Each link that the board has, and whether it is up. With ``last``, a link that fails keeps that state, or is left
    out. Raises pynvml.NVMLError; with ``last`` only for codes of ``WITHDRAWS`` and ``DRIVER_TROUBLE``."""
    for link in range(MAX_LINKS):
        try:
            yield link, pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_NVLINK_STATE_INACTIVE
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT or (not link and error.value in ABSENT):
                return
            if error.value not in ABSENT and (last is None or error.value in WITHDRAWS | DRIVER_TROUBLE.keys()):
                raise
            if last is not None and link in last:
                yield link, last[link]


def _link_ends(handle: pynvml.c_nvmlDevice_t) -> Iterator[str]:
    """For each link that is up and leads to something known: `SWITCH`, or the PCI address of a GPU."""
    ends = (link_end(handle, link) for link, up in link_states(handle) if up)
    return (end for end in ends if end is not None)


def link_end(handle: pynvml.c_nvmlDevice_t, link: int) -> str | None:
    """`SWITCH`, the PCI address of a GPU, or None. Without a type (drivers before R470) the end counts as a GPU; one
    that is not on the node has no effect. Raises pynvml.NVMLError."""
    try:
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    except pynvml.NVMLError as error:
        if error.value not in _MISSING:
            raise
        kind = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return SWITCH
    return _peer(handle, link) if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU else None


def _peer(handle: pynvml.c_nvmlDevice_t, link: int) -> str | None:
    try:
        return sysfs_address(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
    except pynvml.NVMLError as error:
        if error.value not in _MISSING:
            raise
    except ValueError:  # no address
        pass
    return None


def _clique(handle: pynvml.c_nvmlDevice_t) -> str | None:
    """Only of a registration that is completed and succeeded, in a cluster that has a UUID (nvml.h)."""
    try:
        info = read_info(handle)
    except pynvml.NVMLError as error:
        if error.value not in _MISSING:
            raise
        return None
    cluster = bytes(info.clusterUuid)
    if info.state & 0xFF != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != 0 or not any(cluster):
        return None
    return f"{UUID(bytes=cluster)}.{info.cliqueId}"


BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "VPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "VCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "VWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    13: "Rubin",  # NVML_DEVICE_ARCH_RUBIN, by number because pynvml has it only from 13.610 on
}
ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}  # NVML_DEVICE_ADDRESSING_MODE_*


def describe_gpu(
    handle: pynvml.c_nvmlDevice_t,
    uuid: GpuUuid,
    values: LastValues,
    read_facts: Callable[[], MigFacts],
    sysfs_root: str,
    *,
    list_instances: bool = True,
    proceed: Callable[[], None] | None = None,
) -> Gpu:
    """All properties of a GPU, under its lock; a property that cannot be read keeps its last value. Without
    ``list_instances``, so do MIG instances. ``proceed`` may raise to end a listing. Raises DriverUnavailableError, and
    DeviceLostError for a lost GPU, without a minor number or a known MIG state."""
    minor = required(pynvml.nvmlDeviceGetMinorNumber, handle)
    brand = values.constant(pynvml.nvmlDeviceGetBrand, handle)
    architecture = values.constant(pynvml.nvmlDeviceGetArchitecture, handle)
    addressing = values.constant(pynvml.nvmlDeviceGetAddressingMode, handle)
    pci_bus_id = values.constant(read_address, handle, name="nvmlDeviceGetPciInfo_v3")
    pcie_root, numa_node = _topology(values, pci_bus_id, sysfs_root)
    mig_mode = values.read(pynvml.nvmlDeviceGetMigMode, handle, needed=True)
    facts = None if mig_mode is None else read_facts()
    mig_enabled = mig_mode is not None and mig_mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    memory = values.read(pynvml.nvmlDeviceGetMemoryInfo, handle)
    last = values.gpu if not list_instances and values.gpu is not None and values.gpu.mig_enabled else None
    return Gpu(
        uuid=uuid,
        minor=minor,
        product_name=values.constant(pynvml.nvmlDeviceGetName, handle),
        brand=None if brand is None else BRANDS.get(brand, "Unknown"),
        architecture=None if architecture is None else ARCHITECTURES.get(architecture, "Unknown"),
        cuda_compute_capability=values.constant(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        memory_bytes=None if memory is None else memory.total,
        reserved_bytes=_reserved(handle, values, mig_enabled),
        pci_bus_id=pci_bus_id,
        pcie_root=pcie_root,
        numa_node=numa_node,
        addressing_mode=None if addressing is None else ADDRESSING_MODES.get(addressing),
        mig_capable=facts is not None and facts.capable,
        mig_enabled=mig_enabled,
        mig_resetless=None if facts is None or not facts.capable else facts.resetless,
        mig_profiles=() if facts is None else facts.profiles,
        mig_instances=_instances(handle, facts, values, last, proceed) if facts is not None and mig_enabled else (),
        fabric=values.read(read_fabric, handle, name=FABRIC),
        # With MIG no link is up (health.py): polls in that time do not use up the early reads.
        nvlinks=values.gpu.nvlinks if mig_enabled and values.gpu else links_of(handle, values) or NO_LINKS,
    )


def _topology(values: LastValues, pci_bus_id: str | None, sysfs_root: str) -> tuple[str | None, int | None]:
    """A device that is bound again ends the session."""
    if pci_bus_id is None:
        return None, None
    return values.constant(read_topology, pci_bus_id, sysfs_root, name=f"topology of {pci_bus_id}") or (None, None)


def _reserved(handle: pynvml.c_nvmlDevice_t, values: LastValues, mig_enabled: bool) -> int | None:
    """Memory that driver and firmware keep (nvmlMemory_v2_t; R510). With MIG mode on the earlier value stays: instances
    may change it, and with it the published memory of the GPU."""
    if mig_enabled and values.gpu is not None and values.gpu.reserved_bytes is not None:
        return values.gpu.reserved_bytes
    name = "nvmlDeviceGetMemoryInfo_v2"
    memory = values.read(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2, name=name)
    return None if memory is None else memory.reserved


def _instances(
    handle: pynvml.c_nvmlDevice_t,
    facts: MigFacts,
    values: LastValues,
    last: Gpu | None,
    proceed: Callable[[], None] | None,
) -> tuple[MigInstance, ...]:
    """The instances of ``last``, else the existing ones. One is dropped or changed only when a second read agrees,
    because Not Supported and Not Found, which mean a removed instance, may also be the answer of a failed call."""
    if last is not None:
        return last.mig_instances
    before = set(values.gpu.mig_instances) if values.gpu is not None else set()

    def read() -> tuple[MigInstance, ...]:
        found = read_instances(handle, facts, proceed)
        return found if before.issubset(found) else read_instances(handle, facts, proceed)

    return values.read(read, needed=True, name="MIG instances") or ()
