"""How much simulated processes use, as an annotation of a claim says it. Pure.

    sim.gpu.dra-driver.io/usage: '[{"memory": "12Gi", "utilization": 60}, {"after": "30s", "memory": "20Gi"}]'

A step begins ``after`` a time (default 0s) since the claim was prepared and holds until the next one, or ``for`` a
time; then its processes end. ``memory`` (default 0) and ``utilization`` (0 to 100 percent, default 0) are those of all
its ``processes`` (default 1) together, on each device of the claim. A real node reads no such annotation.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.quantity import Quantity

ANNOTATION: Final = "sim.gpu.dra-driver.io/usage"
MAX_LENGTH: Final = 4000
MAX_STEPS: Final = 32
MAX_PROCESSES: Final = 64
MAX_MEMORY: Final = 2**50
MAX_S: Final = 31 * 86400.0
_DURATION: Final = re.compile(r"(\d{1,10})(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FIELDS: Final = frozenset({"memory", "utilization", "after", "for", "processes"})


class UseStep(Struct, frozen=True, kw_only=True):
    """What all processes of a container use of one device from ``after_s`` on; ``for_s`` None: until the next step."""

    after_s: float = 0.0
    for_s: float | None = None
    memory_bytes: int = 0
    percent: int = 0
    processes: int = 1


def parse_steps(text: str) -> tuple[UseStep, ...]:
    """From the annotation, in order of time. Raises ValueError with the expected form."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"at most {MAX_LENGTH} characters expected")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"JSON expected: {error}") from error
    return steps_of(document)


def steps_of(document: object) -> tuple[UseStep, ...]:
    """From the annotation's JSON. Raises ValueError with the expected form."""
    if not isinstance(document, list) or not 1 <= len(document) <= MAX_STEPS:
        raise ValueError(f"a list of 1 to {MAX_STEPS} steps expected")
    return tuple(sorted((_step(each) for each in document), key=lambda step: step.after_s))


def as_json(steps: Sequence[UseStep]) -> list[dict[str, Any]]:
    """What `steps_of` reads."""
    found = []
    for step in steps:
        one: dict[str, Any] = {"after": f"{step.after_s * 1000:.0f}ms", "memory": str(step.memory_bytes)}
        one |= {"utilization": step.percent, "processes": step.processes}
        found.append(one if step.for_s is None else one | {"for": f"{step.for_s * 1000:.0f}ms"})
    return found


def step_at(steps: Sequence[UseStep], at_s: float) -> UseStep | None:
    """The step that holds ``at_s`` seconds after the start; None before the first, and when it is over."""
    begun = [step for step in steps if step.after_s <= at_s]
    if not begun or (begun[-1].for_s is not None and at_s >= begun[-1].after_s + begun[-1].for_s):
        return None
    return begun[-1]


def _step(item: object) -> UseStep:
    if not isinstance(item, Mapping) or not item.keys() <= _FIELDS:
        raise ValueError(f"a step with {', '.join(sorted(_FIELDS))} expected, not {str(item)[:80]}")
    return UseStep(
        after_s=_seconds(item.get("after", "0s"), "after"),
        for_s=_seconds(item["for"], "for") if "for" in item else None,
        memory_bytes=_memory(item.get("memory", "0")),
        percent=_number(item.get("utilization", 0), "utilization", 100),
        processes=_number(item.get("processes", 1), "processes", MAX_PROCESSES),
    )


def _seconds(value: object, name: str) -> float:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    seconds = int(found[1]) * _SECONDS[found[2]] if found else -1.0
    if not 0 <= seconds <= MAX_S:
        raise ValueError(f"{name}: a time such as 500ms, 30s, 10m or 2h, up to 31 days, expected, not {value!r:.60}")
    return seconds


def _memory(value: object) -> int:
    try:
        found = Quantity.parse(value).as_int() if isinstance(value, str) else -1
    except ValueError:
        found = -1
    if not 0 <= found <= MAX_MEMORY:
        raise ValueError(f"memory: a quantity such as 12Gi expected, not {value!r:.60}")
    return found


def _number(value: object, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name}: a whole number from 0 to {most} expected, not {value!r:.60}")
    return value
