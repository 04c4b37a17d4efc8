"""Lines of a chart as coordinates of an SVG. Pure: no style, so that the page needs none in its text (CSP)."""

from collections.abc import Sequence
from typing import Final

from dra_driver.web.use_history import Point

WIDTH: Final = 600
HEIGHT: Final = 120


def memory_line(points: Sequence[Point], most: int) -> str:
    """Coordinates of memory in use, the top being ``most`` bytes."""
    return _line([None if each.used_bytes is None or not most else each.used_bytes / most for each in points], points)


def utilisation_line(points: Sequence[Point]) -> str:
    return _line([each.sm_ratio for each in points], points)


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
