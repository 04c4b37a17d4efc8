"""Claims in an API server, allocated by the real allocator from the published slices, and random ones of every form."""

import random
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.scheduler.allocation import V1_37, Allocator, SchedulerQuirks
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS
from tests.fakes.dra_objects import exactly
from tests.fakes.live_node import DRIVER, NAMESPACE, LiveNode, until

Obj = dict[str, Any]
ATTRIBUTES: Final = f'device.attributes["{DRIVER}"]'
MIG_CLASS: Final = "mig.nvidia.com"
PARAMETERS: Final = "resource.nvidia.com/v1beta1"


class Scheduler:
    """Create claims with an allocation, and delete both. Its lock keeps threads from allocating the same device."""

    def __init__(self, node: LiveNode, quirks: SchedulerQuirks = V1_37) -> None:
        self._node = node
        self._store = node.store
        self._quirks = quirks
        self._lock = threading.Lock()  # guards choosing devices together with writing the choice down
        self._classes = self._store.list(DEVICE_CLASSES).items
        self._wire = self._store.get(NODES, node.name)

    def allocate(self, *requests: Obj, config: Sequence[Obj] = (), together: bool = False) -> Obj | None:
        """A claim's namespace, name and uid, with ``devices``; None, and no claim, if it does not fit now."""
        spec: Obj = {"requests": list(requests), "config": list(config)}
        if together:
            spec["constraints"] = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
        claim = self._store.create(RESOURCE_CLAIMS, {"metadata": _name(), "spec": {"devices": spec}})
        with self._lock:
            others = [item for item in self._store.list(RESOURCE_CLAIMS).items if item.get("status")]
            allocator = Allocator(
                slices=self._node.slices(), classes=self._classes, allocated=others, quirks=self._quirks
            )
            allocations = allocator.allocate(self._wire, [claim]).allocations
            if allocations is None:
                self._store.delete(RESOURCE_CLAIMS, claim["metadata"]["name"], NAMESPACE)
                return None
            return self._written(claim, allocations[0])

    def allocate_soon(self, *requests: Obj, config: Sequence[Obj] = (), together: bool = False) -> Obj:
        """Retry ``allocate`` while the slices follow the hardware, after about a second. Raises AssertionError if
        nothing fits."""
        found: list[Obj] = []

        def fits() -> bool:
            if (claim := self.allocate(*requests, config=config, together=together)) is not None:
                found.append(claim)
            return bool(found)

        until(fits, f"slices with devices for {requests}")
        return found[0]

    def force(self, *results: Obj, requests: Sequence[Obj], config: Sequence[Obj] = ()) -> Obj:
        """A claim with an allocation that no scheduler would make; ``results`` may lack driver and pool."""
        spec = {"requests": list(requests), "config": list(config)}
        claim = self._store.create(RESOURCE_CLAIMS, {"metadata": _name(), "spec": {"devices": spec}})
        here = {"driver": DRIVER, "pool": f"{self._node.name}/{DRIVER}"}
        configs = [{"source": "FromClaim", **each} for each in config]
        devices = {"results": [{**here, **result} for result in results], "config": configs}
        where = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self._node.name]}]}
        return self._written(claim, {"devices": devices, "nodeSelector": {"nodeSelectorTerms": [where]}})

    def _written(self, claim: Obj, allocation: Obj) -> Obj:
        user = {"resource": "pods", "name": claim["metadata"]["name"], "uid": str(uuid.uuid4())}
        claim["status"] = {"allocation": allocation, "reservedFor": [user]}
        self._store.update_status(RESOURCE_CLAIMS, claim)
        metadata = claim["metadata"]
        return {
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "devices": [result["device"] for result in allocation["devices"]["results"]],
        }

    def release(self, claim: Mapping[str, Any]) -> None:
        held = self._store.get(RESOURCE_CLAIMS, claim["name"], NAMESPACE)
        held["status"] = {}
        self._store.update_status(RESOURCE_CLAIMS, held)
        self._store.delete(RESOURCE_CLAIMS, claim["name"], NAMESPACE)


def _name() -> Obj:
    return {"name": f"claim-{uuid.uuid4().hex[:12]}", "namespace": NAMESPACE}


def request(name: str, *selectors: str, class_name: str = DRIVER, count: int = 1, **more: Any) -> Obj:
    return exactly(name, *selectors, deviceClassName=class_name, count=count, **more)


def gpu(name: str = "gpu", *, of: Sequence[str] = (), count: int = 1) -> Obj:
    return request(name, *_one_of("uuid", of), count=count)


def partition(
    profile: str, name: str = "mig", *, of: Sequence[str] = (), start: int | None = None, count: int = 1
) -> Obj:
    """Partitions of a profile; ``of``: only of GPUs with these UUIDs; ``start``: only at that memory slice."""
    wanted = [f'{ATTRIBUTES}.profile == "{profile}"', *_one_of("parentUUID", of)]
    if start is not None:
        wanted.append(f"{ATTRIBUTES}.placementStart == {start}")
    return request(name, *wanted, class_name=MIG_CLASS, count=count)


def share(memory: str, percent: int, name: str = "gpu", *, strategy: str = "MPS", of: Sequence[str] = ()) -> Obj:
    shared = f'"sharingStrategy" in {ATTRIBUTES} && {ATTRIBUTES}.sharingStrategy == "{strategy}"'
    capacity = {"requests": {"memory": memory, "computePercent": str(percent)}}
    return request(name, shared, *_one_of("uuid", of), capacity=capacity)


def parameters(kind: str, *requests: str, **sharing: Any) -> Obj:
    body = {"apiVersion": PARAMETERS, "kind": kind, "sharing": sharing}
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": body}}


