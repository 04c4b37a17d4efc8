"""One NVML call at a time per GPU: changes go before reads, and a call that hangs is known as such.

A call inside the driver cannot be cancelled. As every call for a GPU needs its turn, a GPU that hangs keeps at most one
thread; all others wait for a bounded time and say for how long it has not answered.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

from msgspec import Struct

from dra_driver.core.errors import DeviceLostError


class Patience(Struct, frozen=True, kw_only=True):
    """How long NVML may take, in seconds. Tests have less.

    ``look_s``: one read of a GPU; ``first_look_s``: its first one in a session, which without persistence mode
    initialises it. ``stuck_s``: a call older than that hangs. ``change_s``: the wait of a change for its turn, less
    than the 45 s that the kubelet gives a call. ``read_s``: the wait of a read for its turn. ``end_s``: the wait for
    the end of a session; the slowest calls, MIG mode and instances, take seconds.
    """

    look_s: float = 5.0
    first_look_s: float = 15.0
    stuck_s: float = 15.0
    change_s: float = 30.0
    read_s: float = 1.0
    end_s: float = 10.0


class GiveWay(Exception):  # noqa: N818 - no error: the read is repeated
    """A change waits for this GPU, or has it. Never leaves the backend."""


class Turn:
    """The turn of one GPU. Thread-safe, not re-entrant."""

    def __init__(self, name: str, patience: Patience) -> None:
        self._name = name
        self._patience = patience
        self._turn = threading.Condition()  # guards the fields below; never held during an NVML call
        self._since: float | None = None  # when the thread that has it got it
        self._wanted = 0  # how many changes wait for it

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Raises DeviceLostError when the call before hangs, or does not return in time."""
        with self._turn:
            self._wanted += 1
            try:
                deadline = time.monotonic() + self._patience.change_s
                while self._since is not None:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or self.is_stuck():
                        raise DeviceLostError(self.why_stuck())
                    self._turn.wait(min(left_s, self._patience.stuck_s / 4))
            finally:
                self._wanted -= 1
            self._since = time.monotonic()
        try:
            yield
        finally:
            self._give_back()

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Raises GiveWay when a change has the GPU or waits for it."""
        with self._turn:
            if not self._turn.wait_for(lambda: self._since is None and not self._wanted, self._patience.read_s):
                raise GiveWay
            self._since = time.monotonic()
        try:
            yield
        finally:
            self._give_back()

    def give_way(self) -> None:
        """To be called between the calls of a long read. Raises GiveWay when a change waits."""
        if self._wanted:
            raise GiveWay

    def is_stuck(self) -> bool:
        """Whether the thread that has it has had it for so long that its call hangs."""
        since = self._since
        return since is not None and time.monotonic() - since >= self._patience.stuck_s

    def why_stuck(self) -> str:
        """A sentence that stays the same while it is stuck, because it is published."""
        return (
            f"GPU {self._name} does not answer: an NVML call has not returned for {self._patience.stuck_s:.0f} s; "
            "see XID messages in the node's kernel log; reset the GPU or reboot the node if this persists"
        )

    def _give_back(self) -> None:
        with self._turn:
            self._since = None
            self._turn.notify_all()
