"""Content of the kernel module's files below /proc/driver that describe MIG capability nodes. ``root.py`` writes them.

Source: NVIDIA's MIG user guide, "Device Nodes and Capabilities". Each instance has a node
``/dev/nvidia-caps/nvidia-cap<N>``; numbers count through GPUs, GPU instances and compute instances in fixed steps.
"""

import functools
from collections.abc import Iterator

from dra_driver.core.model.gpu import Gpu, Snapshot

CONFIG, MONITOR, FIRST = 1, 2, 3
GPU_INSTANCES, COMPUTE_INSTANCES = 15, 8  # numbers reserved per GPU and per GPU instance
STEP = 1 + COMPUTE_INSTANCES
FOLDER = "proc/driver/nvidia/capabilities"
MINORS = "proc/driver/nvidia-caps/mig-minors"


def instance_minor(gpu_minor: int, gi_id: int, ci_id: int | None = None) -> int:
    """Minor number of a GPU instance's node, or of a compute instance's node."""
    minor = FIRST + gpu_minor * GPU_INSTANCES * STEP + gi_id * STEP
    return minor if ci_id is None else minor + 1 + ci_id


def access_files(snapshot: Snapshot) -> dict[str, bytes]:
    """Content by path below the root, for all instances that exist; {} for a node without MIG."""
    capable = [gpu for gpu in snapshot.gpus if gpu.mig_capable]
    if not capable:
        return {}
    files = {f"{FOLDER}/mig/config": _access(CONFIG, 0o400), f"{FOLDER}/mig/monitor": _access(MONITOR, 0o444)}
    for gpu in capable:
        files |= {f"{FOLDER}/gpu{gpu.minor}/mig/{name}/access": _access(n, 0o444) for name, n in _instances(gpu)}
    return files


def minors_file(snapshot: Snapshot) -> bytes | None:
    """All minor numbers that instances of these GPUs can have; None for a node without MIG."""
    capable = tuple(gpu.minor for gpu in snapshot.gpus if gpu.mig_capable)
    return _minors(capable) if capable else None


@functools.lru_cache(maxsize=4)  # 3 ms for 64 GPUs, at every change of an instance
def _minors(gpu_minors: tuple[int, ...]) -> bytes:
    lines = [f"config {CONFIG}", f"monitor {MONITOR}"]
    for gpu in gpu_minors:
        for gi in range(GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {instance_minor(gpu, gi)}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {instance_minor(gpu, gi, ci)}" for ci in range(COMPUTE_INSTANCES)]
    return "".join(f"{line}\n" for line in lines).encode()


def _instances(gpu: Gpu) -> Iterator[tuple[str, int]]:
    for instance in gpu.mig_instances:
        yield f"gi{instance.gi_id}", instance_minor(gpu.minor, instance.gi_id)
        for compute in instance.compute:
            name = f"gi{instance.gi_id}/ci{compute.ci_id}"
            yield name, instance_minor(gpu.minor, instance.gi_id, compute.ci_id)


def _access(minor: int, mode: int) -> bytes:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n".encode()
