"""Random claims in every form of a GPU: whole, partitions, shares by policy, with parameters, and invalid ones.

Whether a claim fits at that moment is decided by the allocator.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.live_claims import ATTRIBUTES, MIG_CLASS, Obj, gpu, parameters, partition, request, share

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
"""
"""For eight GPUs of 80 GB: three are never shared, two in turns, three by MPS; all can be cut."""


@dataclass(frozen=True)
class Wish:
    """The requests of a claim."""

    form: str
    requests: Sequence[Obj]
    config: Sequence[Obj] = ()
    together: bool = False


def wish(dice: random.Random) -> Wish:
    """Random requests."""
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
    """A claim with an invalid allocation, for `live_claims.Scheduler.force`."""

    why: str
    results: Sequence[Obj]
    requests: Sequence[Obj]
    config: Sequence[Obj] = ()


def impossible(dice: random.Random, held: Sequence[str]) -> Impossible:
    """A random invalid claim; ``held`` are devices that other claims have now."""
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
