"""Killing at a chosen step: an exception that nothing in the driver catches, before or after a call has its effect."""

from collections.abc import Collection
from typing import Any


class Killed(BaseException):
    """The process is gone."""


class Fuse:
    """Burns down with every step; ``None`` never."""

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
    """Passes everything on to ``target``; each call of ``steps`` may be the last, before or after its effect."""

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
