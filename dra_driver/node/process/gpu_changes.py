"""Tracks GPUs whose MIG mode or partitions are changing, so that the usage exporter closes them meanwhile.

The NVIDIA driver does not change a GPU's MIG mode, and creates no GPU's first instance, while another process has the
GPU open. The usage exporter has all of them open. It closes them while ``assignments.json`` lists a changing GPU, and
holds a shared ``flock`` on ``driver.lock`` while it has them open. A change of MIG mode waits for that lock, because
NVML may leave a mode pending that it could not set. An instance is created or destroyed immediately, and again after
the exporter closed the driver if the GPU was busy. All changes are also repeated while the GPU is busy
(``mig.busy_retry``).
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dra_driver.core.errors import GpuBusyError
from dra_driver.core.files import lock_file
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.hardware.gpu.backend import ComputeMode, GpuControl

log = logging.getLogger(__name__)

T = TypeVar("T")
COOLDOWN_S: Final = 5.0
"""A GPU counts as changing for this time after a call: the next try, or the next partition of a claim, follows soon."""
WAIT_S: Final = 3.0
"""The exporter polls four times a second whether it has to close NVML; reading GPUs that answer takes less time."""
RETRY_AFTER_TIMEOUT_S: Final = 60.0


class ExporterLock:
    """Waits up to `WAIT_S` until the usage exporter has closed the NVIDIA driver. Thread-safe.

    ``path`` is the lock file, which the exporter creates: without the file there is no exporter to wait for. The kernel
    drops the lock of a process that dies, so an exporter that died delays nothing. One that hangs delays one change by
    `WAIT_S`, and the changes of the next `RETRY_AFTER_TIMEOUT_S` not at all. While the lock is held here, the exporter
    does not open the driver.
    """

    def __init__(
        self,
        path: Path,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._sleep, self._clock = path, sleep, clock
        self._guard = threading.Lock()  # guards the fields below; held while waiting: all changes wait for one exporter
        self._held: int | None = None
        self._users = 0
        self._is_busy = False  # the exporter had the driver open after the last wait
        self._retry_at = -math.inf

    @contextmanager
    def acquired(self) -> Iterator[bool]:
        """Inside, the exporter does not open the driver, unless it did not close it in time or there is none.

        Yields whether it had the driver open and closed it: a call that failed because of it may succeed now.
        """
        with self._guard:
            has_closed = self._held is None and self._acquire()
            self._users += 1
        try:
            yield has_closed
        finally:
            with self._guard:
                self._users -= 1
                if not self._users and self._held is not None:
                    os.close(self._held)
                    self._held = None

    def wait_closed(self) -> bool:
        """Wait as `acquired` does; return whether the exporter has the driver closed."""
        with self.acquired():
            return not self._is_busy

    def _acquire(self) -> bool:
        self._is_busy = False
        # An OSError below: no exporter has ever run here, or its directory is damaged, which it reports itself.
        try:
            self._held = lock_file(self._path, create_mode=None)
        except BlockingIOError:
            self._is_busy = True
        except OSError:
            return False
        if not self._is_busy or self._clock() < self._retry_at:
            return False
        try:
            self._held = lock_file(self._path, create_mode=None, timeout_s=WAIT_S, sleep=self._sleep, clock=self._clock)
        except BlockingIOError:
            self._retry_at = self._clock() + RETRY_AFTER_TIMEOUT_S
            log.warning("the usage exporter does not close the NVIDIA driver", extra={"waited_s": WAIT_S})
            return False
        except OSError:
            return False
        self._is_busy = False
        return True


class GpuChangeTracker:
    """Thread-safe. ``changed`` is called when a change begins, and has to return at once."""

    def __init__(
        self, changed: Callable[[], None], exporter: ExporterLock, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.exporter = exporter
        self._changed, self._clock = changed, clock
        self._lock = threading.Lock()  # guards the next field; held for no call
        self._until: dict[GpuUuid, float] = {}  # infinity during a call; the caller holds the GPU's lock: one at a time

    @contextmanager
    def during(self, gpu: GpuUuid) -> Iterator[None]:
        """The GPU counts as changing inside, and for `COOLDOWN_S` after it."""
        with self._lock:
            is_new = self._until.get(gpu, -math.inf) <= self._clock()
            self._until[gpu] = math.inf
        if is_new:
            self._changed()
        try:
            yield
        finally:
            with self._lock:
                self._until[gpu] = self._clock() + COOLDOWN_S

    def current(self) -> frozenset[GpuUuid]:
        now = self._clock()
        with self._lock:
            return frozenset(gpu for gpu, until in self._until.items() if until > now)

    def next_end_s(self) -> float | None:
        """Seconds after which one GPU fewer may be changing; None while none is."""
        now = self._clock()
        with self._lock:
            return min((min(until - now, COOLDOWN_S) for until in self._until.values() if until > now), default=None)


class TrackedGpuControl:
    def __init__(self, control: GpuControl, tracker: GpuChangeTracker) -> None:
        self._control, self._tracker = control, tracker

    def _change(self, gpu: GpuUuid, call: Callable[[], T]) -> T:
        with self._tracker.during(gpu):
            try:
                return call()
            except GpuBusyError:
                with self._tracker.exporter.acquired() as has_closed:
                    if not has_closed:
                        raise
                    return call()

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        return self._control.compute_mode(gpu)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        self._control.set_compute_mode(gpu, mode)

    def mig_mode(self, gpu: GpuUuid) -> bool:
        return self._control.mig_mode(gpu)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        with self._tracker.during(gpu), self._tracker.exporter.acquired():
            self._control.set_mig_mode(gpu, enabled)

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        return self._control.mig_instances(gpu)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        return self._change(gpu, partial(self._control.create_gpu_instance, gpu, profile_id, start))

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        return self._change(gpu, partial(self._control.create_compute_instance, gpu, gi_id))

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        self._change(gpu, partial(self._control.destroy_compute_instance, gpu, gi_id, ci_id))

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        self._change(gpu, partial(self._control.destroy_gpu_instance, gpu, gi_id))

    def fabric(self, gpu: GpuUuid) -> Fabric | None:
        return self._control.fabric(gpu)
