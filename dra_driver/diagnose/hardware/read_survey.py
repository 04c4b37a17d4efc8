"""Read what the machine has: system, driver, GPUs with their processes, and claims that this driver has prepared."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from dra_driver import __version__
from dra_driver.diagnose.hardware.openers import openers
from dra_driver.diagnose.hardware.task import Task
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend

JOURNAL: Final = "state.db"
_HELD: Final = "SELECT gpu_uuid, count(*) FROM device WHERE admin = 0 GROUP BY gpu_uuid"
_OF_A_GPU: Final = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetComputeMode",
)


def survey(task: Task) -> Iterator[tuple[str, Any]]:
    """Topics ``machine``, ``driver``, ``system``, ``gpus``, ``openers``, ``claims``. Raises DriverUnavailableError."""
    yield "machine", machine()
    yield "driver", {"root": task.root, "library": task.library, "devRoot": task.dev_root}
    backend = NvmlBackend(task.library)
    backend.open()
    yield "system", probes.system()
    yield "gpus", [_gpu(index) for index in range(probes.pynvml.nvmlDeviceGetCount())]
    yield "openers", openers((task.host, "/"))
    yield "claims", claims(Path(task.plugin_dir)) if task.plugin_dir else {"held": {}}
    backend.close()


def machine() -> dict[str, Any]:
    """Kernel, architecture, and what this process may do."""
    system = os.uname()
    return {
        "kernel": system.release,
        "machine": system.machine,
        "version": __version__,
        "uid": os.geteuid(),
        "capabilities": _status("CapEff"),
        "confinement": _text("/proc/self/attr/current"),
    }


def claims(plugin_dir: Path) -> dict[str, Any]:
    """``held``: number of prepared devices by GPU, as the node process' journal has them; or ``error``.

    Read-only, and not through ``claims.Journal``: that one repairs and replaces a damaged journal.
    """
    path = plugin_dir / JOURNAL
    if not path.exists():
        return {"held": {}}
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as connection:
            return {"held": dict(connection.execute(_HELD).fetchall())}
    except sqlite3.Error as error:
        return {"error": f"{path} cannot be read: {error}"}


def _gpu(index: int) -> dict[str, Any]:
    try:
        handle = probes.handle_at(index)
    except probes.pynvml.NVMLError as error:
        return {"index": index, "error": {"error": type(error).__name__, "code": error.value}}
    answers = {name: probes.ask(partial(getattr(probes.pynvml, name), handle)) for name in _OF_A_GPU}
    processes = probes.processes(handle)
    for answer in processes.values():
        for process in answer.get("value", ()):
            process["name"] = _text(f"/proc/{process['pid']}/comm")
    return {"index": index, "answers": answers, "processes": processes}


def _status(field: str) -> str:
    lines = _text("/proc/self/status").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:")), "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""
