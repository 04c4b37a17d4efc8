"""numaNode as a list: only where it is wanted and the API server keeps lists."""

from typing import Any

import pytest

from dra_driver.core.errors import InvalidObjectError
from dra_driver.kube.discovery import ServerVersion
from dra_driver.kube.published.names import NUMA_NODE
from dra_driver.kube.types import ResourceSlice
from dra_driver.node.slices.features import FeatureWatch, probe
from dra_driver.node.slices.gates import lists_in, lost_with
from dra_driver.node.slices.publisher import Publisher
from tests.fakes.slices_api import FakeSlicesApi
from tests.unit.node.slices.gpus import node_of

VERSION = ServerVersion(git_version="v1.36.2", major=1, minor=36)


class Gated(FakeSlicesApi):
    """With the gate off, a list is dropped, and an attribute without a value makes the slice invalid (1.36,
    dropDisabledFields and validateDeviceAttribute)."""

    gate = True

    def _stored(self, body: ResourceSlice, old: dict[str, Any] | None = None) -> dict[str, Any]:
        if not self.gate and list(lists_in(body["spec"])):
            raise InvalidObjectError("must specify a value", status=422, reason="Invalid")
        return super()._stored(body, old)


def published(api: Gated, *, lists: bool) -> tuple[Publisher, list[Any]]:
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
    assert published(api, lists=lists)[1] == [expected]


def test_the_api_server_is_asked_for_lists_only_if_they_are_wanted() -> None:
    with_lists, without = Gated(), Gated()
    assert probe(with_lists, "gpu.nvidia.com", "node-a", lists=True).list_attributes
    assert not probe(without, "gpu.nvidia.com", "node-a").list_attributes
    assert with_lists.asked == without.asked + 1


def test_a_server_that_no_longer_keeps_lists_gets_a_number() -> None:
    """Its version is the same, so it is not asked; the refused write says it."""
    api = Gated()
    publisher, _ = published(api, lists=True)
    api.gate = False
    publisher.set_snapshot(node_of(2))
    for _ in range(5):
        publisher.step()
    assert numa(api) == [{"int": 0}, {"int": 0}]


def test_a_lost_list_is_a_lost_feature() -> None:
    """The path is as that of a dropped field."""
    spec: Any = {"devices": [{"name": "x", "attributes": {NUMA_NODE: {"ints": [1]}, "other": {"int": 1}}}]}
    assert lost_with(lists_in(spec)) == {"list_attributes"}
    plain: Any = {"devices": [{"name": "x"}]}
    assert not lost_with(lists_in(plain))
