"""The devices of prepared claims, read from the journal when claims changed."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from dra_driver.core.errors import DraError
from dra_driver.node.process.health_report import ReportedDevice

log = logging.getLogger(__name__)

CLAIMED_S: Final = 300.0
"""The claims are read again after this time, should a change of them have been missed: it reads all of them."""


class ClaimedDevices:
    """``changed`` is for any thread, ``current`` for one. ``read`` reads the journal and may raise StorageError."""

    def __init__(
        self, read: Callable[[], Iterable[ReportedDevice]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._anew = threading.Event()  # claims changed since they were read
        self._devices: tuple[ReportedDevice, ...] = ()
        self._read_at = float("-inf")

    def changed(self) -> None:
        """Claims came or left. Returns at once."""
        self._anew.set()

    def current(self) -> tuple[ReportedDevice, ...]:
        """The devices, those of admin access too; the last ones that could be read."""
        now = self._clock()
        if not self._anew.is_set() and now - self._read_at < CLAIMED_S:
            return self._devices
        self._anew.clear()  # before the read: a change during it counts
        try:
            self._devices = tuple(self._read())
            self._read_at = now
        except DraError as error:
            self._anew.set()
            log.warning("the kubelet is told the health of the devices that claims had", extra={"reason": error})
        return self._devices
