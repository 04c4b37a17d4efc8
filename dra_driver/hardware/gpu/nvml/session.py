"""Load the NVML library, open and end the process's NVML session, and interrupt waits in it.

NVML is thread-safe. Only opening and ending a session exclude other calls: pynvml keeps library and symbols in globals,
and handles end with the session. NVML counts and numbers the GPUs once per session; NVIDIA's DCGM restarts its session
at every bind and unbind (DcgmHostEngineHandler.cpp). A GPU that is unbound even waits for the end of this session: its
link below /sys/bus/pci/drivers/nvidia disappears immediately (Linux, drivers/base/dd.c), and the kernel module waits
until its use count is 0 (open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c). A replaced library keeps working as it
is mapped; the new one needs a kernel module of its release.
"""

import _ctypes
import contextlib
import ctypes
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pynvml
from msgspec import Struct

from dra_driver.core.errors import DetachedError, DriverUnavailableError
from dra_driver.core.files import read_start
from dra_driver.hardware.driver_root.search import find_library, unsupported
from dra_driver.hardware.gpu.nvml.errors import describe, driver_call

log = logging.getLogger(__name__)

SIGNAL = signal.SIGUSR1
SLICE_S = 10.0
"""One wait in NVML, where it can be interrupted."""
SHORT_SLICE_S = 0.25
"""One wait in NVML, where it cannot: the longest delay of a change of MIG mode by a thread that waits."""
REPEAT_S = 0.02
"""Seconds until the next interrupt: the thread may have been about to wait."""
SERIES_S = 0.5
"""Interrupts further apart do not belong together: the first one may have come before the thread waited."""
PATIENCE_S = 1.0
"""Seconds after an interrupt when a wait counts as not interruptible."""


