"""The GPUs of a node as plain values. A field is None when the hardware or driver does not report it."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.ids import DeviceName, GpuUuid
from dra_driver.core.model.mig import MigInstance, MigProfile


class NvLinkPeer(Struct, frozen=True, kw_only=True):
    """A GPU connected by ``links`` NVLinks. ``pci_bus_id`` is in sysfs form, ``0000:65:00.0``."""

    pci_bus_id: str
    links: int


class NvLinks(Struct, frozen=True, kw_only=True):
    """The links of one GPU that were up at any time since the process started. ``peers`` are in order of address;
    ``switch_links`` lead to NVSwitches; ``clique`` is ``<cluster UUID>.<number>`` of a fabric that spans nodes (label
    ``nvidia.com/gpu.clique``), None without one."""

    peers: tuple[NvLinkPeer, ...] = ()
    switch_links: int = 0
    clique: str | None = None

    def __or__(self, other: "NvLinks") -> "NvLinks":
        """Merge both; ``other`` is newer and decides the clique."""
        peers = {peer.pci_bus_id: peer for peer in sorted((*self.peers, *other.peers), key=lambda peer: peer.links)}
        return NvLinks(
            peers=tuple(peer for _, peer in sorted(peers.items())),
            switch_links=max(self.switch_links, other.switch_links),
            clique=other.clique or self.clique,
        )


NO_LINKS: Final = NvLinks()


class ConfidentialCompute(StrEnum):
    """Confidential computing of a node's GPUs, in the words of NVIDIA's label ``nvidia.com/cc.mode``. With
    ``DEVTOOLS``, developer tools can read the GPU's memory."""

    OFF = "off"
    ON = "on"
    DEVTOOLS = "devtools"


class Gpu(Struct, frozen=True, kw_only=True):
    """One physical GPU.

    ``minor`` is N of ``/dev/nvidiaN`` (the NVML index changes over reboots). ``pci_bus_id`` is ``0000:65:00.0``,
    ``pcie_root`` ``pci0000:64``; ``cuda_compute_capability`` is ``(major, minor)``. ``memory_bytes`` is NVML's total,
    None on unified-memory parts; driver and firmware keep ``reserved_bytes`` of it. ``brand``, ``architecture`` and
    ``addressing_mode`` use the strings of NVIDIA's DRA driver.

    ``mig_profiles`` are in order of profile id, () without MIG; ``mig_instances`` exist, in order of ``start``.
    ``mig_resetless``: MIG mode can be switched without a reset of the GPU; None if unknown. ``mig_mode_owned``: this
    driver's journal records that it enabled MIG mode and has to disable it. ``fabric`` is None on a board without
    NVSwitches.
    """

    uuid: GpuUuid
    minor: int
    product_name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    cuda_compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    reserved_bytes: int | None = None
    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    addressing_mode: str | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_resetless: bool | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    mig_mode_owned: bool = False
    fabric: Fabric | None = None
    nvlinks: NvLinks = NO_LINKS

    @property
    def device_name(self) -> DeviceName:
        """``gpu-<minor>``, the name NVIDIA's driver uses (reference: device names by minor, not index)."""
        return DeviceName(f"gpu-{self.minor}")

    @property
    def memory_slices(self) -> int:
        """The number of its memory slices for partitions; 0 for a GPU without MIG."""
        ends = (start + profile.memory_slices for profile in self.mig_profiles for start in profile.starts)
        return max(ends, default=0)

    def profile(self, profile_id: int) -> MigProfile | None:
        return next((profile for profile in self.mig_profiles if profile.profile_id == profile_id), None)


class LeftOutGpu(Struct, frozen=True, kw_only=True):
    """A GPU on the node that cannot be used. ``label`` is its UUID, else its PCI address or NVML index."""

    label: str
    reason: str


class Snapshot(Struct, frozen=True, kw_only=True):
    """The inventory of one node, GPUs in order of ``minor``; equal when nothing changed. ``driver_version`` and
    ``nvml_version`` are NVML's texts (``580.65.06``, ``13.580.65.06``), ``cuda_driver_version`` is ``(13, 0)``.
    ``confidential_compute`` is None on machines without it."""

    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_driver_version: tuple[int, int] | None = None
    confidential_compute: ConfidentialCompute | None = None
    gpus: tuple[Gpu, ...] = ()
    left_out: tuple[LeftOutGpu, ...] = ()

    def gpu(self, name: DeviceName) -> Gpu | None:
        return next((g for g in self.gpus if g.device_name == name), None)

    def gpu_by_uuid(self, uuid: GpuUuid) -> Gpu | None:
        return next((g for g in self.gpus if g.uuid == uuid), None)
