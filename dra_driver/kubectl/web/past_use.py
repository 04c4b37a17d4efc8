"""What Prometheus recorded before the page was started: questions, and answers as samples for charts. Pure.

Its answers are believed as little as in ``kubectl/usage/history.py``: a value that cannot be is left out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.kubectl.usage.device_use import MAX_BYTES, ClaimDeviceUse, GpuMemory, text
from dra_driver.kubectl.usage.history import KEY, MAX_SERIES
from dra_driver.kubectl.web.rows import Key
from dra_driver.kubectl.web.use_history import UseSample

WINDOW_S: Final = 3600
STEP_S: Final = 60
_STEPS: Final = WINDOW_S // STEP_S + 1
_OVER: Final = f"[{WINDOW_S}s:{STEP_S}s]"
_MAX_RATIO: Final = 1.5
_MAX_POINTS: Final = 400_000


def past_of(ask: Callable[[str], Any]) -> list[UseSample]:
    """Samples of the last hour, oldest first. ``ask`` answers an instant query.

    Raises what ``ask`` raises, and ValueError for answers that are none.
    """
    past = _Past()
    claims, gpus = ", ".join(KEY), "node, device"
    past.add_claims("used_bytes", ask(f"(sum by ({claims}) (dra_claim_memory_used_bytes)){_OVER}"))
    past.add_claims("sm_ratio", ask(f"(sum by ({claims}) (dra_claim_sm_utilization_ratio)){_OVER}"))
    past.add_gpus("used_bytes", ask(f"(max by ({gpus}) (dra_gpu_memory_used_bytes)){_OVER}"))
    past.add_gpus("busy_ratio", ask(f"(max by ({gpus}) (dra_gpu_utilization_ratio)){_OVER}"))
    return past.samples()


class _Past:
    """The answers so far, by time."""

    def __init__(self) -> None:
        self._uses: dict[int, dict[Key, ClaimDeviceUse]] = {}
        self._gpus: dict[int, dict[tuple[str, str], GpuMemory]] = {}
        self._points = 0

    def add_claims(self, field: str, answer: Any) -> None:
        for labels, at, value in self._series(field, answer):
            names: dict[str, Any] = {name: text(labels.get(name)) for name in KEY}
            known: dict[str, Any] = {field: value}
            key = (names["namespace"], names["claim"], names["node"], names["device"])
            here = self._uses.setdefault(at, {})
            here[key] = replace(here.get(key) or ClaimDeviceUse(**names), **known)

    def add_gpus(self, field: str, answer: Any) -> None:
        for labels, at, value in self._series(field, answer):
            key = (text(labels.get("node")), text(labels.get("device")))
            known: dict[str, Any] = {field: value}
            here = self._gpus.setdefault(at, {})
            here[key] = replace(here.get(key) or GpuMemory(node=key[0], device=key[1]), **known)

    def samples(self) -> list[UseSample]:
        times = sorted({*self._uses, *self._gpus})
        return [UseSample(_time(at), self._uses.get(at, {}), self._gpus.get(at, {})) for at in times]

    def _series(self, field: str, answer: Any) -> Iterator[tuple[Mapping[str, Any], int, float]]:
        memory = field == "used_bytes"
        most = MAX_BYTES if memory else _MAX_RATIO
        for labels, pairs in matrix(answer):
            for pair in pairs[:_STEPS]:
                at, value = _pair(pair)
                if at is None or value is None or not 0 <= value <= most:
                    continue
                self._points += 1
                if self._points > _MAX_POINTS:
                    return
                yield labels, at, int(value) if memory else min(value, 1.0)


def matrix(answer: Any) -> list[tuple[Mapping[str, Any], list[Any]]]:
    """Labels and pairs of time and value of each series. Raises ValueError."""
    data = answer.get("data") if isinstance(answer, dict) and answer.get("status") == "success" else None
    found = data.get("result") if isinstance(data, dict) and data.get("resultType") == "matrix" else None
    if not isinstance(found, list) or len(found) > MAX_SERIES:
        raise ValueError("its answer is no range of values")
    return [
        (item["metric"], item["values"])
        for item in found
        if isinstance(item, dict) and isinstance(item.get("metric"), dict) and isinstance(item.get("values"), list)
    ]


def _pair(pair: Any) -> tuple[int | None, float | None]:
    try:
        at, value = float(pair[0]), float(pair[1])
    except (TypeError, ValueError, LookupError, OverflowError):
        return None, None
    known = math.isfinite(at) and math.isfinite(value) and 0 <= at < 2**33
    return (int(at) // STEP_S * STEP_S, value) if known else (None, None)


def _time(at: int) -> datetime:
    return datetime.fromtimestamp(at, tz=UTC)
