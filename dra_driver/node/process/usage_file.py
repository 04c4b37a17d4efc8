"""Reads ``findings.json`` of the usage exporter when it has changed.

The exporter renews the file every minute while there is anything in it (`config.usage_findings.RENEW_S`). Findings that
are not renewed are those of an exporter that has ended or hangs: they count for `STALE_S`, by a clock that does not
jump, and are forgotten then. A damaged file counts as one that is not renewed. A file that is there when the node
process starts is as old as its time of modification says, or a node process that restarts would believe what an
exporter found that ended days ago.
"""

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dra_driver.config.usage_findings import FILE, FOLDER, MAX_BYTES, RENEW_S, decode
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.usage_findings import UsageFindings

log = logging.getLogger(__name__)

STALE_S: Final = 3 * RENEW_S
_Seen = tuple[int, int, int]


class FindingsFile:
    """Of one thread. ``folder`` is the folder ``usage`` of the driver's directory. ``wall_clock`` is that of files."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._clock, self._wall_clock = folder / FOLDER / FILE, clock, wall_clock
        self._seen: _Seen | None = None
        self._renewed_s = clock()
        self._findings: UsageFindings | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the newest file is not believed."""
        return self._problem

    def look(self) -> UsageFindings | None:
        """The findings in force; the same value while nothing changed, None without any."""
        try:
            self._read()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._fail(f"the usage exporter's findings {self._path} cannot be read: {error.strerror}")
        if self._findings is not None and self._clock() - self._renewed_s > STALE_S:
            log.info("findings of the usage exporter are forgotten: they are not renewed")
            self._findings = None
        return self._findings

    def _read(self) -> None:
        found = os.lstat(self._path)
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return
        age_s = max(0.0, self._wall_clock() - found.st_mtime) if self._seen is None else 0.0
        self._seen = seen
        try:
            self._findings = decode(self._content())
        except ConfigurationError as error:
            self._fail(f"the usage exporter's findings are damaged: {error}")
            return
        self._problem, self._renewed_s = None, self._clock() - age_s

    def _content(self) -> bytes:
        """At most a byte more than is allowed. A link, a pipe and a device are no such file."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(self._path, flags), "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigurationError(f"{self._path} is no ordinary file")
            return file.read(MAX_BYTES + 1)

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("findings of the usage exporter are not read", extra={"reason": problem})
        self._problem = problem
