"""Read what an NVML session holds open, whether another library can follow it, and how slow its first calls are."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import CommandError
from dra_driver.diagnose.hardware.task import Task
from dra_driver.hardware.gpu.nvml import mig_probes, probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.nvml.device_files import open_device_files
from dra_driver.hardware.sharing.smi import Smi

Topics = Iterator[tuple[str, Any]]
REFERENCES: Final = "/sys/module/nvidia/refcnt"
THREADS: Final = 8
LOOKS: Final = 10
_SMI_S: Final = 30.0
_THREADS_S: Final = 40.0


def held(task: Task) -> Topics:
    """Topic per step of a session: open device files of this process, and references to the kernel module."""
    backend = NvmlBackend(task.library)
    yield "before", _held()
    backend.open()
    yield "open", _held()
    backend.snapshot()
    yield "snapshot", _held()
    with mig_probes.event_set(probes.handles()) as registered:
        yield "event set", _held() | {"registered": registered}
    yield "event set freed", _held()
    backend.close()
    yield "closed", _held()


def copies(task: Task) -> Topics:
    """Topic per session: with the library, with two copies of it in turn, and from several threads."""
    library = task.library or _mapped_after_open()
    paths = [library, *(_copied(library, Path(task.folder, f"copy-{number}")) for number in (1, 2))]
    for number, path in enumerate(paths):
        backend = NvmlBackend(path)
        backend.open()
        yield f"session {number + 1}", _session(backend, path)
        backend.close()
    backend = NvmlBackend(paths[-1])
    yield "threads", _threads(backend)
    backend.close()


def first_calls(task: Task) -> Topics:
    """Cold times of opening and of each GPU's first handle, fabric and persistence; then nvidia-smi as it is run."""
    begin = time.perf_counter()
    backend = NvmlBackend(task.library)
    backend.open()
    yield "open_ms", round((time.perf_counter() - begin) * 1000, 1)
    for index in range(probes.pynvml.nvmlDeviceGetCount()):
        handle = probes.ask(partial(probes.answers_at, index))
        facts: dict[str, Any] = {"first_handle": handle}
        if handle.get("value"):
            raw = probes.handle_at(index)
            facts["fabric"] = probes.fabric_state(raw)
            facts["persistence"] = probes.ask(partial(probes.pynvml.nvmlDeviceGetPersistenceMode, raw))
        yield str(index), facts
    backend.close()
    yield "nvidia-smi", _smi(task)


def _held() -> dict[str, Any]:
    return {"files": list(open_device_files()), "mappings": _mapped("/dev/nvidia"), "references": _references()}


def _references() -> int | None:
    try:
        return int(Path(REFERENCES).read_text())
    except (OSError, ValueError):
        return None


def _mapped(part: str = "libnvidia-ml.so") -> list[str]:
    """Files of this process' memory whose path has ``part``: a mapping keeps a file open without a descriptor."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(None, 5)[5] for line in lines if part in line})


def _mapped_after_open() -> str:
    backend = NvmlBackend(None)
    backend.open()
    backend.close()
    return _mapped()[0]


def _copied(library: str, folder: Path) -> str:
    folder.mkdir()
    return str(shutil.copy(os.path.realpath(library), folder / Path(library).name))


def _session(backend: NvmlBackend, path: str) -> dict[str, Any]:
    found = backend.snapshot()
    return {
        "library": path,
        "mapped": _mapped(),
        "driver": found.driver_version,
        "gpus": [str(gpu) for gpu in found.gpus],
        "leftOut": [str(one) for one in found.left_out],
    }


def _threads(backend: NvmlBackend) -> dict[str, Any]:
    first = backend.snapshot()
    equal: list[bool] = []
    failed: list[str] = []

    def look() -> None:
        for _ in range(LOOKS):
            try:
                equal.append(backend.snapshot() == first)
            except Exception as error:  # noqa: BLE001 - the boundary of a thread: reported as a fact
                failed.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=look, name=f"look-{number}", daemon=True) for number in range(THREADS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, begin + _THREADS_S - time.perf_counter()))
    return {
        "looks": len(equal) + len(failed),
        "different": equal.count(False),
        "failed": failed[:5],
        "hanging": sum(thread.is_alive() for thread in threads),
        "ms": round((time.perf_counter() - begin) * 1000, 1),
    }


def _smi(task: Task) -> dict[str, Any]:
    smi = Smi(task.root)
    try:
        facts: dict[str, Any] = {"program": smi.find()}
    except CommandError as error:
        return {"missing": str(error)}
    begin = time.perf_counter()
    try:
        facts["output"] = smi.run(("compute-policy", "-l"), within_s=_SMI_S)
    except CommandError as error:
        facts["error"] = str(error)
    return facts | {"ms": round((time.perf_counter() - begin) * 1000, 1)}
