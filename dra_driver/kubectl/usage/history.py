"""Query Prometheus for the exporters' metrics over a window, and validate its answers.

An impossible value (negative, a utilisation of 7, more hours than the window has) is omitted and reported: a store with
many writers can hold anything. Series of one claim are joined by ``KEY``; ``node`` is a label that the scrape adds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.core.wire import from_wire
from dra_driver.kubectl.usage.device_use import MAX_BYTES, ClaimDeviceUse, text

KEY: Final = ("namespace", "claim", "node", "request", "device", "share")
MAX_SERIES: Final = 200_000
_BY: Final = ", ".join(KEY)
_MAX_SAID: Final = 3


def queries(window_s: int) -> dict[str, str]:
    """Return PromQL by field of `ClaimDeviceUse`, with at most about 500 steps of a minute or more."""
    step = max(60, window_s // 500)
    over, window = f"[{window_s}s:{step}s]", f"[{window_s}s]"
    return {
        "granted_bytes": f"max by ({_BY}) (max_over_time(dra_claim_memory_granted_bytes{window}))",
        "used_bytes": f"sum by ({_BY}) (dra_claim_memory_used_bytes)",
        "peak_bytes": f"max_over_time(sum by ({_BY}) (dra_claim_memory_used_bytes){over})",
        "sm_ratio": f"avg_over_time(sum by ({_BY}) (dra_claim_sm_utilization_ratio){over})",
        "energy_joules": f"sum by ({_BY}, estimated) (increase(dra_claim_energy_joules_total{window}))",
        "processes": f"sum by ({_BY}) (dra_claim_processes)",
        "idle_s": f"min by ({_BY}) (dra_claim_idle_seconds)",
        "held_s": f"{step} * count_over_time(max by ({_BY}) "
        f'({{__name__=~"dra_claim_memory_granted_bytes|dra_claim_processes"}}){over})',
        "pods": f"count by ({_BY}, pod) (max_over_time(dra_claim_processes{window}))",
    }


def most_of(field: str, window_s: float) -> float:
    limits = {"sm_ratio": 1.5, "energy_joules": 1e15, "processes": 1e6, "held_s": window_s * 1.1 + 120, "pods": 1e9}
    return limits.get(field, 1e11 if field == "idle_s" else float(MAX_BYTES))


class History:
    """Join answers: call `add` for each, then read `uses` and `gaps`."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._found: dict[tuple[str, ...], ClaimDeviceUse] = {}
        self._impossible: list[str] = []

    def add(self, field: str, answer: object) -> None:
        """Add an answer of ``/api/v1/query``. Raises ValueError for a rejection or another document."""
        for series in series_of(answer, "vector"):
            key = tuple(text(series.metric.get(name)) for name in KEY)
            value = finite(series.value[1] if len(series.value) > 1 else None)
            if not key[1]:
                continue
            if value is None or not 0 <= value <= most_of(field, self._window_s):
                self._impossible.append(f"{field} of {key[0]}/{key[1]} on {key[4]} is {value}")
                continue
            self._found[key] = self._joined(key, field, value, series.metric)

    def _joined(self, key: tuple[str, ...], field: str, value: float, labels: Mapping[str, str]) -> ClaimDeviceUse:
        use = self._found.get(key) or convert(dict(zip(KEY, key, strict=True)), ClaimDeviceUse)
        if field == "pods":
            return replace(use, pods=tuple(sorted({*use.pods, text(labels.get("pod"))} - {""})))
        if field == "energy_joules":
            estimated = use.energy_estimated or labels.get("estimated") == "true"
            return replace(use, energy_joules=(use.energy_joules or 0.0) + value, energy_estimated=estimated)
        if field == "held_s":
            return replace(use, held_s=min(value, self._window_s))
        whole = field.endswith("_bytes") or field == "processes"
        return replace(use, **{field: int(value) if whole else value})

    def uses(self) -> list[ClaimDeviceUse]:
        return [use for _, use in sorted(self._found.items())]

    def gaps(self) -> list[str]:
        first = "; ".join(self._impossible[:_MAX_SAID])
        said = f"{len(self._impossible)} impossible values of Prometheus were skipped: {first}"
        return [said] if first else []


class Series(Struct, frozen=True):
    """One series of an answer: ``value`` is a pair of time and value, ``values`` are pairs."""

    metric: dict[str, str]
    value: tuple[object, ...] = ()
    values: tuple[object, ...] = ()


class _Data(Struct, frozen=True, rename="camel"):
    result: tuple[Series, ...]
    result_type: str = ""


class _PrometheusAnswer(Struct, frozen=True):
    status: str = ""
    error: str = ""
    data: _Data | None = None


_FORMS: Final = {"vector": "not a vector", "matrix": "not a range vector"}


def series_of(answer: object, form: Literal["vector", "matrix"]) -> Sequence[Series]:
    """Return the readable series. Raises ValueError for a rejection or another result type."""
    found = from_wire(_PrometheusAnswer, answer if isinstance(answer, dict) else {})
    if found.status != "success":
        raise ValueError(f"it rejected the query: {text(found.error) or 'no reason given'}")
    if found.data is None or found.data.result_type != form:
        raise ValueError(f"its answer is {_FORMS[form]}")
    if len(found.data.result) > MAX_SERIES:
        raise ValueError(f"its answer has {len(found.data.result)} series, more than the limit of {MAX_SERIES}")
    return found.data.result


def finite(value: object) -> float | None:
    """Return a finite number, of text or a number; None for another value."""
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
