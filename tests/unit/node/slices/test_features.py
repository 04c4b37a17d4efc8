"""Detection of the gated fields that an API server keeps, and comparison of sent with stored values."""

from typing import Any

import pytest

from dra_driver.core.errors import ForbiddenError, InvalidObjectError
from dra_driver.kube.discovery import ServerVersion
from dra_driver.kube.published.names import NUMA_NODE
from dra_driver.node.slices.diff import SliceBody
from dra_driver.node.slices.features import FeatureWatch, probe
from dra_driver.node.slices.gates import ApiServerFeatures, digest, dropped_fields, lists_in, lost_with, same
from dra_driver.node.slices.publisher import Publisher
from tests.fakes.slices_api import FakeSlicesApi
from tests.unit.node.slices.gpus import node_of

ALL = ApiServerFeatures(counters=True, taints=True, taints_1_35=True, multi_allocation=True)


@pytest.fixture
def api() -> FakeSlicesApi:
    return FakeSlicesApi()


@pytest.mark.parametrize(
    ("dropped", "missing"),
    [("sharedCounters", "counters"), ("consumesCounters", "counters"), ("taints", "taints"),
     ("allowMultipleAllocations", "multi_allocation")],
)  # fmt: skip
def test_a_dropped_field_is_a_missing_feature(dropped: str, missing: str, api: FakeSlicesApi) -> None:
    """Overlapping partitions without counters would be allocated twice."""
    api.drops = {dropped}
    kept = probe(api, "gpu.nvidia.com", "node-a")
    assert {name for name in ("counters", "taints", "multi_allocation") if not getattr(kept, name)} == {missing}


def test_a_refused_canary_is_a_missing_feature_and_a_forbidden_one_an_error(api: FakeSlicesApi) -> None:
    api.failures = [InvalidObjectError("422", status=422)]
    assert not probe(api, "gpu.nvidia.com", "node-a").taints
    api.failures = [ForbiddenError("403", status=403)]
    with pytest.raises(ForbiddenError):
        probe(api, "gpu.nvidia.com", "node-a")


def test_the_server_is_asked_again_only_when_its_version_changes(api: FakeSlicesApi) -> None:
    versions = [ServerVersion(git_version=text, major=1, minor=36) for text in ("v1.36.2", "v1.36.2", "v1.37.0")]
    watch = FeatureWatch(api, lambda: versions.pop(0), "gpu.nvidia.com", "node-a")
    assert watch.current == ApiServerFeatures()
    assert watch.refresh()
    api.drops = {"taints"}
    assert not watch.refresh()
    assert watch.current == ALL
    assert watch.refresh()
    assert not watch.current.taints


@pytest.mark.parametrize(("minor", "hides"), [(34, False), (35, True), (36, False)])
def test_the_scheduler_of_1_35_does_not_charge_shares(minor: int, hides: bool) -> None:
    """It has no gate, and no dry run shows it."""
    version = ServerVersion(git_version=f"v1.{minor}.1", major=1, minor=minor)
    watch = FeatureWatch(FakeSlicesApi(), lambda: version, "gpu.nvidia.com", "node-a")
    watch.refresh()
    assert watch.current.shares_hide_counters is hides


@pytest.mark.parametrize(
    ("minor", "drops", "kept"), [(36, (), False), (37, (), True), (37, ("nodeAllocatableResources",), False)]
)
def test_overhead_is_probed_from_1_37_on(minor: int, drops: tuple[str, ...], kept: bool, api: FakeSlicesApi) -> None:
    """1.36 has the gate with another field, which this driver does not publish: no dry run is spent there."""
    api.drops = set(drops)
    version = ServerVersion(git_version=f"v1.{minor}.0", major=1, minor=minor)
    watch = FeatureWatch(api, lambda: version, "gpu.nvidia.com", "node-a")
    watch.refresh()
    assert watch.current.node_overhead is kept
    assert api.asked == (6 if minor == 37 else 5)


def test_a_feature_that_a_write_lost_stays_off_until_the_version_changes(api: FakeSlicesApi) -> None:
    versions = [ServerVersion(git_version=text, major=1, minor=36) for text in ("v1.36.2", "v1.36.2", "v1.36.3")]
    watch = FeatureWatch(api, lambda: versions.pop(0), "gpu.nvidia.com", "node-a")
    watch.refresh()
    assert watch.lose({"counters"})
    assert not watch.lose({"counters"})
    assert watch.current == ApiServerFeatures(taints=True, taints_1_35=True, multi_allocation=True)
    assert not watch.refresh()
    assert watch.refresh()
    assert watch.current == ALL


@pytest.mark.parametrize("drops", [set(), {"sharedCounters", "consumesCounters"}])
def test_a_server_of_1_34_has_counters_beside_devices(drops: set[str], api: FakeSlicesApi) -> None:
    api.is_1_34, api.drops = True, drops
    on = not drops
    assert probe(api, "gpu.nvidia.com", "node-a") == ApiServerFeatures(
        counters=on, counters_beside_devices=on, taints=True, multi_allocation=True
    )


