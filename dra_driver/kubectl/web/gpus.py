"""Nodes and GPUs as the page shows them, with what claims hold drawn to scale. Values only; ``fleet.py`` makes them."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

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


class GpuPlace(Struct, frozen=True, kw_only=True):
    """Where a GPU is: NUMA nodes, PCIe root, NVLink island with the kind of its links, clique of a fabric.

    Empty where the driver publishes nothing.
    """

    numa: Sequence[int] = ()
    pcie_root: str = ""
    island: str = ""
    link: str = ""
    clique: str = ""


NOWHERE: Final = GpuPlace()


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
