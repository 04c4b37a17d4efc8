"""Slices as this driver publishes them of simulated GPUs, clusters of one such node, and a scheduler for it."""

from collections.abc import Sequence
from typing import Any

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.kube.state import ClusterState
from dra_driver.node.slices import ApiServerFeatures, Built, build_devices, split
from dra_driver.scheduler.allocation import V1_36, Allocator, SchedulerQuirks
from tests.fakes.dra_objects import DRIVER, Obj, allocated, claim, device_class, exactly, node, resource_slice, wire

NODE = "a"
MIG_CLASS = "mig.nvidia.com"
EVERYTHING = ApiServerFeatures(counters=True, taints=True, taints_1_35=True, multi_allocation=True)
_ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def classes() -> list[Obj]:
    """For whole GPUs and for partitions."""
    guard = f'device.driver == "{DRIVER}" && {_ATTRIBUTES}.type == "mig"'
    return [device_class(), device_class(MIG_CLASS, expression=guard)]


def slices(count: int = 1, *, terms: GpuTerms | None = None) -> list[Obj]:
    gpus = tuple(invent(catalog.model("h100-sxm5-80gb"), minor, "a") for minor in range(count))
    snapshot = Snapshot(driver_version=DEFAULT_DRIVER_VERSION, cuda_driver_version=DEFAULT_CUDA_VERSION, gpus=gpus)
    return published(build_devices(snapshot, {gpu.uuid: terms for gpu in gpus} if terms else {}, EVERYTHING))


def h100(count: int = 1, *, sharing: SharingTerms | None = None, **parts: Any) -> ClusterState:
    terms = GpuTerms(policy="p", sharing=sharing) if sharing is not None else None
    return ClusterState(**{"nodes": [node("a")], "classes": classes(), "slices": slices(count, terms=terms), **parts})


def slice_name(start: int, gpu: int = 0) -> str:
    return f"gpu-{gpu}-mig-1g10gb-19-{start}"


def share(name: str, *, memory: str, percent: str, users: tuple[str, ...] = ()) -> Obj:
    found = having(name, "gpu-0", users=users)
    consumed = {"memory": memory, "computePercent": percent, "shares": "1"}
    found["status"]["allocation"]["devices"]["results"][0] |= {"shareID": f"id-{name}", "consumedCapacity": consumed}
    return found


def having(name: str, *devices: str, users: tuple[str, ...] = ()) -> Obj:
    found = allocated(claim(name, exactly()), *devices, node_name="a")
    found["status"]["reservedFor"] = [{"resource": "pods", "name": user, "uid": f"uid-of-{user}"} for user in users]
    return found


def built(snapshot: Snapshot) -> Built:
    return build_devices(snapshot, {}, EVERYTHING)


def published(of: Built, *, per_slice: int = 64, on: str = NODE) -> list[Obj]:
    parts = split(of, per_slice=per_slice)
    found = []
    for part in parts:
        item = resource_slice(on, count=len(parts), name=f"{part.index:05x}-{on}")
        if part.counter_sets:
            del item["spec"]["devices"]
            item["spec"]["sharedCounters"] = wire(part.counter_sets)
        else:
            item["spec"]["devices"] = wire(part.devices)
        found.append(item)
    return found


def partition(name: str, profile: str, *, start: int | None = None) -> Obj:
    wanted = f'{_ATTRIBUTES}.profile == "{profile}"'
    if start is not None:
        wanted += f" && {_ATTRIBUTES}.placementStart == {start}"
    return exactly(name, wanted, deviceClassName=MIG_CLASS)


class Scheduler:
    def __init__(self, slices: Sequence[Obj], quirks: SchedulerQuirks = V1_36) -> None:
        self._slices = slices
        self._quirks = quirks
        self._held: dict[str, Obj] = {}
        self._made = 0

    def allocate(self, *requests: Obj, together: bool = False) -> tuple[str, list[str]] | None:
        """(claim, devices in order of the requests), None if it does not fit. ``together``: on one GPU."""
        self._made += 1
        name = f"claim-{self._made}"
        constraints = [{"matchAttribute": f"{DRIVER}/parentUUID"}] if together else []
        wanted = claim(name, *requests, constraints=constraints)
        held = list(self._held.values())
        allocator = Allocator(slices=self._slices, classes=classes(), allocated=held, quirks=self._quirks)
        allocations = allocator.allocate(node(NODE), [wanted]).allocations
        if allocations is None:
            return None
        self._held[name] = {**wanted, "status": {"allocation": allocations[0]}}
        return name, [result["device"] for result in allocations[0]["devices"]["results"]]

    def release(self, name: str) -> None:
        del self._held[name]
