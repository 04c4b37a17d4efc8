"""The list of claims."""

from datetime import UTC, datetime

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import claims_of
from dra_driver.kubectl.commands.claims import row
from tests.fakes.dra_objects import Obj, claim, exactly
from tests.fakes.published import h100, share
from tests.unit.kubectl.capacity.helpers import cluster, holding, whole

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def dated(wire: Obj, created: str) -> Obj:
    return {**wire, "metadata": {**wire["metadata"], "creationTimestamp": created}}


def test_allocated_claim_shows_devices_nodes_and_pods() -> None:
    held = holding("train", "a", "gpu-0", "gpu-1")
    held["status"]["reservedFor"] = [
        {"resource": "pods", "name": "train-0", "uid": "1"},
        {"apiGroup": "batch", "resource": "jobs", "name": "x", "uid": "2"},
    ]
    (row,) = claims_of(cluster([whole("a", 2)], [dated(held, "2026-01-01T00:00:00Z")]), NOW)
    assert (row.namespace, row.name, row.state, row.nodes) == ("default", "train", "allocated", ("a",))
    assert [device.device for device in row.devices] == ["gpu-0", "gpu-1"]
    assert row.pods == ("train-0", "jobs/x")
    assert row.age_s == 86_400


def test_pending_claim_shows_its_requests() -> None:
    both = {
        "name": "any",
        "firstAvailable": [
            {"name": "big", "deviceClassName": "big", "allocationMode": "All"},
            {"name": "small", "deviceClassName": "small", "count": 2},
        ],
    }
    (row,) = claims_of(ClusterState(claims=[claim("waits", exactly("gpu", count=3), both)]), NOW)
    assert (row.state, row.devices) == ("pending", ())
    assert row.requests == ("gpu: 3 x gpu.nvidia.com", "any: all big or 2 x small")


def test_node_of_an_unpublished_device_comes_from_the_allocation() -> None:
    held = holding("train", "a", "gpu-9")
    field = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    assert claims_of(ClusterState(claims=[held]), NOW)[0].nodes == ("a",)


def test_claim_that_is_being_deleted_has_that_state() -> None:
    going = holding("old", "a", "gpu-0")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert claims_of(ClusterState(claims=[going]), NOW)[0].state == "deleting"


def test_filters_by_node_and_namespace_and_sorts_by_name() -> None:
    state = cluster(
        [whole("a"), whole("b")],
        [claim("z"), holding("x", "b", "gpu-0"), claim("y", namespace="team")],
    )
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
    assert found.requests == ("gpu: 1 x gpu.nvidia.com (memory 10Gi)",)
    assert row(found)[5] == "gpu-0 (memory 10Gi, computePercent 0)"
