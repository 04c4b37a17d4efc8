"""Keep recent use of claims for charts, from exporters and, for the hour before, from Prometheus."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from msgspec import Struct, convert, field
from msgspec.structs import replace

from dra_driver.core.errors import DraError
from dra_driver.kubectl.usage.device_use import MAX_BYTES, ClaimDeviceUse, GpuMemory, UseReport, text
from dra_driver.kubectl.usage.history import KEY, finite, series_of
from dra_driver.kubectl.web.rows import Key, Uses, key_of, uses_by_device

MAX_SAMPLES: Final = 240
"""An hour of samples every 15 s."""
MAX_POINTS: Final = 500_000


class Point(Struct, frozen=True):
    """Bytes and a ratio from 0 to 1 at one time; None if unknown."""

    at: datetime
    used_bytes: int | None
    sm_ratio: float | None


class UseSample(NamedTuple):
    """Use at one time: devices by claim, and whole GPUs by node and name."""

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
        key = key_of(use)
        found = [(at, uses[key]) for at, uses, _ in self.samples if key in uses]
        return [Point(at, each.used_bytes, each.sm_ratio) for at, each in found]

    def points_of_gpu(self, node: str, device: str) -> list[Point]:
        found = [(at, gpus[node, device]) for at, _, gpus in self.samples if (node, device) in gpus]
        return [Point(at, each.used_bytes, each.busy_ratio) for at, each in found]


class UseHistory:
    """Call ``read`` and keep samples. For one thread; results are immutable."""

    def __init__(
        self,
        read: Callable[[], UseReport],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        past: Callable[[], Sequence[UseSample]] = tuple,
    ) -> None:
        """``past`` returns earlier samples at the first `read`; it can raise DraError."""
        self._read = read
        self._past: Callable[[], Sequence[UseSample]] | None = past
        self._gaps: tuple[str, ...] = ()
        self._now = now
        self._samples: deque[UseSample] = deque(maxlen=MAX_SAMPLES)

    def read(self) -> UseNow:
        past, self._past = self._past, None
        try:
            self._samples.extend(past()[-MAX_SAMPLES:] if past else ())
        except DraError as error:
            self._gaps = (f"charts start now: {error}",)
        report = self._read()
        report = replace(report, gaps=(*self._gaps, *report.gaps)) if self._gaps else report
        uses = uses_by_device(report.uses)
        gpus = {(each.node, each.device): each for each in report.gpus}
        self._samples.append(UseSample(self._now(), uses, gpus))
        while len(self._samples) > 1 and sum(each.size for each in self._samples) > MAX_POINTS:
            self._samples.popleft()
        return UseNow(report=report, uses=uses, gpus=gpus, samples=tuple(self._samples))


# --- Use recorded by Prometheus before the start. Impossible values are skipped.

WINDOW_S: Final = 3600
STEP_S: Final = 60
_STEPS: Final = WINDOW_S // STEP_S + 1
_OVER: Final = f"[{WINDOW_S}s:{STEP_S}s]"
_MAX_RATIO: Final = 1.5
_MAX_POINTS: Final = 400_000


def past_of(ask: Callable[[str], object]) -> list[UseSample]:
    """Return samples of the last hour, oldest first. ``ask`` answers an instant query. Raises ValueError for an invalid
    answer.
    """
    past = _Past()
    claims, gpus = ", ".join(KEY), "node, device"
    past.add_claims("used_bytes", ask(f"(sum by ({claims}) (dra_claim_memory_used_bytes)){_OVER}"))
    past.add_claims("sm_ratio", ask(f"(sum by ({claims}) (dra_claim_sm_utilization_ratio)){_OVER}"))
    past.add_gpus("used_bytes", ask(f"(max by ({gpus}) (dra_gpu_memory_used_bytes)){_OVER}"))
    past.add_gpus("busy_ratio", ask(f"(max by ({gpus}) (dra_gpu_utilization_ratio)){_OVER}"))
    return past.samples()


class _Past:
    def __init__(self) -> None:
        self._uses: dict[int, dict[Key, ClaimDeviceUse]] = {}
        self._gpus: dict[int, dict[tuple[str, str], GpuMemory]] = {}
        self._points = 0

    def add_claims(self, field: str, answer: object) -> None:
        for labels, at, value in self._series(field, answer):
            use = convert({name: text(labels.get(name)) for name in KEY}, ClaimDeviceUse)
            here, key = self._uses.setdefault(at, {}), key_of(use)
            here[key] = replace(here.get(key) or use, **{field: value})

    def add_gpus(self, field: str, answer: object) -> None:
        for labels, at, value in self._series(field, answer):
            key = (text(labels.get("node")), text(labels.get("device")))
            here = self._gpus.setdefault(at, {})
            here[key] = replace(here.get(key) or GpuMemory(node=key[0], device=key[1]), **{field: value})

    def samples(self) -> list[UseSample]:
        return [
            UseSample(datetime.fromtimestamp(at, tz=UTC), self._uses.get(at, {}), self._gpus.get(at, {}))
            for at in sorted({*self._uses, *self._gpus})
        ]

    def _series(self, field: str, answer: object) -> Iterator[tuple[Mapping[str, str], int, float]]:
        memory = field == "used_bytes"
        most = MAX_BYTES if memory else _MAX_RATIO
        for series in series_of(answer, "matrix"):
            for pair in series.values[:_STEPS]:
                at, value = map(finite, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
                if at is None or value is None or not (0 <= at < 2**33 and 0 <= value <= most):
                    continue
                self._points += 1
                if self._points > _MAX_POINTS:
                    return
                yield series.metric, int(at) // STEP_S * STEP_S, int(value) if memory else min(value, 1.0)


WIDTH: Final = 600
HEIGHT: Final = 120


class UseChart(Struct, frozen=True, kw_only=True):
    """Lines, "" if unknown. ``top`` is the memory at the upper edge in bytes, ``limit`` the grant's distance."""

    since: datetime
    memory: str
    utilisation: str
    top: float
    limit: float | None = None


def drawn(points: Sequence[Point], granted: int) -> UseChart | None:
    """Return memory relative to the grant, and utilization; None without two values of either."""
    most = max((each.used_bytes for each in points if each.used_bytes is not None), default=0)
    over = granted > 0 and most > granted
    top = 1.05 * most if over else float(granted)
    memory = _line([None if each.used_bytes is None or not top else each.used_bytes / top for each in points], points)
    utilisation = _line([each.sm_ratio for each in points], points)
    if not memory and not utilisation:
        return None
    limit = round(HEIGHT * (1 - granted / top), 1) if over else None
    return UseChart(since=points[0].at, memory=memory, utilisation=utilisation, top=top, limit=limit)


def _line(values: Sequence[float | None], points: Sequence[Point]) -> str:
    if len(points) < 2:
        return ""
    first, last = points[0].at.timestamp(), points[-1].at.timestamp()
    length = max(last - first, 1.0)
    vertices = [
        f"{WIDTH * (point.at.timestamp() - first) / length:.1f},{HEIGHT * (1 - min(max(value, 0.0), 1.0)):.1f}"
        for point, value in zip(points, values, strict=True)
        if value is not None
    ]
    return " ".join(vertices) if len(vertices) > 1 else ""
