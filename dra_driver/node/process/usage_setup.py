"""Connects what the usage exporter found with the journal, the policies, events and the GpuNode."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import time_text
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.gpu_node import NO_USAGE, ToldUsage
from dra_driver.core.model.terms import Terms
from dra_driver.node.claims import Journal
from dra_driver.node.process.health_events import Tell
from dra_driver.node.process.usage_believed import GrantedClaim, GrantedDevice, believed
from dra_driver.node.process.usage_events import ClaimNotice, UsageEvents
from dra_driver.node.process.usage_file import FindingsFile

FOLDER: Final = "usage"
"""In the driver's directory: what node process and usage exporter tell each other."""
CHECKED_S: Final = 20.0
"""How often ``checkedAt`` of the GpuNode is renewed while the controller is asked to act."""


class UsageReport:
    """Of one thread. ``notify`` hears of events about claims."""

    def __init__(
        self,
        settings: NodeSettings,
        journal: Journal,
        tell: Tell,
        *,
        notify: Callable[[ClaimNotice], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        folder = Path(settings.kubelet_plugins_dir) / settings.driver_name / FOLDER
        self._file, self._journal, self._clock, self._now = FindingsFile(folder, clock=clock), journal, clock, now
        self._events = UsageEvents(tell, notify=notify, clock=clock)
        self._told, self._checked_s, self._checked_at = NO_USAGE, 0.0, ""

    @property
    def told(self) -> ToldUsage:
        """What the GpuNode says; the same value while nothing changed."""
        return self._told

    @property
    def problem(self) -> str | None:
        """Why the newest findings are not told."""
        return self._file.problem

    def look(self, snapshot: Snapshot, terms: Terms) -> None:
        """Takes what is new in the file. A look at an unchanged file costs microseconds. Raises StorageError."""
        findings = self._file.look()
        if findings is None or findings.is_empty:
            self._take(NO_USAGE)
            return
        if self._clock() - self._checked_s >= CHECKED_S or not self._checked_at:
            self._checked_s, self._checked_at = self._clock(), time_text(self._now())
        self._take(believed(findings, _granted(self._journal), snapshot, terms, self._checked_at))

    def _take(self, told: ToldUsage) -> None:
        if told != self._told:
            self._told = told
        self._events.update(told)


def _granted(journal: Journal) -> Iterator[GrantedClaim]:
    for entry in journal.entries():
        devices = [
            GrantedDevice(
                device=each.device,
                gpu_uuid=each.gpu_uuid,
                share_bytes=each.sharing.share.memory if each.sharing is not None and each.sharing.share else None,
            )
            for each in entry.devices
            if not each.admin_access
        ]
        if entry.state == "prepared" and devices:
            yield GrantedClaim(ref=entry.ref, devices=devices)