def test_a_server_that_arranges_counters_in_a_third_way_is_told_from_a_gate_that_is_off() -> None:
    class Future(FakeSlicesApi):
        def create(self, body: SliceBody, *, dry_run: bool = False) -> dict[str, Any]:
            if any(device.consumes_counters for device in body.spec.devices):
                raise InvalidObjectError("422: spec.devices[0].consumesCounters[0]: Required value", status=422)
            return super().create(body, dry_run=dry_run)

    features = probe(Future(), "gpu.nvidia.com", "node-a")
    assert (features.counters, features.counters_refused) == (False, True)


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        ("spec.sharedCounters", {"counters"}),
        ("spec.sharedCounters[1]", {"counters"}),
        ("spec.devices[3].consumesCounters", {"counters"}),
        ("spec.devices[0].taints[1]", {"taints"}),
        ("spec.devices[0].allowMultipleAllocations", {"multi_allocation"}),
        ("spec.devices[0].capacity.memory.requestPolicy", {"multi_allocation"}),
        ("spec.devices[0].nodeAllocatableResources", {"node_overhead"}),
        ("spec.devices[0].capacity", set()),
        ("spec.devices[0].attributes.taints.string", set()),
    ],
)
def test_a_dropped_field_shows_which_feature_is_missing(path: str, lost: set[str]) -> None:
    assert lost_with([path]) == lost


VERSION = ServerVersion(git_version="v1.36.2", major=1, minor=36)


class Gated(FakeSlicesApi):
    """With the gate off, a list is dropped, and an attribute without a value makes the slice invalid (1.36,
    dropDisabledFields and validateDeviceAttribute)."""

    gate = True

    def _stored(self, body: SliceBody, old: dict[str, Any] | None = None) -> dict[str, Any]:
        if not self.gate and list(lists_in(body.spec)):
            raise InvalidObjectError("must specify a value", status=422, reason="Invalid")
        return super()._stored(body, old)


def publisher_of(api: Gated, *, lists: bool) -> tuple[Publisher, list[Any]]:
    watch = FeatureWatch(api, lambda: VERSION, "gpu.nvidia.com", "node-a", lists=lists)
    publisher = Publisher(api, "gpu.nvidia.com", "node-a", features=watch)
    publisher.set_snapshot(node_of(1))
    publisher.step()
    return publisher, numa(api)


def numa(api: Gated) -> list[Any]:
    devices = [device for item in api.objects.values() for device in item["spec"]["devices"]]
    return [device["attributes"][NUMA_NODE] for device in devices]


@pytest.mark.parametrize(
    ("gate", "lists", "expected"),
    [(True, True, {"ints": [0]}), (True, False, {"int": 0}), (False, True, {"int": 0}), (False, False, {"int": 0})],
)
def test_a_list_is_published_where_it_is_wanted_and_kept(gate: bool, lists: bool, expected: dict[str, Any]) -> None:
    """Anywhere else it would make the slice invalid, or break selectors unasked."""
    api = Gated()
    api.gate = gate
    assert publisher_of(api, lists=lists)[1] == [expected]


def test_a_server_that_no_longer_keeps_lists_gets_a_number() -> None:
    api = Gated()
    publisher, _ = publisher_of(api, lists=True)
    api.gate = False
    publisher.set_snapshot(node_of(2))
    for _ in range(5):
        publisher.step()
    assert numa(api) == [{"int": 0}, {"int": 0}]


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ({"devices": [{"name": "a"}]}, {"devices": [{"name": "a"}], "sharedCounters": None, "nodeName": ""}),
        ({"capacity": {"memory": {"value": "80Gi"}}}, {"capacity": {"memory": {"value": "81920Mi"}}}),
        ({"counters": {"memory": {"value": "1000"}}}, {"counters": {"memory": {"value": "1k"}}}),
        ({"capacity": {"m": {"requestPolicy": {"validValues": ["1Gi"]}}}},
         {"capacity": {"m": {"requestPolicy": {"validValues": ["1024Mi"]}}}}),
        ({"taints": [{"key": "k"}]}, {"taints": [{"key": "k", "timeAdded": "2026-01-01T00:00:00Z"}]}),
        ({}, {"allNodes": False}),
    ],
    ids=["null and empty", "quantity", "counter", "policy", "time of a taint", "false"],
)  # fmt: skip
def test_spellings_of_the_api_server_are_equal(sent: Any, found: Any) -> None:
    """Taking them for changes would mean writing for ever."""
    assert digest(sent) == digest(found)
    assert same(sent, found)
    assert same(found, sent)
    assert not list(dropped_fields(sent, found))


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ({"x": {"bool": False}}, {"x": {}}),
        ({"x": {"int": 0}}, {}),
        ({"x": {"string": "1Gi"}}, {"x": {"string": "1024Mi"}}),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}]),
        ([{"name": "a"}], [{"name": "a"}, {"name": "b"}]),
        ({"taints": [{"timeAdded": "1"}]}, {"taints": [{"timeAdded": "2"}]}),
    ],
    ids=["false is a value", "zero is a value", "only quantities are", "order", "length", "own time of a taint"],
)
def test_real_differences_are_found(sent: Any, found: Any) -> None:
    assert "timeAdded" in str(sent) or digest(sent) != digest(found)
    assert not same(sent, found)
    assert not same(found, sent)
