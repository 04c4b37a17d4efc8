"""What claims use, as the exporters told it since the page was started: a short memory for charts."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from dra_driver.usage.device_use import ClaimDeviceUse, GpuMemory, UseReport
from dra_driver.web.rows import Uses, uses_by_device

MAX_SAMPLES: Final = 240
"""An hour of samples every 15 s."""
MAX_POINTS: Final = 500_000


@dataclass(frozen=True, slots=True)
class Point:
    """Bytes and a ratio from 0 to 1 at a time; None is not known."""

    at: datetime
    used_bytes: int | None
    sm_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UseNow:
    """The last report, its devices by claim, and all samples."""

    report: UseReport
    uses: Uses = field(default_factory=dict)
    samples: Sequence[tuple[datetime, Uses]] = ()

    @property
    def gpus(self) -> Mapping[tuple[str, str], GpuMemory]:
        """Who uses the memory of each GPU, by node and name."""
        return {(each.node, each.device): each for each in self.report.gpus}

    def points(self, use: ClaimDeviceUse) -> list[Point]:
        """The history of one device of one claim, oldest first."""
        key = (use.namespace, use.claim, use.node, use.device)
        return [
            Point(at, found.used_bytes, found.sm_ratio)
            for at, uses in self.samples
            for found in [uses.get(key)]
            if found is not None
        ]


class UseHistory:
    """Asks ``read`` and remembers. Used by one thread; what it returns is never changed."""

    def __init__(self, read: Callable[[], UseReport], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._read = read
        self._now = now
        self._samples: deque[tuple[datetime, Uses]] = deque(maxlen=MAX_SAMPLES)

    def read(self) -> UseNow:
        """One look. Raises DraError."""
        report = self._read()
        uses: Mapping[tuple[str, str, str, str], ClaimDeviceUse] = uses_by_device(report.uses)
        self._samples.append((self._now(), uses))
        while len(self._samples) > 1 and sum(len(each) for _, each in self._samples) > MAX_POINTS:
            self._samples.popleft()
        return UseNow(report=report, uses=uses, samples=tuple(self._samples))
