"""The lists of claims and devices, near devices, damaged objects, and the examples of the documentation."""

import copy
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DraError
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.capacity import claims_of, devices_of, survey, topology_of, with_claim_gaps
from dra_driver.kubectl.commands.claims import COLUMNS
from dra_driver.kubectl.commands.kubectl import main
from dra_driver.node.slices import ApiServerFeatures, build_devices
from tests.fakes.dra_objects import DRIVER, Obj, claim, exactly, resource_slice, wire
from tests.fakes.published import built, h100, having, published, share, slices
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.shown import holds
from tests.unit.kubectl.capacity.helpers import cells, cluster, holding, shared, whole
from tests.unit.kubectl.explain.test_mutations import mutated

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def dated(wire: Obj, created: str) -> Obj:
    return {**wire, "metadata": {**wire["metadata"], "creationTimestamp": created}}


def test_allocated_claim_shows_devices_nodes_and_pods() -> None:
    held = holding("train", "a", "gpu-0", "gpu-1")
    job = {"apiGroup": "batch", "resource": "jobs", "name": "x", "uid": "2"}
    held["status"]["reservedFor"] = [{"resource": "pods", "name": "train-0", "uid": "1"}, job]
    (row,) = claims_of(cluster([whole("a", 2)], [dated(held, "2026-01-01T00:00:00Z")]), NOW)
    assert (row.namespace, row.name, row.state, row.nodes) == ("default", "train", "allocated", ("a",))
    assert [device.device for device in row.devices] == ["gpu-0", "gpu-1"]
    assert row.pods == ("train-0", "jobs/x")
    assert row.age_s == 86_400


def test_pending_claim_shows_its_requests() -> None:
    big = {"name": "big", "deviceClassName": "big", "allocationMode": "All"}
    both = {"name": "any", "firstAvailable": [big, {"name": "small", "deviceClassName": "small", "count": 2}]}
    (row,) = claims_of(ClusterState(claims=[claim("waits", exactly("gpu", count=3), both)]), NOW)
    assert (row.state, row.devices) == ("pending", ())
    assert tuple(map(str, row.requests)) == ("gpu: 3 x gpu.nvidia.com", "any: all big or 2 x small")