def _one_of(attribute: str, uuids: Sequence[str]) -> list[str]:
    return [f"{ATTRIBUTES}.{attribute} in {list(uuids)}".replace("'", '"')] if uuids else []


PROFILES = ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
SMALL = PROFILES[:4]
TIME_SLICED, BY_MPS = (3, 4), (5, 6, 7)
POLICIES = f"""
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {{name: time-sliced}}
spec:
  select: {{minors: {list(TIME_SLICED)}}}
  sharing: {{strategy: TimeSlicing, interval: Long, maxShares: 6}}
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {{name: by-mps}}
spec:
  select: {{minors: {list(BY_MPS)}}}
  sharing: {{strategy: MPS, maxShares: 4}}
"""  # for eight GPUs of 80 GB: three are never shared, two in turns, three by MPS; all can be cut


@dataclass(frozen=True)
class Wish:
    form: str
    requests: Sequence[Obj]
    config: Sequence[Obj] = ()
    together: bool = False


def wish(dice: random.Random) -> Wish:
    return dice.choice(_RECIPES)(dice)


def _whole(dice: random.Random) -> Wish:
    return Wish("whole", [gpu(count=dice.choice([1, 1, 1, 2]))])


def _partition(dice: random.Random) -> Wish:
    return Wish("partition", [partition(dice.choice(PROFILES))])


def _small_partition(dice: random.Random) -> Wish:
    return Wish("partition", [partition(dice.choice(SMALL))])


def _siblings(dice: random.Random) -> Wish:
    requests = [partition(dice.choice(SMALL), f"mig-{number}") for number in range(dice.randint(2, 4))]
    return Wish("partitions of one GPU", requests, together=True)


def _big_or_small(dice: random.Random) -> Wish:
    either = []
    for profile in ("7g.80gb", "2g.20gb"):
        exactly = partition(profile, profile.partition(".")[0])
        either.append({"name": exactly["name"], **exactly["exactly"]})
    return Wish("first available", [{"name": "mig", "firstAvailable": either}])


def _whole_and_cut(dice: random.Random) -> Wish:
    return Wish("whole and partition", [gpu(), partition(dice.choice(SMALL))])


def _time_share(dice: random.Random) -> Wish:
    wanted = share(f"{dice.randint(1, 30)}Gi", dice.randint(5, 60), strategy="TimeSlicing")
    return Wish("time-sliced share", [wanted])


def _mps_share(dice: random.Random) -> Wish:
    return Wish("MPS share", [share(f"{dice.randint(1, 30)}Gi", dice.randint(5, 60))])


def _time_sliced(dice: random.Random) -> Wish:
    interval = dice.choice(["Short", "Medium", "Long", "Default"])
    config = parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": interval})
    return Wish("whole, time-sliced", [gpu(count=dice.choice([1, 2]))], [config])


def _by_mps(dice: random.Random) -> Wish:
    limits = {"defaultActiveThreadPercentage": dice.randint(10, 90), "defaultPinnedDeviceMemoryLimit": "8Gi"}
    return Wish("whole, by MPS", [gpu()], [parameters("GpuConfig", "gpu", strategy="MPS", mpsConfig=limits)])


def _partition_by_mps(dice: random.Random) -> Wish:
    config = parameters("MigDeviceConfig", strategy="MPS", mpsConfig={"defaultPinnedDeviceMemoryLimit": "2Gi"})
    return Wish("partition, by MPS", [partition(dice.choice(SMALL))], [config])


def _watched(dice: random.Random) -> Wish:
    return Wish("admin access", [request("gpu", adminAccess=True)])


_RECIPES = (
    *[_whole, _partition, _small_partition, _small_partition, _siblings, _big_or_small, _whole_and_cut],
    *[_time_share, _time_share, _mps_share, _mps_share, _time_sliced, _by_mps, _partition_by_mps, _watched],
)


@dataclass(frozen=True)
class Impossible:
    why: str
    results: Sequence[Obj]
    requests: Sequence[Obj]
    config: Sequence[Obj] = ()


def impossible(dice: random.Random, held: Sequence[str]) -> Impossible:
    requests, partitions = [gpu("a")], [request(name, class_name=MIG_CLASS) for name in "ab"]
    period = parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"period": "Short"})
    other_kind = parameters("MigDeviceConfig", "a", strategy="MPS")
    overlap = [_device("gpu-0-mig-3g40gb-9-0"), _device("gpu-0-mig-1g10gb-19-1", "b")]
    share = [_share_of("gpu-0", "4Gi")]
    choices: list[Impossible] = [
        Impossible("no such GPU", [_device("gpu-8")], requests),
        Impossible("no such profile", [_device("gpu-0-mig-1g10gb-77-0")], requests),
        Impossible("no such place", [_device("gpu-0-mig-3g40gb-9-2")], requests),
        Impossible("overlapping partitions", overlap, partitions),
        Impossible("an unknown field", [_device("gpu-0")], requests, [period]),
        Impossible("parameters of the wrong kind", [_device("gpu-0")], requests, [other_kind]),
        Impossible("a share of a GPU that is not shared", share, [request("a", f"{ATTRIBUTES}.type == 'gpu'")]),
        Impossible("a share of more than there is", [_share_of("gpu-5", "200Gi")], requests),
    ]
    if held:
        choices += [Impossible("a device of another claim", [_device(dice.choice(held))], requests)] * 4
    return dice.choice(choices)


def _device(name: str, request: str = "a") -> dict[str, Any]:
    return {"request": request, "device": name}


def _share_of(device: str, memory: str) -> dict[str, Any]:
    consumed = {"memory": memory, "computePercent": "10"}
    return {**_device(device), "shareID": str(uuid.uuid4()), "consumedCapacity": consumed}
