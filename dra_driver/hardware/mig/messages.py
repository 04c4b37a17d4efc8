"""Error sentences about MIG, as ``kubectl describe pod`` shows them: what was seen, what was expected, what to do."""

from collections.abc import Sequence

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId

LOOK_FOR = (
    "look for processes with `nvidia-smi --query-compute-apps=pid,process_name,gpu_uuid --format=csv` and "
    "`fuser -v /dev/nvidia*` on the node, and for monitors that hold GPUs open, such as dcgm (nv-hostengine, "
    "dcgm-exporter); the driver tries again and succeeds once they have closed the GPU"
)


def what_to_do(holders: str | None) -> str:
    """The end of a sentence about a busy GPU; ``holders`` says who has it open, None when that is not known."""
    if holders is None:
        return LOOK_FOR
    return f"{holders}; the driver tries again and succeeds once they have closed the GPU"


def mode_is_busy(gpu: GpuUuid, state: str, waited_s: float, error: Exception, holders: str | None) -> str:
    """MIG mode cannot be switched because a process uses the GPU."""
    tried = f"MIG mode of {gpu} cannot be switched {state}, tried for {waited_s:.0f} s"
    return f"{tried}: {error}; {what_to_do(holders)}"


def creation_is_busy(wanted: PartitionId, waited_s: float, error: Exception, holders: str | None) -> str:
    """A GPU instance cannot be created because a process uses the GPU."""
    return f"{wanted} cannot be created, tried for {waited_s:.0f} s: {error}; {what_to_do(holders)}"


def mode_not_owned(gpu: GpuUuid) -> str:
    """A claim needs the whole GPU, but an administrator switched MIG mode on."""
    return (
        f"{gpu} cannot be used as a whole: MIG mode is on and this driver did not switch it on; "
        f"an administrator has to switch it off with `nvidia-smi -i {gpu} -mig 0`, or offer its partitions instead"
    )


def instances_left(gpu: GpuUuid, left: Sequence[MigInstance]) -> str:
    """A claim needs the whole GPU, but GPU instances exist on it."""
    return (
        f"{gpu} cannot be used as a whole: it still has {_listed(left)}; "
        "remove instances that this driver did not create with `nvidia-smi mig -dci` and `-dgi`"
    )


def foreign_instance(wanted: PartitionId, found: MigInstance) -> str:
    """The partition exists already, and this driver did not create it."""
    return (
        f"{wanted} exists already and was not created by this driver ({_listed([found])}), so it stays; "
        "the driver withholds it from scheduling once it has seen it: delete the pod to have it scheduled again, or "
        "remove the instance"
    )


def memory_slices_taken(wanted: PartitionId, size: int, overlapping: Sequence[MigInstance]) -> str:
    """Other instances overlap the wanted partition."""
    last = wanted.start + size - 1
    return f"{wanted} needs memory slices {wanted.start} to {last}, and these are taken by {_listed(overlapping)}"


def not_listed(wanted: PartitionId, gi_id: int) -> str:
    """The NVIDIA driver reported success and does not list the instance."""
    return (
        f"{wanted} was created as GPU instance {gi_id}, but the GPU does not list it with one usable compute instance"
    )


def partition_is_busy(
    partition: PartitionId, instance: MigInstance, waited_s: float, error: Exception, holders: str | None
) -> str:
    """An instance cannot be destroyed because a process uses it."""
    tried = f"{partition} ({_listed([instance])}) cannot be removed, tried for {waited_s:.0f} s"
    return f"{tried}: {error}; {what_to_do(holders)}"


def cleanup_failed(first: Exception, second: Exception) -> str:
    """Creating failed with ``first``, and removing the incomplete instance failed with ``second``."""
    return f"{first}; and the incomplete instance could not be removed, which the driver tries again: {second}"


def _listed(instances: Sequence[MigInstance]) -> str:
    return ", ".join(
        f"GPU instance {one.gi_id} ({one.profile_name} at memory slices {one.start}-{one.start + one.size - 1})"
        for one in instances
    )
