"""Derive bars drawn to scale from cluster objects."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu_node import HealthWord, PublishedForm
from dra_driver.kubectl.capacity import claims_of, place_of
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse
from dra_driver.kubectl.web.fleet import GpuRow, NodeRow, SeenFleet, cliques_of, island_of, islands_of, spots_of
from dra_driver.kubectl.web.heat_map import shown_nodes
from dra_driver.kubectl.web.rows import claim_views, uses_by_device
from tests.unit.kubectl.web.objects import (
    DRIVER,
    NOW,
    UNHEALTHY,
    claim,
    fleet,
    given,
    partition,
    seen,
    share,
    slice_of,
    small_state,
    told,
    told_gpu,
    whole,
)


def test_a_free_gpu_says_what_it_is_published_as() -> None:
    gpu = fleet(small_state()).nodes[0].gpus[0]
    assert (gpu.parts, gpu.used_as, gpu.offers) == ((), "free", ("share", "1g.10gb", "3g.40gb"))
    assert (gpu.name, gpu.slices, gpu.memory_bytes) == ("gpu-0", 8, 80 << 30)


def test_partitions_lie_where_nvml_places_them() -> None:
    """Start and width are placements in memory slices."""
    state = small_state(claim("a", "n", {"device": "gpu-0-mig-1g10gb-19-6"}, {"device": "gpu-0-mig-3g40gb-9-0"}))
    found = fleet(state).nodes[0].gpus[0].parts
    parts = {part.label: (part.start, part.width, part.memory_bytes >> 30) for part in found}
    assert parts == {"1g.10gb": (75.0, 12.5, 10), "3g.40gb": (0.0, 50.0, 40)}


def test_shares_stand_one_after_the_other_by_their_memory() -> None:
    """A share's width is its part of the memory; order is by name, so that it does not jump."""
    state = small_state(claim("b", "n", share("gpu-0", "20Gi")), claim("a", "n", share("gpu-0", "40Gi", "50")))
    gpu = fleet(state).nodes[0].gpus[0]
    parts = [(part.claim, part.start, part.width, part.percent) for part in gpu.parts]
    assert parts == [("a", 0.0, 50.0, 50), ("b", 50.0, 25.0, 20)]
    assert (gpu.used_as, gpu.used_percent) == ("share", 75.0)


def test_admin_access_holds_nothing() -> None:
    gpu = fleet(small_state(claim("admin", "n", {"device": "gpu-0", "adminAccess": True}))).nodes[0].gpus[0]
    assert (gpu.parts, [part.claim for part in gpu.admins]) == ((), ["admin"])


def test_health_policy_and_unpublished_gpus_come_from_the_gpu_node() -> None:
    ill = told_gpu("gpu-1", "GPU-1", health=UNHEALTHY, causes=("lost",), message="it fell off the bus")
    said = told(told_gpu("gpu-0", "GPU-0", policy="pool"), ill, problem="a policy cannot be read")
    node = fleet(small_state(), n=said).nodes[0]
    gpus = [(gpu.name, gpu.policy, gpu.is_unhealthy, gpu.message) for gpu in node.gpus]
    assert gpus == [("gpu-0", "pool", False, ""), ("gpu-1", "", True, "it fell off the bus")]
    assert (node.problems, node.is_unhealthy) == (("a policy cannot be read",), True)


def test_totals_count_each_gpu_once() -> None:
    state = small_state(claim("a", "n", share("gpu-0", "20Gi")))
    totals = fleet(state, n=told(told_gpu("gpu-1", "GPU-1", health=UNHEALTHY))).totals
    assert (totals.nodes, totals.gpus, totals.free, totals.share, totals.unhealthy) == (1, 2, 0, 1, 1)


def test_devices_that_are_no_gpus_are_left_out() -> None:
    nic = {"name": "nic-0", "attributes": {"type": {"string": "nic"}}}
    assert fleet(replace(small_state(), slices=(slice_of("n", nic),))).nodes == ()


def test_nodes_and_gpus_are_in_natural_order() -> None:
    names = [f"gpu-{number}" for number in (10, 2, 0)]
    state = replace(small_state(), slices=(slice_of("n", *(whole(name, name) for name in names)),))
    assert [gpu.name for gpu in fleet(state).nodes[0].gpus] == ["gpu-0", "gpu-2", "gpu-10"]


