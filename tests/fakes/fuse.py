"""Kills and failures at a chosen step, by an exception that the driver does not catch; needs no privilege."""

import errno
import os
from collections.abc import Collection
from typing import Any

from dra_driver.hardware.cdi.folder import Files


class Killed(BaseException):
    """The process is gone."""


class Fuse:
    """Counts steps down and raises `Killed` at the end; ``left`` None never does."""

    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise Killed
        self.left -= 1


class Fused:
    """Passes every call on to ``target``; calls named in ``steps`` count as a step before and after their effect."""

    def __init__(self, target: Any, fuse: Fuse, steps: Collection[str]) -> None:
        self._target = target
        self._fuse = fuse
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in self._steps:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._fuse.step()
            answer = found(*args, **kwargs)
            self._fuse.step()
            return answer

        return call


WRITE_STEPS = ("create_temporary", "write", "set_mode", "sync", "close", "replace", "sync_folder")
"""The calls of one write into an existing folder, in order."""


def _flaky(step: str) -> Any:
    def call(files: "FlakyFiles", *args: Any) -> Any:
        files._at(step)
        return getattr(Files, step)(files, *args)

    return call


class FlakyFiles(Files):
    """Raise ``failure`` at ``step``, before the call's effect, and after a `Killed` at every later call as well."""

    def __init__(self, step: str = "", failure: BaseException | None = None) -> None:
        self.step = step
        self.failure = failure or error(errno.ENOSPC)
        self.calls: list[str] = []

    def _at(self, step: str) -> None:
        is_dead = isinstance(self.failure, Killed) and self.step in self.calls
        self.calls.append(step)
        if step == self.step or is_dead:
            raise self.failure

    def write(self, fd: int, data: bytes) -> None:
        if self.step == "write":
            super().write(fd, data[: len(data) // 2])  # a full disk takes what it can first
        self._at("write")
        super().write(fd, data)

    def close(self, fd: int) -> None:
        super().close(fd)  # the kernel frees the descriptor of a failed close, and those of a dead process
        self._at("close")

    make_folder = _flaky("make_folder")
    create_temporary = _flaky("create_temporary")
    set_mode = _flaky("set_mode")
    sync = _flaky("sync")
    replace = _flaky("replace")
    sync_folder = _flaky("sync_folder")
    list = _flaky("list")
    remove = _flaky("remove")


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
