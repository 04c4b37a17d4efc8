"""Where GPUs are, and which are linked."""

from typing import Any

from dra_driver.kubectl.web.gpus import (
    GpuRow,
    NodeRow,
    SeenFleet,
    clique_of,
    island_of,
    islands_of,
    numa_text,
    place_of,
    spots_of,
)
from tests.unit.kubectl.web.objects import DRIVER, fleet, partition, slice_of, small_state, whole

NUMA, ROOT = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"


def placed(name: str, *, island: str = "", link: str = "direct", numa: int = 0, clique: str = "") -> dict[str, Any]:
    """A whole GPU with these attributes."""
    device = whole(name, f"GPU-{name}")
    links = {"nvlinkIsland": {"string": island}, "nvlinkType": {"string": link}} if island else {}
    fabric = {f"{DRIVER}/clique": {"string": clique}} if clique else {}
    near = {NUMA: {"int": numa}, ROOT: {"string": f"pci0000:{numa}0"}}
    device["attributes"] |= links | fabric | near
    return device


def fleet_with(**nodes: tuple[dict[str, Any], ...]) -> SeenFleet:
    return fleet(small_state(nodes=(), slices=tuple(slice_of(name, *gpus) for name, gpus in nodes.items())))


def names(gpus: Any) -> list[str]:
    return [gpu.name for gpu in gpus]


def test_linked_gpus_are_an_island_with_its_kind_in_words() -> None:
    """Two by bridges are a pair; a GPU without links is in none."""
    devices = (
        *(placed(f"gpu-{number}", island="A" if number < 2 else "B") for number in range(4)),
        *(placed(f"gpu-{number}", island="C", link="switch") for number in range(4, 7)),
        placed("gpu-7"),
    )
    found = fleet_with(n=devices)
    kinds = [(island.kind, names(island.gpus)) for island in islands_of(found.nodes[0])]
    assert kinds == [
        ("pair", ["gpu-0", "gpu-1"]),
        ("pair", ["gpu-2", "gpu-3"]),
        ("NVSwitch", ["gpu-4", "gpu-5", "gpu-6"]),
    ]
    second, last = (found.gpu("n", name) for name in ("gpu-2", "gpu-7"))
    assert second is not None
    assert last is not None
    island = island_of(second, found)
    assert island is not None
    assert names(island.gpus) == ["gpu-2", "gpu-3"]
    assert island_of(last, found) is None


def test_gpus_with_one_numa_node_and_root_stand_together() -> None:
    """A node that publishes neither has no such table."""
    found = fleet_with(n=tuple(placed(f"gpu-{number}", numa=number % 2) for number in range(4)))
    spots = [(spot.numa, spot.pcie_root, names(spot.gpus)) for spot in spots_of(found.nodes[0])]
    assert spots == [("0", "pci0000:00", ["gpu-0", "gpu-2"]), ("1", "pci0000:10", ["gpu-1", "gpu-3"])]
    assert spots_of(NodeRow(name="m", gpus=(GpuRow(node="m", name="gpu-0", driver=DRIVER),))) == []


def test_a_clique_spans_nodes() -> None:
    """GPUs of other cliques and of none are not in it."""
    both = placed("gpu-0", clique="a.1"), placed("gpu-1", clique="a.2")
    found = fleet_with(one=both, other=(placed("gpu-0", clique="a.1"), placed("gpu-1")))
    first, last = found.gpu("one", "gpu-0"), found.gpu("other", "gpu-1")
    assert first is not None
    assert last is not None
    assert [(gpu.node, gpu.name) for gpu in clique_of(first, found)] == [("one", "gpu-0"), ("other", "gpu-0")]
    assert clique_of(last, found) == []


def test_numa_nodes_may_be_a_list_and_nonsense_is_nothing() -> None:
    """Kubernetes keeps lists behind a gate; other drivers publish what they like."""
    assert numa_text(place_of({NUMA: {"ints": [0, 1]}}, DRIVER)) == "0, 1"
    nonsense = {NUMA: {"string": "x"}, ROOT: {"int": 3}, "nvlinkIsland": {"bool": True}}
    assert place_of(nonsense, DRIVER) == place_of({}, DRIVER)


def test_a_gpu_of_which_only_partitions_are_published_is_at_its_place() -> None:
    """They have no links, but the PCIe root and the NUMA node of their GPU."""
    part = partition("gpu-0-mig-1", "GPU-0", "1g.10gb", (0, 1), "c")
    part["attributes"][NUMA] = {"int": 1}
    gpu = fleet_with(n=(part,)).nodes[0].gpus[0]
    assert numa_text(gpu.place) == "1"
