"""One NVML session for the whole process: which library, when it begins and when it ends.

Owns pynvml's globals. Refuses to know GPUs. NVML is thread-safe (its documentation, and ctypes lets go of the
interpreter meanwhile), so any number of calls run at once; only beginning and ending a session need the process alone,
because pynvml keeps library and symbols in globals and handles die with the session.
"""

import contextlib
import ctypes
import logging
import threading
from collections.abc import Iterator

import pynvml

from dra_driver.errors import DriverUnavailableError
from dra_driver.gpu.library import find_library
from dra_driver.gpu.nvml.errors import describe, driver_call

log = logging.getLogger(__name__)

END_TIMEOUT_S = 60.0  # the slowest calls, MIG mode and instances, take seconds; a wedged GPU never answers


class SessionEndedError(Exception):
    """The session that was asked for is over. Never leaves the backend."""


class Session:
    """The process's NVML session. Thread-safe; not to be entered twice by one thread."""

    def __init__(self, library_path: str | None, driver_root: str | None) -> None:
        """See ``NvmlBackend``: the search is done whenever a session begins."""
        self._library_path = library_path
        self._driver_root = driver_root
        self._turn = threading.Condition()  # guards pynvml's globals and the fields below
        self._users = 0
        self._is_open = False
        self._ending = False  # it ends when the last user is out; nobody is let in meanwhile
        self._generation = 0

    def open(self) -> None:
        """Begin a session if there is none. Raises DriverUnavailableError."""
        with self._turn:
            self._begin()

    def close(self) -> None:
        """End it once nobody is inside. Idempotent."""
        with self._turn:
            if not self._is_open:
                return
            self._ending = True
            self._end_if_unused()
            if not self._turn.wait_for(lambda: not self._ending, END_TIMEOUT_S):
                log.warning("an NVML call does not return; the session ends when it does")

    @contextlib.contextmanager
    def use(self, generation: int | None = None) -> Iterator[int]:
        """Keep the session alive inside; yields its number. Begins one when there is none.

        With ``generation``, only that session will do (SessionEndedError). A DriverUnavailableError that leaves the
        block ends the session, so that the next use begins with whatever library is there then.
        """
        with self._turn:
            if generation is None:
                self._begin()
            elif not self._is_open or self._ending or generation != self._generation:
                raise SessionEndedError
            self._users += 1
            current = self._generation
        try:
            yield current
        except DriverUnavailableError:
            with self._turn:
                self._ending = True
            raise
        finally:
            with self._turn:
                self._users -= 1
                self._end_if_unused()

    def _begin(self) -> None:
        if not self._turn.wait_for(lambda: not self._ending, END_TIMEOUT_S):
            raise DriverUnavailableError(
                f"the NVIDIA driver cannot be used: a call of the last NVML session has not come back for "
                f"{END_TIMEOUT_S:.0f} s; see XID messages in the node's kernel log, and reboot the node if it stays so"
            )
        if self._is_open:
            return
        use_library(self._find())
        # NO_GPUS: a node whose GPUs are all handed to virtual machines still has a working driver.
        driver_call("nvmlInitWithFlags", lambda: pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS))
        self._is_open = True
        self._generation += 1

    def _find(self) -> str | None:
        if self._library_path is not None or self._driver_root is None:
            return self._library_path
        path = find_library(self._driver_root)
        if path is None and self._driver_root != "/":
            raise DriverUnavailableError(
                f"no libnvidia-ml.so.1 below the driver root {self._driver_root}: install the NVIDIA driver, "
                "wait for the driver container, or name another driver root"
            )
        return path

    def _end_if_unused(self) -> None:
        if not self._ending or self._users > 0:
            return
        self._ending = False
        self._is_open = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            log.debug("nvmlShutdown failed", extra={"reason": describe(error)})
        use_library(None)
        self._turn.notify_all()


def use_library(path: str | None) -> None:
    """Make pynvml use the library at ``path``, None: search again at the next init.

    pynvml remembers the library and every symbol it has resolved; without clearing both, calls would still go to the
    library of the driver that was upgraded meanwhile. Still needed with nvidia-ml-py 13.615.
    """
    try:
        library = None if path is None else ctypes.CDLL(path)
    except OSError as error:
        raise DriverUnavailableError(f"cannot load the NVML library {path}: {error}; reinstall the driver") from error
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library
