"""Published slices against the embedded API server, the real allocator and the lookup of dcgm-exporter."""

import time
from contextlib import closing
from itertools import chain, combinations
from pathlib import Path

import pytest

from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kube.connection import Connection
from dra_driver.kube.published import islands_of
from dra_driver.kube.rest import RestClient
from dra_driver.node.slices import Publisher
from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.scheduler.allocation import Allocator
from dra_driver.sim.apiserver.server import ApiServer
from tests.bench.linking import BOARDS, Node, Tally, board, orders, play, sequence
from tests.fakes.dra_objects import Obj, allocated, claim, device_class, exactly, node
from tests.fakes.published import NODE, built, published
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.unit.node.slices.gpus import ALL, doubly_offered, h100s, offered

LINKED = [{"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/nvlinkIsland"}]


def granted(slices: list[Obj], held: list[Obj], count: int) -> tuple[str, ...] | None:
    wanted = claim("wanted", exactly(count=count), constraints=LINKED if count > 1 else [])
    allocator = Allocator(slices=slices, classes=[device_class()], allocated=held)
    found = allocator.allocate(node(NODE), [wanted]).allocations
    return None if found is None else tuple(one["device"] for one in found[0]["devices"]["results"])


def holding(*taken: str) -> list[Obj]:
    return [allocated(claim(f"of-{one}"), one, node_name=NODE) for one in taken]


@pytest.mark.parametrize("words", [BOARDS["4 GPUs, pairs 0-2 1-3"], BOARDS["4 GPUs, pairs 0-1 2-3"]])
def test_two_linked_gpus_are_a_pair_whatever_is_taken(words: str) -> None:
    gpus = board(words)
    slices = published(built(Snapshot(gpus=gpus)))
    pairs = {frozenset(f"gpu-{minor}" for minor in pair) for pair in Node(gpus, islands_of(gpus)).pairs}
    names = [gpu.device_name for gpu in gpus]
    for taken in chain.from_iterable(combinations(names, size) for size in range(5)):
        found = granted(slices, holding(*taken), 2)
        free = [pair for pair in pairs if pair.isdisjoint(taken)]
        assert (found is None) == (not free)
        assert found is None or frozenset(found) in free


@pytest.mark.parametrize("name", list(BOARDS))
def test_the_model_of_the_bench_places_claims_as_the_allocator_does(name: str) -> None:
    gpus = board(BOARDS[name])
    slices, order = published(built(Snapshot(gpus=gpus))), orders(gpus)["ours"]
    claims = sequence("filling", len(gpus), "contract") or [(0, 2, 1.0)]
    held: list[str] = []
    for (_, count, _), modelled in zip(claims, play(Node(order, islands_of(gpus)), claims, Tally()), strict=True):
        found = granted(slices, holding(*held), count)
        assert found == (None if modelled is None else tuple(f"gpu-{minor}" for minor in modelled))
        held += found or ()
    assert held


def test_partitions_of_linked_gpus_are_not_linked() -> None:
    snapshot = SimulatedBackend(parse_groups("2xh100-sxm5-80gb", "n")).snapshot()
    linked = [one for one in built(snapshot).devices if "nvlinkIsland" in one.attributes]
    assert [one.name for one in linked] == ["gpu-0", "gpu-1"]
    assert granted(published(built(snapshot)), [], 2) == ("gpu-0", "gpu-1")


NODE_NAME = "node-a"
DRIVER = "gpu.nvidia.com"


def test_eight_h100_are_published_in_five_writes_and_a_restart_writes_nothing(tmp_path: Path) -> None:
    server = ApiServer(port=0)
    server.start()
    with closing(Connection.load(str(server.kubeconfig(tmp_path / "kubeconfig")))) as connection:
        rest = RestClient(connection)
        rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}})
        before = server.store.revision
        publisher = Publisher.connect(rest, DRIVER, NODE_NAME)
        publisher.set_snapshot(h100s(8))
        publisher.start()
        deadline = time.monotonic() + 10
        while not publisher.published:
            assert time.monotonic() < deadline, publisher.problem
            time.sleep(0.01)
        publisher.stop()
        assert (server.store.revision - before, publisher.features) == (5, ALL)
        objects = {item["metadata"]["name"]: item for item in RestSlicesApi(rest, DRIVER, NODE_NAME).list()}
        assert (len(offered(objects)), doubly_offered(objects)) == (208, [])
        again = Publisher.connect(rest, DRIVER, NODE_NAME)
        again.set_snapshot(h100s(8))
        again.step()
        assert again.published
        assert server.store.revision - before == 5
    server.stop()
