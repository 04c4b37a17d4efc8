"""Which GPUs are being cut or change their MIG mode, for other programs on the node that hold them open.

The NVIDIA driver does not change a GPU's MIG mode, and cuts no GPU for the first time, while another process has it
open. The usage exporter has all of them open, so it is told when a change begins, and closes them for that time. A
change of MIG mode waits for it, because NVML may leave a mode pending that it could not set; a partition is made and
removed at once, and again after the exporter let go if the GPU was busy. Each wait is short (``exporter_turn.py``), and
all changes are repeated while the GPU is busy (``mig.busy_retry``).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from dra_driver.core.errors import GpuBusyError
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.hardware.gpu.backend import ComputeMode, GpuControl
from dra_driver.node.process.exporter_turn import ExporterTurn

T = TypeVar("T")
LINGER_S: Final = 5.0
"""A GPU counts as changing for this time after a call: the next try, or the next partition of a claim, follows soon."""


class ChangingGpus:
    """Thread-safe. ``changed`` is called when a change begins, and has to return at once."""

    def __init__(
        self, changed: Callable[[], None], exporter: ExporterTurn, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.exporter = exporter
        self._changed, self._clock = changed, clock
        self._lock = threading.Lock()  # guards the two below; held for no call
        self._running: Counter[GpuUuid] = Counter()
        self._until: dict[GpuUuid, float] = {}

    @contextmanager
    def during(self, gpu: GpuUuid) -> Iterator[None]:
        """The GPU counts as changing inside of it, and `LINGER_S` longer."""
        with self._lock:
            is_new = self._running[gpu] == 0 and self._until.get(gpu, 0.0) <= self._clock()
            self._running[gpu] += 1
        if is_new:
            self._changed()
        try:
            yield
        finally:
            with self._lock:
                self._running[gpu] -= 1
                self._until[gpu] = self._clock() + LINGER_S

    def current(self) -> frozenset[GpuUuid]:
        """The GPUs that are changing."""
        now = self._clock()
        with self._lock:
            return frozenset(gpu for gpu in self._until.keys() | self._running.keys() if self._is_changing(gpu, now))

    def calm_in_s(self) -> float | None:
        """Seconds after which one GPU fewer may be changing; None while none is."""
        now = self._clock()
        with self._lock:
            left = [until - now for until in self._until.values() if until > now]
            return min(left) if left else LINGER_S if +self._running else None

    def _is_changing(self, gpu: GpuUuid, now: float) -> bool:
        return self._running[gpu] > 0 or self._until.get(gpu, 0.0) > now


class NotedControl:
    """A `GpuControl` whose changes are noted while they run, and take turns with the exporter."""

    def __init__(self, control: GpuControl, changing: ChangingGpus) -> None:
        self._control, self._changing = control, changing

    def _change(self, gpu: GpuUuid, call: Callable[[], T]) -> T:
        with self._changing.during(gpu):
            try:
                return call()
            except GpuBusyError:
                with self._changing.exporter.taken() as has_let_go:
                    if not has_let_go:
                        raise
                    return call()

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        return self._control.compute_mode(gpu)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        self._control.set_compute_mode(gpu, mode)

    def mig_mode(self, gpu: GpuUuid) -> bool:
        return self._control.mig_mode(gpu)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        with self._changing.during(gpu), self._changing.exporter.taken():
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
