"""Kills at a chosen step: raises an exception that the driver does not catch, before or after the call's effect."""

from collections.abc import Collection
from typing import Any


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
