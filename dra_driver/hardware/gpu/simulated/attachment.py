"""Whether this process uses the simulated GPUs: what a session is for real ones.

With a state file, a process that uses them keeps ``<state file>.open`` locked, as a real one keeps device files open.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import DetachedError
from dra_driver.core.files import lock_file


def is_open(state_file: Path) -> bool:
    """Whether any process uses the simulated GPUs of that state file: then their "kernel module" cannot be removed."""
    try:
        os.close(lock_file(_open_file(state_file)))
    except BlockingIOError:
        return True
    return False


class Attachment:
    """The calls that run now, and the reason why no other may begin. Thread-safe."""

    def __init__(self, state_file: Path | None = None) -> None:
        self._file = None if state_file is None else _open_file(state_file)
        self._turn = threading.Condition()  # guards the fields below
        self._descriptor: int | None = None
        self._calls = 0
        self._detached: str | None = None

    @property
    def detached(self) -> str | None:
        """The reason given to ``detach``; None while calls are allowed."""
        return self._detached

    def detach(self, reason: str, timeout_s: float) -> bool:
        """Refuse new calls and wait for running ones; whether none is left."""
        with self._turn:
            self._detached = reason
            self._close_if_unused()
            return self._turn.wait_for(lambda: self._calls == 0, timeout_s)

    def close(self) -> None:
        """The process stops using them; the next call uses them again."""
        with self._turn:
            self._close_if_unused()

    def reattach(self) -> None:
        """Allow calls again."""
        with self._turn:
            self._detached = None
            self._turn.notify_all()

    def wait_attached(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until calls are allowed; whether they are."""
        with self._turn:
            return self._turn.wait_for(lambda: self._detached is None, timeout_s)

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """A call of the interface. Raises DetachedError."""
        with self._turn:
            if self._detached is not None:
                raise DetachedError(self._detached)
            self._calls += 1
            self._open()
        try:
            yield
        finally:
            with self._turn:
                self._calls -= 1
                if self._detached is not None:
                    self._close_if_unused()
                self._turn.notify_all()

    def _open(self) -> None:
        if self._file is not None and self._descriptor is None:
            with contextlib.suppress(OSError):  # no folder yet
                self._descriptor = lock_file(self._file, shared=True)

    def _close_if_unused(self) -> None:
        if self._calls == 0 and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_file(state_file: Path) -> Path:
    return state_file.with_name(f"{state_file.name}.open")
