"""Decide at which reads the MIG instances of a GPU are listed, and by which of two node processes.

A listing takes some ten seconds under load, and each of its queries may subscribe to an instance, which another process
then cannot destroy (open-gpu-kernel-modules, gpu_instance_subscription.c and kernel_mig_manager.c). Two node processes
overlap during a rolling update: the newer one keeps its list up to date, because the kubelet calls the driver that
registered last. The older one lists only unknown instances and its own changes, and then ends its session.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dra_driver.core.files import lock_file
from dra_driver.core.model.ids import GpuUuid

log = logging.getLogger(__name__)


class InstanceReader:
    """Two ``flock``s, which end with their process: on ``<file>`` by the process that reads, on ``<file>.next`` by the
    process that waits. The reader releases the first at its next read, and takes it back after the newer process."""

    def __init__(self, file: Path) -> None:
        """``file``: in a directory that both processes share. Created when needed (0600) and never removed."""
        self._file = file
        self._next = file.with_name(f"{file.name}.next")
        self._lock = threading.Lock()  # guards the fields below
        self._held: int | None = None
        self._waiting: int | None = None
        self._superseded = False
        self._failed = False

    def __call__(self) -> bool:
        """Return whether this process reads; also True if the files are unusable, because it would miss changes."""
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
    try:
        return lock_file(path)
    except BlockingIOError:
        return None


def _released(descriptor: int | None) -> int | None:
    if descriptor is not None:
        os.close(descriptor)
    return None


LIST_EVERY = 6
"""Events of the time without an event set are lost (a switch of MIG mode, a new session); once a minute at the default
poll interval finds them, at a sixth of the cost."""

Token = tuple[int, int, int]
"""The session, and the numbers of changes by any process and by this one, before a listing."""


class Listings:
    """Instances are listed after an event (nvmlEventMigConfigChange) and after this process's own change, in a new
    session, at every ``LIST_EVERY``-th read, and for a GPU without events at each read."""

    def __init__(self, may_read: Callable[[], bool]) -> None:
        self.may_read = may_read
        self._lock = threading.Lock()  # guards the fields below
        self._events = 0
        self._own: Counter[GpuUuid] = Counter()
        self._listed: dict[GpuUuid, Token] = {}
        self._reads: Counter[GpuUuid] = Counter()  # since the last listing
        self._asked = 0  # the newest session that asked for instances

    def happened(self) -> None:
        with self._lock:
            self._events += 1

    def changed(self, gpu: GpuUuid) -> None:
        """This process has changed, or tried to change, the GPU's instances or MIG mode."""
        with self._lock:
            self._own[gpu] += 1

    def token(self, gpu: GpuUuid, generation: int) -> Token:
        with self._lock:
            return generation, self._events, self._own[gpu]

    def is_due(self, gpu: GpuUuid, token: Token, *, has_events: bool) -> bool:
        """Return whether this read must list the instances. Call once per read."""
        with self._lock:
            last = self._listed.get(gpu)
            self._reads[gpu] += 1
            if last is None or last[2] != token[2]:
                return True
            due = last != token or not has_events or self._reads[gpu] >= LIST_EVERY
        return due and self.may_read()

    def listed(self, gpu: GpuUuid, token: Token) -> None:
        with self._lock:
            self._listed[gpu] = token
            self._reads[gpu] = 0
            self._asked = token[0]

    def asked(self, generation: int) -> None:
        """That session asks for instances, other than for a listing."""
        with self._lock:
            self._asked = generation

    def must_give_back(self, generation: int) -> bool:
        """Return whether that session may have subscriptions that it must not keep."""
        with self._lock:
            asked = self._asked == generation
        return asked and not self.may_read()