class Waits:
    """The threads that wait in NVML now. Thread-safe. nvmlEventSetWait_v2 returns NVML_ERROR_TIMEOUT when an interrupt
    arrives (nvml.h), so a signal whose handler does nothing allows long waits; each wait costs an idle node CPU. Not
    tried with NVIDIA's library: if a wait continues after a signal, later ones are short."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Handlers can be installed in the main thread only; from any other, interrupting does nothing."""
        self._clock = clock
        self._can_interrupt = _install_handler()
        self._lock = threading.Lock()  # held while a signal is sent, so that it meets no later call of the thread
        # When a wait was interrupted, by thread: at first and at last, without a pause of SERIES_S between.
        self._inside: dict[int, tuple[float, float] | None] = {}

    @property
    def slice_s(self) -> float:
        return SLICE_S if self._can_interrupt else SHORT_SLICE_S

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread waits in NVML inside the block."""
        thread = threading.get_ident()
        with self._lock:
            self._inside[thread] = None
        try:
            yield
        finally:
            with self._lock:
                del self._inside[thread]

    def interrupt(self) -> None:
        """End all present waits. To be repeated every `REPEAT_S` until they have ended."""
        with self._lock:
            for thread, series in self._inside.items():
                if self._can_interrupt:
                    signal.pthread_kill(thread, SIGNAL)
                    now = self._clock()
                    first = now if series is None or now - series[1] > SERIES_S else series[0]
                    self._inside[thread] = first, now
                    self._can_interrupt = now - first < PATIENCE_S
                    if not self._can_interrupt:
                        log.info("waits for GPU events cannot be interrupted; they are short from now on")


def _install_handler() -> bool:
    """Install the handler unless the signal has another one. Return whether it is installed."""
    if signal.getsignal(SIGNAL) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(SIGNAL, _nothing)
    return signal.getsignal(SIGNAL) is _nothing


def _nothing(_number: int, _frame: object) -> None:
    pass


_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_RELEASE = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")
_MAX_VERSION = 64


class DriverEnvironment(Struct, frozen=True, kw_only=True):
    """The bound GPUs as address and inode of their link (new when a GPU is bound again), the stamp of the ``library``'s
    file, the ``release`` in its name, and the version of the loaded kernel ``module``; None if unknown."""

    bound: frozenset[tuple[str, int]] | None = None
    library: tuple[int, int, int, int] | None = None
    release: str | None = None
    module: str | None = None

    @classmethod
    def read(cls, sysfs_root: str, library_path: str | None) -> Self:
        """Never raises."""
        return cls(
            bound=_bound(sysfs_root),
            library=_stamp(library_path),
            release=_release(library_path),
            module=(read_start(f"{sysfs_root}/module/nvidia/version", _MAX_VERSION) or "").strip() or None,
        )

    def outdated(self, now: "DriverEnvironment") -> str | None:
        """Return why a session of this environment is outdated and a new one would work; None otherwise."""
        if now.bound is not None and now.bound != self.bound:
            came = sorted({address for address, _ in now.bound - (self.bound or frozenset())})
            gone = sorted({address for address, _ in (self.bound or frozenset()) - now.bound})
            return f"GPUs were bound ({', '.join(came) or 'none'}) or unbound ({', '.join(gone) or 'none'})"
        if now.module is not None and self.module is not None and now.module != self.module:
            return f"the kernel module is now {now.module}, it was {self.module}"
        if self.replaced(now) and now.release is not None and now.release == now.module:
            return f"the driver's library was replaced by {now.release}"
        return None

    def replaced(self, now: "DriverEnvironment") -> bool:
        return self.library is not None and now.library is not None and now.library != self.library


def _bound(sysfs_root: str) -> frozenset[tuple[str, int]] | None:
    try:
        with os.scandir(f"{sysfs_root}/bus/pci/drivers/nvidia") as entries:
            return frozenset((entry.name, entry.inode()) for entry in entries if _ADDRESS.fullmatch(entry.name))
    except OSError:
        return None


def _stamp(path: str | None) -> tuple[int, int, int, int] | None:
    if path is None:
        return None
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _release(path: str | None) -> str | None:
    """``580.65.06`` of ``libnvidia-ml.so.580.65.06``, to which the path leads."""
    if path is None:
        return None
    found = _RELEASE.search(os.path.realpath(path))
    return found[1] if found else None


RENEW_TIMEOUT_S = 2.0  # waits for events, which are split into slices


class SessionEndedError(Exception):
    """The requested session has ended. Never leaves the backend."""


class Session:
    """The process's NVML session. Thread-safe; one thread must not enter it twice."""

    def __init__(
        self,
        library_path: str | None,
        driver_root: str | Callable[[], str] | None,
        sysfs_root: str = "/sys",
        *,
        end_timeout_s: float = 10.0,
        renew_timeout_s: float = RENEW_TIMEOUT_S,
    ) -> None:
        """See ``NvmlBackend``: every new session searches the library again."""
        self._end_timeout_s, self._renew_timeout_s = end_timeout_s, min(renew_timeout_s, end_timeout_s)
        self._library_path = library_path
        self._driver_root = driver_root
        self._sysfs_root = sysfs_root
        self._turn = threading.Condition()  # guards the fields below; never held during an NVML call
        self._users = 0
        self._waits = 0  # how many of the users only wait for events
        self._is_open = False
        self._ending = False  # it ends after the last user; no new user is admitted
        self._may_stay = False  # that end may be called off: only detach or renew asked for it
        self._changing = False  # one thread opens or ends it now, and owns pynvml's globals
        self._generation = 0
        self.detached: str | None = None  # why no session may begin
        self._surroundings = DriverEnvironment()
        self._before_end: list[Callable[[], None]] = []
        self.waits = Waits()  # for threads that only wait for events

    def before_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` right before the session ends, without other NVML calls. It must not use this object."""
        self._before_end.append(callback)

    def open(self) -> None:
        with self._turn:
            self._begin()

    def close(self) -> None:
        with self._turn:
            generation = self._generation
            self._end()
            if not self._await_end(lambda: self._is_ended() or self._generation != generation, self._end_timeout_s):
                log.warning("an NVML call did not return in time; the session ends when it returns")

    def renew(self, generation: int) -> bool:
        """End that session, so that the next use begins a new one. Return whether it ended. It stays open while calls
        other than waits for events run: a change is not disturbed, and a hanging call does not affect other GPUs."""
        with self._turn:
            if generation != self._generation or self._users > self._waits or self._ending or not self._is_open:
                return False
            self._end(may_stay=True)
            ends = self._await_end(lambda: not self._ending, self._renew_timeout_s)
            self._call_off_end()
            return ends

    def detach(self, reason: str, timeout_s: float) -> bool:
        """End the session as ``close`` does, and begin none until ``reattach``; whether it has ended in time."""
        with self._turn:
            self.detached = reason
            self._turn.notify_all()  # callers that wait for the end of the last session
            self._end(may_stay=True)
            return self._await_end(self._is_ended, timeout_s)

    def reattach(self) -> None:
        """Allow new sessions. A session that has not ended continues: a hanging GPU may keep it open indefinitely."""
        with self._turn:
            self.detached = None
            self._call_off_end()

    def outlook(self) -> tuple[int, DriverEnvironment, DriverEnvironment] | None:
        """Return the number of the open session, its environment and the environment of a new one; None without one."""
        with self._turn:
            if not self._is_open:
                return None
            generation, began = self._generation, self._surroundings
        library: str | None = None
        with contextlib.suppress(DriverUnavailableError):  # removed; the session works on
            library = self._find()
        return generation, began, DriverEnvironment.read(self._sysfs_root, library)

    def wait_attached(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until a session may begin; whether it may."""
        with self._turn:
            return self._turn.wait_for(lambda: self.detached is None, timeout_s)

    @contextlib.contextmanager
    def use(self, generation: int | None = None, *, waits: bool = False, joins: bool = False) -> Iterator[int]:
        """Keep the session open inside the block, opening one if necessary; yields its number. Raises SessionEndedError
        when session ``generation`` has ended, else DetachedError. A DriverUnavailableError that leaves the block ends
        it. ``waits``: it only waits for events. ``joins``: another user of this generation stays until it enters."""
        with self._turn:
            if generation is None:
                self._begin()
            elif not joins and (not self._is_open or self._ending or generation != self._generation):
                raise SessionEndedError
            self._users += 1
            self._waits += waits
            current = self._generation
        try:
            yield current
        except DriverUnavailableError:
            with self._turn:
                self._ending, self._may_stay = True, False
            raise
        finally:
            with self._turn:
                self._users -= 1
                self._waits -= waits
                self._end_if_unused()

    def _await_end(self, ended: Callable[[], bool], timeout_s: float) -> bool:
        """Interrupt waits until the session ends, up to ``timeout_s``; whether it ended. The caller holds the lock."""
        deadline = time.monotonic() + timeout_s
        while not self._turn.wait_for(ended, min(REPEAT_S, timeout_s)):
            if time.monotonic() >= deadline:
                return False
            self.waits.interrupt()
        return True

    def _is_ended(self) -> bool:
        return not (self._is_open or self._changing)

    def _begin(self) -> None:
        if not self._turn.wait_for(
            lambda: not (self._ending or self._changing) or self.detached is not None, self._end_timeout_s
        ):
            raise DriverUnavailableError(
                f"the NVIDIA driver cannot be used: a call of the last NVML session has not returned for "
                f"{self._end_timeout_s:.0f} s; see XID messages in the node's kernel log; reboot it if it stays so"
            )
        if self.detached is not None:
            raise DetachedError(self.detached)
        if self._is_open:
            return
        with self._changed():
            surroundings = self._load()
        self._is_open = True
        self._generation += 1
        self._surroundings = surroundings
        if self.detached is not None:
            self._end()
            raise DetachedError(self.detached)

    @contextlib.contextmanager
    def _changed(self) -> Iterator[None]:
        """Run NVML calls without the lock and without any other call. The caller holds the lock."""
        self._changing = True
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()
            self._changing = False
            self._turn.notify_all()

    def _load(self) -> DriverEnvironment:
        """Initialise NVML; its environment, read before the call, so that a change during it is noticed later."""
        path = self._find()
        surroundings = DriverEnvironment.read(self._sysfs_root, path)
        use_library(path)
        # NO_GPUS: the driver also works on a node whose GPUs are all assigned to virtual machines.
        driver_call(pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        return surroundings

    def _find(self) -> str | None:
        if self._library_path is not None or self._driver_root is None:
            return self._library_path
        root = self._driver_root if isinstance(self._driver_root, str) else self._driver_root()
        if reason := unsupported(root):
            raise DriverUnavailableError(reason)
        path = find_library(root)
        if path is None and root != "/":
            raise DriverUnavailableError(
                f"no libnvidia-ml.so.1 below the driver root {root}: install the NVIDIA driver, "
                "wait for the driver container, or set --driver-root (DRIVER_ROOT) to another folder",
                reason="LibraryMissing",
            )
        return path

    def _end(self, *, may_stay: bool = False) -> None:
        """Let the session end after its last user; ``may_stay``: `_call_off_end` may be called before that."""
        self._may_stay = may_stay and (self._may_stay or not self._ending)
        self._ending = self._is_open
        self._end_if_unused()

    def _call_off_end(self) -> None:
        """Admit users to a session that has not ended yet."""
        if self._may_stay and self.detached is None:
            self._ending = False
        self._turn.notify_all()

    def _end_if_unused(self) -> None:
        if not self._ending or self._users > 0:
            return
        self._ending = False
        self._is_open = False
        with self._changed():
            for callback in self._before_end:
                callback()
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                log.debug("nvmlShutdown failed", extra={"reason": describe(error)})
            use_library(None)


def use_library(path: str | None) -> None:
    """Make pynvml use the library at ``path``; with None it searches at the next init. No NVML call may run. pynvml
    keeps library and symbols, also in 13.615; unless both are cleared, calls go to the driver before an upgrade. The
    former library is unloaded, as go-nvml does (pkg/nvml/lib.go:137): the linker does not reopen a loaded path."""
    former = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = None
    if former is not None:
        _ctypes.dlclose(former._handle)
    try:
        library = None if path is None else ctypes.CDLL(path)
    except OSError as error:
        raise DriverUnavailableError(f"cannot load the NVML library {path}: {error}; reinstall the driver") from error
    pynvml.nvmlLib = library
