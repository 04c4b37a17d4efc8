"""Whether this process uses the simulated GPUs: what a session is for real ones."""

import contextlib
import threading
from collections.abc import Iterator

from dra_driver.errors import DetachedError


class Attachment:
    """The calls that run now, and the reason why no other may begin. Thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Condition()  # guards the fields below
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
            return self._turn.wait_for(lambda: self._calls == 0, timeout_s)

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
        try:
            yield
        finally:
            with self._turn:
                self._calls -= 1
                self._turn.notify_all()
