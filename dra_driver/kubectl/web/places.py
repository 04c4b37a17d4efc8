"""Where GPUs are and which are linked, as their published attributes say (docs/topology.md). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from dra_driver.kube.devices import attribute_text
from dra_driver.kube.published import names
from dra_driver.kubectl.web.gpus import NOWHERE, GpuPlace, GpuRow, NodeRow, SeenFleet

_DIRECT: Final = "direct"
_MAX_NUMA: Final = 64


class LinkedGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node of which each reaches each other by NVLink; ``kind`` is in words."""

    kind: str
    gpus: Sequence[GpuRow]


class NearGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node with one NUMA node and PCIe root; both are "" where they are not published."""

    numa: str
    pcie_root: str
    gpus: Sequence[GpuRow]


def place_of(attributes: Mapping[str, Any], driver: str) -> GpuPlace:
    """Of a device's attributes, whose names may have the driver's domain."""
    text = partial(attribute_text, attributes, driver)
    place = GpuPlace(
        numa=_numa(attributes.get(names.NUMA_NODE) or {}),
        pcie_root=text(names.PCIE_ROOT),
        island=text(names.NVLINK_ISLAND),
        link=text(names.NVLINK_TYPE),
        clique=text(names.CLIQUE),
    )
    return place if place != NOWHERE else NOWHERE


def _numa(value: Mapping[str, Any]) -> tuple[int, ...]:
    found = [value["int"]] if "int" in value else value.get("ints") or ()
    return tuple(number for number in found if isinstance(number, int))[:_MAX_NUMA]


def islands_of(node: NodeRow) -> list[LinkedGpus]:
    """In the order of the first GPU of each."""
    found = _grouped((gpu.place.island, gpu) for gpu in node.gpus if gpu.place.island)
    return [LinkedGpus(kind=_kind(gpus), gpus=gpus) for gpus in found.values()]


def island_of(gpu: GpuRow, fleet: SeenFleet) -> LinkedGpus | None:
    """The island of the GPU, itself included; None without one."""
    node = fleet.node(gpu.node)
    found = islands_of(node) if node and gpu.place.island else ()
    return next((each for each in found if each.gpus[0].place.island == gpu.place.island), None)


def spots_of(node: NodeRow) -> list[NearGpus]:
    """GPUs that are near each other; none if the node's GPUs do not say where they are."""
    found = _grouped(((numa_text(gpu.place), gpu.place.pcie_root), gpu) for gpu in node.gpus)
    spots = [NearGpus(numa=numa, pcie_root=root, gpus=gpus) for (numa, root), gpus in sorted(found.items())]
    return spots if any(spot.numa or spot.pcie_root for spot in spots) else []


def clique_of(gpu: GpuRow, fleet: SeenFleet) -> list[GpuRow]:
    """All GPUs of the fabric's clique, which may span nodes; none where the GPU is in no clique."""
    clique = gpu.place.clique
    return [each for node in fleet.nodes for each in node.gpus if each.place.clique == clique] if clique else []


def numa_text(place: GpuPlace) -> str:
    return ", ".join(map(str, place.numa))


def _kind(gpus: Sequence[GpuRow]) -> str:
    link = gpus[0].place.link
    if link == _DIRECT:
        return "pair" if len(gpus) == 2 else "direct links"
    return "NVSwitch" if link == "switch" else link or "linked"


def _grouped(pairs: Iterable[tuple[Any, GpuRow]]) -> dict[Any, list[GpuRow]]:
    found: dict[Any, list[GpuRow]] = {}
    for key, gpu in pairs:
        found.setdefault(key, []).append(gpu)
    return found
