"""Draws small plots as SVG text: lines over a numeric axis, and groups of bars. Same input, same bytes."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 48
COLOURS = ("#1f77b4", "#d95f02", "#7570b3")

Points = Sequence[tuple[float, float]]


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Points], *, log: bool = False) -> str:
    """One line per name. With ``log`` the y axis is logarithmic and begins at a power of ten."""
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    low, high = (10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))) if log else _range(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / ((xs[-1] - xs[0]) or 1)
        up = math.log(y / low) / math.log(high / low) if log else (y - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    ticks = _powers(low, high) if log else _steps(high)
    body = [_across(place(xs[0], tick)[1], _number(tick)) for tick in ticks]
    body += [_text(place(x, low)[0], HEIGHT - BOTTOM + 18, _number(x), "middle") for x in xs]
    for colour, points in zip(COLOURS, series.values(), strict=False):
        places = [place(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (_, value) in zip(places, points, strict=True):
            body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
            anchor = "end" if x > WIDTH - RIGHT - 30 else "start" if x < LEFT + 30 else "middle"
            body.append(_text(x, y - 8, _number(value), anchor))
    return _framed(title, x_label, y_label, list(series), body)


def bars(title: str, y_label: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """A group of bars for each name; every group has the same bars."""
    names = list(next(iter(groups.values())))
    high = _range([value for group in groups.values() for value in group.values()])[1]
    scale = (HEIGHT - TOP - BOTTOM) / high
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    body = [_across(HEIGHT - BOTTOM - tick * scale, _number(tick)) for tick in _steps(high)]
    for position, (label, group) in enumerate(groups.items()):
        begin = LEFT + position * room
        width = room * 0.7 / len(names)
        for number, (colour, name) in enumerate(zip(COLOURS, names, strict=False)):
            x, height = begin + room * 0.15 + number * width, group[name] * scale
            y = HEIGHT - BOTTOM - height
            body.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * 0.9:.1f}" height="{height:.1f}" fill="{colour}"/>'
            )
            body.append(_text(x + width * 0.45, y - 5, _number(group[name]), "middle"))
        body.append(_text(begin + room / 2, HEIGHT - BOTTOM + 18, label, "middle"))
    return _framed(title, "", y_label, names, body)


def _framed(title: str, x_label: str, y_label: str, names: Sequence[str], body: Sequence[str]) -> str:
    legend = []
    for number, (colour, name) in enumerate(zip(COLOURS, names, strict=False)):
        x = WIDTH - RIGHT - 190 * (len(names) - number)
        legend += [f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>', _text(x + 17, 22, name, "start")]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *legend,
        *body,
        f'<line x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - RIGHT}" y2="{HEIGHT - BOTTOM}" stroke="#333333"/>',
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "middle"),
        f'<g transform="translate(14 {middle:.0f}) rotate(-90)">{_text(0, 0, y_label, "middle")}</g>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _across(y: float, label: str) -> str:
    line = f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>'
    return line + _text(LEFT - 6, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333333">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:g}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From zero to a round number above the largest value and its label."""
    step = _step(max(values) * 1.1)
    return 0.0, math.ceil(max(values) * 1.1 / step) * step


def _steps(high: float) -> list[float]:
    step = _step(high)
    return [round(number * step, 10) for number in range(int(high / step + 0.5) + 1)]


def _step(high: float) -> float:
    rough = 10 ** math.floor(math.log10(high / 4))
    return next(rough * factor for factor in (1, 2, 5, 10) if high / (rough * factor) <= 6)


def _powers(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
