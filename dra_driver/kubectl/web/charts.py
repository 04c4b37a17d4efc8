"""Lines of a chart as coordinates of an SVG. Pure: no style, so that the page needs none in its text (CSP)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from dra_driver.kubectl.web.use_history import Point

WIDTH: Final = 600
HEIGHT: Final = 120


class UseChart(Struct, frozen=True, kw_only=True):
    """Lines of one chart, each "" where nothing is known. ``top`` is the memory in bytes at its upper edge.

    ``limit`` is where the grant is, from the upper edge; None when the grant is the top.
    """

    since: datetime
    memory: str
    utilisation: str
    top: float
    limit: float | None = None


def drawn(points: Sequence[Point], granted: int) -> UseChart | None:
    """Memory against what was granted, and utilisation; None without two values of either.

    Use over the grant stays inside: the top is then the most that was used.
    """
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
    places = [
        f"{WIDTH * (point.at.timestamp() - first) / length:.1f},{HEIGHT * (1 - min(max(value, 0.0), 1.0)):.1f}"
        for point, value in zip(points, values, strict=True)
        if value is not None
    ]
    return " ".join(places) if len(places) > 1 else ""
