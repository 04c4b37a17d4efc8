"""Keep recent use of claims for charts, from exporters and, for the hour before, from Prometheus."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.kubectl.usage.device_use import MAX_BYTES, ClaimDeviceUse, GpuMemory, UseReport, text
from dra_driver.kubectl.usage.history import KEY, finite, series_of
from dra_driver.kubectl.web.rows import Key, Uses, key_of, uses_by_device

MAX_SAMPLES: Final = 240
"""An hour of samples every 15 s."""
MAX_POINTS: Final = 500_000


class Point(Struct, frozen=True):
    """Bytes, a ratio from 0 to 1, and the power of a whole GPU at one time; None if unknown."""

    at: datetime
    used_bytes: int | None
    sm_ratio: float | None
    watts: float | None = None


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

    def points(self, key: Key) -> list[Point]:
        found = [(at, uses[key]) for at, uses, _ in self.samples if key in uses]
        return [Point(at, each.used_bytes, each.sm_ratio) for at, each in found]

    def points_of_gpu(self, node: str, device: str) -> list[Point]:
        found = [(at, gpus[node, device]) for at, _, gpus in self.samples if (node, device) in gpus]
        return [Point(at, each.used_bytes, each.busy_ratio, each.power_watts) for at, each in found]


class UseHistory:
    """Call ``read`` and keep samples. For one thread; results are immutable."""

    def __init__(
        self,
        read: Callable[[], UseReport],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        past: Callable[[], tuple[Sequence[UseSample], str] | None] = lambda: ((), ""),
        max_points: int = MAX_POINTS,
    ) -> None:
        """``past`` returns earlier samples with a problem, or None until it has them: a slow Prometheus must not delay
        current values."""
        self._read = read
        self._past: Callable[[], tuple[Sequence[UseSample], str] | None] | None = past
        self._gaps: tuple[str, ...] = ()
        self._now, self._max_points = now, max_points
        self._samples: deque[UseSample] = deque(maxlen=MAX_SAMPLES)

    def read(self) -> UseNow:
        if self._past:
            self._past()  # begins while the exporters answer
        report = self._read()
        if self._past and (found := self._past()):
            before = [each for each in found[0] if not self._samples or each.at < self._samples[0].at]
            self._samples = deque([*before, *self._samples][-MAX_SAMPLES:], maxlen=MAX_SAMPLES)
            self._gaps, self._past = (f"charts start now: {found[1]}",) if found[1] else (), None
        report = replace(report, gaps=(*self._gaps, *report.gaps)) if self._gaps else report
        uses = uses_by_device(report.uses)
        gpus = {(each.node, each.device): each for each in report.gpus}
        self._samples.append(UseSample(self._now(), uses, gpus))
        while len(self._samples) > 1 and sum(each.size for each in self._samples) > self._max_points:
            self._samples.popleft()
        return UseNow(report=report, uses=uses, gpus=gpus, samples=tuple(self._samples))


# --- Use recorded by Prometheus before the start. Impossible values are skipped.

WINDOW_S: Final = 3600
STEP_S: Final = 60
_MAX_STEPS: Final = 240
_LIMITS: Final = {"used_bytes": float(MAX_BYTES), "power_watts": 100_000.0}
_MAX_RATIO: Final = 1.5
_MAX_POINTS: Final = 400_000
_EVERYTHING: Final[Mapping[str, str]] = MappingProxyType({})


def past_of(
    ask: Callable[[str], object], window_s: int = WINDOW_S, where: Mapping[str, str] = _EVERYTHING
) -> list[UseSample]:
    """Return samples of the window, oldest first: one a minute, at most 240. ``where`` are labels of the series.

    Without ``where``, the samples have no power. ``ask`` answers an instant query. Raises ValueError for an invalid
    answer.
    """
    step = max(STEP_S, window_s // _MAX_STEPS)
    past, over = _Past(step, window_s), f"[{window_s}s:{step}s]"
    claims, gpus = ", ".join(KEY), "node, device"
    # A JSON string is a PromQL string.
    labels = "{%s}" % ", ".join(f"{name}={json.dumps(value)}" for name, value in where.items())  # noqa: UP031

    def query(of: str, by: str, metric: str) -> object:
        return ask(f"({of} by ({by}) ({metric}{labels if where else ''})){over}")

    past.add_claims("used_bytes", query("sum", claims, "dra_claim_memory_used_bytes"))
    past.add_claims("sm_ratio", query("sum", claims, "dra_claim_sm_utilization_ratio"))
    if not where or "node" in where:
        past.add_gpus("used_bytes", query("max", gpus, "dra_gpu_memory_used_bytes"))
        past.add_gpus("busy_ratio", query("max", gpus, "dra_gpu_utilization_ratio"))
    if "node" in where:
        past.add_gpus("power_watts", query("max", gpus, "dra_gpu_power_watts"))
    return past.samples()


class _Past:
    def __init__(self, step_s: int, window_s: int) -> None:
        self._step_s, self._steps = step_s, window_s // step_s + 1
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
        most = _LIMITS.get(field, _MAX_RATIO)
        for series in series_of(answer, "matrix"):
            for pair in series.values[: self._steps]:
                at, value = map(finite, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
                if at is None or value is None or not (0 <= at < 2**33 and 0 <= value <= most):
                    continue
                self._points += 1
                if self._points > _MAX_POINTS:
                    return
                if field == "used_bytes":
                    value = int(value)
                yield (
                    series.metric,
                    int(at) // self._step_s * self._step_s,
                    value if field in _LIMITS else min(value, 1.0),
                )
