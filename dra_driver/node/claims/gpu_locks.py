"""One lock per GPU. It is needed to change the GPU, and to decide based on the state of the GPU.

Each lock is a file below ``<plugin directory>/locks`` with a ``flock``, which counts between processes (they overlap
during a rolling update) and ends with its process, plus a lock in memory, which counts between threads. The files are
never removed: a process that waits for a removed file would hold a lock that no other process sees.

Several GPUs are locked in the order of their UUIDs, so no two callers wait for each other. Do not wait for the API
server while you hold one.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file
from dra_driver.core.model.ids import GpuUuid

_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z-]")


class GpuLocks:
    """The locks of a node's GPUs. Thread-safe; not re-entrant. ``folder`` is created when it is needed (0700)."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._guard = threading.Lock()  # guards the table; never held while waiting for a GPU
        self._table: dict[GpuUuid, threading.Lock] = {}  # at most the GPUs that this node ever had

    @contextlib.contextmanager
    def acquire(self, gpus: Iterable[GpuUuid], timeout_s: float) -> Iterator[bool]:
        """Lock all ``gpus``. Yields False, with no lock held, when that takes longer than ``timeout_s``.

        A free lock is acquired whatever the timeout. Raises `StorageError` when a lock file cannot be created.
        """
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as acquired:
            for gpu in sorted(set(gpus)):
                if not self._lock(gpu, deadline, acquired):
                    acquired.close()
                    yield False
                    return
            yield True

    def _lock(self, gpu: GpuUuid, deadline: float, acquired: contextlib.ExitStack) -> bool:
        with self._guard:
            lock = self._table.setdefault(gpu, threading.Lock())
        if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        acquired.callback(lock.release)
        descriptor = self._lock_file(gpu, deadline - time.monotonic())
        if descriptor is None:
            return False
        acquired.callback(os.close, descriptor)
        return True

    def _lock_file(self, gpu: GpuUuid, timeout_s: float) -> int | None:
        path = self._folder / f"{_NOT_IN_NAMES.sub('_', gpu)[:100]}.lock"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return lock_file(path, timeout_s=timeout_s)
        except BlockingIOError:
            return None
        except OSError as error:
            raise StorageError(
                f"cannot lock GPU {gpu} with {path}: {(error.strerror or str(error)).lower()}; "
                "check the plugin directory's path, permissions and free space"
            ) from error
