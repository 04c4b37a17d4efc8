"""Read whether NVML, as root, makes the device nodes that are missing (check 6)."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_driver.diagnose.hardware import mounts
from dra_driver.diagnose.hardware.task import Task
from dra_driver.hardware.driver_root.folders import PROGRAM_FOLDERS
from dra_driver.hardware.gpu.nvml import probes

HELPER: Final = "nvidia-modprobe"


def missing_nodes(task: Task) -> Iterator[tuple[str, Any]]:
    """Open NVML in a mount namespace whose /dev has no node of NVIDIA, with nvidia-modprobe covered.

    Topics ``existing`` (nodes outside), ``covered`` (programs), ``init``, ``count``, and ``made`` (nodes afterwards).
    """
    dev = Path("/dev")
    existing = mounts.device_files(Path(f"{task.dev_root.rstrip('/')}/dev"))
    yield "existing", existing
    mounts.enter()
    roots = dict.fromkeys(("", task.root.rstrip("/"), task.host.rstrip("/")))
    yield "covered", mounts.hide(f"{root}{folder}/{HELPER}" for root in roots for folder in PROGRAM_FOLDERS)
    mounts.plain_dev(dev)
    if task.dev_root.strip("/"):
        mounts.plain_dev(Path(f"{task.dev_root.rstrip('/')}/dev"))
    load = probes.load(task.library)
    yield "init", load
    if "value" in load:
        yield "count", probes.ask(probes.pynvml.nvmlDeviceGetCount)
        count = probes.ask(probes.pynvml.nvmlDeviceGetCount).get("value", 0)
        yield "handles", [probes.ask(partial(probes.answers_at, index)) for index in range(count)]
    yield "made", mounts.device_files(dev)
