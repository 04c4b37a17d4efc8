"""Find the machine's system, driver, GPUs, processes and prepared claims, and choose the GPU for the checks.

In a container, NVML does not report processes of other PID namespaces. A program that computes has /dev/nvidia-uvm and
its GPU's node open; a monitor only the GPU's node. A proc file system of the first PID namespace has the processes of
the whole node: below the mounted host root, or this process' own on the host.
"""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from dra_driver import __version__
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.files import read_start
from dra_driver.diagnose.hardware.child import ChosenGpu, Task
from dra_driver.diagnose.hardware.nvml_session import opened
from dra_driver.diagnose.hardware.values import Facts, HardwareCheck, Topics, survey_gpus
from dra_driver.hardware.gpu.holders import link_target
from dra_driver.hardware.gpu.nvml import probes

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


def survey(task: Task) -> Topics:
    """Topics ``machine``, ``driver``, ``system``, ``gpus``, ``openers``, ``claims``. Raises DriverUnavailableError."""
    yield "machine", machine()
    yield "driver", {"root": task.root, "library": task.library, "devRoot": task.dev_root}
    with opened(task.library):
        yield "system", probes.system()
        yield "gpus", [_gpu(index) for index in range(probes.pynvml.nvmlDeviceGetCount())]
        yield "openers", openers((task.host, "/"))
        yield "claims", claims(Path(task.plugin_dir)) if task.plugin_dir else {"held": {}}


def machine() -> dict[str, object]:
    """Kernel, architecture, and privileges of this process."""
    system = os.uname()
    return {
        "kernel": system.release,
        "machine": system.machine,
        "version": __version__,
        "uid": os.geteuid(),
        "capabilities": _status("CapEff"),
        "confinement": _text("/proc/self/attr/current"),
    }


def claims(plugin_dir: Path) -> dict[str, object]:
    """``held``: number of prepared devices by GPU, from the node process' journal; or ``error``.

    Read-only, and without ``claims.Journal``, which repairs and replaces a damaged journal.
    """
    path = plugin_dir / JOURNAL
    if not path.exists():
        return {"held": {}}
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as connection:
            return {"held": dict(connection.execute(_HELD).fetchall())}
    except sqlite3.Error as error:
        return {"error": f"cannot read {path}: {error}"}


def _gpu(index: int) -> dict[str, object]:
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
    return (read_start(path, 1 << 16) or "").strip("\0\n ")


SCAN_S: Final = 5.0
MAX_FILES: Final = 65536
"""Limit for one process; a process with more open files may compute, whatever the first files are."""
_GPU: Final = re.compile(r"/nvidia(\d{1,4})( \(deleted\))?$")
_UVM: Final = re.compile(r"/nvidia-uvm( \(deleted\))?$")
_KERNEL_THREAD: Final = "kthreadd"
"""Process 2 of the first PID namespace, which no container's namespace has."""


def open_links(process: Path) -> list[str]:
    """The open files of a process; [] if it has ended. Raises PermissionError."""
    try:
        with os.scandir(process / "fd") as files:
            return [link_target(file.path) for file in islice(files, MAX_FILES)]
    except PermissionError:  # of another user, without CAP_SYS_PTRACE
        raise
    except OSError:
        return []


def openers(roots: Sequence[str], *, links: Callable[[Path], list[str]] = open_links) -> Facts:
    """``processes`` with UVM open, each with pid, name and the minors of its GPUs; ``complete`` if all were readable.

    ``roots`` are roots of the host, best first: the first one with the node's processes is read.
    """
    for root in dict.fromkeys(roots):
        proc = Path(root, "proc")
        if _text(f"{proc}/2/comm") == _KERNEL_THREAD:
            return _scan(proc, links)
    return {"complete": False, "processes": []}


def _scan(proc: Path, links: Callable[[Path], list[str]]) -> dict[str, object]:
    deadline = time.monotonic() + SCAN_S
    found: list[dict[str, object]] = []
    complete = True
    for name in os.listdir(proc):  # noqa: PTH208 - names, not paths
        if time.monotonic() > deadline:
            return {"complete": False, "processes": found}
        if not name.isdecimal():
            continue
        try:
            files = links(proc / name)
        except PermissionError:
            complete = False
            continue
        complete = complete and len(files) < MAX_FILES
        minors = _minors(files)
        if minors is not None:
            found.append({"pid": int(name), "name": _text(f"{proc}/{name}/comm"), "minors": minors})
    return {"complete": complete, "processes": found}


def _minors(links: Sequence[str]) -> list[int] | None:
    """Minors of the GPUs among open files; None without UVM."""
    if not any(_UVM.search(link) for link in links):
        return None
    return sorted({int(match[1]) for link in links if (match := _GPU.search(link))})


OWNER_FLAG = "--i-own-this-gpu"
XID_FLAG: Final = "--allow-xid"


