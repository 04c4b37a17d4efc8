"""Published slices against the embedded API server, the real allocator and the lookup of dcgm-exporter."""

import time
from contextlib import closing
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kube.connection import Connection
from dra_driver.kube.published import islands_of
from dra_driver.kube.rest import RestClient
from dra_driver.node.slices import Publisher, build_devices
from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.scheduler.allocation import Allocator
from dra_driver.sim.apiserver.server import ApiServer
from tests.bench.linking import BOARDS, Node, board, orders, sequence
from tests.bench.packing import Request, Tally, play
from tests.fakes.dra_objects import DRIVER, Obj, allocated, claim, device_class, exactly, node
from tests.fakes.published import NODE, built, published, slices
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
    claims = sequence("filling", len(gpus), "contract") or [Request(0, 2, 1.0)]
    held: list[str] = []
    for request, modelled in zip(claims, play(Node(order, islands_of(gpus)), claims, Tally()), strict=True):
        found = granted(slices, holding(*held), request.wanted)
        assert found == (None if modelled is None else tuple(f"gpu-{minor}" for minor in modelled))
        held += found or ()
    assert held


def test_partitions_of_linked_gpus_are_not_linked() -> None:
    snapshot = SimulatedBackend(parse_groups("2xh100-sxm5-80gb", "n")).snapshot()
    linked = [one for one in built(snapshot).devices if "nvlinkIsland" in one.attributes]
    assert [one.name for one in linked] == ["gpu-0", "gpu-1"]
    assert granted(published(built(snapshot)), [], 2) == ("gpu-0", "gpu-1")


NODE_NAME = "node-a"


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


SHARED = GpuTerms(sharing=SharingTerms(strategy=Strategy.TIME_SLICING))


def text(device: dict[str, Any], name: str) -> str:
    return str(device.get("attributes", {}).get(name, {}).get("string", ""))


def device_info(device: dict[str, Any]) -> tuple[str, dict[str, str] | None]:
    """What dcgm-exporter knows of a device: the UUID by which metrics are matched, and of a partition its labels.

    NVIDIA/dcgm-exporter d5e5f51, internal/pkg/transformation/dra.go, onAddOrUpdate and GetDeviceInfo; kubernetes.go
    asks with pool and device of PodResources. It looks at slices of the driver gpu.nvidia.com alone, and at string
    attributes of these names."""
    if text(device, "type") == "gpu":
        return text(device, "uuid"), None
    if text(device, "type") == "mig" and text(device, "parentUUID"):
        return text(device, "parentUUID"), {"uuid": text(device, "uuid"), "profile": text(device, "profile")}
    return "", None


def devices(terms: GpuTerms | None = None) -> list[dict[str, Any]]:
    return [device for each in slices(2, terms=terms) for device in each["spec"].get("devices", ())]


@pytest.mark.parametrize("terms", [None, SHARED], ids=["whole and partitions", "shared"])
def test_every_device_leads_to_its_gpu(terms: GpuTerms | None) -> None:
    found = devices(terms)
    assert found
    assert all(each["spec"]["driver"] == DRIVER == "gpu.nvidia.com" for each in slices(1))
    gpus = {uuid for uuid, mig in map(device_info, found) if mig is None}
    assert len(gpus) == 2
    assert all(uuid.startswith("GPU-") for uuid in gpus)
    for uuid, mig in map(device_info, found):
        assert uuid in gpus
        assert mig is None or mig["profile"]


def test_the_uuid_of_a_partition_that_is_made_at_prepare_is_not_published() -> None:
    migs = [mig for _, mig in map(device_info, devices()) if mig is not None]
    assert migs
    assert {mig["uuid"] for mig in migs} == {""}


def test_a_partition_of_another_manager_has_its_uuid() -> None:
    backend = SimulatedBackend.from_spec("1xh100-sxm5-80gb", "node-a")
    gpu = backend.snapshot().gpus[0].uuid
    backend.set_mig_mode(gpu, True)
    backend.create_compute_instance(gpu, backend.create_gpu_instance(gpu, 19, 0))
    snapshot = backend.snapshot()
    uuid = snapshot.gpus[0].mig_instances[0].device.uuid  # type: ignore[union-attr]
    built = build_devices(replace(snapshot), {})
    assert str(uuid) in str(built)
