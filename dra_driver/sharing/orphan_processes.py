"""Find and kill processes that an MPS host left behind.

Every process that a host starts has the daemon's folder in its environment (`control.MARK`), and servers inherit it
from their daemon. The kernel kills the children of a host that dies, but not the processes that they had started.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_driver.driver_root.process import Clock, Sleep

_STEP_S: Final = 0.02
_MAX_ENVIRONMENT: Final = 64 * 1024


def kill(
    mark: str, under: Path, *, within_s: float, sleep: Sleep = time.sleep, clock: Clock = time.monotonic
) -> tuple[int, ...]:
    """Kill every process whose environment has ``mark`` with ``under`` or a path below it, and wait until they end.

    Returns those that did not end within ``within_s``: they are stuck in the kernel. Needs permission to read the
    environment of processes of other users.
    """
    deadline = clock() + within_s
    while left := find(mark, under):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if clock() >= deadline:
            return left
        sleep(_STEP_S)
    return ()


def find(mark: str, under: Path) -> tuple[int, ...]:
    """Their process ids, without this process. Zombies have no environment and are not found."""
    exact, below = f"{mark}={under}".encode(), f"{mark}={under}/".encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names, not paths
        if name.isdigit() and int(name) != os.getpid() and _has(int(name), exact, below):
            found.append(int(name))
    return tuple(found)


def _has(pid: int, exact: bytes, below: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - thousands of them, quickly
            entries = file.read(_MAX_ENVIRONMENT).split(b"\0")
    except OSError:
        return False
    return any(entry == exact or entry.startswith(below) for entry in entries)
