"""Sentences about MIG that end up in ``kubectl describe pod``: what was seen, what was expected, what to do next.

Owns the messages alone.
"""

from collections.abc import Sequence

from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import MigInstance, PartitionId

LOOK_FOR = (
    "look for processes with `nvidia-smi --query-compute-apps=pid,process_name,gpu_uuid --format=csv` and "
    "`fuser -v /dev/nvidia*` on the node, and for monitors that hold GPUs open, such as dcgm (nv-hostengine, "
    "dcgm-exporter); it is tried again once they have let go"
)


def mode_is_busy(gpu: GpuUuid, state: str, waited_s: float, error: Exception) -> str:
    """MIG mode cannot be switched because of a client."""
    return f"MIG mode of {gpu} cannot be switched {state}, tried for {waited_s:.0f} s: {error}; {LOOK_FOR}"


def mode_not_owned(gpu: GpuUuid) -> str:
    """A whole GPU is wanted, and an administrator has it in MIG mode."""
    return (
        f"{gpu} cannot be used as a whole: MIG mode is on and this driver did not switch it on; "
        f"an administrator has to, with `nvidia-smi -i {gpu} -mig 0`, or has to offer its partitions instead"
    )


def instances_left(gpu: GpuUuid, left: Sequence[MigInstance]) -> str:
    """A whole GPU is wanted, and instances are left."""
    return (
        f"{gpu} cannot be used as a whole: it is still cut into {_listed(left)}; "
        "remove what is not this driver's own with `nvidia-smi mig -dci` and `-dgi`"
    )


def foreign_instance(wanted: PartitionId, found: MigInstance) -> str:
    """Exactly what is wanted is there, without this driver having made it."""
    return (
        f"{wanted} was made by somebody else ({_listed([found])}) and is left alone; "
        "it is withheld from scheduling once the node has seen it: delete the pod to have it placed again, or remove "
        "the instance"
    )


def memory_slices_taken(wanted: PartitionId, size: int, in_the_way: Sequence[MigInstance]) -> str:
    """Others overlap what is wanted."""
    last = wanted.start + size - 1
    return f"{wanted} needs memory slices {wanted.start} to {last}, and these are taken by {_listed(in_the_way)}"


def not_listed(wanted: PartitionId, gi_id: int) -> str:
    """The driver said yes and then does not know it."""
    return f"{wanted} was made as GPU instance {gi_id}, but the GPU does not list it with one usable compute instance"


def partition_is_busy(partition: PartitionId, instance: MigInstance, waited_s: float, error: Exception) -> str:
    """An instance cannot be destroyed because of a client."""
    return f"{partition} ({_listed([instance])}) cannot be removed, tried for {waited_s:.0f} s: {error}; {LOOK_FOR}"


def cleanup_failed(first: Exception, second: Exception) -> str:
    """An error, and another one while taking back what was made."""
    return f"{first}; and the half-made instance could not be removed, which will be tried again: {second}"


def _listed(instances: Sequence[MigInstance]) -> str:
    return ", ".join(
        f"GPU instance {one.gi_id} ({one.profile_name} at memory slices {one.start}-{one.start + one.size - 1})"
        for one in instances
    )
