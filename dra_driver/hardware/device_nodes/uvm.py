"""Load nvidia-uvm, without which no CUDA program starts, where the NVIDIA driver is loaded without it.

Most installations do not load it at boot: a CUDA program of the host loads it through ``nvidia-modprobe``, which a
container without privileges cannot. NVML does not need it, so a node without it looks sound.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.device_nodes.tools import Outcome

log = logging.getLogger(__name__)

RETRY_S: Final = 30.0
"""Between two tries to load it."""
UNLOADED_S: Final = 60.0
"""A module that was unloaded is not loaded again for so long: an administrator may be replacing the driver."""


class UvmTools(Protocol):
    """The part of ``tools.DriverTools`` that is needed here."""

    def load_uvm(self) -> Outcome: ...


class UvmModule:
    """Gives the kernel's device numbers after loading nvidia-uvm if it is missing. Thread-safe. ``tools`` is None where
    nothing may be loaded; ``may_load`` is False while an administrator replaces the driver."""

    def __init__(
        self,
        read: Callable[[], Majors],
        tools: UvmTools | None,
        *,
        may_load: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._tools = tools
        self._may_load = may_load
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below; one try at a time
        self._next_try = clock()
        self._was_loaded = False
        self._said: str | None = None
        self._problem: str | None = None
        self._last: Majors | None = None

    @property
    def last(self) -> Majors | None:
        """What `majors` last returned; None before that."""
        return self._last

    @property
    def problem(self) -> str | None:
        """Why CUDA cannot work on this node, as seen by the last call of `majors`; None when it can."""
        return self._problem

    def majors(self) -> Majors:
        """The kernel's numbers. Raises `DriverUnavailableError` when the list cannot be read, and while nvidia-uvm is
        missing beside nvidia; the next attempt comes after `RETRY_S`."""
        with self._lock:
            majors = self._read()
            if _lacks_uvm(majors):
                majors = self._load(majors)
            if not _lacks_uvm(majors):
                self._was_loaded = majors.uvm is not None
                self._said = self._problem = None
                self._next_try = self._clock()
                self._last = majors if majors != self._last else self._last  # the same object while nothing changes
                return majors
            self._problem = _sentence(self._said)
            raise DriverUnavailableError(self._problem)

    def _load(self, majors: Majors) -> Majors:
        now = self._clock()
        if self._was_loaded:  # seen missing for the first time
            self._was_loaded, self._next_try = False, now + UNLOADED_S
            self._said = f"it was unloaded a moment ago, so this driver does not load it for {UNLOADED_S:g} s"
        if self._tools is None or now < self._next_try or not self._may_load():
            return majors
        outcome = self._tools.load_uvm()
        self._said, self._next_try = outcome.said, self._clock() + RETRY_S
        found = self._read()
        log.log(
            logging.WARNING if _lacks_uvm(found) else logging.INFO,
            "nvidia-uvm was not loaded; tried to load it",
            extra={"loaded": not _lacks_uvm(found), "said": outcome.said},
        )
        return found


def _lacks_uvm(majors: Majors) -> bool:
    return majors.nvidia is not None and majors.uvm is None


def _sentence(said: str | None) -> str:
    tried = f", and {said}" if said else ""
    return (
        "CUDA cannot work in containers of this node: /proc/devices lists nvidia but not nvidia-uvm, the module behind"
        f" /dev/nvidia-uvm{tried}; run `nvidia-modprobe -u -c0` or `modprobe nvidia-uvm` on the node, and have the"
        " module loaded at boot (/etc/modules-load.d); claims are prepared as soon as it is loaded"
    )
