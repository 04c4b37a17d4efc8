"""The fleet as a heat map: one cell for each GPU, faulty nodes first, in groups; and the numbers of its tiles. No I/O.

Cells are classes of the style sheet. A cell shows, in this order: a fault, an unknown value, a free GPU, a level.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from markupsafe import Markup
from msgspec import Struct

from dra_driver.core.text import counted, listed
from dra_driver.kubectl.usage.device_use import GpuMemory
from dra_driver.kubectl.web.fleet import PARTITION, SHARE, WHOLE, GpuRow, NodeRow, natural

MEASURES: Final = ("busy", "memory", "granted")
MAX_GPU_CELLS: Final = 20_000
"""Beyond, one cell stands for a node, so that a page has at most 20,000 cells."""
IDLE_RATIO: Final = 0.05
FULL_RATIO: Final = 0.9
_LEVELS: Final = (5.0, 20.0, 40.0, 60.0, 80.0)

GpuUse = Mapping[tuple[str, str], GpuMemory]
"""Use by node and name of the GPU."""


class UseTotals(Struct, frozen=True, kw_only=True):
    """Sums over the GPUs with a known value; ``busy_of``, ``memory_of`` and ``power_of`` count these GPUs.

    Ratios are 0 to 1; all values are None if no GPU has one.
    """

    busy_ratio: float | None = None
    busy_of: int = 0
    memory_ratio: float | None = None
    memory_of: int = 0
    watts: float | None = None
    power_of: int = 0


def totals_of(use: GpuUse, nodes: Sequence[NodeRow]) -> UseTotals:
    """Return the sums over the GPUs of these nodes."""
    found = [each for node in nodes for gpu in node.gpus if (each := use.get((node.name, gpu.name)))]
    busy = [each.busy_ratio for each in found if each.busy_ratio is not None]
    memory = [(each.used_bytes, each.total_bytes) for each in found if each.used_bytes is not None and each.total_bytes]
    watts = [each.power_watts for each in found if each.power_watts is not None]
    return UseTotals(
        busy_ratio=sum(busy) / len(busy) if busy else None,
        busy_of=len(busy),
        memory_ratio=sum(used for used, _ in memory) / sum(total for _, total in memory) if memory else None,
        memory_of=len(memory),
        watts=sum(watts) if watts else None,
        power_of=len(watts),
    )


def memory_ratio(use: GpuMemory | None) -> float | None:
    return None if use is None or use.used_bytes is None or not use.total_bytes else use.used_bytes / use.total_bytes


def percent_of(gpu: GpuRow, use: GpuMemory | None, measure: str) -> float | None:
    """Return the value of a cell, 0 to 100; None if unknown."""
    if measure == "granted":
        return gpu.used_percent
    ratio = memory_ratio(use) if measure == "memory" else use.busy_ratio if use else None
    return None if ratio is None else 100 * min(ratio, 1.0)


SHOWS: Final[Mapping[str, Callable[[GpuRow, GpuMemory | None], bool]]] = {
    "free": lambda gpu, _: gpu.is_free,
    "held": lambda gpu, _: bool(gpu.parts),
    "idle": lambda gpu, use: bool(gpu.parts and use and use.busy_ratio is not None and use.busy_ratio < IDLE_RATIO),
    "full": lambda _, use: (memory_ratio(use) or 0.0) >= FULL_RATIO,
    "whole": lambda gpu, _: gpu.used_as == WHOLE,
    "partition": lambda gpu, _: gpu.used_as == PARTITION,
    "share": lambda gpu, _: gpu.used_as == SHARE,
}
"""Filters of the tiles by name: a node is shown if one of its GPUs passes. ``unhealthy`` also counts node problems."""


def shown_nodes(nodes: Sequence[NodeRow], use: GpuUse, show: str) -> Sequence[NodeRow]:
    if show == "unhealthy":
        return [node for node in nodes if node.is_unhealthy]
    passes = SHOWS.get(show)
    if passes is None:
        return nodes
    return [node for node in nodes if any(passes(gpu, use.get((node.name, gpu.name))) for gpu in node.gpus)]


def ordered(nodes: Sequence[NodeRow], use: GpuUse, order: str) -> list[NodeRow]:
    """Return faulty nodes first, the busiest first (unknown last), or by name."""
    if order == "name":
        return list(nodes)  # of `fleet_of`, by name
    if order == "busy":
        busy = {node.name: _mean(node, use, "busy") for node in nodes}
        return sorted(nodes, key=lambda node: (busy[node.name] is None, -(busy[node.name] or 0.0)))
    return sorted(nodes, key=lambda node: (-node.faults, not node.is_unhealthy))


class MapNode(Struct, frozen=True, kw_only=True):
    """A node of the map. ``cells`` are its GPUs in order, ``words`` its description."""

    name: str
    cells: Markup
    words: str


class MapGroup(Struct, frozen=True, kw_only=True):
    name: str
    gpus: int
    faults: int
    nodes: Sequence[MapNode]


def groups_of(nodes: Sequence[NodeRow], use: GpuUse, *, measure: str, by: str) -> list[MapGroup]:
    """Return groups of nodes, in which nodes keep their order; the group with most faults first."""
    found: dict[str, list[NodeRow]] = {}
    for node in nodes:
        name = "" if by == "none" else (node.pool or "no node pool") if by == "pool" else node.model
        found.setdefault(name, []).append(node)
    is_coarse = sum(len(node.gpus) for node in nodes) > MAX_GPU_CELLS
    groups = [
        MapGroup(
            name=name,
            gpus=sum(len(node.gpus) for node in members),
            faults=sum(node.faults for node in members),
            nodes=[_map_node(node, use, measure, is_coarse=is_coarse) for node in members],
        )
        for name, members in found.items()
    ]
    return sorted(groups, key=lambda group: (-group.faults, natural(group.name)))


def _map_node(node: NodeRow, use: GpuUse, measure: str, *, is_coarse: bool) -> MapNode:
    if is_coarse:
        cells = _CELLS["f" if node.faults else _level(_mean_of_all(node, use, measure))]
    else:
        cells = Markup("").join(_CELLS[_cell(gpu, use.get((node.name, gpu.name)), measure)] for gpu in node.gpus)
    return MapNode(name=node.name, cells=cells, words=_words(node, use))


def _cell(gpu: GpuRow, use: GpuMemory | None, measure: str) -> str:
    if gpu.is_unhealthy:
        return "f"
    value = percent_of(gpu, use, measure)
    if not gpu.parts and (measure == "granted" or (value or 0.0) < _LEVELS[0]):
        # Unknown use of a GPU without claims is unknown: processes outside of claims can use it.
        unknown = "unknown" in gpu.closed or (measure != "granted" and value is None)
        return "u" if unknown else "x" if gpu.closed else "e"
    return _level(value)


def _level(percent: float | None) -> str:
    return "u" if percent is None else f"h{sum(percent >= each for each in _LEVELS)}"


_CELLS: Final = {
    name: Markup('<i class="{}"></i>').format(name) for name in ("f", "u", "x", "e", *(f"h{n}" for n in range(6)))
}


def _known(node: NodeRow, use: GpuUse, measure: str) -> list[float]:
    values = (percent_of(gpu, use.get((node.name, gpu.name)), measure) for gpu in node.gpus)
    return [value for value in values if value is not None]


def _mean(node: NodeRow, use: GpuUse, measure: str) -> float | None:
    known = _known(node, use, measure)
    return sum(known) / len(known) if known else None


def _mean_of_all(node: NodeRow, use: GpuUse, measure: str) -> float | None:
    """Return the mean over the GPUs; None if the value of one is unknown."""
    known = _known(node, use, measure)
    return sum(known) / len(known) if known and len(known) == len(node.gpus) else None


def _mean_text(node: NodeRow, use: GpuUse, measure: str) -> str:
    known = _known(node, use, measure)
    part = f" ({len(known)} of {len(node.gpus)} known)" if len(known) < len(node.gpus) else ""
    return f"{sum(known) / len(known):.0f} %{part}" if known else "unknown"


def _words(node: NodeRow, use: GpuUse) -> str:
    faulty = [gpu.name for gpu in node.gpus if gpu.is_unhealthy]
    parts = [
        counted(len(node.gpus), "GPU"),
        *([f"{counted(len(faulty), 'fault')} ({listed(faulty)})"] if faulty else []),
        *([node.problem] if node.problem else []),
        f"{sum(bool(gpu.parts) for gpu in node.gpus)} held",
        f"{sum(gpu.is_free for gpu in node.gpus)} free",
        *(f"{measure} {_mean_text(node, use, measure)}" for measure in ("busy", "memory")),
    ]
    return f"{node.name}: {', '.join(parts)}"
