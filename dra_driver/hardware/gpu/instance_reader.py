"""Which of two node processes keeps its list of MIG instances up to date: the newer one.

Two node processes overlap during a rolling update. A query of an instance may subscribe the asking process to it, and
another process can then not destroy it, so only one should ask again and again (``nvml/listings.py``). The newer one
does: the kubelet calls the driver that registered last. It takes a lock over from the older one, which lets go at its
next read; when the newer one ends first, the older one takes the lock back.

Both are ``flock``s, which end with their process: on ``<file>`` by the process that reads, on ``<file>.next`` by one
that waits for it.
"""

import logging
import os
import threading
from pathlib import Path

from dra_driver.core.files import lock_file

log = logging.getLogger(__name__)


class InstanceReader:
    """Call it for the answer. Thread-safe."""

    def __init__(self, file: Path) -> None:
        """``file``: in a folder that both processes share. Created when needed (0600) and never removed."""
        self._file = file
        self._next = file.with_name(f"{file.name}.next")
        self._lock = threading.Lock()  # guards the fields below
        self._held: int | None = None
        self._waiting: int | None = None
        self._superseded = False
        self._failed = False

    def __call__(self) -> bool:
        """Whether this process reads. Also True when the files cannot be used: then it may get in another's way, and
        would otherwise not see changes. Costs one or two system calls."""
        with self._lock:
            try:
                return self._keep() if self._held is not None else self._take()
            except OSError as error:
                if not self._failed:
                    log.warning("cannot lock the right to read MIG instances", extra={"reason": error})
                self._failed = True
                return True

    def _keep(self) -> bool:
        waiting = _try(self._next)
        if waiting is not None:
            os.close(waiting)
            return True
        self._held = _released(self._held)
        self._superseded = True
        log.info("another process of this driver reads MIG instances from now on")
        return False

    def _take(self) -> bool:
        self._held = _try(self._file)
        if self._held is not None:
            self._waiting = _released(self._waiting)
            return True
        if self._waiting is None and not self._superseded:
            self._waiting = _try(self._next)
        return False


def _try(path: Path) -> int | None:
    """The descriptor that holds the lock; None when another one does."""
    try:
        return lock_file(path)
    except BlockingIOError:
        return None


def _released(descriptor: int | None) -> int | None:
    """The new value of a field whose lock is given back."""
    if descriptor is not None:
        os.close(descriptor)
    return None
