"""Sums of what claims use: one with an unknown part says so, and a claim with an unknown device is not idle."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dra_driver.kube.shapes import read_all
from dra_driver.kubectl.usage.device_use import (
    KEYS,
    MAX_CLAIMS,
    MAX_NAME,
    WITHOUT,
    ClaimDeviceUse,
    LabelledClaim,
    LabelledPod,
    Labels,
    claim_labels,
    decode,
    summed,
    value_in,
)

ONE = ClaimDeviceUse(
    namespace="a",
    claim="x",
    node="n",
    device="gpu-0",
    pods=("p", "q"),
    used_bytes=2,
    granted_bytes=8,
    idle_s=9.0,
    sm_ratio=0.25,
)
TWO = ClaimDeviceUse(
    namespace="a",
    claim="x",
    node="n",
    device="gpu-1",
    pods=("p", "q"),
    used_bytes=3,
    granted_bytes=8,
    idle_s=4.0,
    sm_ratio=0.75,
)
OTHER = ClaimDeviceUse(namespace="b", claim="y", node="n", device="gpu-2", used_bytes=None, granted_bytes=8)


def test_a_claim_is_the_sum_of_its_devices_and_idle_as_long_as_all_of_them() -> None:
    first, second = summed([TWO, OTHER, ONE], KEYS["claim"])
    assert (first.key, first.used_bytes, first.granted_bytes, first.idle_s) == (("a", "x"), 5, 16, 4.0)
    assert first.sm_ratio == 0.5
    assert (second.key, second.used_bytes, second.idle_s) == (("b", "y"), None, None)
    assert (first.claims, first.devices, first.partial) == (1, 2, ())


def test_a_sum_with_an_unknown_part_names_it() -> None:
    (node,) = summed([ONE, OTHER], KEYS["node"])
    assert (node.key, node.used_bytes, node.claims, node.idle_s) == (("n",), 2, 2, None)
    assert set(node.partial) == {"used_bytes", "idle_s", "sm_ratio"}


def test_pods_of_one_claim_are_one_line() -> None:
    assert [each.key for each in summed([ONE, TWO], KEYS["pod"])] == [("a", "p,q")]
    assert [each.key for each in summed([ONE, OTHER], KEYS["namespace"])] == [("a",), ("b",)]


DEVICE: dict[str, Any] = {
    "request": "gpu",
    "device": "gpu-0",
    "form": "share",
    "share": "s1",
    "usedBytes": 10,
    "grantBytes": 20,
    "peakBytes": 15,
    "percent": 50,
    "energyJoules": 3.5,
    "estimated": True,
    "processes": 2,
    "lastUsed": "2026-11-22T20:00:00Z",
    "idleSeconds": 0,
}
ANSWER: dict[str, Any] = {
    "version": 1,
    "node": "gpu-a",
    "time": "2026-11-22T21:00:00Z",
    "windowSeconds": 300,
    "knows": {"processes": True, "utilisation": True},
    "gpus": [],
    "claims": [{"uid": "u", "namespace": "a", "name": "x", "pods": ["p", {"name": "q"}], "devices": [DEVICE]}],
}


def answer(**changes: Any) -> dict[str, Any]:
    """The answer with other values of its one device."""
    found = copy.deepcopy(ANSWER)
    found["claims"][0]["devices"][0].update(changes)
    return found


def one(**changes: Any) -> ClaimDeviceUse:
    (use,) = decode(answer(**changes)).uses
    return use


def test_an_answer_becomes_values() -> None:
    told = decode(ANSWER)
    (use,) = told.uses
    assert (use.namespace, use.claim, use.node, use.device, use.share) == ("a", "x", "gpu-a", "gpu-0", "s1")
    assert (use.used_bytes, use.granted_bytes, use.peak_bytes, use.sm_ratio) == (10, 20, 15, 0.5)
    assert (use.energy_joules, use.energy_estimated, use.processes, use.pods) == (3.5, True, 2, ("p", "q"))
    assert (told.window_s, told.gaps, use.idle_s) == (300, [], 0.0)


@pytest.mark.parametrize(("told", "idle_s"), [(3600, 3600.0), (0, 0.0), (None, None), (-1, None), ("9", None)])
def test_what_is_not_known_to_be_idle_is_not(told: Any, idle_s: float | None) -> None:
    """The exporter counts: neither its window nor the last use says how long a claim was seen without use."""
    assert one(idleSeconds=told).idle_s == idle_s


@pytest.mark.parametrize("value", [-1, "12", None, True, float("nan"), float("inf"), 2**51, [], 10**400])
def test_a_number_that_cannot_be_is_not_known(value: Any) -> None:
    assert one(usedBytes=value, peakBytes=value).used_bytes is None


def test_a_peak_is_no_less_than_what_is_used_now() -> None:
    assert one(usedBytes=10, peakBytes=5).peak_bytes == 10
    assert one(usedBytes=10, peakBytes=None).peak_bytes == 10


def test_names_are_cut_and_stay_on_their_line() -> None:
    found = answer(device="\x1b[31m" + "x" * 9999)
    found["claims"][0]["name"] = "a\nb"
    (use,) = decode(found).uses
    assert use.claim == "a b"
    assert len(use.device) == MAX_NAME
    assert use.device.isprintable()


@pytest.mark.parametrize(
    "wrong", [{"claims": None}, {"claims": [1, "x", None, {"devices": {}}]}, {"knows": [], "node": 7}]
)
def test_what_has_another_shape_is_left_out(wrong: dict[str, Any]) -> None:
    assert decode({**ANSWER, "claims": [], **wrong}).uses == []


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="its version is '2', expected 1"):
        decode({**ANSWER, "version": 2})


def test_what_the_exporter_does_not_know_is_said() -> None:
    told = decode({**ANSWER, "knows": {"processes": "NVML says\nno permission", "utilisation": True}})
    assert told.gaps == ["node gpu-a: the exporter does not know processes: NVML says no permission"]


def test_claims_are_bounded() -> None:
    found = decode({**ANSWER, "claims": ANSWER["claims"] * (MAX_CLAIMS + 5)})
    assert len(found.uses) == MAX_CLAIMS


def test_the_memory_of_gpus_is_read_with_what_is_not_known() -> None:
    gpu = {"device": "gpu-0", "memoryTotalBytes": 100, "memoryUsedBytes": 60, "memoryClaimsBytes": 50,
           "memoryUnattributedBytes": None, "memoryReservedBytes": -1, "unattributedProcesses": 2, "percent": 50,
           "powerWatts": 1e9}  # fmt: skip
    (found,) = decode({"version": 1, "node": "n", "gpus": [gpu, {"device": 7}, "x"]}).gpus
    assert (found.node, found.device, found.total_bytes, found.used_bytes) == ("n", "gpu-0", 100, 60)
    assert (found.claims_bytes, found.unattributed_bytes, found.unattributed_processes) == (50, None, 2)
    assert found.reserved_bytes is None
    assert (found.busy_ratio, found.power_watts) == (0.5, None)
    assert decode({"version": 1, "gpus": {}}).gpus == []


Obj = dict[str, Any]


def claim(labels: Obj, *users: str) -> Obj:
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in users]
    metadata = {"namespace": "a", "name": "x", "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {"reservedFor": reserved}}


def pod(uid: str, **labels: str) -> Obj:
    return {"metadata": {"uid": uid, "labels": labels}, "spec": {}}


def labels_of(claims: list[Obj], pods: Iterable[Obj], lost: Callable[[str], None]) -> Labels:
    return claim_labels(read_all(LabelledClaim, claims, lost), read_all(LabelledPod, pods, lost))


def team(item: Obj, *pods: Obj) -> str:
    return value_in(labels_of([item], pods, pytest.fail).get(("a", "x")), "team")


def test_a_label_of_pods_counts_if_all_of_them_agree() -> None:
    both = claim({"app": "x"}, "p", "q")
    assert team(both, pod("p", team="web"), pod("q", team="web", app="y")) == "web"
    assert team(both, pod("p", team="web"), pod("q", team="ml")) == WITHOUT
    assert team(both, pod("p", team="web"), pod("q")) == WITHOUT
    assert team(claim({"team": "ml"}, "p"), pod("p", team="web")) == "ml"


def test_a_pod_that_is_not_known_may_have_another_label() -> None:
    assert team(claim({}, "p", "gone"), pod("p", team="web")) == WITHOUT
    assert team(claim({}), pod("p", team="web")) == WITHOUT


def test_wrong_objects_have_no_labels() -> None:
    lost: list[str] = []
    claims: list[Obj] = [{"metadata": None}, {"metadata": {"labels": ["x"]}}]
    assert labels_of(claims, [{"metadata": 5}], lost.append) == {("default", ""): {}}
    assert lost == ["without a name cannot be read: metadata: expected an object, got a number: '5'"]


def test_a_user_without_a_uid_has_no_labels_and_the_claim_keeps_its_own() -> None:
    users = {"reservedFor": [{"resource": "pods", "name": "p"}]}
    assert team({**claim({"team": "ml"}), "status": users}, pod("", team="web")) == "ml"
    assert team({**claim({}), "status": users}, pod("", team="web")) == WITHOUT
