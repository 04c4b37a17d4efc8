"""Watches the health of the node's GPUs: events of the hardware as they come, and a look at all of them regularly.

Two threads, because a look can take seconds while a GPU hangs, and the events of the others must not wait for it.
``health-events`` takes in events and publishes what follows at once; then it wakes ``health``, which looks, lets time
pass for the conditions (``node/health/``), and tells the kubelet, the Node's events and the metrics.

A look every ``LOOK_S``, soon after an event, and at most one per ``PAUSE_S``: a GPU that reports errors without end
costs no more than that.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthReading
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.backend import HealthSource
from dra_driver.node.health import NodeHealth
from dra_driver.node.process.missing_gpus import Missing

log = logging.getLogger(__name__)

THREAD_NAME: Final = "health"
EVENTS_THREAD_NAME: Final = "health-events"
LOOK_S: Final = 10.0
PAUSE_S: Final = 1.0
TICK_S: Final = 1.0
"""While there are conditions: they end by time, and another process may have saved some."""
EVENT_WAIT_S: Final = 10.0
AFTER_FAILURE_S: Final = 5.0
BREATH_S: Final = 0.05
"""Between two waits for events, so that a flood of them is taken in together."""
GONE: Final = "the NVIDIA driver does not find it any more"


class HealthMonitor:
    """``start`` and ``stop`` once, by one owner; ``inventory_changed`` from any thread.

    ``snapshot`` is the inventory's; ``missing`` are GPUs that stay published without being in it. ``publish`` is called
    after conditions changed, in either thread; ``tell`` every `LOOK_S` and after each change, in one.
    """

    def __init__(
        self,
        source: HealthSource,
        health: NodeHealth,
        *,
        snapshot: Callable[[], Snapshot],
        missing: Callable[[], Missing],
        publish: Callable[[], None],
        tell: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._health = source, health
        self._snapshot, self._missing = snapshot, missing
        self._publish, self._tell, self._clock = publish, tell, clock
        self._news = threading.Event()  # conditions changed and were published, and nothing was told yet
        self._wanted = threading.Event()  # a look is wanted soon
        self._devices = threading.Event()  # claims came or left, and the kubelet was not told yet
        self._looked = self._told = float("-inf")
        self._stale: frozenset[GpuUuid] = frozenset()
        self._judged: Snapshot | None = None
        self._worker = Worker(THREAD_NAME, self.step, on_error=self._failed, after_error_s=LOOK_S)
        # Without this thread, errors are seen only as far as looks show them.
        self._listener = Worker(
            EVENTS_THREAD_NAME,
            self._listen,
            on_error=partial(metrics.internal_error, "health"),
            after_error_s=AFTER_FAILURE_S,
        )

    def start(self) -> None:
        self._worker.start()
        self._listener.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the threads; one that waits for the hardware ends later. Idempotent."""
        self._listener.stop(0.0)
        self._worker.stop(timeout_s)

    def given_back(self, gpus: Iterable[GpuUuid]) -> None:
        """Take in that a person gave these GPUs back after a drain. Call it before the end of the drain is published.

        A GPU reset leaves no trace on some drivers, so that errors which need one would stay until a reboot.
        """
        changed = [self._health.repaired(gpu) for gpu in gpus]
        if any(changed):
            self._news.set()
            self._worker.wake()

    def inventory_changed(self, snapshot: Snapshot) -> None:
        """Take in a new snapshot before it is published: conditions of instances that are gone end."""
        if self._health.instances(_instances(snapshot)):
            self._news.set()
            self._worker.wake()
        self.devices_changed()

    def devices_changed(self) -> None:
        """The kubelet is to hear of other devices, within `PAUSE_S`. Returns at once, and does nothing but the first
        time until then: prepares call it."""
        if not self._devices.is_set():
            self._devices.set()
            self._worker.wake()

    def hear(self) -> None:
        """Wait for events once and take them in. One step of the thread ``health-events``."""
        events = self._source.wait_for_health_events(EVENT_WAIT_S)
        if not (self._source.health_look_wanted() or events):
            return
        if events and self._health.observe(events):
            self._publish()
            self._news.set()
        self._wanted.set()
        self._worker.wake()

    def step(self) -> float:
        """Tell what is new, look when that is due, let time pass; returns the seconds until the next step."""
        news, wanted = self._news.is_set(), self._wanted.is_set()
        self._news.clear()
        if any([self._instances_ended(), self._health.tick()]):
            self._publish()
            news = True
        if news or (self._devices.is_set() and self._clock() - self._told >= PAUSE_S):
            self._tell_now()
        if self._since_look_s() >= (PAUSE_S if wanted else LOOK_S):
            self._wanted.clear()
            wanted = False
            if self.look():
                self._publish()
            self._looked = self._clock()
            self._tell_now()
        left_s = max(0.0, (PAUSE_S if wanted else LOOK_S) - self._since_look_s())
        often = self._devices.is_set() or self._health.conditions()
        return min(left_s, TICK_S) if often else left_s

    def _instances_ended(self) -> bool:
        """Whether conditions ended with their instances. A snapshot that was judged has nothing to say where there are
        no conditions."""
        snapshot = self._snapshot()
        if snapshot is self._judged and not self._health.conditions():
            return False
        self._judged = snapshot
        return self._health.instances(_instances(snapshot))

    def _tell_now(self) -> None:
        self._devices.clear()
        self._tell()
        self._told = self._clock()

    def look(self) -> bool:
        """One look at all GPUs. Whether the conditions changed."""
        try:
            readings = self._source.health_readings()
            unmonitored = self._source.health_unmonitored()
        except DriverUnavailableError:
            return False  # the inventory says so; what is known stays
        read = {reading.gpu_uuid for reading in readings}
        missing = self._missing()
        lost = [gpu for gpu, each in missing.items() if gpu not in read and not each.awaited]
        gone = tuple(HealthReading(gpu_uuid=gpu, unreachable=GONE) for gpu in lost)
        return any([self._health.look((*readings, *gone), unmonitored), self._forget(readings, missing)])

    def _forget(self, readings: Iterable[HealthReading], missing: Missing) -> bool:
        """Drop GPUs that are not on this node any more and are not published, at the second look that finds it so: the
        first may come between two changes of the inventory."""
        snapshot = self._snapshot()
        if not (snapshot.gpus or snapshot.left_out):
            return False
        here = {*missing, *(gpu.uuid for gpu in snapshot.gpus), *(left_out.label for left_out in snapshot.left_out)}
        here |= {reading.gpu_uuid for reading in readings if reading.unreachable is None}
        known = {condition.gpu_uuid for condition in self._health.conditions()}
        stale = frozenset({*known, *(reading.gpu_uuid for reading in readings)} - here)
        again, self._stale = stale & self._stale, stale
        for gpu in again:
            self._source.forget_gpu(gpu)
        forgotten = [self._health.forget(gpu) for gpu in again]
        return any(forgotten)

    def _failed(self) -> None:
        metrics.internal_error("health")
        self._worker.pause(PAUSE_S)  # events wake the thread, also while every look fails

    def _since_look_s(self) -> float:
        return self._clock() - self._looked

    def _listen(self) -> float:
        try:
            self.hear()
        except DriverUnavailableError:
            return AFTER_FAILURE_S
        return BREATH_S


def _instances(snapshot: Snapshot) -> dict[GpuUuid, list[int]]:
    return {gpu.uuid: [instance.gi_id for instance in gpu.mig_instances] for gpu in snapshot.gpus}