def test_node_of_an_unpublished_device_comes_from_the_allocation() -> None:
    held = holding("train", "a", "gpu-9")
    held["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    field = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    (row,) = claims_of(ClusterState(claims=[held]), NOW)
    assert (row.nodes, row.state) == (("a",), "deleting")


def test_filters_by_node_and_namespace_and_sorts_by_name() -> None:
    state = cluster([whole("a"), whole("b")], [claim("z"), holding("x", "b", "gpu-0"), claim("y", namespace="team")])
    assert [row.name for row in claims_of(state, NOW)] == ["x", "z", "y"]
    assert [row.name for row in claims_of(state, NOW, node="b")] == ["x"]
    assert [row.name for row in claims_of(state, NOW, namespace="team")] == ["y"]


def test_age_is_unknown_without_a_valid_date_and_never_negative() -> None:
    ages = [
        claims_of(ClusterState(claims=[dated(claim("x"), text)]), NOW)[0].age_s
        for text in ("", "yesterday", "2026-01-01T23:59:00Z", "2027-01-01T00:00:00Z")
    ]
    assert ages == [None, None, 60, 0]


def test_shares_show_requested_and_consumed_amounts() -> None:
    wanted = exactly("gpu", capacity={"requests": {"memory": "10Gi"}})
    held = share("x", memory="10Gi", percent="0") | {"spec": {"devices": {"requests": [wanted]}}}
    (found,) = claims_of(h100(claims=[held]), NOW)
    assert list(map(str, found.requests)) == ["gpu: 1 x gpu.nvidia.com (memory 10.0 GiB)"]
    assert cells(COLUMNS, found)["DEVICES"] == "gpu-0 (memory 10.0 GiB, computePercent 0)"


CONDITION = {"type": "Ready", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
OPAQUE = {"opaque": {"driver": "x", "parameters": None}}
ODD: dict[str, Callable[[Obj], object]] = {
    "a user without uid": lambda odd: odd["status"].update(reservedFor=[{"resource": "pods", "name": "p"}]),
    "a condition without message": lambda odd: odd["status"].update(devices=[{"conditions": [CONDITION]}]),
    "parameters null": lambda odd: odd["spec"]["devices"].update(config=[OPAQUE], constraints=None),
    "a number as label": lambda odd: odd["metadata"].update(labels={"a": 7}),
    "a number as time": lambda odd: odd["metadata"].update(creationTimestamp=7),
    "no way to serve a request": lambda odd: odd["spec"]["devices"].update(requests=[{"name": "gpu", "exactly": {}}]),
    "a result without request": lambda odd: odd["status"]["allocation"]["devices"]["results"][0].pop("request"),
    "text as count": lambda odd: odd["spec"]["devices"]["requests"][0]["exactly"].update(count="2"),
}


@pytest.mark.parametrize("case", ODD)
def test_claim_with_invalid_field_holds_its_device(case: str) -> None:
    """Another writer than the API server may have made the state; the tables need few fields of a claim."""
    odd = holding("odd", "a", "gpu-0")
    ODD[case](odd)
    state = cluster([whole("a", 2)], [odd, holding("plain", "a", "gpu-1")])
    assert with_claim_gaps(state).gaps == ()
    rows = {row.name: row for row in claims_of(state, NOW)}
    assert [each.device for each in rows["odd"].devices] == ["gpu-0"]
    assert str(rows["odd"].requests[0]) in ("gpu: 1 x gpu.nvidia.com", "gpu: 2 x gpu.nvidia.com", "gpu: ?")
    assert [[one.claim for one in row.holders or ()] for row in devices_of(state)] == [["odd"], ["plain"]]
    assert [row.claims for row in topology_of(state)] == [("default/odd",), ("default/plain",)]


@pytest.mark.parametrize("results", ["x", 7, ["x"], [{"driver": DRIVER, "pool": "a", "device": 7}], [{"pool": "a"}]])
def test_unreadable_claim_is_named_and_frees_no_device(results: object) -> None:
    odd = holding("odd", "a")
    odd["status"]["allocation"]["devices"]["results"] = results
    state = with_claim_gaps(cluster([whole("a", 2)], [odd, holding("plain", "a", "gpu-1")]))
    (gap,) = state.gaps
    assert gap.startswith("resourceclaims: default/odd: ")
    assert [row.state for row in devices_of(state) if row.published] == ["", "in use"]
    assert [row.name for row in claims_of(state, NOW)] == ["odd", "plain"]


def test_a_request_that_cannot_be_read_is_a_gap() -> None:
    odd = claim("odd")
    odd["spec"]["devices"]["requests"] = 7
    state = with_claim_gaps(cluster([whole("a", 1)], [odd]))
    assert state.gaps == ("claim default/odd: spec.devices.requests: expected a list, got a number: '7'",)
    assert [row.state for row in devices_of(state)] == ["free"]


def test_attributes_of_any_type_are_shown_as_text() -> None:
    own = {"type": {"version": "1.2.3"}, "productName": {"int": 7}, "resource.kubernetes.io/pcieRoot": {"int": 3}}
    item = resource_slice("a", {"name": "x", "attributes": {**own, "parentUUID": {"int": 9}, "profile": "odd"}})
    (found,) = devices_of(cluster([item]))
    assert (found.type, found.product, found.parent, found.profile) == ("1.2.3", "7", "9", "")
    assert [(row.uuid, row.pcie_root) for row in topology_of(cluster([item]))] == [("9", "3")]
    assert survey(cluster([item])).models[0].model == "7"


FEATURES = ApiServerFeatures(counters=True, taints=True, multi_allocation=True)


def node(name: str, spec: str) -> Obj:
    snapshot = SimulatedBackend(parse_groups(spec, name)).snapshot()
    return resource_slice(name, *wire(build_devices(snapshot, {}, FEATURES).devices))


def card(name: str, root: str) -> Obj:
    near = {"name": "nic-0", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": root}}}
    found = resource_slice(name, near, {"name": "nic-1", "attributes": {"speed": {"int": 400}}}, name=f"{name}-nic")
    found["spec"] |= {"driver": "dra.net", "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}
    return found


def rows(*slices: Obj, claims: tuple[Obj, ...] = ()) -> list[tuple[Any, ...]]:
    found = topology_of(cluster(slices, claims))
    return [(row.node, row.device, row.pcie_root, row.linked, row.state, row.claims) for row in found]


def test_pairs_and_who_holds_them() -> None:
    found = rows(node("a", "4xa100-pcie-80gb+pairs"), claims=(holding("x", "a", "gpu-0"), holding("y", "a", "gpu-2")))
    assert found == [
        ("a", "gpu-0", "pci0000:00", ("gpu-0", "gpu-1"), "in use", ("default/x",)),
        ("a", "gpu-1", "pci0000:00", ("gpu-0", "gpu-1"), "free", ()),
        ("a", "gpu-2", "pci0000:08", ("gpu-2", "gpu-3"), "in use", ("default/y",)),
        ("a", "gpu-3", "pci0000:08", ("gpu-2", "gpu-3"), "free", ()),
    ]


def test_a_gpu_and_its_partitions_are_one_row() -> None:
    held = holding("x", "a", "gpu-0-mig-1g10gb-19-6")
    assert rows(node("a", "2xh100-sxm5-80gb"), claims=(held,)) == [
        ("a", "gpu-0", "pci0000:00", ("gpu-0", "gpu-1"), "in parts", ("default/x",)),
        ("a", "gpu-1", "pci0000:00", ("gpu-0", "gpu-1"), "free", ()),
    ]
    (only,) = rows(node("a", "1xa100-sxm4-80gb+mig"))
    assert only[1] == "gpu-0"


def test_monitoring_device_is_no_capacity_and_no_row_of_topology() -> None:
    """A GPU with one counts once, and the device is not free for a claim."""
    without = h100()
    monitored = h100(slices=slices(terms=GpuTerms(policy="p", monitor=True)))
    assert survey(monitored) == survey(without)
    assert [each.device for each in topology_of(monitored)] == ["gpu-0"]


def test_topology_lists_other_drivers_with_attributes() -> None:
    found = rows(node("a", "4xl4-24gb"), card("a", "pci0000:08"))
    assert [row[1:3] for row in found] == [
        ("gpu-0", "pci0000:00"), ("gpu-1", "pci0000:00"),
        ("nic-0", "pci0000:08"), ("gpu-2", "pci0000:08"), ("gpu-3", "pci0000:08"),
    ]  # fmt: skip


def test_devices_of_one_root_name_each_other_and_share_rails() -> None:
    """A card has no rail of its own; without a PCIe root nothing is near."""
    nodes = [node("a", "4xl4-24gb"), node("b", "2xl4-24gb")]
    for device, rail in zip(nodes[0]["spec"]["devices"], (0, 0, 2, 1), strict=True):
        device["attributes"]["rail"] = {"int": rail}
    for device in nodes[1]["spec"]["devices"]:
        del device["attributes"]["resource.kubernetes.io/pcieRoot"]
        device["attributes"]["gpu.nvidia.com/rail"] = {"int": 7}
    rootless = card("b", "")
    rootless["spec"]["devices"][0]["attributes"] = {"resource.kubernetes.io/numaNode": {"int": 0}}
    found = topology_of(cluster([*nodes, card("a", "pci0000:08"), rootless]))
    assert [(row.node, row.device, row.same_root, row.rails) for row in found] == [
        ("a", "gpu-0", (), (0,)),
        ("a", "gpu-1", (), (0,)),
        ("a", "nic-0", ("gpu-2", "gpu-3"), (1, 2)),
        ("a", "gpu-2", ("nic-0",), (2,)),
        ("a", "gpu-3", ("nic-0",), (1,)),
        ("b", "nic-0", (), ()),
        ("b", "gpu-0", (), (7,)),
        ("b", "gpu-1", (), (7,)),
    ]


def test_an_island_does_not_reach_other_nodes() -> None:
    found = topology_of(cluster([node("a", "8xh100-sxm5-80gb"), node("b", "8xh100-sxm5-80gb")]))
    assert {len(row.linked) for row in found} == {8}
    assert {row.link_type for row in found} == {"switch"}
    assert len({(row.node, row.island) for row in found}) == len({row.island for row in found}) == 2
    # A list of NUMA nodes is read, too.
    item = node("a", "1xl4-24gb")
    item["spec"]["devices"][0]["attributes"]["resource.kubernetes.io/numaNode"] = {"ints": [0, 1]}
    assert topology_of(cluster([item]))[0].numa == (0, 1)


@pytest.fixture
def state(tmp_path: Path) -> str:
    path = tmp_path / "state.json"
    held = holding("train", "a", "gpu-0", "gpu-1")
    dump(cluster([node("a", "4xa30-24gb+pairs"), node("b", "8xh100-sxm5-80gb")], [held]), path)
    return str(path)


def test_the_table_names_the_gpus_of_a_pair(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--cluster-state", state]) == 0
    shown = capsys.readouterr().out
    assert "pair: gpu-0 gpu-1" in shown
    assert "switch: 8 GPUs" in shown
    assert main(["topology", "--cluster-state", state, "--node", "none"]) == 0
    assert "No devices with topology attributes found." in capsys.readouterr().err


def test_json_has_a_schema(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--cluster-state", state, "--node", "a", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["items"][0]["node"]) == ("TopologyList", "a")


def sample() -> list[list[Obj]]:
    state = cluster(
        [*slices(), shared("b"), whole("c", 2)],
        [holding("x", "a", "gpu-0-mig-1g10gb-19-0"), holding("y", "b", "gpu-0", shares="10Gi"), claim("z")],
    )
    return [[copy.deepcopy(dict(item)) for item in items] for items in (state.slices, state.claims, state.nodes)]


def look(slices: Any, claims: Any, nodes: Any) -> int:
    state = ClusterState(slices=slices, claims=claims, nodes=nodes)
    answered = 0
    for function in (survey, devices_of, lambda of: claims_of(of, NOW)):
        try:
            function(state)
        except DraError:
            continue
        answered += 1
    return answered


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(n, marks=pytest.mark.slow) for n in range(60, 300))])
def test_damaged_objects_return_a_result_or_error(seed: int) -> None:
    assert look(*sample()) == 3, "undamaged ones give three results"
    look(*mutated(random.Random(seed), sample()))  # noqa: S311  not a secret


TEXT = (Path(__file__).parents[4] / "docs/capacity.md").read_text()


def clusters() -> dict[str, ClusterState]:
    """Two H100 in all forms, with one small device in each half of the first; and one that two claims share."""
    held = {"a": "gpu-0-mig-1g10gb-19-1", "b": "gpu-0-mig-1g10gb-19-5", "c": "gpu-1-mig-4g40gb-5-0"}
    claims = [having(name, device, users=(name,)) for name, device in (held | {"d": "gpu-1-mig-1g20gb-15-4"}).items()]
    amounts = (("one", "50Gi", "70"), ("two", "5Gi", "10"))
    shares = [share(name, memory=memory, percent=percent, users=(name,)) for name, memory, percent in amounts]
    sharing = SharingTerms(strategy=Strategy.MPS, max_shares=8)
    return {"mig": h100(2, claims=claims), "shares": h100(sharing=sharing, claims=shares)}


def trainings() -> ClusterState:
    """Two training pods with two GPUs each on two nodes; a claim for four waits."""
    created = (datetime.now(UTC) - timedelta(days=3, hours=1)).isoformat()
    held = []
    for number, on in enumerate(("gpu-a", "gpu-b")):
        name = f"train-{number}-gpu-56bcx"
        user = {"resource": "pods", "name": f"train-{number}", "uid": "1"}
        item = {**claim(name, exactly("gpu", count=2)), "status": holding(name, on, "gpu-0", "gpu-1")["status"]}
        held.append(dated({**item, "status": {**item["status"], "reservedFor": [user]}}, created))
    waits = dated(claim("big-gpu-f85xs", exactly("gpu", count=4)), created)
    a100 = "4xa100-sxm4-40gb"
    cut = published(built(SimulatedBackend(parse_groups("2xh100-sxm5-80gb", "gpu-c")).snapshot()), on="gpu-c")
    return cluster([node("gpu-a", a100), node("gpu-b", a100), *cut], [*held, waits])


def near() -> ClusterState:
    """Pairs beside a network card of another driver, and a board with NVSwitches."""
    claims = [holding("train", "gpu-a", "gpu-0", "gpu-1"), holding("eval", "gpu-b", "gpu-0-mig-1g10gb-19-6")]
    slices = [node("gpu-a", "4xa100-pcie-80gb+pairs"), card("gpu-a", "pci0000:08"), node("gpu-b", "2xh100-sxm5-80gb")]
    for at, device in enumerate(slices[0]["spec"]["devices"]):
        device["attributes"]["rail"] = {"int": at // 2}
    return cluster(slices, claims)


@pytest.mark.parametrize(
    ("page", "command", "state"),
    [
        ("docs/capacity.md", "kubectl dra capacity --by-node", trainings),
        ("docs/capacity.md", "kubectl dra devices --node gpu-a", trainings),
        ("docs/capacity.md", "kubectl dra claims", trainings),
        ("docs/topology.md", "kubectl dra topology", near),
    ],
)
def test_pages_show_what_is_printed_of_a_cluster(
    page: str, command: str, state: Callable[[], ClusterState], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(state(), tmp_path / "state.json")
    assert main([*command.split()[2:], "--cluster-state", str(tmp_path / "state.json")]) == 0
    holds(page, command, capsys.readouterr().out)


@pytest.mark.parametrize(
    "command",
    [
        "kubectl dra capacity --cluster-state mig.json",
        "kubectl dra capacity --cluster-state shares.json",
        "kubectl dra capacity --with-node 2xl4-24gb --cluster-state mig.json",
    ],
)
def test_examples_are_real_output(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *arguments, name = command.split()[2:]
    dump(clusters()[name.removesuffix(".json")], tmp_path / name)
    assert main([*arguments, str(tmp_path / name)]) == 0
    holds("docs/capacity.md", command, capsys.readouterr().out)


@pytest.mark.parametrize("name", ["mig", "shares"])
def test_devices_of_partitions_and_shares(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(clusters()[name], tmp_path / "state.json")
    assert main(["devices", "--cluster-state", str(tmp_path / "state.json")]) == 0
    golden = Path(__file__).parents[3] / "golden/capacity" / f"devices-{name}.txt"
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == golden.read_text().splitlines()


def test_every_term_of_the_tables_is_explained() -> None:
    for word in ("free", "used", "fragmented", "unavailable", "fits", "by sum", "stranded", "in use"):
        assert f"| {word} |" in TEXT
