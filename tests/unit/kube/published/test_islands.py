"""Which GPUs are one NVLink island, and in which order they are published."""

from collections.abc import Iterable
from itertools import combinations

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Gpu, NvLinkPeer, NvLinks
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated.spec import parse_document, parse_groups
from dra_driver.kube.published import DIRECT, SWITCH, in_order, islands_of
from tests.bench.linking import BOARDS, KINDS, measure


def gpu(minor: int, peers: dict[int, int] | None = None, **links: object) -> Gpu:
    """``peers`` maps minors to numbers of links."""
    found = tuple(NvLinkPeer(pci_bus_id=address(at), links=count) for at, count in sorted((peers or {}).items()))
    nvlinks = NvLinks(peers=found, **links)  # type: ignore[arg-type]
    return Gpu(uuid=GpuUuid(f"GPU-{minor:02d}"), minor=minor, pci_bus_id=address(minor), nvlinks=nvlinks)


def address(minor: int) -> str:
    return f"0000:{minor:02x}:00.0"


def mesh(*links: tuple[int, int, int]) -> list[Gpu]:
    peers: dict[int, dict[int, int]] = {}
    for one, other, count in links:
        peers.setdefault(one, {})[other] = count
        peers.setdefault(other, {})[one] = count
    return [gpu(minor, linked) for minor, linked in sorted(peers.items())]


def groups(gpus: Iterable[Gpu]) -> list[tuple[int, ...]]:
    gpus = list(gpus)
    minors = {one.uuid: one.minor for one in gpus}
    return sorted({tuple(minors[uuid] for uuid in island.members) for island in islands_of(gpus).values()})


def test_bridge_pairs_are_islands_of_two() -> None:
    assert groups(mesh((0, 2, 4), (1, 3, 4))) == [(0, 2), (1, 3)]
    assert {island.kind for island in islands_of(mesh((0, 2, 4))).values()} == {DIRECT}


def test_gpus_on_nvswitches_are_one_island() -> None:
    board = [gpu(minor, switch_links=18) for minor in range(4)]
    assert groups(board) == [(0, 1, 2, 3)]
    assert {island.kind for island in islands_of(board).values()} == {SWITCH}
    assert groups([gpu(n, switch_links=18, clique=f"c.{n % 2}") for n in range(4)]) == [(0, 2), (1, 3)]


def test_one_gpu_alone_is_no_island() -> None:
    assert not islands_of([gpu(0, switch_links=18)])
    assert not islands_of([gpu(0, {7: 4}), gpu(1)])


def test_any_two_members_are_linked_also_in_a_mesh() -> None:
    """Eight V100 as in a DGX-1: two groups of four, each linked with each, although all eight hang together."""
    quads = [(a, b, 1) for quad in (range(4), range(4, 8)) for a, b in combinations(quad, 2)]
    assert groups(mesh(*quads, (0, 4, 2), (1, 5, 2), (2, 6, 2), (3, 7, 2))) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert groups(mesh((0, 1, 1), (1, 2, 2), (2, 3, 1))) == [(1, 2)]
    assert groups(mesh((0, 1, 2), (1, 2, 1), (2, 3, 2))) == [(0, 1), (2, 3)]


def test_one_end_of_a_link_is_enough() -> None:
    assert groups([gpu(0), gpu(1, {0: 4})]) == [(0, 1)]


def test_the_name_is_equal_on_all_members_and_differs_between_islands_and_nodes() -> None:
    """It is made of a UUID and of no index: it is the same after a reboot that orders the GPUs otherwise."""
    nodes = [parse_groups("4xa100-pcie-80gb+pairs", node) for node in ("node-a", "node-b")]
    names = [{island.name for island in islands_of([item.gpu for item in n.gpus]).values()} for n in nodes]
    assert len(names[0] | names[1]) == 4
    gpus = [item.gpu for item in nodes[0].gpus]
    assert islands_of(gpus) == islands_of(list(reversed(gpus)))


def test_gpus_in_no_island_are_tried_first_and_islands_one_after_the_other() -> None:
    gpus = [*mesh((0, 3, 4), (1, 4, 4)), gpu(2), *(gpu(n, switch_links=18) for n in (5, 6, 7)), gpu(8)]
    assert [one.minor for one in in_order(gpus, islands_of(gpus))] == [2, 8, 0, 3, 1, 4, 5, 6, 7]


def test_the_order_of_gpus_that_are_alike_is_that_of_their_minor_numbers() -> None:
    """As before, on nodes without NVLink and on boards with NVSwitches."""
    for node in ("8xh100-sxm5-80gb", "4xl4-24gb"):
        gpus = [item.gpu for item in parse_groups(node, "node-a").gpus]
        assert in_order(reversed(gpus), islands_of(gpus)) == gpus


def test_a_wide_mesh_is_divided_in_bounded_time() -> None:
    """64 GPUs that all say that they are linked with each other: no machine, but a description can say so."""
    document = "gpus: [{model: a100-pcie-80gb, count: 64, nvlink: bridge-a}]"
    assert [len(one) for one in groups(item.gpu for item in parse_document(document, "n").gpus)] == [64]


@pytest.mark.parametrize("spec", ["2xl4-24gb+pairs", "3xa30-24gb+pairs", "2xh100-sxm5-80gb+pairs"])
def test_descriptions_of_links_that_no_board_has_are_refused(spec: str) -> None:
    """No NVLink, an odd number, and a board with NVSwitches."""

    with pytest.raises(ConfigurationError, match="nvlink"):
        parse_groups(spec, "node-a")


MIXED = ["4 GPUs, pairs 0-2 1-3", "8 GPUs, pairs 0-4 1-5 2-6 3-7", "6 GPUs, pairs 0-1 2-3, two alone"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MIXED)
def test_published_order_strands_fewer_pairs_than_minor_numbers(name: str, kind: str) -> None:
    """At most half as many claims for two are refused although two GPUs are free."""
    tallies = measure(BOARDS[name], kind, sequences=25, seed=7)
    ours, minor = tallies["ours"], tallies["by minor"]
    assert ours.requests == minor.requests
    assert ours.stranded < 0.7 * minor.stranded
    assert ours.refusals <= minor.refusals


def test_pairs_of_neighbours_are_published_as_before() -> None:
    tallies = measure(BOARDS["4 GPUs, pairs 0-1 2-3"], "coming and going", sequences=30, seed=7)
    assert tallies["ours"] == tallies["by minor"]
