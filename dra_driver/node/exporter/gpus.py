"""Reads the GPUs, and leaves them alone while the node process says so.

The NVIDIA driver is not unloaded, no GPU changes its MIG mode and none is cut for the first time while a process has
it open, and NVML opens all GPUs at once. So all are closed while one of them changes, or the driver is given up. A lock
file tells the node process whether they are (``node/process/exporter_turn.py``); while it has the lock, none is opened.
"""

import logging
import os
from pathlib import Path
from typing import Protocol

from dra_driver.core.errors import DraError
from dra_driver.core.files import lock_file
from dra_driver.core.model.usage import GpuUsage
from dra_driver.node.usage.sources import Unread
from dra_driver.node.usage.values import Assignments

log = logging.getLogger(__name__)


class UsageBackend(Protocol):
    """The parts of ``gpu.backend.Backend`` and ``UsageSource`` that are needed here."""

    def close(self) -> None: ...
    def usage(self) -> tuple[GpuUsage, ...]: ...


class UsedGpus:
    """Of one thread. ``is_open``: the driver may be in use by this process. ``lock`` is the lock file."""

    def __init__(self, backend: UsageBackend, lock: Path) -> None:
        self._backend, self._lock = backend, lock
        self.is_open = False
        self._held: int | None = None
        self._away: str | None = None

    def obey(self, assignments: Assignments | Unread) -> str | None:
        """Why the GPUs have to be left alone, None if they need not; closes them at once if they have."""
        reason = _reason(assignments)
        if reason is not None and (self.is_open or reason != self._away):
            log.info("the NVIDIA driver is left alone", extra={"reason": reason})
            self.close()
        elif reason is None and self._away is not None:
            log.info("the NVIDIA driver is used again")
        self._away = reason
        return reason

    def read(self, assignments: Assignments | Unread) -> tuple[GpuUsage, ...] | Unread:
        """One look at all GPUs."""
        reason = self.obey(assignments)
        if reason is not None:
            return Unread(reason=reason)
        if not self._may_open():
            return Unread(reason="the node process changes a GPU")
        self.is_open = True  # before the call: one that fails may leave handles
        try:
            return self._backend.usage()
        except DraError as error:
            return Unread(reason=f"the GPUs cannot be read: {error}")

    def close(self) -> None:
        """Idempotent; the next read opens them again."""
        self._backend.close()
        self.is_open = False
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _may_open(self) -> bool:
        if self._held is None:
            try:
                self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._held = lock_file(self._lock, shared=True)
            except BlockingIOError:
                return False
            except OSError as error:  # the node process cannot wait then; its changes are repeated all the same
                log.debug("the node process is not told that the driver is open", extra={"reason": error})
        return True


def _reason(assignments: Assignments | Unread) -> str | None:
    if isinstance(assignments, Unread):
        return None
    if assignments.detached is not None:
        return f"the node process has given the NVIDIA driver up: {assignments.detached}"
    changing = [gpu.device for gpu in assignments.gpus if gpu.changing]
    return f"{', '.join(changing)} is being cut or changes its MIG mode" if changing else None
