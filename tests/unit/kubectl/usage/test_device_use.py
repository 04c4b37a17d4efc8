"""The use of claims as exporters and Prometheus report it, its sums, and labels for them."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

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
from dra_driver.kubectl.usage.history import History, queries

OTHER = ClaimDeviceUse(namespace="b", claim="y", node="n", device="gpu-2", granted_bytes=8)
ONE = replace(OTHER, namespace="a", claim="x", device="gpu-0", pods=("p", "q"), used_bytes=2, idle_s=9.0, sm_ratio=0.25)
TWO = replace(ONE, device="gpu-1", used_bytes=3, idle_s=4.0, sm_ratio=0.75)


def test_claim_sums_devices_and_takes_shortest_idle_time() -> None:
    first, second = summed([TWO, OTHER, ONE], KEYS["claim"])
    assert (first.key, first.used_bytes, first.granted_bytes, first.idle_s) == (
        {"namespace": "a", "claim": "x"},
        5,
        16,
        4.0,
    )
    assert first.sm_ratio == 0.5
    assert (second.key, second.used_bytes, second.idle_s) == ({"namespace": "b", "claim": "y"}, None, None)
    assert (first.claims, first.devices, first.partial) == (1, 2, ())


def test_a_sum_by_node_pod_or_namespace_names_an_unknown_part() -> None:
    (node,) = summed([ONE, OTHER], KEYS["node"])
    assert (node.key, node.used_bytes, node.claims, node.idle_s) == ({"node": "n"}, 2, 2, None)
    assert set(node.partial) == {"usedBytes", "idleSeconds", "smRatio"}
    # Pods of one claim are one line.
    assert [each.key for each in summed([ONE, TWO], KEYS["pod"])] == [{"namespace": "a", "pod": "p,q"}]
    assert [each.key for each in summed([ONE, OTHER], KEYS["namespace"])] == [{"namespace": "a"}, {"namespace": "b"}]


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


def one(name: str = "x", **changes: Any) -> ClaimDeviceUse:
    """The use that an answer with other values of its one device has."""
    claim = {**ANSWER["claims"][0], "name": name, "devices": [{**DEVICE, **changes}]}
    (use,) = decode({**ANSWER, "claims": [claim]}).uses
    return use


def test_an_answer_becomes_values() -> None:
    told = decode(ANSWER)
    (use,) = told.uses
    assert (use.namespace, use.claim, use.node, use.device, use.share) == ("a", "x", "gpu-a", "gpu-0", "s1")
    assert (use.used_bytes, use.granted_bytes, use.peak_bytes, use.sm_ratio) == (10, 20, 15, 0.5)
    assert (use.energy_joules, use.energy_estimated, use.processes, use.pods) == (3.5, True, 2, ("p", "q"))
    assert (told.window_s, told.gaps, use.idle_s) == (300, [], 0.0)


@pytest.mark.parametrize(("reported", "idle_s"), [(3600, 3600.0), (0, 0.0), (None, None), (-1, None), ("9", None)])
def test_unknown_idle_time_is_not_idle(reported: Any, idle_s: float | None) -> None:
    """The exporter reports idle time; its window and the last use are insufficient."""
    assert one(idleSeconds=reported).idle_s == idle_s


@pytest.mark.parametrize("value", [-1, "12", None, True, float("nan"), float("inf"), 2**51, [], 10**400])
def test_impossible_numbers_are_unknown_and_peak_covers_use(value: Any) -> None:
    assert one(usedBytes=value, peakBytes=value).used_bytes is None
    assert one(usedBytes=10, peakBytes=5).peak_bytes == 10
    assert one(usedBytes=10, peakBytes=None).peak_bytes == 10
    assert one(usedBytes=None, peakBytes=40).peak_bytes is None


def test_names_are_cut_and_stay_on_their_line() -> None:
    use = one("a\nb", device="\x1b[31m" + "x" * 9999)
    assert use.claim == "a b"
    assert len(use.device) == MAX_NAME
    assert use.device.isprintable()


@pytest.mark.parametrize(
    "wrong", [{"claims": None}, {"claims": [1, "x", None, {"devices": {}}]}, {"knows": [], "node": 7}]
)
def test_malformed_entries_are_omitted(wrong: dict[str, Any]) -> None:
    assert decode({**ANSWER, "claims": [], **wrong}).uses == []


def test_other_version_is_rejected_and_claims_are_limited() -> None:
    with pytest.raises(ValueError, match="its version is '2', expected 1"):
        decode({**ANSWER, "version": 2})
    assert len(decode({**ANSWER, "claims": ANSWER["claims"] * (MAX_CLAIMS + 5)}).uses) == MAX_CLAIMS
    told = decode({**ANSWER, "knows": {"processes": "NVML says\nno permission", "utilisation": True}})
    assert told.gaps == ["node gpu-a: the exporter cannot measure processes: NVML says no permission"]


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


def test_a_label_of_pods_counts_if_all_of_them_agree_and_are_known() -> None:
    both = claim({"app": "x"}, "p", "q")
    assert team(both, pod("p", team="web"), pod("q", team="web", app="y")) == "web"
    assert team(both, pod("p", team="web"), pod("q", team="ml")) == WITHOUT
    assert team(both, pod("p", team="web"), pod("q")) == WITHOUT
    assert team(claim({"team": "ml"}, "p"), pod("p", team="web")) == "ml"
    assert team(claim({}, "p", "gone"), pod("p", team="web")) == WITHOUT
    assert team(claim({}), pod("p", team="web")) == WITHOUT


def test_wrong_objects_have_no_labels() -> None:
    lost: list[str] = []
    claims: list[Obj] = [{"metadata": None}, {"metadata": {"labels": ["x"]}}]
    assert labels_of(claims, [{"metadata": 5}], lost.append) == {("default", ""): {}}
    assert lost == ["without a name cannot be read: metadata: expected an object, got a number: '5'"]
    # A user without a UID has none either, and the claim keeps its own.
    users = {"reservedFor": [{"resource": "pods", "name": "p"}]}
    assert team({**claim({"team": "ml"}), "status": users}, pod("", team="web")) == "ml"
    assert team({**claim({}), "status": users}, pod("", team="web")) == WITHOUT


LABELS = {"namespace": "a", "claim": "x", "node": "n", "request": "gpu", "device": "gpu-0", "share": "s"}


def recorded(*series: tuple[dict[str, str], Any]) -> dict[str, Any]:
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def test_answers_are_joined_by_claim_and_device() -> None:
    history = History(3600)
    for field, value in {"used_bytes": "10", "peak_bytes": "15", "sm_ratio": "0.5", "held_s": "3660"}.items():
        history.add(field, recorded((LABELS, value)))
    history.add(
        "energy_joules", recorded(({**LABELS, "estimated": "true"}, "5"), ({**LABELS, "estimated": "false"}, "1"))
    )
    history.add("pods", recorded(({**LABELS, "pod": "q"}, "1"), ({**LABELS, "pod": "p"}, "1")))
    (use,) = history.uses()
    assert (use.namespace, use.claim, use.node, use.device, use.share) == ("a", "x", "n", "gpu-0", "s")
    assert (use.used_bytes, use.peak_bytes, use.sm_ratio, use.pods) == (10, 15, 0.5, ("p", "q"))
    assert (use.energy_joules, use.energy_estimated) == (6.0, True)
    assert use.held_s == 3600, "a claim is not charged for more hours than the window has"
    assert (use.granted_bytes, use.idle_s) == (None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("used_bytes", "-5"), ("sm_ratio", "7"), ("held_s", "9999999"), ("peak_bytes", "NaN"), ("idle_s", "+Inf")),
        ("energy_joules", "1e300"),
        pytest.param("used_bytes", 10**400, id="larger than a float"),
    ],
)
def test_impossible_value_is_skipped_and_reported(field: str, value: str) -> None:
    history = History(3600)
    history.add("processes", recorded((LABELS, "1")))
    history.add(field, recorded((LABELS, value)))
    (use,) = history.uses()
    assert getattr(use, field) is None
    (gap,) = history.gaps()
    assert gap.startswith(f"1 impossible values of Prometheus were skipped: {field} of a/x on gpu-0")


def test_series_without_claim_are_skipped() -> None:
    history = History(3600)
    odd: dict[str, Any] = recorded(({"namespace": "a"}, "1"))
    odd["data"]["result"] += [None, 7, {"metric": []}, {"value": [1, "1"]}]
    history.add("processes", odd)
    assert history.uses() == []
    # Names of labels are made printable.
    history.add("processes", recorded(({**LABELS, "claim": "\x1b]0;x\x07" + "y" * 999, "pod": "p"}, "1")))
    (use,) = history.uses()
    assert use.claim.isprintable()
    assert len(use.claim) == 253


REFUSAL = {"status": "error", "error": "parse\nerror"}
MATRIX = {"status": "success", "data": {"resultType": "matrix", "result": []}}


@pytest.mark.parametrize("wrong", [None, [], {}, REFUSAL, MATRIX])
def test_invalid_prometheus_response_is_rejected(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"rejected the query|is not a vector"):
        History(60).add("processes", wrong)


def test_a_long_window_has_bounded_steps() -> None:
    """Prometheus refuses a subquery of more than 11,000 points."""
    for window in (300, 86_400, 366 * 86_400):
        query = queries(window)["peak_bytes"]
        step = int(query.rpartition(":")[2].partition("s")[0])
        assert window / step <= 505
        assert step >= 60
