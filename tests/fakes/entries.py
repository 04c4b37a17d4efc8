"""Claims of the journal as values."""

from typing import Any

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, MigUuid, PoolName
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import Strategy
from dra_driver.node.claims.entry import (
    AssignedDevice,
    AssignedPartition,
    AssignedShare,
    AssignedSharing,
    AttemptToken,
    Entry,
    InstanceIds,
    OwnerId,
    State,
)

GPU = GpuUuid("GPU-a")


def device(**fields: Any) -> AssignedDevice:
    """A whole GPU, unless ``fields`` say otherwise."""
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": PoolName("n/gpu.nvidia.com"),
        "device": DeviceName("gpu-0"),
        "share_id": None,
        "admin_access": False,
        "gpu_uuid": GPU,
    }
    return AssignedDevice(**(given | fields))


def entry(
    uid: str = "u1", *devices: AssignedDevice, state: State = State.PREPARED, ref: ClaimRef | None = None
) -> Entry:
    """A claim in the journal; of the one device ``gpu-0`` by default."""
    return Entry(
        ref=ref or ClaimRef(namespace="team", name="llm", uid=ClaimUid(uid)),
        state=state,
        attempt=AttemptToken(owner=OwnerId("o"), number=1),
        boot_id="b",
        changed_at=1_782_907_200.5,
        devices=devices or (device(),),
    )


def sharing(memory: int, percent: int = 20) -> AssignedSharing:
    """A share of a GPU, by time slicing."""
    share = AssignedShare(memory=memory, percent=percent, count=1, total_memory=2**36, max_shares=None)
    return AssignedSharing(strategy=Strategy.TIME_SLICING, share=share)


def partition(start: int = 0, *, gpu: GpuUuid = GPU, gi_id: int | None = None) -> AssignedPartition:
    """A partition of 1g.10gb; ``gi_id`` is that of its GPU instance, once it exists."""
    live = None if gi_id is None else InstanceIds(gi_id=gi_id, ci_id=0, uuid=MigUuid("MIG-x"))
    return AssignedPartition(
        id=PartitionId(gpu, 19, start), profile_name="1g.10gb", size=1, created_by_driver=True, live=live
    )
