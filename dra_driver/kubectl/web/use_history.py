"""What claims use, as the exporters told it since the page was started: a short memory for charts."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import DraError
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory, UseReport
from dra_driver.kubectl.web.rows import Uses, uses_by_device

MAX_SAMPLES: Final = 240
"""An hour of samples every 15 s."""
MAX_POINTS: Final = 500_000


class Point(Struct, frozen=True):
    """Bytes and a ratio from 0 to 1 at a time; None is not known."""

    at: datetime
    used_bytes: int | None
    sm_ratio: float | None


class UseSample(NamedTuple):
    """What was in use at a time: devices by claim, and whole GPUs by node and name."""

    at: datetime
    uses: Uses
    gpus: Mapping[tuple[str, str], GpuMemory]

    @property
    def size(self) -> int:
        return len(self.uses) + len(self.gpus)


class UseNow(Struct, frozen=True, kw_only=True):
    """The last report, its devices by claim, its GPUs by node and name, and all samples."""

    report: UseReport
    uses: Uses = field(default_factory=dict)
    gpus: Mapping[tuple[str, str], GpuMemory] = field(default_factory=dict)
    samples: Sequence[UseSample] = ()

    def points(self, use: ClaimDeviceUse) -> list[Point]:
        """The history of one device of one claim, oldest first."""
        key = (use.namespace, use.claim, use.node, use.device)
        return [
            Point(at, found.used_bytes, found.sm_ratio)
            for at, uses, _ in self.samples
            for found in [uses.get(key)]
            if found is not None
        ]

    def points_of_gpu(self, node: str, device: str) -> list[Point]:
        """The history of a whole GPU, oldest first."""
        return [
            Point(at, found.used_bytes, found.busy_ratio)
            for at, _, gpus in self.samples
            for found in [gpus.get((node, device))]
            if found is not None
        ]


class UseHistory:
    """Asks ``read`` and remembers. Used by one thread; what it returns is never changed."""

    def __init__(
        self,
        read: Callable[[], UseReport],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        past: Callable[[], Sequence[UseSample]] = tuple,
    ) -> None:
        """``past`` is asked once, at the first look, for what was before it; it may raise DraError."""
        self._read = read
        self._past: Callable[[], Sequence[UseSample]] | None = past
        self._gaps: tuple[str, ...] = ()
        self._now = now
        self._samples: deque[UseSample] = deque(maxlen=MAX_SAMPLES)

    def read(self) -> UseNow:
        """One look. Raises DraError."""
        self._remember()
        report = self._read()
        report = replace(report, gaps=(*self._gaps, *report.gaps)) if self._gaps else report
        uses: Mapping[tuple[str, str, str, str], ClaimDeviceUse] = uses_by_device(report.uses)
        gpus = {(each.node, each.device): each for each in report.gpus}
        self._samples.append(UseSample(self._now(), uses, gpus))
        while len(self._samples) > 1 and sum(each.size for each in self._samples) > MAX_POINTS:
            self._samples.popleft()
        return UseNow(report=report, uses=uses, gpus=gpus, samples=tuple(self._samples))

    def _remember(self) -> None:
        past, self._past = self._past, None
        try:
            self._samples.extend(past()[-MAX_SAMPLES:] if past else ())
        except DraError as error:
            self._gaps = (f"charts begin now: {error}",)
