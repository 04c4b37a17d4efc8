"""Check the files that an NVML session opens, whether another library can follow it, and the duration of first calls.

Checks 2, 9 and 11. The judges do no I/O."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.core.errors import CommandError
from dra_driver.core.finding import Finding
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.values import Facts, Topics, alike, few, gpus, hardware_check, judgement, known
from dra_driver.hardware.driver_root.smi import Smi
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend, open_device_files
from dra_driver.hardware.gpu.nvml.errors import ABSENT

REFERENCES: Final = "/sys/module/nvidia/refcnt"
THREADS: Final = 8
LOOKS: Final = 10
_SMI_S: Final = 30.0
_THREADS_S: Final = 40.0


@contextmanager
def opened(library: str | None) -> Iterator[NvmlBackend]:
    """A session, closed after the block. A block that fails ends the process, and so the session."""
    backend = NvmlBackend(library)
    backend.open()
    yield backend
    backend.close()


def read_held(task: Task) -> Topics:
    """Topic per step of a session: open device files of this process, and references to the kernel module."""
    backend = NvmlBackend(task.library)
    yield "before", _held()
    backend.open()
    yield "open", _held()
    backend.snapshot()
    yield "snapshot", _held()
    with probes.event_set(probes.handles().values()) as registered:
        yield "event set", _held() | {"registered": registered}
    yield "event set freed", _held()
    backend.close()
    yield "closed", _held()


def read_copies(task: Task) -> Topics:
    """Topic per session: with the library, with two copies of it in turn, and from several threads."""
    library = task.library or _mapped_after_open()
    paths = [library, *(_copied(library, Path(task.folder, f"copy-{number}")) for number in (1, 2))]
    for number, path in enumerate(paths):
        with opened(path) as backend:
            yield f"session {number + 1}", _session(backend, path)
    backend = NvmlBackend(paths[-1])
    yield "threads", _threads(backend)
    backend.close()


def read_first_calls(task: Task) -> Topics:
    """Cold times of opening and of each GPU's first handle, fabric and persistence; then a run of nvidia-smi."""
    begin = time.perf_counter()
    backend = NvmlBackend(task.library)
    backend.open()
    yield "open_ms", round((time.perf_counter() - begin) * 1000, 1)
    for index in range(probes.pynvml.nvmlDeviceGetCount()):
        handle = probes.ask(partial(probes.answers_at, index))
        facts: dict[str, object] = {"first_handle": handle}
        if handle.get("value"):
            raw = probes.handle_at(index)
            facts["fabric"] = probes.fabric_state(raw)
            facts["persistence"] = probes.ask(partial(probes.pynvml.nvmlDeviceGetPersistenceMode, raw))
        yield str(index), facts
    backend.close()
    yield "nvidia-smi", _smi(task)


def _held() -> dict[str, object]:
    return {"files": list(open_device_files()), "mappings": _mapped("/dev/nvidia"), "references": module_references()}


def module_references() -> int | None:
    try:
        return int(Path(REFERENCES).read_text())
    except (OSError, ValueError):
        return None


def _mapped(part: str = "libnvidia-ml.so") -> list[str]:
    """Mapped files of this process whose path has ``part``: a mapping keeps a file open without a descriptor."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(None, 5)[5] for line in lines if part in line})


def _mapped_after_open() -> str:
    with opened(None):
        pass
    return _mapped()[0]


def _copied(library: str, folder: Path) -> str:
    folder.mkdir()
    return str(shutil.copy(os.path.realpath(library), folder / Path(library).name))


def _session(backend: NvmlBackend, path: str) -> dict[str, object]:
    found = backend.snapshot()
    return {
        "library": path,
        "mapped": _mapped(),
        "driver": found.driver_version,
        "gpus": [str(gpu) for gpu in found.gpus],
        "leftOut": [str(one) for one in found.left_out],
    }


def _threads(backend: NvmlBackend) -> dict[str, object]:
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


def _smi(task: Task) -> dict[str, object]:
    smi = Smi(task.root)
    try:
        facts: dict[str, object] = {"program": smi.find()}
    except CommandError as error:
        return {"missing": str(error)}
    begin = time.perf_counter()
    try:
        facts["output"] = smi.run(("compute-policy", "-l"), within_s=_SMI_S)
    except CommandError as error:
        facts["error"] = str(error)
    return facts | {"ms": round((time.perf_counter() - begin) * 1000, 1)}


STEPS: Final = ("before", "open", "snapshot", "event set", "event set freed", "closed")
SLOW_MS: Final = 60_000.0
"""The backend's limit for one NVML call."""
_NOTED_MS: Final = 5_000.0
_FABRIC_STATES: Final = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}


