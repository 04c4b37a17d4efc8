"""Keeps sentences about devices from changing at every look.

The sentences contain what the hardware says: the reason why a GPU does not answer, the NVLinks that are down, the last
XIDs. Where that changes with each look, the kubelet would write the status of every pod with the device each time, and
this driver that of its claim (``claim_status.py``). So a new sentence about a device whose state stays the same waits
until the last one is ``STEADY_S`` old. A new state is told at once.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from dra_driver.node.process.health_report import DeviceReport

STEADY_S: Final = 60.0


class SteadyReports:
    """Not thread-safe: one thread calls ``of``, and again while nothing changes, so that the last sentence is told."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[DeviceReport, float]] = {}

    def of(self, reports: Iterable[DeviceReport]) -> tuple[DeviceReport, ...]:
        """The reports, some with the sentence that was told last."""
        now = self._clock()
        self._told = {(each.pool, each.device): self._steady(each, now) for each in reports}
        return tuple(report for report, _ in self._told.values())

    def _steady(self, report: DeviceReport, now: float) -> tuple[DeviceReport, float]:
        told, at = self._told.get((report.pool, report.device), (report, now))
        if report == told:
            return told, at
        if report == replace(told, message=report.message) and now - at < STEADY_S:
            return told, at
        return report, now
