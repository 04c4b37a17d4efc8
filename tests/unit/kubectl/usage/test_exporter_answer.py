"""The exporter's answer, read without belief: tenants' names are in it, and another version may have written it."""

import copy
from typing import Any

import pytest

from dra_driver.kubectl.usage.device_use import MAX_CLAIMS, MAX_NAME, decode, decode_gpus

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


def one(**changes: Any) -> Any:
    ((use,), _, _) = decode(answer(**changes))
    return use


def test_an_answer_becomes_values() -> None:
    (use,), window, gaps = decode(ANSWER)
    assert (use.namespace, use.claim, use.node, use.device, use.share) == ("a", "x", "gpu-a", "gpu-0", "s1")
    assert (use.used_bytes, use.granted_bytes, use.peak_bytes, use.sm_ratio) == (10, 20, 15, 0.5)
    assert (use.energy_joules, use.energy_estimated, use.processes, use.pods) == (3.5, True, 2, ("p", "q"))
    assert (window, gaps, use.idle_s) == (300, [], 0.0)


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
    ((use,), _, _) = decode(found)
    assert use.claim == "a b"
    assert len(use.device) == MAX_NAME
    assert use.device.isprintable()


@pytest.mark.parametrize(
    "wrong", [{"claims": None}, {"claims": [1, "x", None, {"devices": {}}]}, {"knows": [], "node": 7}]
)
def test_what_has_another_shape_is_left_out(wrong: dict[str, Any]) -> None:
    assert decode({**ANSWER, "claims": [], **wrong})[0] == []


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="its version is '2', expected 1"):
        decode({**ANSWER, "version": 2})


def test_what_the_exporter_does_not_know_is_said() -> None:
    _, _, gaps = decode({**ANSWER, "knows": {"processes": "NVML says\nno permission", "utilisation": True}})
    assert gaps == ["node gpu-a: the exporter does not know processes: NVML says no permission"]


def test_claims_are_bounded() -> None:
    found = decode({**ANSWER, "claims": ANSWER["claims"] * (MAX_CLAIMS + 5)})
    assert len(found[0]) == MAX_CLAIMS


def test_the_memory_of_gpus_is_read_with_what_is_not_known() -> None:
    gpu = {"device": "gpu-0", "memoryTotalBytes": 100, "memoryUsedBytes": 60, "memoryClaimsBytes": 50,
           "memoryUnattributedBytes": None, "memoryReservedBytes": -1, "unattributedProcesses": 2, "percent": 50,
           "powerWatts": 1e9}  # fmt: skip
    (found,) = decode_gpus({"version": 1, "node": "n", "gpus": [gpu, {"device": 7}, "x"]})
    assert (found.node, found.device, found.total_bytes, found.used_bytes) == ("n", "gpu-0", 100, 60)
    assert (found.claims_bytes, found.unattributed_bytes, found.unattributed_processes) == (50, None, 2)
    assert found.reserved_bytes is None
    assert (found.busy_ratio, found.power_watts) == (0.5, None)
    assert decode_gpus({"version": 1, "gpus": {}}) == []
