"""Runs a command whose system calls that change files are decided by another process: ``syscall_faults.Supervisor``.

Installs a seccomp filter with user notification (seccomp(2), Linux 5.5), sends its descriptor to the supervisor's
socket and becomes the command. Needs no privilege. Children of the command are filtered too.

usage: python -m tests.chaos.under_filter SOCKET COMMAND...
"""

import array
import ctypes
import os
import platform
import socket
import struct
import sys
from typing import Final

ARCHES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "openat": 257,
        "pwrite64": 18,
        "fsync": 74,
        "fdatasync": 75,
        "ftruncate": 77,
        "rename": 82,
        "renameat": 264,
        "renameat2": 316,
        "mkdir": 83,
        "mkdirat": 258,
        "unlink": 87,
        "unlinkat": 263,
    },
    "aarch64": {
        "openat": 56,
        "pwrite64": 68,
        "fsync": 82,
        "fdatasync": 83,
        "ftruncate": 46,
        "renameat": 38,
        "renameat2": 276,
        "mkdirat": 34,
        "unlinkat": 35,
    },
}
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_NUMBER_AT, _ARCH_AT, _FLAGS_AT = 0, 4, 32  # in struct seccomp_data; the flags are openat's third argument
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 8


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def supported() -> bool:
    """Whether this machine's architecture is known here."""
    return platform.machine() in NUMBERS


def instructions() -> list[tuple[int, int, int, int]]:
    """The filter: notify for the calls of NUMBERS, for openat only where it may change a file."""
    numbers = dict(NUMBERS[platform.machine()])
    openat = numbers.pop("openat")
    code = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_JUMP_EQUAL, 1, 0, ARCHES[platform.machine()]),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_EQUAL, 0, 3, openat),
        (_LOAD, 0, 0, _FLAGS_AT),
        (_JUMP_SET, len(numbers) + 2, 0, _CHANGES),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for place, number in enumerate(numbers.values()):
        code.append((_JUMP_EQUAL, len(numbers) - place, 0, number))
    return [*code, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]


def install() -> int:
    """Filter this process; returns the listener's descriptor. Raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("=HBBI", *each) for each in instructions())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener: int = libc.syscall(SECCOMP[platform.machine()], _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program))
    if listener < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
    return listener


def main(arguments: list[str]) -> None:
    path, *command = arguments
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.connect(path)
        listener = install()
        supervisor.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
        supervisor.recv(1)
        os.close(listener)
    os.execvp(command[0], command)  # noqa: S606 - the command of the test


if __name__ == "__main__":
    main(sys.argv[1:])
