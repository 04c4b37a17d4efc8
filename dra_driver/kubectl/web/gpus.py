"""Nodes and GPUs as the page shows them, with what claims hold drawn to scale. Values only; ``fleet.py`` makes them."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.kubectl.capacity import NOWHERE, GpuPlace

FREE: Final = "free"
WHOLE: Final = "whole"
PARTITION: Final = "partition"
SHARE: Final = "share"


class Part(Struct, frozen=True, kw_only=True):
    """What one claim has of a GPU: ``start`` and ``width`` in percent of the GPU, ``form`` one of the above.

    ``memory_bytes`` is what the claim was granted, 0 where it is not published. ``device`` is the published device.
    """

    form: str
    device: str
    label: str
    start: float
    width: float
    namespace: str
    claim: str
    pods: Sequence[str] = ()
    memory_bytes: int = 0
    percent: int | None = None
    admin: bool = False


class GpuRow(Struct, frozen=True, kw_only=True):
    """One GPU of a node. ``slices`` is the number of memory slices of MIG, 0 where it is not published.

    ``offers`` are the forms that claims could get now (``whole``, ``3g.40gb``, ``share``); ``health`` is "" where
    nothing tells it. ``used_percent`` is how much of it claims hold.
    """

    node: str
    name: str
    driver: str
    uuid: str = ""
    product: str = ""
    memory_bytes: int = 0
    slices: int = 0
    parts: Sequence[Part] = ()
    admins: Sequence[Part] = ()
    offers: Sequence[str] = ()
    sharing: str = ""
    policy: str = ""
    waiting: str = ""
    health: str = ""
    causes: Sequence[str] = ()
    message: str = ""
    found_use: Sequence[str] = ()
    taints: Sequence[str] = ()
    place: GpuPlace = NOWHERE

    @property
    def used_percent(self) -> float:
        return min(100.0, sum(part.width for part in self.parts))

    @property
    def used_as(self) -> str:
        return self.parts[0].form if self.parts else FREE

    @property
    def is_sick(self) -> bool:
        return self.health == "Unhealthy" or (not self.health and bool(self.taints))


class NodeRow(Struct, frozen=True, kw_only=True):
    """One node with its GPUs. ``problem`` is why it takes no ordinary pods, "" without one."""

    name: str
    gpus: Sequence[GpuRow]
    problem: str = ""
    problems: Sequence[str] = ()
    found_use: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    policies: Sequence[tuple[str, str]] = ()

    @property
    def is_sick(self) -> bool:
        return bool(self.problem or self.problems) or any(gpu.is_sick for gpu in self.gpus)

    @property
    def has_free(self) -> bool:
        return any(not gpu.parts and not gpu.is_sick for gpu in self.gpus)


class Totals(Struct, frozen=True, kw_only=True):
    """Of the whole fleet, in GPUs and nodes."""

    nodes: int = 0
    gpus: int = 0
    free: int = 0
    whole: int = 0
    partition: int = 0
    share: int = 0
    sick: int = 0


class SeenFleet(Struct, frozen=True, kw_only=True):
    """All nodes that have GPUs, by name."""

    nodes: Sequence[NodeRow] = ()
    totals: Totals = Totals()

    def node(self, name: str) -> NodeRow | None:
        return next((node for node in self.nodes if node.name == name), None)

    def gpu(self, node: str, name: str) -> GpuRow | None:
        found = self.node(node)
        return next((gpu for gpu in found.gpus if gpu.name == name), None) if found else None


class LinkedGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node of which each reaches each other by NVLink; ``kind`` is in words."""

    kind: str
    gpus: Sequence[GpuRow]


class NearGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node with one NUMA node and PCIe root; both are "" where they are not published."""

    numa: str
    pcie_root: str
    gpus: Sequence[GpuRow]


def islands_of(node: NodeRow) -> list[LinkedGpus]:
    """In the order of the first GPU of each."""
    found: dict[str, list[GpuRow]] = {}
    for gpu in node.gpus:
        if gpu.place.island:
            found.setdefault(gpu.place.island, []).append(gpu)
    return [LinkedGpus(kind=_kind(gpus), gpus=gpus) for gpus in found.values()]


def island_of(gpu: GpuRow, fleet: SeenFleet) -> LinkedGpus | None:
    """The island of the GPU, itself included; None without one."""
    node = fleet.node(gpu.node)
    found = islands_of(node) if node and gpu.place.island else ()
    return next((each for each in found if each.gpus[0].place.island == gpu.place.island), None)


def spots_of(node: NodeRow) -> list[NearGpus]:
    """GPUs that are near each other; none if the node's GPUs do not say where they are."""
    found: dict[tuple[str, str], list[GpuRow]] = {}
    for gpu in node.gpus:
        found.setdefault((gpu.place.numa_text, gpu.place.pcie_root), []).append(gpu)
    spots = [NearGpus(numa=numa, pcie_root=root, gpus=gpus) for (numa, root), gpus in sorted(found.items())]
    return spots if any(spot.numa or spot.pcie_root for spot in spots) else []


def clique_of(gpu: GpuRow, fleet: SeenFleet) -> list[GpuRow]:
    """All GPUs of the fabric's clique, which may span nodes; none where the GPU is in no clique."""
    clique = gpu.place.clique
    return [each for node in fleet.nodes for each in node.gpus if each.place.clique == clique] if clique else []


def _kind(gpus: Sequence[GpuRow]) -> str:
    link = gpus[0].place.link
    if link == "direct":
        return "pair" if len(gpus) == 2 else "direct links"
    return "NVSwitch" if link == "switch" else link or "linked"
