"""Decide system calls of a child process that change files, before their effect: pass, fail, or kill the process.

``python -m tests.fakes.syscalls SOCKET COMMAND`` installs a seccomp filter with user notification (Linux 5.5, no
privilege), sends its descriptor to the `Supervisor` at SOCKET and becomes COMMAND."""

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctls of linux/seccomp.h
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=Qqi I")
_CONTINUE = 1
_BY_DESCRIPTOR = {"pwrite64", "fsync", "fdatasync", "ftruncate"}
_PATH_ARGUMENT = {"rename": 1, "mkdir": 0, "unlink": 0, "renameat": 3, "renameat2": 3}  # others: 1
PASS = 0
KILL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call, before its effect; ``path`` is the file that it changes, for a rename the new name."""

    call: str
    path: str
    pid: int  # the thread's id
    flags: int = 0  # the flags of an openat

    @property
    def writes(self) -> bool:
        return self.call == "openat" and (self.flags & (os.O_WRONLY | os.O_RDWR) != 0 or not Path(self.path).exists())

    def __str__(self) -> str:
        return f"{self.call} {self.path}"


Rule = Callable[[Step], int]  # PASS, KILL, or the errno with which the call fails


class Supervisor:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "supervisor"
        self.rule: Rule = lambda step: PASS
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen(4)
        self._names = {number: name for name, number in NUMBERS[platform.machine()].items()}
        self._ended = threading.Event()

    def wrap(self) -> list[str]:
        return [sys.executable, "-m", "tests.fakes.syscalls", str(self.path)]

    def __enter__(self) -> "Supervisor":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4))
                if ancillary:
                    listener = array.array("i", ancillary[0][2][:4])[0]
                    threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def _serve(self, listener: int) -> None:
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        try:
            while True:
                events = poller.poll(1000)
                if any(found & (select.POLLHUP | select.POLLERR) for _, found in events):
                    return
                if events:
                    self._one(listener)
        finally:
            os.close(listener)

    def _one(self, listener: int) -> None:
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
        except OSError as found:
            if found.errno in (errno.ENOENT, errno.EINTR):  # the process died meanwhile
                return
            raise
        number, pid, _, call, _, _, *arguments = _NOTICE.unpack(notice)
        decision = PASS
        with contextlib.suppress(OSError):  # a process that is gone
            decision = self.rule(self._step(pid, self._names[call], arguments))
        if decision == KILL:
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                os.kill(int(status.split("Tgid:")[1].split()[0]), signal.SIGKILL)
            return
        flags = 0 if decision else _CONTINUE
        answer = _ANSWER.pack(number, 0, -decision, flags)
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _SEND, bytearray(answer))

    @staticmethod
    def _step(pid: int, call: str, arguments: list[int]) -> Step:
        if call in _BY_DESCRIPTOR:
            path = str(Path(f"/proc/{pid}/fd/{arguments[0]}").readlink())
        else:
            path = _text(pid, arguments[_PATH_ARGUMENT.get(call, 1)])
            if not path.startswith("/"):
                path = str(Path(f"/proc/{pid}/cwd").readlink() / path)
        return Step(call=call, path=path, pid=pid, flags=arguments[2] if call == "openat" else 0)


def _text(pid: int, address: int) -> str:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        found = memory.read(min(4096, 4096 - address % 4096 + 4096))
    return ctypes.create_string_buffer(found).value.decode(errors="replace")


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


def inotify_is_used_up() -> bool:
    """Raises OSError for any other reason (inotify_init1(2))."""
    descriptor = int(ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC))
    if descriptor >= 0:
        os.close(descriptor)
        return False
    number = ctypes.get_errno()
    if number != errno.EMFILE:
        raise OSError(number, os.strerror(number))
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