def test_invalid_quantity_counts_as_no_memory() -> None:
    state = replace(small_state(), slices=(slice_of("n", whole("gpu-0", "GPU-0", memory="much")),))
    assert fleet(state).nodes[0].gpus[0].memory_bytes == 0


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
    devices = (
        *(placed(f"gpu-{number}", island="A" if number < 2 else "B") for number in range(4)),
        *(placed(f"gpu-{number}", island="C", link="switch") for number in range(4, 7)),
        placed("gpu-7"),
    )
    found = fleet_with(n=devices)
    kinds = [(island.kind, names(island.gpus)) for island in islands_of(found.nodes[0])]
    pairs = [("pair", ["gpu-0", "gpu-1"]), ("pair", ["gpu-2", "gpu-3"])]
    assert kinds == [*pairs, ("NVSwitch", ["gpu-4", "gpu-5", "gpu-6"])]
    second, last = (given(found.gpu("n", name)) for name in ("gpu-2", "gpu-7"))
    assert names(given(island_of(second, found)).gpus) == ["gpu-2", "gpu-3"]
    assert island_of(last, found) is None


def test_gpus_with_one_numa_node_and_root_stand_together() -> None:
    found = fleet_with(n=tuple(placed(f"gpu-{number}", numa=number % 2) for number in range(4)))
    spots = [(spot.numa, spot.pcie_root, names(spot.gpus)) for spot in spots_of(found.nodes[0])]
    assert spots == [("0", "pci0000:00", ["gpu-0", "gpu-2"]), ("1", "pci0000:10", ["gpu-1", "gpu-3"])]
    assert spots_of(NodeRow(name="m", gpus=(GpuRow(node="m", name="gpu-0", driver=DRIVER),))) == []


def test_a_clique_spans_nodes() -> None:
    both = placed("gpu-0", clique="a.1"), placed("gpu-1", clique="a.2")
    found = fleet_with(one=both, other=(placed("gpu-0", clique="a.1"), placed("gpu-1")))
    first, last = given(found.gpu("one", "gpu-0")), given(found.gpu("other", "gpu-1"))
    assert [(gpu.node, gpu.name) for gpu in cliques_of(found)[first.place.clique]] == [
        ("one", "gpu-0"),
        ("other", "gpu-0"),
    ]
    assert last.place.clique not in cliques_of(found)


def test_numa_nodes_may_be_a_list_and_nonsense_is_nothing() -> None:
    assert place_of({"attributes": {NUMA: {"ints": [0, 1]}}}, DRIVER).numa_text == "0, 1"
    nonsense = {NUMA: {"string": "x"}, ROOT: {"int": 3}, "nvlinkIsland": {"bool": True}}
    assert place_of({"attributes": nonsense}, DRIVER) == place_of({}, DRIVER)


def test_gpu_is_derived_from_its_partitions() -> None:
    parts = [partition(f"gpu-3-mig-1g10gb-19-{at}", "GPU-3", "1g.10gb", (at, 1), "c") for at in range(2)]
    parts[0]["attributes"][NUMA] = {"int": 1}
    (gpu,) = fleet_with(n=tuple(parts)).nodes[0].gpus
    assert (gpu.name, gpu.offers, gpu.place.numa_text) == ("gpu-3", ("1g.10gb",), "1")


TAINTED = {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
NOTED = {"taints": [{"key": "k", "effect": "None"}]}
READY = {"metadata": {"name": "n"}}
NOT_READY = {**READY, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
RULE = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"device": "gpu-0"}, "taint": TAINTED["taints"][0]}}


