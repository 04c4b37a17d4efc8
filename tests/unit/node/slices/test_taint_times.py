"""timeAdded of taints that are sent without one."""

from typing import Any

import pytest

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import GpuTerms, Taint
from dra_driver.kube.types import Device
from dra_driver.node.slices.build import build_devices
from dra_driver.node.slices.diff import PoolIdentity, compute_writes, known_times, with_times
from dra_driver.node.slices.layout import split
from tests.unit.node.slices.gpus import ALL as FEATURES
from tests.unit.node.slices.gpus import gpu, snapshot

THEN, LATER = "2026-11-22T10:00:00Z", "2026-11-22T11:00:00Z"
IDENTITY = PoolIdentity(driver="gpu.nvidia.com", node="node-a", node_uid="uid", pool="node-a/gpu.nvidia.com")
RESERVED = Taint(key="example.com/reserved", value="ml", effect="NoExecute")


def stored(**changes: Any) -> dict[str, Any]:
    taint = {"key": RESERVED.key, "value": "ml", "effect": "NoExecute", "timeAdded": THEN, **changes}
    return {"metadata": {"name": "x"}, "spec": {"devices": [{"name": "gpu-0", "taints": [taint]}]}}


def device(**changes: Any) -> Device:
    taint: Any = {"key": RESERVED.key, "value": "ml", "effect": "NoExecute", **changes}
    return Device(name="gpu-0", attributes={}, taints=[taint])


def test_a_taint_keeps_its_time() -> None:
    """The API server would begin it anew with each update."""
    (found,) = with_times([device()], known_times([stored()]))
    assert found["taints"][0]["timeAdded"] == THEN


@pytest.mark.parametrize("changes", [{"value": "other"}, {"effect": "NoSchedule"}, {"key": "example.com/other"}])
def test_another_taint_has_another_time(changes: dict[str, str]) -> None:
    """It begins when it is published."""
    (found,) = with_times([device(**changes)], known_times([stored()]))
    assert "timeAdded" not in found["taints"][0]


def test_a_time_that_is_given_stays() -> None:
    """The condition knows when it began."""
    (found,) = with_times([device(timeAdded=LATER)], known_times([stored()]))
    assert found["taints"][0]["timeAdded"] == LATER


@pytest.mark.parametrize("time", ["yesterday", 5, None, "2026-11-22T10:00:00Z and more"])
def test_what_another_client_wrote_is_not_trusted(time: object) -> None:
    """One wrong field makes the whole slice invalid."""
    assert known_times([stored(timeAdded=time)]) == {}


@pytest.mark.parametrize("spec", [None, [], {"devices": 5}, {"devices": [5, {"taints": {"a": 1}}]}])
def test_malformed_slices_have_no_times(spec: object) -> None:
    """Any client may have written them."""
    assert known_times([{"spec": spec}]) == {}


def test_an_update_for_another_reason_keeps_the_time() -> None:
    """A second GPU comes, and the first one's taint stays as old as it was."""

    def wanted(*gpus: Any) -> Any:
        shown: Snapshot = snapshot(*gpus)
        terms = {one.uuid: GpuTerms(policy="p", taints=(RESERVED,)) for one in gpus[:1]}
        return split(build_devices(shown, terms, FEATURES))

    (created,) = compute_writes(wanted(gpu(0)), [], IDENTITY).creates
    existing: Any = {**created, "metadata": {**created["metadata"], "name": "00000-gpu.nvidia.com-node-a-x"}}
    existing["spec"]["devices"][0]["taints"] = [{**existing["spec"]["devices"][0]["taints"][0], "timeAdded": THEN}]
    assert not compute_writes(wanted(gpu(0)), [existing], IDENTITY)
    (update,) = compute_writes(wanted(gpu(0), gpu(1)), [existing], IDENTITY).updates
    assert update["spec"]["devices"][0]["taints"][0]["timeAdded"] == THEN
    assert "taints" not in update["spec"]["devices"][1]