class Consent(Struct, frozen=True, kw_only=True):
    """The user's consent. ``gpu`` is an NVML index or a UUID, "" for any."""

    owner: bool = False
    gpu: str = ""
    xid: bool = False


class GpuChoice(Struct, frozen=True, kw_only=True):
    """The GPU for checks that use one, or the reason for a missing one."""

    gpu: ChosenGpu | None = None
    reason: str = ""


def choose(survey: Facts, consent: Consent) -> GpuChoice:
    """Return the named GPU, else the first free one. Raises ConfigurationError if the named GPU does not exist, or the
    owner's consent names none of several GPUs."""
    found = survey_gpus(survey)
    if consent.gpu:
        found = [gpu for gpu in found if consent.gpu in {str(gpu["index"]), _value(gpu, "nvmlDeviceGetUUID")}]
        if not found and survey.get("gpus"):
            raise ConfigurationError(
                f"--gpu {consent.gpu[:80]}: GPU not found; name an index from 0 to {len(survey['gpus']) - 1} or a UUID",
                reason="GpuNotFound",
                gpu=consent.gpu,
            )
    elif consent.owner and len(found) > 1:
        raise ConfigurationError(
            f"{OWNER_FLAG}: this machine has {len(found)} GPUs; name the GPU to change with --gpu INDEX",
            reason="GpuNotNamed",
            gpus=len(found),
        )
    reasons = {gpu["index"]: busy(gpu, survey) for gpu in found}
    for gpu in found:
        if consent.owner or not reasons[gpu["index"]]:
            return GpuChoice(gpu=_chosen(gpu))
    texts = "; ".join(f"GPU {index} {reason}" for index, reason in reasons.items())
    return GpuChoice(reason=f"no free GPU: {texts or 'none answers'}")


def busy(gpu: Facts, survey: Facts) -> str:
    """The reason for which the GPU is busy, as the end of a sentence; "" if free. Unknown counts as busy."""
    processes = gpu["processes"]
    if "value" not in processes["Compute"]:
        return f"has processes that NVML does not report (code {processes['Compute'].get('code')})"
    listed = [one for answer in processes.values() for one in answer.get("value", ())]
    if listed:
        return f"has {len(listed)} processes: {_named(listed)}"
    opened = survey.get("openers", {"complete": False, "processes": []})
    minor = _value(gpu, "nvmlDeviceGetMinorNumber")
    computing = [one for one in opened["processes"] if minor in one["minors"]]
    if computing:
        return f"is open in {len(computing)} processes: {_named(computing)}"
    if not opened["complete"]:
        return "may have processes, because this process cannot read all processes of the node"
    claims = survey.get("claims", {})
    if "error" in claims:
        return f"may have claims: {claims['error']}"
    held = claims.get("held", {}).get(_value(gpu, "nvmlDeviceGetUUID"), 0)
    if held:
        return f"has {held} devices of claims prepared"
    mode = _value(gpu, "nvmlDeviceGetMigMode")
    return "is in MIG mode" if mode and mode[0] else ""


def _named(processes: Sequence[Facts]) -> str:
    return ", ".join(dict.fromkeys(f"{one['name'] or 'process'} ({one['pid']})" for one in processes[:3]))


def skip_reason(check: HardwareCheck, survey: Facts, consent: Consent, choice: GpuChoice) -> str:
    """The reason to skip the check; "" to run it."""
    if not survey.get("gpus"):
        return f"without a usable NVIDIA GPU it remains open whether {check.expected}"
    if "owner" in check.needs and not consent.owner:
        return f"it changes MIG mode and instances: allow it with {OWNER_FLAG}"
    if "xid" in check.needs and not consent.xid:
        return f"not tried: it leaves an XID in the kernel log and ends its own CUDA context; allow it with {XID_FLAG}"
    if "root" in check.needs and survey["machine"]["uid"] != 0:
        return "it needs root"
    needs_gpu = check.needs & {"free GPU", "owner"}
    if needs_gpu and choice.gpu is None:
        return f"{choice.reason}; use one anyway with {OWNER_FLAG}"
    if "owner" in check.needs and choice.gpu is not None and not choice.gpu.has_mig:
        return f"GPU {choice.gpu.index} does not support MIG"
    return ""


def _chosen(gpu: Facts) -> ChosenGpu:
    return ChosenGpu(
        index=gpu["index"],
        uuid=str(_value(gpu, "nvmlDeviceGetUUID")),
        minor=int(_value(gpu, "nvmlDeviceGetMinorNumber")),
        has_mig=_value(gpu, "nvmlDeviceGetMigMode") is not None,
    )


def _value(gpu: Facts, name: str) -> Any:
    return gpu["answers"][name].get("value")


def counted(task: Task) -> Topics:
    """Topics ``gpus`` (number of described GPUs) and ``left``: GPUs that do not answer, each with the reason."""
    with opened(task.library) as backend:
        found = backend.snapshot()
        yield "gpus", len(found.gpus)
        yield "left", [f"{each.label}: {each.reason}" for each in found.left_out]
