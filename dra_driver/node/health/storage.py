"""The file with the health of a node's GPUs, which two node processes may share during a rolling update.

Each process adds what it knows to what the file has and takes over the rest (`merge.py`), under a lock of a file of its
own. The file is replaced in one step, with mode 0600. It is not synced: after a power failure the node boots again, and
a boot heals most faults and readings show the others; what a crash of the disk makes of it is moved aside.
"""

import logging
import os
from pathlib import Path
from typing import Final

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import lock_file, remove_unfinished, replace_file
from dra_driver.node.health.codec import MAX_BYTES, HealthRecord, decode, encode
from dra_driver.node.health.merge import merged_records, until

log = logging.getLogger(__name__)

_LOCK_S: Final = 0.5
"""A process has the lock for as long as it takes to write some kilobytes."""


class HealthFile:
    """Not thread-safe: its user calls one method at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def read(self) -> HealthRecord | None:
        """What is saved; None where nothing is, or nothing usable: then the file was moved aside. Never raises."""
        self._seen = self._mark()
        try:
            with self._path.open("rb") as file:
                return decode(file.read(MAX_BYTES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("cannot read the saved health of GPUs", extra={"path": self._path, "reason": error.strerror})
        except ConfigurationError as error:
            self._move_aside(str(error))
        return None

    def exchange(self, own: HealthRecord, *, clock: float, wall: float) -> HealthRecord:
        """Add ``own`` to what is saved; returns all of it. Raises StorageError, and the file is then as it was.

        ``clock`` and ``wall`` are now: what is saved is not taken as later.
        """
        try:
            lock = lock_file(self._path.with_suffix(".lock"), timeout_s=_LOCK_S)
            try:
                saved = self.read()
                found = own if saved is None else merged_records(own, until(saved, clock, wall))
                if found != saved:
                    remove_unfinished(self._path)
                    replace_file(self._path, encode(found))
                self._seen = self._mark()
            finally:
                os.close(lock)
        except BlockingIOError as error:
            raise StorageError(f"{self._path} is locked by another process for {_LOCK_S:g} s") from error
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error
        return found

    def changed(self) -> bool:
        """Whether another process wrote the file since this one read or wrote it."""
        return self._mark() != self._seen

    def _mark(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def _move_aside(self, reason: str) -> None:
        """Keep a file that cannot be used for a later look, one at a time."""
        aside = self._path.with_name(f"{self._path.name}.damaged")
        log.warning(
            "the saved health of GPUs cannot be used and begins anew",
            extra={"path": self._path, "reason": reason, "kept": aside},
        )
        try:
            self._path.replace(aside)
        except OSError as error:
            log.warning("cannot move a damaged file aside", extra={"path": self._path, "reason": error.strerror})
