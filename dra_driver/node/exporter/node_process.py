"""Exchange files with the node process, and close the NVIDIA driver when it requests that.

``assignments.json`` names the claims with their devices and the GPUs to close; ``findings.json`` has the result. NVML
opens all GPUs, so all are closed while one of them changes or the driver is detached. A shared lock on ``driver.lock``
shows the node process whether they are open; while the node process holds it, none is opened
(``node/process/usage_exporter.py``, docs/decisions/0027).
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from dra_driver.config.usage_findings import FILE as FINDINGS
from dra_driver.config.usage_findings import FOLDER, RENEW_S, encode
from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.files import ChangedFile, lock_file, replace_file
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.model.usage_findings import UsageFindings
from dra_driver.hardware.gpu.backend import UsageSource
from dra_driver.node.usage.assignments import FILE, MAX_BYTES, decode
from dra_driver.node.usage.sources import Unread
from dra_driver.node.usage.values import Assignments

log = logging.getLogger(__name__)


class AssignmentsReader:
    """Reads ``assignments.json`` in ``folder`` (``usage`` of the driver's directory), keeps the last good one. Of one
    thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = ChangedFile(self._path, MAX_BYTES)
        self._last: Assignments | None = None
        self.problem: str | None = None

    def read(self) -> Assignments | Unread:
        """The last good assignments; the same value while nothing changed."""
        try:
            content = self._file.read()
            if content is not None:
                self._last, self.problem = decode(content), None
        except FileNotFoundError:
            self._fail(
                f"there is no {self._path}: the node process writes it with --usage=true (USAGE), which "
                "exporter.enabled of the chart sets"
            )
        except OSError as error:
            self._fail(f"{self._path} cannot be read: {error.strerror}")
        except ConfigurationError as error:
            self._fail(str(error))
        return self._last if self._last is not None else Unread(reason=self.problem or "not read yet")

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("assignments of claims are not read", extra={"reason": problem})
        self.problem = problem


class FindingsWriter:
    """Writes ``findings.json`` when it changed, and again every `RENEW_S` while it has content. Of one thread."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = folder / FOLDER / FINDINGS, clock
        self._written: UsageFindings | None = None
        self._written_s = float("-inf")
        self._problem = ""

    def write(self, findings: UsageFindings) -> None:
        """Write news. Never raises: findings that cannot be written are logged."""
        is_new = self._written is None or replace(findings, written=self._written.written) != self._written
        is_due = not findings.is_empty and self._clock() - self._written_s >= RENEW_S
        if not (is_new or is_due):
            return
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(self._path, encode(findings))
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self._problem:
                log.warning("cannot write usage findings; will retry", extra={"file": self._path, "reason": problem})
            self._problem = problem
            return
        self._written, self._written_s, self._problem = findings, self._clock(), ""


SAMPLE_S: Final = 3.0
"""The driver keeps 72 samples of processes, about ten seconds: between two reads, shorter use would be lost."""


class UsageGpus:
    """Reads GPU usage. Of one thread. ``is_open``: this process may use the driver. ``lock`` is the lock file."""

    def __init__(self, backend: UsageSource, lock: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend, self._lock, self._clock = backend, lock, clock
        self._sampled_s = 0.0
        self.is_open = False
        self._held: int | None = None
        self._closed_for: str | None = None

    def sync(self, assignments: Assignments | Unread) -> str | None:
        """Close the GPUs if the node process requests it; return why they have to stay closed, else None."""
        reason = _close_reason(assignments)
        if reason is not None and (self.is_open or reason != self._closed_for):
            log.info("closed NVML at the node process's request", extra={"reason": reason})
            self.close()
        elif reason is None and self._closed_for is not None:
            log.info("NVML may be opened again")
        self._closed_for = reason
        return reason

    def read(self, assignments: Assignments | Unread) -> tuple[GpuUsage, ...] | Unread:
        reason = self.sync(assignments)
        if reason is not None:
            return Unread(reason=reason)
        if not self._may_open():
            return Unread(reason="the node process changes a GPU")
        self.is_open = True  # before the call: one that fails may leave handles
        self._sampled_s = self._clock()
        try:
            return self._backend.usage()
        except DraError as error:
            return Unread(reason=f"the GPUs cannot be read: {error}")

    def poll(self, assignments: Assignments | Unread) -> None:
        """As `sync`; every `SAMPLE_S` also add to the averages of the next read, which reports what fails here."""
        self.sync(assignments)
        if self.is_open and self._clock() - self._sampled_s >= SAMPLE_S:
            self._sampled_s = self._clock()
            with contextlib.suppress(DraError):
                self._backend.sample()

    def close(self) -> None:
        """Idempotent; the next read opens them again."""
        self._backend.close()
        self.is_open = False
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _may_open(self) -> bool:
        if self._held is None:
            try:
                self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._held = lock_file(self._lock, shared=True)
            except BlockingIOError:
                return False
            except OSError as error:  # the node process cannot wait then; it repeats its changes anyway
                log.debug("the node process cannot see that the driver is open", extra={"reason": error})
        return True


def _close_reason(assignments: Assignments | Unread) -> str | None:
    if isinstance(assignments, Unread):
        return None
    if assignments.detached is not None:
        return f"the node process is detached from the NVIDIA driver: {assignments.detached}"
    changing = [gpu.device for gpu in assignments.gpus if gpu.changing]
    return f"MIG mode or instances of {', '.join(changing)} are changing" if changing else None
