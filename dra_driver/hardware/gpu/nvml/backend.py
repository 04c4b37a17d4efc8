"""Read and change real GPUs through NVML (libnvidia-ml.so.1).

Each call gets its handle by index: a lookup by UUID wakes other GPUs and takes seconds on a busy node, and a
handle becomes invalid with its session and with a change of MIG mode. They never leave this package.
"""

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pynvml

from dra_driver.core.errors import DeviceLostError, ResetRequiredError
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthEvent, HealthReading
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.hardware.driver_root.search import find_library
from dra_driver.hardware.gpu.backend import DETACH_TIMEOUT_S, ComputeMode, MigModes, ModeAnswer
from dra_driver.hardware.gpu.nvml import control
from dra_driver.hardware.gpu.nvml.call_locks import Patience
from dra_driver.hardware.gpu.nvml.errors import optional
from dra_driver.hardware.gpu.nvml.events import HealthEvents, mig_events
from dra_driver.hardware.gpu.nvml.health import HealthLooks
from dra_driver.hardware.gpu.nvml.listings import Listings
from dra_driver.hardware.gpu.nvml.mig import read_instances
from dra_driver.hardware.gpu.nvml.node import Known, Node
from dra_driver.hardware.gpu.nvml.properties import FABRIC, read_fabric
from dra_driver.hardware.gpu.nvml.session import DriverEnvironment, Session

__all__ = ["NvmlBackend", "find_library"]

log = logging.getLogger(__name__)

OWN_DESCRIPTORS = "/proc/self/fd"
_DEVICE_FILE = re.compile(r"/dev/nvidia[^/]*(/.*)?$")  # also nvidia-caps/…, and below another root than /
MODE_TIMEOUT_S = 10.0  # from NVML's success until the mode reads back, while the GPU is bound again
MODE_PAUSE_S = 0.1
LEFT_OUT_LOOKS = 6  # a minute at the default poll interval
MAX_LOOKS = 360  # an hour


def open_device_files(descriptors: str | Path = OWN_DESCRIPTORS) -> tuple[str, ...]:
    """Paths of the driver's device files behind the links in ``descriptors``, sorted; () where that cannot be read."""
    paths = set()
    with contextlib.suppress(OSError):  # no such directory
        for link in Path(descriptors).iterdir():
            with contextlib.suppress(OSError):  # closed in between
                paths.add(str(link.readlink()))
    return tuple(sorted(path for path in paths if _DEVICE_FILE.search(path)))


@contextlib.contextmanager
def keep_initialized(minors: Iterable[int], dev_folder: str) -> Iterator[None]:
    """Have ``<dev_folder>/nvidia<minor>`` open inside the block, where possible. Never raises. Without persistence
    mode, the kernel module stops a GPU and drops its settings when the last one is closed (nv.c, nv_close_device)."""
    descriptors = []
    try:
        for minor in minors:
            with contextlib.suppress(OSError):
                # NONBLOCK: the kernel module does not wait for a GPU that is being started (nv.c, nvidia_open).
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
                descriptors.append(os.open(f"{dev_folder}/nvidia{minor}", flags))
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class Renewals:
    """Ends a session that no longer shows the node: GPUs were bound or unbound, the driver was replaced, NVML counted
    no GPU, or a GPU was left out of ``LEFT_OUT_LOOKS`` reads. The last repeats at twice the number of reads each time,
    because a new session does not repair a broken board."""

    def __init__(self, session: Session, dev_folder: str) -> None:
        self._session = session
        self._dev_folder = dev_folder
        self._last: Snapshot | None = None
        self._left_out: frozenset[str] = frozenset()
        self._looks = 0
        self._limit = LEFT_OUT_LOOKS
        self._replaced = False
        self._reason: str | None = None  # of the last renewal, which repeats at every poll of a node without GPUs

    @contextlib.contextmanager
    def before_look(self) -> Iterator[None]:
        """End an outdated session, with GPUs kept initialised inside the block. Some ten calls of stat."""
        outlook = self._session.outlook()
        reason = None
        if outlook is not None:
            generation, began, now = outlook
            self._report_library(began, now)
            reason = began.outdated(now) or self._why_renew()
        if outlook is None or reason is None:
            self._reason = None
            yield
            return
        addresses = None if now.bound is None else {address for address, _ in now.bound}
        gpus = () if self._last is None else self._last.gpus
        minors = [one.minor for one in gpus if addresses is None or one.pci_bus_id in addresses]
        with keep_initialized(minors, self._dev_folder):
            if self._session.renew(generation):
                level = logging.DEBUG if reason == self._reason else logging.INFO
                log.log(level, "NVML session is outdated and begins again", extra={"reason": reason})
                self._reason = reason
                self._renewed()
            yield

    def after_look(self, found: Snapshot) -> None:
        missing = frozenset(gpu.label for gpu in found.left_out)
        if missing - self._left_out or not missing:
            self._looks, self._limit = 0, LEFT_OUT_LOOKS
        self._left_out = missing
        self._looks += bool(missing)
        self._last = found

    def _why_renew(self) -> str | None:
        if self._last is not None and not self._last.gpus and not self._left_out:
            return "NVML counted no GPU"  # without GPUs it opens in milliseconds
        if self._looks >= self._limit:
            return f"left out for {self._looks} looks: {', '.join(sorted(self._left_out))}"
        return None

    def _renewed(self) -> None:
        if self._looks >= self._limit:
            self._looks, self._limit = 0, min(2 * self._limit, MAX_LOOKS)

    def _report_library(self, began: DriverEnvironment, now: DriverEnvironment) -> None:
        replaced = began.replaced(now) and began.outdated(now) is None
        if replaced and not self._replaced:
            log.warning(
                "the driver's library was replaced while its kernel module is in use: finish the upgrade or reboot the "
                "node; the NVML session keeps the former library",
                extra={"library": now.release, "loaded": now.module},
            )
        self._replaced = replaced


