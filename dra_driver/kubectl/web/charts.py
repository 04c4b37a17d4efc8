"""Charts of use over time: lines within fixed axes, with ticks, units and the values for the pointer. No I/O.

The server draws SVG, which also works in a browser with JavaScript off; ``static/live.js`` only reads ``points`` below
the pointer. Coordinates are percent of the plot, so that labels keep their size at any width.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from msgspec import Struct

from dra_driver.core.text import gib
from dra_driver.kubectl.web.use_history import Point

RANGES: Final = {"15m": 900, "1h": 3600, "6h": 21_600, "1d": 86_400, "7d": 604_800}
"""Seconds of the ranges; those beyond an hour need Prometheus."""
_TICKS: Final = (60, 300, 900, 3600, 4 * 3600, 86_400)
_MAX_TICKS: Final = 6
_GAP: Final = 3.5
"""A line ends where this many usual intervals have no value."""


class Chart(Struct, frozen=True, kw_only=True):
    """One measure. ``lines`` are SVG points in a box of 100 x 100; several where values are missing.

    ``now`` is the last value and ``of`` its limit; "" if unknown. ``silent_since`` is the time of the last value if
    later ones are missing. ``limit`` is the distance of the limit from the top, if it lies within the plot.
    ``points`` has ``x|y|text`` of each value, separated by semicolons.
    """

    title: str
    now: str
    of: str
    lines: Sequence[str]
    rows: Sequence[tuple[float, str]]
    columns: Sequence[tuple[float, datetime]]
    since: datetime
    until: datetime
    points: str
    limit: float | None = None
    silent_since: datetime | None = None


def percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def watts(value: float) -> str:
    return f"{value:.0f} W"


def charts_of(points: Sequence[Point], granted: int, now: datetime, range_s: int, *, limit: str) -> list[Chart]:
    """Return charts of memory, utilization and power, each only with a value. ``granted`` is in bytes, 0 if unknown;
    ``limit`` names it."""
    since = now - timedelta(seconds=range_s)
    inside = [each for each in points if since <= each.at <= now]
    of = f"of {gib(granted)} {limit}" if granted else ""
    memory = [(each.at, float(each.used_bytes)) for each in inside if each.used_bytes is not None]
    busy = [(each.at, min(max(each.sm_ratio, 0.0), 1.0)) for each in inside if each.sm_ratio is not None]
    power = [(each.at, each.watts) for each in inside if each.watts is not None]
    drawn = [
        _chart("Memory", memory, (since, now), float(granted), gib, of),
        _chart("Utilization", busy, (since, now), 1.0, percent),
        _chart("Power", power, (since, now), 0.0, watts),
    ]
    return [each for each in drawn if each is not None]


def _chart(  # noqa: PLR0917 - all callers are above
    title: str,
    values: Sequence[tuple[datetime, float]],
    times: tuple[datetime, datetime],
    full: float,
    text: Callable[[float], str],
    of: str = "",
) -> Chart | None:
    """``full`` is the value at the upper edge, unless larger values exist or it is 0."""
    since, until = times
    if not values:
        return None
    most = max(value for _, value in values)
    top = full if full >= most else _round_up(1.05 * most) if text is watts else 1.05 * most
    top = top or 1.0
    length = (until - since).total_seconds()
    gaps = sorted((late[0] - early[0]).total_seconds() for early, late in pairwise(values))
    usual = max(gaps[len(gaps) // 2] if gaps else 0.0, length / 240)
    lines: list[list[str]] = []
    points, last = [], None
    for at, value in values:
        x, y = 100 * (at - since).total_seconds() / length, 100 * (1 - min(value / top, 1.0))
        if last is None or (at - last).total_seconds() > _GAP * usual:
            lines.append([])
        lines[-1].append(f"{x:.2f},{y:.2f}")
        points.append(f"{x:.2f}|{y:.1f}|{text(value)}")
        last = at
    final, current = values[-1]
    is_silent = (until - final).total_seconds() > max(_GAP * usual, 60.0)
    return Chart(
        title=title,
        now="" if is_silent else text(current),
        of=of,
        lines=[" ".join(line * 2 if len(line) == 1 else line) for line in lines],  # a single value is a dot
        rows=[(0.0, text(top)), (50.0, text(top / 2)), (100.0, text(0.0))],
        columns=_columns(since, until),
        since=since,
        until=until,
        points=";".join(points),
        limit=round(100 * (1 - full / top), 2) if 0 < full < top else None,
        silent_since=final if is_silent else None,
    )


def _columns(since: datetime, until: datetime) -> list[tuple[float, datetime]]:
    """Return times at whole minutes, hours or days, with their distance from the left edge."""
    length = (until - since).total_seconds()
    step = next((each for each in _TICKS if length / each <= _MAX_TICKS), 2 * 86_400)
    first = math.ceil(since.timestamp() / step) * step
    times = range(first, int(until.timestamp()) + 1, step)
    found = [(100 * (at - since.timestamp()) / length, datetime.fromtimestamp(at, tz=UTC)) for at in times]
    return [(round(x, 2), at) for x, at in found if 4 <= x <= 96]  # a label at the edge would be cut


def _round_up(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten, the next above."""
    if value <= 0:
        return 0.0
    power = 10 ** math.floor(math.log10(value))
    return float(next(power * each for each in (1, 2, 5, 10) if power * each >= value))
