"""See which files a Python child process syncs, by ptrace(2), the only proof that a write was requested to reach the
disk. A process may trace its child without privilege. ``PTRACE_GET_SYSCALL_INFO`` needs Linux 5.3."""

import ctypes
import errno
import os
import platform
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "mark: "  # A line of the child on standard error that begins so is reported between the syncs

_NUMBERS: Final = {  # write, fsync, fdatasync
    "x86_64": (1, 74, 75),
    "aarch64": (64, 82, 83),
}
_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_TRACESYSGOOD, _EXITKILL = 0x1, 0x100000
_ENTRY: Final = 1
_STDERR: Final = 2


class _Info(ctypes.Structure):
    """``struct ptrace_syscall_info`` as it is at the entry of a call."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("nr", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
    )


@dataclass(frozen=True)
class Sync:
    path: str


def supported() -> bool:
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return platform.machine() in _NUMBERS and release >= (5, 3)


def syncs_between_marks(module: str, *arguments: str) -> dict[str, list[Sync]]:
    """The syncs of the main thread of ``python -m module`` after each mark, by the mark's text. The child must end with
    0."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long

    def trace_me() -> None:
        libc.ptrace(_TRACEME, 0, None, None)

    command = [sys.executable, "-m", module, *arguments]
    child = subprocess.Popen(command, preexec_fn=trace_me, stderr=subprocess.DEVNULL)  # noqa: PLW1509 - ptrace's way
    os.waitpid(child.pid, 0)
    libc.ptrace(_SETOPTIONS, child.pid, None, _TRACESYSGOOD | _EXITKILL)
    found: dict[str, list[Sync]] = {"": []}
    mark, passed_on = "", 0
    while True:
        libc.ptrace(_SYSCALL, child.pid, None, passed_on)
        _, status = os.waitpid(child.pid, 0)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            child.returncode = os.waitstatus_to_exitcode(status)
            assert child.returncode == 0, f"{module} ended with status {child.returncode}"
            return found
        stopped_by = os.WSTOPSIG(status)
        passed_on = 0
        if stopped_by != signal.SIGTRAP | 0x80:
            passed_on = stopped_by if stopped_by != signal.SIGTRAP else 0
            continue
        info = _Info()
        libc.ptrace(_GET_SYSCALL_INFO, child.pid, ctypes.sizeof(info), ctypes.byref(info))
        if info.op != _ENTRY:
            continue
        write, *syncs = _NUMBERS[platform.machine()]
        if info.nr in syncs:
            found[mark].append(Sync(str(Path(f"/proc/{child.pid}/fd/{info.args[0]}").readlink())))
        elif info.nr == write and info.args[0] == _STDERR:
            text = _memory(child.pid, info.args[1], info.args[2])
            if text.startswith(MARK):
                mark = text.removeprefix(MARK).strip()
                found.setdefault(mark, [])


def _memory(pid: int, address: int, size: int) -> str:
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(address)
        return memory.read(min(size, 4096)).decode(errors="replace")


_libc = ctypes.CDLL(None, use_errno=True)


def inotify_is_used_up() -> bool:
    """Raises OSError for any other reason (inotify_init1(2))."""
    descriptor = int(_libc.inotify_init1(os.O_CLOEXEC))
    if descriptor >= 0:
        os.close(descriptor)
        return False
    number = ctypes.get_errno()
    if number != errno.EMFILE:
        raise OSError(number, os.strerror(number))
    return True
