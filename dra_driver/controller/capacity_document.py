"""What `kubectl dra capacity -o json` prints, as the numbers that the controller's gauges show. Pure.

The fields are those of ``dra_driver/kubectl/capacity/report.py``, whose schema only grows. What has another shape is
left out: a gauge that is missing is seen, a wrong one is believed. Models and requests are bounded, so that series are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.text import printable

MAX_MODELS: Final = 64
MAX_REQUESTS: Final = 64
_MAX_NAME: Final = 100
_MOST: Final = 2**62
_STATES: Final = ("free", "used", "fragmented", "unavailable")


class RequestCount(Struct, frozen=True, kw_only=True):
    """Claims for one request, such as ``2 GPUs`` or ``3g.40gb``: how many fit, and how many are stranded."""

    request: str
    fits: int
    stranded: int


class ModelCount(Struct, frozen=True, kw_only=True):
    """GPUs of one model by state, memory in bytes by state (``free``, ``fragmented``, ``taken``), and requests."""

    model: str
    gpus: Mapping[str, int]
    memory_bytes: Mapping[str, int]
    requests: Sequence[RequestCount]


def decode(text: bytes) -> tuple[ModelCount, ...]:
    """The models of a report. Raises ValueError where it is no report, or says that its devices are not known."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the survey's output is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "CapacityReport":
        raise ValueError("the survey's output is no CapacityReport")
    gaps = [gap for gap in _list(document.get("gaps")) if isinstance(gap, str)]
    if gaps:
        raise ValueError(f"the survey lacks {gaps[0][:300]}")
    found: dict[str, ModelCount] = {}
    for item in _list(document.get("models")):
        name = _name(item.get("model")) if isinstance(item, dict) else ""
        if name and name not in found and len(found) < MAX_MODELS:
            found[name] = _model(name, item)
    return tuple(found.values())


def _model(name: str, item: Mapping[str, Any]) -> ModelCount:
    gpus, memory = _mapping(item.get("gpus")), _mapping(item.get("memoryBytes"))
    free, fragmented = _count(memory.get("free")), _count(memory.get("fragmented"))
    return ModelCount(
        model=name,
        gpus={state: _count(gpus.get(state)) for state in _STATES},
        memory_bytes={
            "free": free,
            "fragmented": fragmented,
            "taken": max(0, _count(memory.get("total")) - free - fragmented),
        },
        requests=tuple(islice(_requests(_list(item.get("requests"))), MAX_REQUESTS)),
    )


def _requests(items: Sequence[Any]) -> Iterator[RequestCount]:
    seen = set[str]()
    for item in items:
        if isinstance(item, dict) and (name := _name(item.get("request"))) and name not in seen:
            seen.add(name)
            yield RequestCount(request=name, fits=_count(item.get("fits")), stranded=_count(item.get("stranded")))


def _name(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return printable(text[:_MAX_NAME])


def _count(value: Any) -> int:
    """What is no number from 0 to `_MOST` counts as 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value <= _MOST else 0


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
