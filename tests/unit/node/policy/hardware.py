"""A node's GPUs and policies for them, in short form for tests."""

from typing import Any

from dra_driver.config.policy import GpuPolicy, policy_of, policy_problems
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigProfile, PartitionId
from dra_driver.core.model.terms import Form, Interval, SharingTerms, Strategy, Use

NODE = "node-1"
ONE_G, ONE_G_ME, THREE_G, SEVEN_G = 19, 20, 9, 0
PROFILES = tuple(
    MigProfile(
        name=name, profile_id=number, compute_slices=compute, memory_slices=memory, max_instances=most, starts=starts
    )
    for name, number, compute, memory, most, starts in (
        ("7g.80gb", SEVEN_G, 7, 8, 1, (0,)),
        ("3g.40gb", THREE_G, 3, 4, 2, (0, 4)),
        ("1g.10gb", ONE_G, 1, 1, 7, tuple(range(7))),
        ("1g.10gb+me", ONE_G_ME, 1, 1, 1, tuple(range(7))),
    )
)


def uuid(minor: int) -> GpuUuid:
    return GpuUuid(f"GPU-00000000-0000-0000-0000-{minor:012d}")


def gpu(minor: int = 0, **changes: Any) -> Gpu:
    fields: dict[str, Any] = {
        "uuid": uuid(minor),
        "minor": minor,
        "product_name": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "memory_bytes": 81559 * 2**20,
        "pci_bus_id": f"0000:{minor + 16:02x}:00.0",
        "mig_capable": True,
        "mig_resetless": True,
        "mig_profiles": PROFILES,
    }
    return Gpu(**(fields | changes))


def node(count: int = 2) -> Snapshot:
    return Snapshot(gpus=tuple(gpu(minor) for minor in range(count)))


def written(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec}


def policy(name: str = "p", **spec: Any) -> GpuPolicy:
    found = written(name, **spec)
    assert policy_problems(found) == []
    return policy_of(found)


def whole(minor: int = 0) -> Use:
    return Use(gpu_uuid=uuid(minor), form=Form.WHOLE)


def share(strategy: Strategy = Strategy.MPS, interval: Interval = Interval.DEFAULT, minor: int = 0) -> Use:
    sharing = SharingTerms(strategy=strategy, interval=interval, max_shares=4)
    return Use(gpu_uuid=uuid(minor), form=Form.SHARE, sharing=sharing)


def partition(profile: int, start: int = 0, minor: int = 0, *, made: bool = True) -> Use:
    return Use(
        gpu_uuid=uuid(minor),
        form=Form.PARTITION,
        partition=PartitionId(uuid(minor), profile, start),
        created_by_driver=made,
    )
