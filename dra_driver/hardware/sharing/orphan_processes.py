"""Find and kill processes that an MPS host left behind, by the daemon's folder in their environment (`control.MARK`).

The kernel kills the children of a host that dies, but not the servers that they started. Only processes of this cgroup,
that is, container, are read: processes of another container ended with it. Reading the environment of a process that is
stuck in the kernel can hang (proc(5)), so an abandoned thread does it; it holds no lock, so the host may fork.
"""

import os
import signal
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from dra_driver.hardware.driver_root.process import Clock, Sleep

READ_S: Final = 0.5
"""Time limit of reading one environment, which takes microseconds."""
_STEP_S: Final = 0.02
_MAX_ENVIRONMENT: Final = 64 * 1024
_MAX_CGROUP: Final = 16 * 1024
_PROC: Final = Path("/proc")

_stuck: set[tuple[int, str]] = set()
"""Processes, by id and start time, whose environment could not be read in time: a thread hangs for each of them."""


def kill(
    mark: str, under: Path, *, within_s: float, sleep: Sleep = time.sleep, clock: Clock = time.monotonic
) -> tuple[int, ...]:
    """Kill every process whose environment has ``mark`` with ``under`` or a path below it. Return processes that run
    longer than ``within_s``: they hang in the kernel. Needs permission to read environments."""
    deadline = clock() + within_s
    while left := find(mark, under):
        for pid in left:
            _kill(pid, mark, under)
        if clock() >= deadline:
            return left
        sleep(_STEP_S)
    return ()


def find(mark: str, under: Path, *, proc: Path = _PROC, read_s: float = READ_S) -> tuple[int, ...]:
    """Their process ids, without this process. Zombies have no environment and are not found."""
    own = os.getpid()
    group = _cgroup(proc, own)
    others = [int(name) for name in os.listdir(proc) if name.isdigit() and int(name) != own]  # noqa: PTH208 - names
    return tuple(pid for pid in others if _cgroup(proc, pid) == group and _has(proc, pid, mark, under, read_s))


def _kill(pid: int, mark: str, under: Path) -> None:
    """Kill the process if it is still the found one, and not another that got its id."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if _has(_PROC, pid, mark, under, READ_S):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _cgroup(proc: Path, pid: int) -> bytes | None:
    try:
        return _read(f"{proc}/{pid}/cgroup", _MAX_CGROUP)
    except OSError:
        return None


def _has(proc: Path, pid: int, mark: str, under: Path, read_s: float) -> bool:
    exact, below = f"{mark}={under}".encode(), f"{mark}={under}/".encode()
    return any(entry == exact or entry.startswith(below) for entry in _environment(proc, pid, read_s))


def _environment(proc: Path, pid: int, read_s: float) -> Collection[bytes]:
    """The entries; none when they cannot be read in time."""
    known = (pid, _start_time(proc, pid))
    if known in _stuck:
        return ()
    answer: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        try:
            answer.put(_read(f"{proc}/{pid}/environ", _MAX_ENVIRONMENT))
        except OSError:  # it has ended, or belongs to another user
            answer.put(b"")

    threading.Thread(target=read, name="environ", daemon=True).start()
    try:
        return answer.get(timeout=read_s).split(b"\0")
    except Empty:
        _stuck.add(known)
        return ()


def _start_time(proc: Path, pid: int) -> str:
    """Field 22 of proc_pid_stat(5), which distinguishes processes with the same id; "" for an ended process."""
    try:
        return _read(f"{proc}/{pid}/stat", 4096).rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def _read(path: str, most: int) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - thousands of them, quickly
        return file.read(most)