class NvmlBackend:
    """A ``backend.GpuBackend``. Thread-safe: one call per GPU at a time, GPUs in parallel. One per process, as pynvml
    keeps the library in a global. It holds device files open until it is detached."""

    def __init__(
        self,
        library_path: str | None = None,
        sysfs_root: str = "/sys",
        *,
        driver_root: str | Callable[[], str] | None = None,
        dev_folder: str = "/dev",
        reads_instances: Callable[[], bool] = lambda: True,
        patience: Patience | None = None,
    ) -> None:
        """Every session searches the library again: ``library_path``, else below ``driver_root`` (or the function that
        finds it), else the dynamic linker's, also for ``/``. ``reads_instances``: see ``listings.py``."""
        patience = patience or Patience()
        self._session = Session(library_path, driver_root, sysfs_root, end_timeout_s=patience.end_s)
        self.open, self.reattach = self._session.open, self._session.reattach
        self.listings = Listings(reads_instances)
        self._node = Node(self._session, sysfs_root, self.listings, patience)
        self._events = mig_events(self._session, self._node.reading, self.listings.happened)
        self._health_events = HealthEvents(self._session, self._node.reading, self._node.is_whole)
        self._health = HealthLooks(self._session, self._node, patience)
        self._feeling = threading.Lock()  # one health reading at a time; acquired as the lock below
        self._looking = threading.Lock()  # one snapshot at a time; acquired before the session and before a GPU's turn
        self._renewals = Renewals(self._session, dev_folder)

    def close(self) -> None:
        """See ``Backend.close``. Waits for running calls, see ``call_locks.Patience``."""
        self._session.close()

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        """See ``Detachable.detach``. NVML's library is unloaded, too."""
        if not self._session.detach(reason, timeout_s):
            log.warning("an NVML call has not returned, the GPUs stay open", extra={"timeout_s": timeout_s})
            return False
        left = open_device_files()
        if left:
            log.warning("device files are open after the end of the NVML session", extra={"files": " ".join(left)})
        return not left

    @property
    def detached(self) -> str | None:
        return self._session.detached

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. Waits a bounded time for each GPU (``call_locks.Patience``); the first read without
        persistence mode takes seconds. A GPU that is being changed is returned as it was last read."""
        with self._looking, self._renewals.before_look():
            with self._session.use() as generation:
                found = self._node.read(generation, self._events.covered(generation))
            if self._node.modes_changed():
                self._events.renew()
                self._health_events.renew()
            self._renewals.after_look(found)
            if self.listings.must_give_back(generation):
                self._session.renew(generation)
            return found

    def wait_for_event(self, timeout_s: float) -> bool:
        """See ``Backend.wait_for_event``. Also True when a GPU was lost; False at once when ``close`` is called."""
        happened = self._events.wait(timeout_s)
        if happened:
            self.listings.happened()
        return happened

    def wait_for_health_events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        return self._health_events.wait(timeout_s)

    def health_look_wanted(self) -> bool:
        return self._health_events.take_look()

    def health_unmonitored(self) -> Mapping[GpuUuid, str]:
        return self._health_events.unmonitored(self._health.known)

    def health_readings(self) -> tuple[HealthReading, ...]:
        """See ``HealthSource.health_readings``. Waits a bounded time for each GPU, as ``snapshot`` does."""
        with self._feeling, self._session.use() as generation:
            return self._health.read(generation)

    def forget_gpu(self, gpu: GpuUuid) -> None:
        self._health.forget(gpu)

    def mig_mode(self, gpu: GpuUuid) -> bool:
        with self._handle(gpu) as (_, handle):
            return control.mig_mode(handle, gpu)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """See ``GpuControl.set_mig_mode``. Also raises GpuBusyError when instances exist and it is switched off."""
        with self._events.paused(), self._health_events.paused(), self._changes(gpu) as (known, handle):
            if control.mig_mode(handle, gpu) == enabled:
                return
            instances = read_instances(handle, self._node.facts(known, gpu, handle)) if not enabled else ()
            self._health.mig_changes(gpu)
            control.set_mig_mode(handle, gpu, enabled, instances)
            self._events.renew()
            self._health_events.renew()
            self._await_mode(known, gpu, enabled)

    def mig_modes(self, gpu: GpuUuid) -> MigModes:
        with self._handle(gpu) as (_, handle):
            return control.mig_modes(handle, gpu)

    def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
        """See ``GpuControl.request_mig_mode``. A success without effect is `ModeAnswer.NEEDS_RESET`."""
        with self._events.paused(), self._health_events.paused(), self._changes(gpu) as (known, handle):
            modes = control.mig_modes(handle, gpu)
            if modes == MigModes(current=enabled, pending=enabled):
                return ModeAnswer.DONE
            instances = read_instances(handle, self._node.facts(known, gpu, handle)) if modes.current else ()
            self._health.mig_changes(gpu)
            answer = control.request_mig_mode(handle, gpu, enabled, instances if modes.current != enabled else ())
            self._events.renew()
            self._health_events.renew()
            if answer is not ModeAnswer.DONE:
                return answer
            return self._await_answer(known, gpu, enabled)

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        with self._handle(gpu) as (known, handle):
            self.listings.asked(known.generation)
            if not control.mig_mode(handle, gpu):
                return ()
            return read_instances(handle, self._node.facts(known, gpu, handle))

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        with self._changes(gpu) as (known, handle):
            facts = self._node.facts(known, gpu, handle)
            return control.create_gpu_instance(handle, gpu, facts, profile_id, start)

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """See ``GpuControl.create_compute_instance``. DeviceLostError when the GPU instance does not exist."""
        with self._changes(gpu) as (known, handle):
            return control.create_compute_instance(handle, gpu, self._node.facts(known, gpu, handle), gi_id)

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        with self._changes(gpu) as (_, handle):
            control.destroy_compute_instance(handle, gpu, gi_id, ci_id)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See ``GpuControl.destroy_gpu_instance``. About a second on hardware."""
        with self._changes(gpu) as (_, handle):
            control.destroy_gpu_instance(handle, gpu, gi_id)

    def fabric(self, gpu: GpuUuid) -> Fabric | None:
        with self._handle(gpu) as (_, handle):
            return optional(read_fabric, handle, name=FABRIC)

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        with self._handle(gpu) as (_, handle):
            return control.compute_mode(handle)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See ``GpuControl.set_compute_mode``. MigUnsupportedError while MIG mode is on."""
        with self._handle(gpu) as (_, handle):
            control.set_compute_mode(handle, gpu, mode)

    @contextlib.contextmanager
    def _handle(self, gpu: GpuUuid) -> Iterator[tuple[Known, pynvml.c_nvmlDevice_t]]:
        """The GPU's handle, under its lock. Raises DeviceLostError when the GPU is missing or hangs."""
        with self._session.use() as generation, self._node.call_lock(gpu).change():
            known = self._node.knowledge(generation)
            yield known, self._node.find(known, gpu)

    @contextlib.contextmanager
    def _changes(self, gpu: GpuUuid) -> Iterator[tuple[Known, pynvml.c_nvmlDevice_t]]:
        """As ``_handle``, for a change of instances, after which they are listed again."""
        with self._handle(gpu) as found:
            self.listings.asked(found[0].generation)
            try:
                yield found
            finally:
                self.listings.changed(gpu)

    def _await_answer(self, known: Known, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
        deadline = time.monotonic() + MODE_TIMEOUT_S
        while True:
            try:
                modes = control.mig_modes(self._node.find(known, gpu), gpu)
                if modes.current == enabled or not modes.is_settled:
                    return ModeAnswer.DONE if modes.current == enabled else ModeAnswer.NEEDS_RESET
            except DeviceLostError:  # being bound again
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                return ModeAnswer.NEEDS_RESET
            time.sleep(MODE_PAUSE_S)

    def _await_mode(self, known: Known, gpu: GpuUuid, enabled: bool) -> None:
        deadline = time.monotonic() + MODE_TIMEOUT_S
        while True:
            try:
                handle = self._node.find(known, gpu)
                if control.mig_mode(handle, gpu) == enabled:
                    return
                if control.revert_pending_mode(handle):
                    raise ResetRequiredError(
                        f"switching MIG mode of GPU {gpu} {'on' if enabled else 'off'} failed: it needs a GPU reset, "
                        f"and was reverted; run kubectl dra gpu mig-mode NODE/GPU {'on' if enabled else 'off'}"
                    )
            except DeviceLostError:  # being bound again
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise DeviceLostError(
                    f"MIG mode of GPU {gpu} is not {'on' if enabled else 'off'} {MODE_TIMEOUT_S:.0f} s after NVML "
                    "reported success; see XID messages in the node's kernel log"
                )
            time.sleep(MODE_PAUSE_S)
