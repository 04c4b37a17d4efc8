"""When two wire values have the same meaning."""

from typing import Any

import pytest

from dra_driver.node.slices.gates import digest, dropped_fields, same


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
    """Order of devices is the order of allocation; false and zero are values."""
    assert "timeAdded" in str(sent) or digest(sent) != digest(found)
    assert not same(sent, found)
    assert not same(found, sent)


def test_dropped_fields_are_named_by_path() -> None:
    """The node's owner must learn which gate is off."""
    sent = {"devices": [{"name": "a", "taints": [{"key": "k"}], "consumesCounters": [{"counterSet": "c"}]}]}
    found = {"devices": [{"name": "a", "taints": [{"key": "k"}]}]}
    assert list(dropped_fields(sent, found, "spec")) == ["spec.devices[0].consumesCounters"]
