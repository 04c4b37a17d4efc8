"""Which processes of the node compute on its GPUs, from their open files.

NVML does not tell a process in a container about processes of other PID namespaces. A program that computes has
/dev/nvidia-uvm and its GPU's node open; a monitor has the GPU's node alone. The processes of the whole node are in a
proc file system of the first PID namespace: below the mounted host root, or in this process' own on the host itself.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

SCAN_S: Final = 5.0
MAX_FILES: Final = 65536
"""Of one process; one that has more may compute, whatever the first ones are."""
_GPU: Final = re.compile(r"/nvidia(\d{1,4})( \(deleted\))?$")
_UVM: Final = re.compile(r"/nvidia-uvm( \(deleted\))?$")
_KERNEL_THREAD: Final = "kthreadd"
"""Process 2 of the first PID namespace, which no container's own namespace has."""


def open_links(process: Path) -> list[str]:
    """What the open files of a process are; [] when it has ended. Raises PermissionError."""
    try:
        with os.scandir(process / "fd") as files:
            return [_target(file.path) for file in islice(files, MAX_FILES)]
    except PermissionError:  # of another user, without CAP_SYS_PTRACE
        raise
    except OSError:
        return []


def openers(roots: Sequence[str], *, links: Callable[[Path], list[str]] = open_links) -> dict[str, Any]:
    """``processes`` with UVM open, each with pid, name and the minors of its GPUs; ``complete`` when all were seen.

    ``roots`` are roots of the host, best first: the first with the node's processes is read.
    """
    for root in dict.fromkeys(roots):
        proc = Path(root, "proc")
        if _text(proc / "2/comm") == _KERNEL_THREAD:
            return _scan(proc, links)
    return {"complete": False, "processes": []}


def _scan(proc: Path, links: Callable[[Path], list[str]]) -> dict[str, Any]:
    deadline = time.monotonic() + SCAN_S
    found: list[dict[str, Any]] = []
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
            found.append({"pid": int(name), "name": _text(proc / name / "comm"), "minors": minors})
    return {"complete": complete, "processes": found}


def _minors(links: Sequence[str]) -> list[int] | None:
    """Minors of the GPUs among open files; None without UVM."""
    if not any(_UVM.search(link) for link in links):
        return None
    return sorted({int(match[1]) for link in links if (match := _GPU.search(link))})


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - thousands of links on a node
    except OSError:  # closed meanwhile
        return ""


def _text(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""
