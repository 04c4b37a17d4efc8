"""Reads a driver's health stream as the kubelet does: the newest report of each device and when it came.

Follows pkg/kubelet/cm/dra/healthinfo.go: a device that is not reported again within its timeout (30 s if it names
none) decays to Unknown. The number of devices that are kept is bounded.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.unix_grpc import HealthStream

DEFAULT_TIMEOUT_S: Final = 30.0
LONGEST_TIMEOUT_S: Final = 120.0
MAX_DEVICES: Final = 4096


class Report(Struct, frozen=True, kw_only=True):
    """The newest report of one device; ``reports`` counts those of this stream, ``gap_s`` is the longest pause."""

    health: int
    timeout_s: float
    message_length: int
    seen_at: float
    reports: int
    gap_s: float


Reports = dict[tuple[str, str], Report]


def read_until(stream: HealthStream, enough: Callable[[Reports], bool], within_s: float, reports: Reports) -> bool:
    """Add what the stream says to ``reports`` until ``enough``; False if that takes longer. Raises CallError."""

    def seen(message: Any) -> bool:
        now = time.monotonic()
        for device in message.devices:
            key = (device.device.pool_name[:260], device.device.device_name[:80])
            if key in reports or len(reports) < MAX_DEVICES:
                reports[key] = _report(device, reports.get(key), now)
        return enough(reports)

    return stream.read(seen, within_s)


def longest_wait_s(reports: Reports) -> float:
    """How long a repetition of every device may take."""
    return min(max((report.timeout_s for report in reports.values()), default=0.0), LONGEST_TIMEOUT_S)


def _report(device: Any, before: Report | None, now: float) -> Report:
    asked = float(device.health_check_timeout_seconds)
    return Report(
        health=int(device.health),
        timeout_s=asked if asked > 0 else DEFAULT_TIMEOUT_S,
        message_length=len(device.message),
        seen_at=now,
        reports=before.reports + 1 if before else 1,
        gap_s=max(before.gap_s, now - before.seen_at) if before else 0.0,
    )