@pytest.mark.parametrize(
    ("device", "more", "closed"),
    [
        ({}, {}, ""),
        (NOTED, {}, ""),
        (TAINTED, {}, "no claim, tainted (k:NoSchedule)"),
        ({}, {"nodes": (NOT_READY,)}, "no claim, node not ready"),
        ({}, {"nodes": ({**READY, "spec": {"unschedulable": True}},)}, "no claim, node cordoned"),
        ({}, {"of": 2}, "no claim, its pool is incomplete"),
        ({}, {"taint_rules": (RULE,)}, "no claim, tainted (k:NoSchedule)"),
        ({}, {"gaps": ("resourceclaims: no",)}, "its claims are unknown"),
    ],
)
def test_only_a_gpu_that_a_claim_can_get_is_free(device: Any, more: Any, closed: str) -> None:
    """Free GPUs as in `kubectl dra capacity`: a healthy GPU is not always free."""
    of = more.pop("of", 1)
    state = small_state(slices=(slice_of("n", whole("gpu-0", "GPU-0", **device), of=of),), **more)
    healthy = told(told_gpu("gpu-0", "GPU-0", health=HealthWord.HEALTHY))
    found = seen(state, n=healthy).fleet
    free = bool(shown_nodes(found.nodes, {}, "free"))
    assert (found.nodes[0].gpus[0].closed, found.totals.free, free) == (closed, not closed, not closed)


def test_a_lost_gpu_that_is_not_published_keeps_its_claims() -> None:
    """The pod still runs on it, and its node says that it is used: no claim cannot mean free."""
    lost = told_gpu("gpu-7", "GPU-7", health=UNHEALTHY, used_as=PublishedForm.WHOLE)
    held = claim("a", "n", {"device": "gpu-7"}, {"device": "gpu-0-mig-gone"})
    held["status"]["allocation"]["nodeSelector"] = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    }
    state = small_state(held)
    first, last = fleet(state, n=told(lost)).nodes[0].gpus
    parts = [(part.claim, part.form, part.label) for gpu in (first, last) for part in gpu.parts]
    assert parts == [("a", "partition", "gpu-0-mig-gone"), ("a", "whole", "whole GPU")]
    assert (first.used_percent, last.used_percent) == (None, 100.0)
    (_, alone) = fleet(small_state(), n=told(replace(lost, health=HealthWord.UNKNOWN))).nodes[0].gpus
    assert (alone.parts, alone.closed, alone.is_free) == ((), "Whole, according to its node", False)


def test_gpus_of_one_name_in_two_pools_have_pages_of_their_own() -> None:
    pools = [slice_of("n", *(whole(f"gpu-{at}", f"{pool}-{at}") for at in range(128))) for pool in "ab"]
    pools[1]["spec"]["driver"] = "other.example.com"
    pools[0]["spec"]["pool"]["name"] = "m"
    held = claim("a", "n", {"device": "gpu-5", "driver": "other.example.com"}, {"device": "gpu-5", "pool": "m"})
    found = fleet(small_state(held, slices=pools), n=told())
    assert len({gpu.name for gpu in found.nodes[0].gpus}) == 256
    assert {gpu.name: gpu.uuid for gpu in found.nodes[0].gpus if gpu.parts} == {"gpu-5": "a-5", "gpu-5 b-5": "b-5"}
    use = ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-5", used_bytes=1)
    (view,) = claim_views(claims_of(small_state(held, slices=pools), NOW), found, uses_by_device([use]))
    assert [(each.gpu, each.use) for each in view.devices] == [("gpu-5 b-5", None), ("gpu-5", None)]


def test_a_gpu_that_two_drivers_publish_has_a_row_for_each() -> None:
    both = [slice_of("n", whole("gpu-0", "GPU-0")) for _ in range(2)]
    both[1]["spec"]["driver"] = "other.example.com"
    gpus = fleet(small_state(slices=both), n=told(told_gpu("gpu-0", "GPU-0"))).nodes[0].gpus
    assert [(gpu.name, gpu.driver) for gpu in gpus] == [("gpu-0", DRIVER), ("gpu-0 GPU-0", "other.example.com")]


def test_a_placement_outside_the_gpu_is_not_drawn() -> None:
    for place in ((-5, 1), (0, -1), (8, 1), (2**62, 2**62)):
        device = partition("gpu-0-mig-x", "GPU-0", "1g.10gb", place, "c") | {"capacity": {"memory": {"value": "-1"}}}
        slices = (slice_of("n", sets=("c",), of=2), slice_of("n", whole("gpu-0", "GPU-0"), device, of=2))
        gpu = fleet(small_state(claim("a", "n", {"device": "gpu-0-mig-x"}), slices=slices)).nodes[0].gpus[0]
        assert [(part.start, part.width) for part in gpu.parts] == [(0.0, 0.0)]
        assert gpu.used_percent is None
