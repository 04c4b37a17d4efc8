"""Reads ``assignments.json`` of the node process when it has changed, and keeps the last good one."""

import logging
import os
import stat
from pathlib import Path

from dra_driver.core.errors import ConfigurationError
from dra_driver.node.usage.assignments import FILE, MAX_BYTES, decode
from dra_driver.node.usage.sources import Unread
from dra_driver.node.usage.values import Assignments

log = logging.getLogger(__name__)

_Seen = tuple[int, int, int]


class AssignmentsReader:
    """Of one thread. ``folder`` is the folder ``usage`` of the driver's directory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._seen: _Seen | None = None
        self._last: Assignments | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the newest file is not used; None while it is."""
        return self._problem

    def read(self) -> Assignments | Unread:
        """The last good assignments; the same value while nothing changed."""
        try:
            self._look()
        except FileNotFoundError:
            self._fail(
                f"there is no {self._path}: the node process writes it with --usage=true (USAGE), which "
                "exporter.enabled of the chart sets"
            )
        except OSError as error:
            self._fail(f"{self._path} cannot be read: {error.strerror}")
        except ConfigurationError as error:
            self._fail(str(error))
        return self._last if self._last is not None else Unread(reason=self._problem or "not read yet")

    def _look(self) -> None:
        found = os.lstat(self._path)
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return
        content = self._content()
        self._seen = seen  # a damaged file is read once
        self._last, self._problem = decode(content), None

    def _content(self) -> bytes:
        """At most a byte more than is allowed. A link, a pipe and a device are no such file."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(self._path, flags), "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigurationError(f"{self._path} is no ordinary file")
            return file.read(MAX_BYTES + 1)

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("assignments of claims are not read", extra={"reason": problem})
        self._problem = problem
