"""Waits until the usage exporter has let go of the NVIDIA driver, for a bounded time.

The exporter holds a shared ``flock`` on ``driver.lock`` while it has the driver open. The kernel drops the lock of a
process that dies, so an exporter that is gone delays nothing; one that is stuck delays one change by `WAIT_S`, and the
changes of the next `IMPATIENT_S` not at all. While the lock is held here the exporter does not open the driver again.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dra_driver.core.files import lock_file

log = logging.getLogger(__name__)

WAIT_S: Final = 3.0
"""The exporter looks four times a second whether it has to let go; a look at GPUs that answer takes less than this."""
IMPATIENT_S: Final = 60.0


class ExporterTurn:
    """Thread-safe. ``path`` is the lock file, which the exporter makes: without the file there is none to wait for."""

    def __init__(
        self,
        path: Path,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._sleep, self._clock = path, sleep, clock
        self._guard = threading.Lock()  # held while waiting, too: all changes wait for the same exporter
        self._held: int | None = None
        self._users = 0
        self._busy = False  # the last try found it held
        self._patient_s = float("-inf")

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Inside, the exporter has let go of the driver and does not open it; or it did not let go in time, or there
        is none. True if it had the driver open before, and let go: a call that failed because of it may succeed now."""
        with self._guard:
            waited = self._held is None and self._take()
            self._users += 1
        try:
            yield waited
        finally:
            with self._guard:
                self._users -= 1
                if not self._users and self._held is not None:
                    os.close(self._held)
                    self._held = None

    def let_go(self) -> bool:
        """Whether the exporter has not the driver open; waits for that as a change of a GPU does."""
        with self.taken():
            return not self._busy

    def _take(self) -> bool:
        """Whether it had to be waited for, and let go."""
        self._busy = False
        try:
            self._held = lock_file(self._path, create_mode=None)
        except BlockingIOError:
            return self._wait()
        except OSError:
            return False  # none has ever run here, or its folder is damaged, which its own messages tell
        return False

    def _wait(self) -> bool:
        self._busy = True
        if self._clock() < self._patient_s:
            return False
        try:
            self._held = lock_file(self._path, create_mode=None, timeout_s=WAIT_S, sleep=self._sleep, clock=self._clock)
        except BlockingIOError:
            self._patient_s = self._clock() + IMPATIENT_S
            log.warning("the usage exporter does not let go of the NVIDIA driver", extra={"waited_s": WAIT_S})
            return False
        except OSError:
            return False
        self._busy = False
        return True
