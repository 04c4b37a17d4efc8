"""A file system that fails, or whose process dies, at a chosen call.

Every other call goes to the real file system. Needs no privilege and no special mount, so it shows the
same for root as for a developer.
"""

import errno
import os

from dra_driver.hardware.cdi.writer import Files

WRITE_STEPS = ("create_temporary", "write", "set_mode", "sync", "close", "replace", "sync_folder")
"""The calls of one write into an existing folder, in order."""


class Died(BaseException):
    """The process is gone: nothing that would run afterwards may have an effect."""


class FlakyFiles(Files):
    """Raises ``failure`` at ``step``, before the call has its effect; ``calls`` are the names so far.

    After a `Died` every later call raises it again, because a dead process cleans nothing up.
    """

    def __init__(self, step: str = "", failure: BaseException | None = None) -> None:
        self.step = step
        self.failure = failure or error(errno.ENOSPC)
        self.calls: list[str] = []

    def _at(self, step: str) -> None:
        is_dead = isinstance(self.failure, Died) and self.step in self.calls
        self.calls.append(step)
        if step == self.step or is_dead:
            raise self.failure

    def make_folder(self, folder: str) -> None:
        self._at("make_folder")
        super().make_folder(folder)

    def create_temporary(self, folder: str, prefix: str) -> tuple[int, str]:
        self._at("create_temporary")
        return super().create_temporary(folder, prefix)

    def write(self, fd: int, data: bytes) -> None:
        if self.step == "write":
            super().write(fd, data[: len(data) // 2])  # a full disk takes what it can first
        self._at("write")
        super().write(fd, data)

    def set_mode(self, fd: int, mode: int) -> None:
        self._at("set_mode")
        super().set_mode(fd, mode)

    def sync(self, fd: int) -> None:
        self._at("sync")
        super().sync(fd)

    def close(self, fd: int) -> None:
        super().close(fd)  # the kernel frees the descriptor of a failed close, and those of a dead process
        self._at("close")

    def replace(self, source: str, target: str) -> None:
        self._at("replace")
        super().replace(source, target)

    def sync_folder(self, folder: str) -> None:
        self._at("sync_folder")
        super().sync_folder(folder)

    def list(self, folder: str) -> list[str]:
        self._at("list")
        return super().list(folder)

    def remove(self, path: str) -> bool:
        self._at("remove")
        return super().remove(path)


def error(number: int) -> OSError:
    """The OSError that a system call would give."""
    return OSError(number, os.strerror(number))
