"""Writes ``findings.json`` for the node process: when it changed, and anew while there is anything in it."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from dra_driver.config.usage_findings import FILE, FOLDER, RENEW_S, encode
from dra_driver.core.files import replace_file
from dra_driver.core.model.usage_findings import UsageFindings

log = logging.getLogger(__name__)


class FindingsWriter:
    """Of one thread. ``folder`` is the folder ``usage`` of the driver's directory; ``clock`` does not jump."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = folder / FOLDER / FILE, clock
        self._written: UsageFindings | None = None
        self._written_s = float("-inf")
        self._problem = ""

    def write(self, findings: UsageFindings) -> None:
        """Write what is new. Never raises: findings that are not told are logged."""
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
                log.warning("findings are not told to the node process", extra={"file": self._path, "reason": problem})
            self._problem = problem
            return
        self._written, self._written_s, self._problem = findings, self._clock(), ""