@hardware_check(2, "what a session holds", read_held, 30.0)
def held(facts: Facts, _survey: Facts) -> Finding:
    """Closing NVML releases all device files and the kernel module."""
    steps = {step: facts[step] for step in STEPS}
    opened = {step: len(_open(one)) for step, one in steps.items()}
    differences = []
    if opened["closed"] > opened["before"]:
        differences.append(f"after closing, still open: {', '.join(_open(steps['closed']))}")
    if opened["event set freed"] > opened["snapshot"]:
        differences.append(
            f"{opened['event set freed']} files after freeing the event set, {opened['snapshot']} before"
        )
    counts = ", ".join(f"{step} {opened[step]}{_references(one)}" for step, one in steps.items())
    before, closed = steps["before"]["references"], steps["closed"]["references"]
    unknown = ""
    if not max(opened.values()):
        unknown = "NVML opened no device file, so this is not NVIDIA's library"
    elif before is not None and closed is not None and closed > before:
        unknown = "the kernel module has more references than before: another process has opened a GPU since"
    return judgement(
        differences,
        f"open device files (references to the module): {counts}",
        right="detaching releases the GPUs: the driver can be upgraded and a GPU reset while the node process runs",
        wrong="after detaching, the driver cannot be upgraded and no GPU can be reset while the node process runs",
        unknown=unknown,
    )


def _open(step: Facts) -> list[str]:
    return [*step["files"], *step["mappings"]]


def _references(step: Facts) -> str:
    return "" if step["references"] is None else f" ({step['references']})"


@hardware_check(9, "libraries in turn", read_copies, 75.0)
def copies(facts: Facts, _survey: Facts) -> Finding:
    """After a session's end another NVML file is used, also from several threads."""
    sessions = [value for topic, value in facts.items() if topic.startswith("session")]
    first = sessions[0]
    differences = []
    for number, session in enumerate(sessions, 1):
        # The linker's path may name the library by its real file.
        name = "/" + session["library"].rpartition("/")[2]
        if session["library"] not in session["mapped"] and not any(path.endswith(name) for path in session["mapped"]):
            differences.append(f"session {number} did not load {session['library']}")
        if (session["gpus"], session["driver"]) != (first["gpus"], first["driver"]):
            differences.append(f"session {number} sees other GPUs than session 1")
    threads = facts["threads"]
    if threads["failed"]:
        differences.append(f"reads from several threads failed: {few(threads['failed'])}")
    if threads["different"]:
        differences.append(f"{threads['different']} of {threads['looks']} reads from several threads had other values")
    if threads["hanging"]:
        differences.append(f"{threads['hanging']} threads did not return")
    return judgement(
        differences,
        f"{len(sessions)} sessions with libraries in turn, {threads['looks']} reads from threads in {threads['ms']} ms",
        right="the node process follows a driver upgrade without a restart",
        wrong="after a driver upgrade the node process would use the former library, or fail",
    )


@hardware_check(11, "nvidia-smi and first calls", read_first_calls, 75.0)
def first_calls(facts: Facts, _survey: Facts) -> Finding:
    """Nvidia-smi works in its environment, and first calls end within a minute."""
    differences = []
    times = [facts["open_ms"]]
    for index, gpu in gpus(facts):
        times.append(gpu["first_handle"]["ms"])
        fabric, persistence = gpu.get("fabric", {}), gpu.get("persistence", {})
        if "value" in fabric and fabric["value"] not in _FABRIC_STATES:
            differences.append(f"GPU {index}: unknown fabric state {fabric['value']}")
        differences += [
            f"GPU {index}: {name}: code {answer.get('code')}"
            for name, answer in (("fabric", fabric), ("persistence", persistence))
            if answer and not known(answer, ABSENT)
        ]
    slowest = max(times)
    if slowest > SLOW_MS:
        differences.append(f"a first call took {slowest / 1000:.0f} s, longer than the backend's time limit")
    smi = facts["nvidia-smi"]
    if "error" in smi:
        differences.append(smi["error"])
    slow = ": enable persistence mode to keep GPUs initialized" if slowest > _NOTED_MS else ""
    states = alike({index: _state(gpu) for index, gpu in gpus(facts)})
    return judgement(
        differences,
        f"opening {facts['open_ms']:.0f} ms, slowest first call {slowest:.0f} ms{slow}; fabric of {states}; "
        f"nvidia-smi compute-policy {'is missing' if 'missing' in smi else 'works'}",
        right="time slices can be set, and polling starts in time",
        wrong="time slices cannot be set" if "error" in smi else "the backend would wait too long or misread a state",
        unknown=f"{smi['missing']}; time slices cannot be set on this node" if "missing" in smi else "",
    )


def _state(gpu: Facts) -> str:
    fabric = gpu.get("fabric", {})
    return _FABRIC_STATES.get(fabric["value"], str(fabric["value"])) if "value" in fabric else "none"
