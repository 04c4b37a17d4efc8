"""Read NVML's raw answers: while MIG mode is off, about profiles, and about everything that the backend describes.

Each topic is the NVML index of a GPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

from dra_driver.diagnose.hardware.task import Task
from dra_driver.hardware.gpu.nvml import mig_probes, probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend

Topics = Iterator[tuple[str, Any]]


def without_mode(task: Task) -> Topics:
    """Of GPUs with MIG whose mode is off: `mig_probes.without_mode` for the profiles that they list."""
    return _per_gpu(task, _without_mode)


def profiles(task: Task) -> Topics:
    """Of GPUs with MIG: `mig_probes.profiles`, `probes.fields`, and what names are computed from."""
    return _per_gpu(task, _profiles)


def described(task: Task) -> Topics:
    """`probes.device` of every GPU, and the description that the backend makes of it."""
    backend = NvmlBackend(task.library)
    backend.open()
    yield "system", probes.system()
    for index, handle in enumerate(probes.handles()):
        yield str(index), probes.device(handle) | {"fields": probes.fields(handle)}
    found = backend.snapshot()
    yield "snapshot", {"gpus": [str(gpu) for gpu in found.gpus], "leftOut": [str(one) for one in found.left_out]}
    backend.close()


def _per_gpu(task: Task, read: Callable[[Any], Any]) -> Topics:
    backend = NvmlBackend(task.library)
    backend.open()
    for index, handle in enumerate(probes.handles()):
        facts = read(handle)
        if facts is not None:
            yield str(index), facts
    backend.close()


def _mode(handle: Any) -> Any:
    """``[current, pending]``; None for a GPU without MIG."""
    return probes.ask(lambda: probes.pynvml.nvmlDeviceGetMigMode(handle)).get("value")


def _without_mode(handle: Any) -> Any:
    mode = _mode(handle)
    if mode is None or mode[0]:
        return None
    ids = [row["id"] for row in mig_probes.profiles(handle) if "id" in row]
    return mig_probes.without_mode(handle, ids)


def _profiles(handle: Any) -> Any:
    mode = _mode(handle)
    if mode is None:
        return None
    answers = probes.described(handle)
    return {
        "mode": mode,
        "rows": mig_probes.profiles(handle),
        "fields": probes.fields(handle),
        "name": answers["nvmlDeviceGetName"],
        "architecture": answers["nvmlDeviceGetArchitecture"],
        "memory": answers["nvmlDeviceGetMemoryInfo"],
        "virtualization": answers["nvmlDeviceGetVirtualizationMode"],
    }
