"""What Prometheus recorded of the exporters' metrics over a window: the questions, and its answers as values. Pure.

An answer that cannot be true (a negative number, a utilisation of 7, more hours than the window has) is left out and
said: a store that many write to can hold anything. Series of one claim are joined by ``KEY``; a label that the scrape
adds, ``node``, tells claims of one name on two nodes apart where it is there.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.kubectl.usage.device_use import MAX_BYTES, ClaimDeviceUse, text

KEY: Final = ("namespace", "claim", "node", "request", "device", "share")
MAX_SERIES: Final = 200_000
_BY: Final = ", ".join(KEY)
_MAX_SAID: Final = 3


def queries(window_s: int) -> dict[str, str]:
    """PromQL by the field of `ClaimDeviceUse` that it answers. At most about 500 steps, of a minute or more."""
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
    """The most that a value can truthfully be."""
    limits = {"sm_ratio": 1.5, "energy_joules": 1e15, "processes": 1e6, "held_s": window_s * 1.1 + 120, "pods": 1e9}
    return limits.get(field, 1e11 if field == "idle_s" else float(MAX_BYTES))


class History:
    """Joins the answers. ``add`` each, then `uses` and `gaps`."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._found: dict[tuple[str, ...], ClaimDeviceUse] = {}
        self._impossible: list[str] = []

    def add(self, field: str, answer: Any) -> None:
        """One answer of ``/api/v1/query``. Raises ValueError where it is none, or Prometheus refused the question."""
        for labels, value in vector(answer):
            key = tuple(text(labels.get(name)) for name in KEY)
            if not key[1]:
                continue
            if value is None or not 0 <= value <= most_of(field, self._window_s):
                self._impossible.append(f"{field} of {key[0]}/{key[1]} on {key[4]} is {value}")
                continue
            self._put(key, field, value, labels)

    def _put(self, key: tuple[str, ...], field: str, value: float, labels: Mapping[str, Any]) -> None:
        names: dict[str, Any] = dict(zip(KEY, key, strict=True))
        use = self._found.get(key) or ClaimDeviceUse(**names)
        if field == "pods":
            pod = text(labels.get("pod"))
            use = replace(use, pods=tuple(sorted({*use.pods, pod} - {""})))
        elif field == "energy_joules":
            estimated = use.energy_estimated or labels.get("estimated") == "true"
            use = replace(use, energy_joules=(use.energy_joules or 0.0) + value, energy_estimated=estimated)
        else:
            whole = field.endswith("_bytes") or field == "processes"
            known: dict[str, Any] = {field: int(value) if whole else float(value)}
            use = replace(use, **known)
        self._found[key] = use

    def uses(self) -> list[ClaimDeviceUse]:
        """Every device that was in use within the window."""
        return [replace(use, held_s=_at_most(use.held_s, self._window_s)) for _, use in sorted(self._found.items())]

    def gaps(self) -> Iterator[str]:
        if self._impossible:
            first = "; ".join(self._impossible[:_MAX_SAID])
            yield f"{len(self._impossible)} values of Prometheus cannot be and are left out: {first}"


def vector(answer: Any) -> Iterable[tuple[Mapping[str, Any], float | None]]:
    """Labels and value of each series; None for a value that is no finite number. Raises ValueError."""
    if not isinstance(answer, dict) or answer.get("status") != "success":
        said = answer.get("error") if isinstance(answer, dict) else None
        raise ValueError(f"it refused the question: {text(said) or 'it does not say why'}")
    data = answer.get("data")
    found = data.get("result") if isinstance(data, dict) and data.get("resultType") == "vector" else None
    if not isinstance(found, list):
        raise ValueError("its answer is no vector")  # noqa: TRY004 - a wrong answer, not a wrong argument
    if len(found) > MAX_SERIES:
        raise ValueError(f"its answer has {len(found)} series, at most {MAX_SERIES} are read")
    return [(item["metric"], _value(item.get("value"))) for item in found if _is_series(item)]


def _is_series(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("metric"), dict)


def _value(pair: Any) -> float | None:
    try:
        found = float(pair[1])
    except (TypeError, ValueError, LookupError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _at_most(value: float | None, most: float) -> float | None:
    return None if value is None else min(value, most)
