"""Pauses new prepares while this process gives up the NVIDIA driver, and knows when no call works on claims any more.

Closing the gate comes before the driver is closed: a call that changes a GPU in several steps, such as creating a MIG
partition, ends by itself first. A claim that is prepared already is still answered, and an unprepare still runs. An
attempt of a call counts as work, the pauses between its attempts do not.
"""

import contextlib
import threading
from collections.abc import Iterator

from dra_driver.core.errors import RetryableError
from dra_driver.core.model.claim import ClaimRef


class PreparesPausedError(RetryableError):
    """New claims are not prepared now; the message says who asked for that and how it ends."""


class PrepareGate:
    """Open at first. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._closed: str | None = None
        self._working = 0

    @property
    def closed(self) -> str | None:
        """Why new prepares are paused, as a sentence; None while they are not."""
        return self._closed

    def close(self, reason: str) -> None:
        """Refuse new prepares with ``reason``; a later reason replaces an earlier one."""
        with self._changed:
            self._closed = reason

    def open(self) -> None:
        """Let new prepares in again. Idempotent."""
        with self._changed:
            self._closed = None

    def check(self, ref: ClaimRef) -> None:
        """Raise `PreparesPausedError` for a claim that would be prepared now. Called inside `work`."""
        reason = self._closed
        if reason is not None:
            raise PreparesPausedError(f"claim {ref} is not prepared: {reason}; the kubelet tries again")

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        with self._changed:
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until no call works on claims; whether none does. Useful while the gate is closed:
        what passed `check` before `close` is then over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._working == 0, timeout_s)
