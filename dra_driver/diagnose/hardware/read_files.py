"""Read what the kernel says about NVIDIA's devices (check 7), and the files of the driver's installation (check 8)."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.diagnose.hardware import mounts
from dra_driver.diagnose.hardware.task import Task
from dra_driver.hardware.cdi import discover
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.search import find_program
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.sharing import programs

Topics = Iterator[tuple[str, Any]]

CTK: Final = "nvidia-ctk"
TOOLKIT_FOLDERS: Final = ("/usr/bin", "/usr/local/nvidia/toolkit")
_CAPABILITIES: Final = ("mig/config", "mig/monitor", "fabric-imex-mgmt", "fabric-mgmt")
_PROGRAM_S: Final = 20.0
_MAX_FILE: Final = 1 << 18
_MAX_LISTED: Final = 16


def kernel(task: Task) -> Topics:
    """Device numbers, modules, nodes and links, each as it stands in the kernel's files."""
    yield "proc_devices", _text(task.proc_devices)
    modules = _text("/proc/modules").splitlines()
    yield "modules", [line.split(None, 5)[:3] for line in modules if line.startswith("nvidia")]
    dev = Path(f"{task.dev_root.rstrip('/')}/dev")
    yield "nodes", mounts.device_files(dev)
    yield "links", _char_links(dev / "char")
    driver = Path(task.proc_driver)
    yield "params", _text(driver / "nvidia/params")
    folder = driver / "nvidia/capabilities"
    yield "capabilities", {name: _text(folder / name) for name in _CAPABILITIES if (folder / name).exists()}
    minors = _text(driver / "nvidia-caps/mig-minors").splitlines()
    yield "mig_minors", {"lines": len(minors), "first": minors[:_MAX_LISTED]}


def files(task: Task) -> Topics:
    """The driver's files as this driver finds them, as nvidia-ctk lists them, and as the linker's cache has them."""
    backend = NvmlBackend(task.library)
    backend.open()
    yield "nvml", probes.ask(probes.pynvml.nvmlSystemGetDriverVersion)
    backend.close()
    yield "own", _own(task)
    yield "ctk", _ctk(task)
    yield "ldconfig", _ldconfig(task)


def _own(task: Task) -> dict[str, Any]:
    try:
        found = discover(task.driver_root)
    except DriverUnavailableError as error:
        return {"error": str(error)}
    return {
        "version": found.version,
        "multiarch": found.multiarch,
        "libraries": [[library.path, library.soname] for library in found.libraries],
        "files": [[file.path, file.container_path] for file in found.files],
        "sockets": [[file.path, file.container_path] for file in found.sockets],
    }


def _ctk(task: Task) -> dict[str, Any]:
    """What ``nvidia-ctk cdi generate`` would mount: ``mounts`` as host and container path, or ``error``."""
    root = next((root for root in dict.fromkeys((task.host, "/")) if _toolkit(root)), None)
    if root is None:
        return {"error": f"no {CTK} in {', '.join(TOOLKIT_FOLDERS)}"}
    # Below another root it runs with that root as its own, as it would on the host.
    command = [_toolkit(root) or "", "cdi", "generate", "--format=json"]
    if task.driver_root.host_root:
        command.append(f"--driver-root={task.driver_root.host_root}")
    entered = [] if programs.is_own(root) else [shutil.which("chroot", path=programs.OWN_PATH) or "chroot", root]
    # Into a file of this process, and without what it logs: it prints more than `Running` keeps.
    file = Path(task.folder, "ctk.json")
    try:
        ended = process.Running(
            ["/bin/sh", "-c", 'exec "$@" > "$0" 2>/dev/null', str(file), *entered, *command],
            environment={"PATH": programs.OWN_PATH, "LC_ALL": "C"},
            within_s=_PROGRAM_S,
        ).wait()
    except OSError as error:
        return {"error": f"{CTK} cannot be started: {error}"}
    text = _text(file, 4 << 20)
    return _parsed_ctk(text, ended.status) | {"command": command}


def _parsed_ctk(text: str, status: int | None) -> dict[str, Any]:
    try:
        edits = json.loads(text)["containerEdits"]
        listed = [[one["hostPath"], one["containerPath"]] for one in edits.get("mounts", ())]
        hooks = [" ".join(one.get("args", ())) for one in edits.get("hooks", ())]
        nodes = [one["path"] for one in edits.get("deviceNodes", ())]
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"{CTK} ended with status {status}, and its output cannot be read: {error}"}
    return {"status": status, "mounts": listed, "hooks": hooks, "nodes": nodes}


def _toolkit(root: str) -> str | None:
    """The program's path below ``root``, as a process with that root sees it."""
    prefix = root.rstrip("/")
    return next(
        (f"{folder}/{CTK}" for folder in TOOLKIT_FOLDERS if os.access(f"{prefix}{folder}/{CTK}", os.X_OK)), None
    )


def _ldconfig(task: Task) -> dict[str, Any]:
    """``libraries``: path by name, of NVIDIA's 64-bit libraries in the linker's cache of the driver root."""
    program = find_program("/", "ldconfig") or find_program(task.root, "ldconfig")
    if program is None:
        return {"error": "no ldconfig"}
    cache = f"{task.root.rstrip('/')}/etc/ld.so.cache"
    try:
        ended = process.run(
            ["/bin/sh", "-c", 'exec "$0" "$@" | grep -E "nvidia|libcuda|libnv"', program, "-p", "-C", cache],
            environment={"PATH": programs.OWN_PATH, "LC_ALL": "C"},
            within_s=_PROGRAM_S,
        )
    except OSError as error:
        return {"error": f"ldconfig cannot be started: {error}"}
    found: dict[str, str] = {}
    for line in ended.output.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and ("x86-64" in name or "AArch64" in name):
            found.setdefault(name.split()[0], path.strip())
    return {"status": ended.status, "libraries": found}


def _char_links(folder: Path) -> dict[str, str]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
    except OSError:
        return {}
    links = {name: _link(folder / name) for name in names}
    return {name: target for name, target in links.items() if "nvidia" in target}


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _text(path: Path | str, limit: int = _MAX_FILE) -> str:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""
