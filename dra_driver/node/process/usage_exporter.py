"""Write ``assignments.json`` for the usage exporter, and have it close GPUs whose MIG mode or partitions change.

The NVIDIA driver does not change a GPU's MIG mode, and creates no first instance, while another process has the GPU
open. The exporter closes all GPUs while ``assignments.json`` lists a changing one, and holds a shared ``flock`` on
``driver.lock`` while they are open. A change of MIG mode waits for that lock, because NVML can leave a mode pending
that it could not set. An instance is created or destroyed immediately, and again after the exporter closed a busy GPU.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import FOLDER as FINDINGS
from dra_driver.core.errors import DraError, GpuBusyError
from dra_driver.core.files import lock_file, replace_file
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.core.text import printable
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.backend import GpuControl, ModeAnswer
from dra_driver.node.claims import AssignedDevice, Entry
from dra_driver.node.usage.assignments import FILE, encode
from dra_driver.node.usage.values import AssignedClaim, AssignedGpu, AssignedUse, Assignments

log = logging.getLogger(__name__)

T = TypeVar("T")
COOLDOWN_S: Final = 5.0
"""A GPU counts as changing for this time after a call: the next attempt, or the next partition of a claim, follows."""
WAIT_S: Final = 3.0
"""The exporter polls four times a second whether it has to close NVML; reading GPUs that answer takes less time."""
RETRY_AFTER_TIMEOUT_S: Final = 60.0

PAUSE_S: Final = 0.2
"""Changes of claims within this time are written together; reading the journal takes time that prepares need."""
CHECK_S: Final = 60.0
"""Interval without a notification, in case a change is missed."""
RETRY_S: Final = 5.0


class ExporterLock:
    """Waits up to `WAIT_S` until the usage exporter has closed the NVIDIA driver. Thread-safe.

    ``path`` is the lock file, which the exporter creates: without it there is no exporter. The kernel drops the lock of
    a process that dies. An exporter that hangs delays one change by `WAIT_S`, and none in the next
    `RETRY_AFTER_TIMEOUT_S`.
    """

    def __init__(
        self, path: Path, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._sleep, self._clock = path, sleep, clock
        self._guard = threading.Lock()  # guards the fields below; held while waiting: all changes wait for one exporter
        self._held: int | None = None
        self._users = 0
        self._is_busy = False  # the exporter had the driver open after the last wait
        self._retry_at = -math.inf

    @contextmanager
    def acquired(self) -> Iterator[bool]:
        """Inside, the exporter does not open the driver, except when it did not close it in time. Yields whether it
        had the driver open and closed it: a call that failed because of it may succeed now."""
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
            log.warning("usage exporter did not close the NVIDIA driver", extra={"waited_s": WAIT_S})
            return False
        except OSError:
            return False
        self._is_busy = False
        return True


class GpuChangeTracker:
    """Thread-safe. ``changed`` is called when a change begins, and has to return immediately."""

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
        """Seconds until a change may end; None without one."""
        now = self._clock()
        with self._lock:
            return min((min(until - now, COOLDOWN_S) for until in self._until.values() if until > now), default=None)


class TrackedGpuControl:
    def __init__(self, control: GpuControl, tracker: GpuChangeTracker) -> None:
        self._control, self._tracker = control, tracker
        self.compute_mode, self.set_compute_mode = control.compute_mode, control.set_compute_mode
        self.mig_mode, self.mig_modes, self.mig_instances = control.mig_mode, control.mig_modes, control.mig_instances
        self.fabric = control.fabric

    def _change(self, gpu: GpuUuid, call: Callable[[], T]) -> T:
        with self._tracker.during(gpu):
            try:
                return call()
            except GpuBusyError:
                with self._tracker.exporter.acquired() as has_closed:
                    if not has_closed:
                        raise
                    return call()

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        with self._tracker.during(gpu), self._tracker.exporter.acquired():
            self._control.set_mig_mode(gpu, enabled)

    def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
        with self._tracker.during(gpu), self._tracker.exporter.acquired():
            return self._control.request_mig_mode(gpu, enabled)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        return self._change(gpu, partial(self._control.create_gpu_instance, gpu, profile_id, start))

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        return self._change(gpu, partial(self._control.create_compute_instance, gpu, gi_id))

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        self._change(gpu, partial(self._control.destroy_compute_instance, gpu, gi_id, ci_id))

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        self._change(gpu, partial(self._control.destroy_gpu_instance, gpu, gi_id))


def header(settings: NodeSettings) -> Assignments:
    """The constant fields."""
    return Assignments(
        node=settings.node_name,
        driver=settings.driver_name,
        process_started=datetime.fromtimestamp(int(time.time()), UTC),
    )


def assigned_gpus(snapshot: Snapshot, terms: Terms, changing: Container[GpuUuid]) -> tuple[AssignedGpu, ...]:
    return tuple(
        AssignedGpu(
            device=gpu.device_name,
            gpu_uuid=gpu.uuid,
            model=gpu.product_name or "",
            changing=gpu.uuid in changing,
            rules=terms_of(terms, gpu.uuid).usage,
        )
        for gpu in snapshot.gpus
    )


class AssignmentsFile:
    """Writes the file (0600, by rename) in its ``worker``; wake it when a GPU, a policy or the detach changed.

    ``folder`` is the directory ``usage`` of the driver's directory, created when needed. ``entries`` returns the
    journal's entries and can raise StorageError; ``detached`` returns why the driver must not be open.
    ``claims_changed`` from any thread.
    """

    def __init__(
        self,
        folder: Path,
        header: Assignments,
        *,
        entries: Callable[[], Iterable[Entry]],
        gpus: Callable[[Container[GpuUuid]], tuple[AssignedGpu, ...]],
        detached: Callable[[], str | None],
        changes: GpuChangeTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._header, self._changes, self._clock = folder, header, changes, clock
        self._entries, self._gpus, self._detached = entries, gpus, detached
        self._claims_due = threading.Event()
        self._claims: tuple[AssignedClaim, ...] = ()
        self._read_at = self._stepped_at = float("-inf")
        self._changing: frozenset[GpuUuid] = frozenset()
        self._written = b""
        self.worker = Worker(
            "assignments", self._turn, on_error=partial(metrics.internal_error, "assignments"), after_error_s=RETRY_S
        )

    def claims_changed(self) -> None:
        self._claims_due.set()
        self.worker.wake()

    def step(self) -> float:
        """Write what changed; return the seconds until the next step."""
        self._stepped_at = now = self._clock()
        try:
            if self._claims_due.is_set() or now - self._read_at >= CHECK_S:
                self._claims_due.clear()  # before the read: a change during it counts
                self._claims = claims_of(self._entries())
                self._read_at = now
            self._write()
        except DraError as error:
            self._claims_due.set()
            log.warning("cannot read claims for assignments.json; will retry", extra={"reason": error})
            return RETRY_S
        except OSError as error:
            log.warning("cannot write assignments.json; will retry", extra={"reason": error, "folder": self._folder})
            return RETRY_S
        return min(CHECK_S, self._changes.next_end_s() or CHECK_S)

    def _turn(self) -> float:
        """One step, at most one in `PAUSE_S`; a change of a GPU does not wait."""
        left_s = self._stepped_at + PAUSE_S - self._clock()
        return left_s if left_s > 0 and self._changes.current() == self._changing else self.step()

    def _write(self) -> None:
        self._changing, reason = self._changes.current(), self._detached()
        document = replace(
            self._header,
            detached=reason and printable(reason),
            gpus=self._gpus(self._changing),
            claims=self._claims,
        )
        content = encode(document)
        path = self._folder / FILE
        if content == self._written and path.exists():
            return
        for folder in (self._folder, self._folder / FINDINGS):  # the second one is the exporter's; for root only
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:  # the kubelet made it, for the exporter's mount
                folder.chmod(0o700)
        replace_file(path, content)
        self._written = content


def claims_of(entries: Iterable[Entry]) -> tuple[AssignedClaim, ...]:
    """The prepared claims, sorted by UID."""
    prepared = sorted((entry for entry in entries if entry.state == "prepared"), key=lambda entry: entry.ref.uid)
    return tuple(
        AssignedClaim(
            uid=entry.ref.uid,
            namespace=entry.ref.namespace,
            name=entry.ref.name,
            prepared=datetime.fromtimestamp(int(entry.changed_at), UTC),
            devices=tuple(_use(each) for each in entry.devices),
        )
        for entry in prepared
    )


def _use(device: AssignedDevice) -> AssignedUse:
    live = device.partition.live if device.partition is not None else None
    share = device.sharing.share if device.sharing is not None else None
    return AssignedUse(
        request=device.request,
        pool=device.pool,
        device=device.device,
        form=device.form,
        gpu_uuid=device.gpu_uuid,
        gi_id=live.gi_id if live is not None else None,
        uuid=device.gpu_uuid if device.partition is None else live.uuid if live is not None else None,
        profile=device.partition.profile_name if device.partition is not None else None,
        share_id=device.share_id,
        memory_bytes=share.memory if share is not None else None,
        percent=share.percent if share is not None else None,
        admin_access=device.admin_access,
    )
