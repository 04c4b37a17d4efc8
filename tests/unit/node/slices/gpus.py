"""GPUs for the tests of slices/ and published/, and the scheduler's view of a pool."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid, MigUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.core.quantity import Quantity
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import invent
from dra_driver.kube.published.limits import MAX_DEVICES
from dra_driver.node.slices.build import Built, GpuGroup
from dra_driver.node.slices.gates import ApiServerFeatures
from dra_driver.node.slices.layout import DesiredSlice, split
from dra_driver.node.slices.publisher import Publisher
from tests.fakes.stand_in import present

ALL = ApiServerFeatures(counters=True, taints=True, taints_1_35=True, multi_allocation=True)
NONE = ApiServerFeatures()
H100, A100, RTX = "h100-sxm5-80gb", "a100-sxm4-40gb", "rtx-pro-6000-blackwell-se-96gb"


def gpu(minor: int = 0, **changes: Any) -> Gpu:
    """An H100 as NVML describes it, without MIG profiles."""
    values: dict[str, Any] = {
        "uuid": GpuUuid(f"GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cd{minor:03d}"),
        "minor": minor,
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cuda_compute_capability": (9, 0),
        "memory_bytes": 81559 * 2**20,
        "pci_bus_id": f"0000:{minor + 0x65:02x}:00.0",
        "pcie_root": "pci0000:64",
        "numa_node": 0,
        "addressing_mode": "None",
        "mig_capable": True,
    }
    return Gpu(**{**values, **changes})


def mig_gpu(key: str = H100, minor: int = 0, **changes: Any) -> Gpu:
    """A board of the catalog with all its profiles, in the state after start: MIG mode off."""
    return replace(_invented(key, minor), **changes)


@functools.cache
def _invented(key: str, minor: int) -> Gpu:
    return invent(catalog.model(key), minor, "node-a")


def instance(of: Gpu, profile_id: int, start: int, *, owned: bool = False, whole: bool = True) -> MigInstance:
    """An existing GPU instance; not ``whole``: without a compute instance."""
    profile = present(of.profile(profile_id))
    uuid = MigUuid(f"MIG-00000000-0000-0000-{profile_id:04d}-{start:012d}")
    return MigInstance(
        gi_id=start + 1,
        profile_id=profile_id,
        profile_name=profile.name,
        start=start,
        size=profile.memory_slices,
        compute=(ComputeInstance(ci_id=0, uuid=uuid),) if whole else (),
        owned=owned,
    )


def snapshot(*gpus: Gpu) -> Snapshot:
    return Snapshot(driver_version="580.65.06", cuda_driver_version=(13, 0), gpus=gpus)


def node_of(count: int) -> Snapshot:
    return snapshot(*(gpu(minor) for minor in range(count)))


def h100s(count: int) -> Snapshot:
    return snapshot(*(mig_gpu(H100, minor) for minor in range(count)))


class Passes:
    """A publisher on a clock. ``run`` does the passes that fall due in this time."""

    publisher: Publisher
    now = 1000.0

    def run(self, seconds: float = 0.0) -> None:
        end = self.now + seconds
        for _ in range(1000):
            wait_s = self.publisher.step()
            if wait_s is None or self.now + wait_s > end:
                break
            self.now += wait_s
        else:
            raise AssertionError("a busy loop")
        self.now = end


def split_devices(devices: Sequence[Any], *, per_slice: int = MAX_DEVICES) -> tuple[DesiredSlice, ...]:
    """Slices for devices of independent GPUs."""
    return split(Built(groups=tuple(GpuGroup(devices=(device,)) for device in devices)), per_slice=per_slice)


def offered(objects: Mapping[str, Any], *, is_1_34: bool = False) -> list[dict[str, Any]]:
    """The devices that may be allocated now; none while the pool is incomplete (but in 1.34) or invalid.

    Source: kubernetes/dynamic-resource-allocation structured/internal/incubating/pools_incubating.go (1.36): only the
    highest generation counts, and a device that refers to a missing counter makes the pool invalid.
    """
    specs = [item["spec"] for _, item in sorted(objects.items())]
    newest = max((spec["pool"]["generation"] for spec in specs), default=0)
    specs = [spec for spec in specs if spec["pool"]["generation"] == newest]
    if not is_1_34 and (not specs or specs[0]["pool"]["resourceSliceCount"] != len(specs)):
        return []
    sets = counter_sets(specs)
    devices = [device for spec in specs for device in spec.get("devices", [])]
    for device in devices:
        for taken in device.get("consumesCounters", []):
            if not taken["counters"].keys() <= sets.get(taken["counterSet"], {}).keys():
                return []
    return devices


@functools.cache  # a history asks for the same few values a million times
def _count(value: str) -> int:
    return Quantity.parse(value).as_int()


def counter_sets(specs: list[Any]) -> dict[str, dict[str, int]]:
    return {
        one["name"]: {name: _count(counter["value"]) for name, counter in one["counters"].items()}
        for spec in specs
        for one in spec.get("sharedCounters", [])
    }


def doubly_offered(objects: Mapping[str, Any], *, is_1_34: bool = False) -> list[tuple[str, str]]:
    """Pairs of overlapping devices of one GPU that no counter excludes."""
    devices = offered(objects, is_1_34=is_1_34)
    sets = counter_sets([item["spec"] for item in objects.values()])
    return [
        (one["name"], other["name"])
        for index, one in enumerate(devices)
        for other in devices[index + 1 :]
        if _overlap(one, other) and not _kept_apart(one, other, sets)
    ]


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if _gpu(one) != _gpu(other):
        return False
    (start, size), (at, length) = _extent(one), _extent(other)
    return start < at + length and at < start + size


def _gpu(device: dict[str, Any]) -> str:
    attributes = device["attributes"]
    return str((attributes.get("parentUUID") or attributes["uuid"])["string"])


def _extent(device: dict[str, Any]) -> tuple[int, int]:
    attributes = device["attributes"]
    if "placementStart" not in attributes:
        return (0, 1000)
    return attributes["placementStart"]["int"], attributes["placementSize"]["int"]


def _kept_apart(one: dict[str, Any], other: dict[str, Any], sets: dict[str, dict[str, int]]) -> bool:
    wanted: dict[tuple[str, str], int] = {}
    for device in (one, other):
        for taken in device.get("consumesCounters", []):
            for name, counter in taken["counters"].items():
                key = (taken["counterSet"], name)
                wanted[key] = wanted.get(key, 0) + _count(counter["value"])
    return any(value > sets[counter_set][name] for (counter_set, name), value in wanted.items())
