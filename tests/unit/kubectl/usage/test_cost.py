"""What claims cost: a missing price is never a price of 0, and what is charged is what others cannot have."""

from datetime import UTC, datetime
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.usage.cost import Held, label_key, price, sums
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse
from dra_driver.kubectl.usage.held import DeviceMemory, from_claims, from_history, gpus_in
from dra_driver.kubectl.usage.prices import Prices, decode

PRICES = Prices(currency="EUR", gpu_hour={"H100": 2.0}, kilowatt_hour=0.5, carbon_grams=400.0)
HELD = Held(namespace="a", claim="x", device="gpu-0", model="H100", part=0.25, seconds=7200, energy_joules=7.2e6)
DRIVER = "gpu.nvidia.com"
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_a_quarter_for_two_hours_costs_half_an_hour_of_a_gpu() -> None:
    line = price(HELD, PRICES)
    assert (line.gpu_hours, line.amount, line.energy_kwh) == (0.5, 1.0, 2.0)
    assert (line.energy_amount, line.carbon_grams, line.missing) == (1.0, 800.0, "")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "B200"}, "the prices have none for B200"),
        ({"model": ""}, "the prices have none for a GPU whose model is not known"),
        ({"part": None}, "how much of a GPU gpu-0 is, is not known"),
        ({"seconds": None}, "how long the claim held it is not known"),
    ],
)
def test_what_is_not_known_has_no_amount_and_says_why(changes: dict[str, Any], why: str) -> None:
    values = {name: getattr(HELD, name) for name in ("namespace", "claim", "device", "model", "part", "seconds")}
    line = price(Held(**{**values, **changes}), PRICES)
    assert (line.amount, line.missing) == (None, why)
    (total,) = sums([line, price(HELD, PRICES)], lambda held: (held.namespace,))
    assert (total.amount, total.unpriced, total.lines) == (1.0, 1, 2)


def test_the_most_expensive_comes_first_and_labels_group() -> None:
    dear = Held(
        namespace="b", claim="y", device="gpu-1", model="H100", part=1.0, seconds=7200, labels=(("team", "ml"),)
    )
    gone = Held(namespace="b", claim="z", device="gpu-1", model="H100", part=1.0, seconds=1, labels=None)
    found = sums([price(each, PRICES) for each in (HELD, dear, gone)], label_key("team"))
    assert [each.key for each in found] == [("ml",), ("(no such label)",), ("(the claim is gone)",)]


def test_prices_of_a_file() -> None:
    found = decode({"currency": "EUR", "gpuHour": {"H100": 2}, "otherGpuHour": 1, "kilowattHour": 0.3})
    assert (found.of("H100"), found.of("other"), found.carbon_grams) == (2.0, 1.0, None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "expected a mapping"),
        ({"gpuHours": {}}, "no such field 'gpuHours'"),
        ({"gpuHour": {"H100": "2"}}, r"gpuHour\['H100'\]: expected a number from 0"),
        ({"gpuHour": {"H100": -1}}, "expected a number from 0"),
        ({"gpuHour": {"H100": float("nan")}}, "expected a number from 0"),
        ({"gpuHour": {"H100": True}}, "expected a number from 0"),
        ({"gpuHour": {"H100": 10**400}}, "expected a number from 0"),
        ({"gpuHour": [2]}, "gpuHour: expected a mapping"),
        ({"currency": "\x1b[2J", "otherGpuHour": 1}, "currency: expected"),
        ({"currency": "EUR"}, "at least one of"),
    ],
)
def test_wrong_prices_are_refused_with_the_field(wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        decode(wrong)


def slices() -> list[dict[str, Any]]:
    def device(name: str, gib: int) -> dict[str, Any]:
        return {
            "name": name,
            "attributes": {"productName": {"string": "H100"}},
            "capacity": {"memory": {"value": f"{gib}Gi"}},
        }

    devices = [device("gpu-0", 80), device("gpu-0-mig-1g10gb-19-0", 10)]
    return [{"spec": {"driver": DRIVER, "pool": {"name": "n"}, "devices": devices}}]


def claim(results: list[dict[str, Any]], **allocation: Any) -> dict[str, Any]:
    metadata = {"namespace": "a", "name": "x", "creationTimestamp": "2026-11-22T10:00:00Z", "labels": {"team": "ml"}}
    found = [{"driver": DRIVER, "pool": "n", "request": "gpu", **result} for result in results]
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": found}, **allocation}}}


def test_a_claim_is_charged_by_its_part_of_the_memory_since_it_was_allocated() -> None:
    share: dict[str, Any] = {"device": "gpu-0", "shareID": "s", "consumedCapacity": {"memory": "20Gi"}}
    results: list[dict[str, Any]] = [
        {"device": "gpu-0"},
        {"device": "gpu-0-mig-1g10gb-19-0"},
        share,
        {"device": "gpu-9-mig-x"},
    ]
    found = from_claims([claim(results)], slices(), DRIVER, NOW, {("a", "x"): (("team", "ml"),)})
    assert [each.part for each in found] == [1.0, 0.125, 0.25, None]
    assert {each.seconds for each in found} == {7200.0}
    assert found[0].labels == (("team", "ml"),)
    (later,) = from_claims(
        [claim([{"device": "gpu-0"}], allocationTimestamp="2026-11-22T11:00:00Z")], slices(), DRIVER, NOW, {}
    )
    assert later.seconds == 3600.0


def test_admin_access_and_other_drivers_are_not_charged() -> None:
    results: list[dict[str, Any]] = [{"device": "gpu-0", "adminAccess": True}, {"device": "gpu-0", "driver": "other"}]
    assert from_claims([claim(results)], slices(), DRIVER, NOW, {}) == []


def test_history_is_charged_by_the_grant_of_the_gpu_of_its_node() -> None:
    series = {"metric": {"node": "n", "device": "gpu-0", "model": "H100"}, "value": [1, "80"]}
    gpus = gpus_in({"status": "success", "data": {"resultType": "vector", "result": [series]}})
    assert gpus == {("n", "gpu-0"): DeviceMemory(model="H100", memory_bytes=80)}
    uses = [
        ClaimDeviceUse(namespace="a", claim="x", node="n", device="gpu-0", share="s", granted_bytes=20, held_s=60.0),
        ClaimDeviceUse(
            namespace="a", claim="y", node="n", device="gpu-0-mig-1g10gb-19-0", granted_bytes=10, held_s=60.0
        ),
        ClaimDeviceUse(namespace="a", claim="z", node="n", device="gpu-0", held_s=60.0),
        ClaimDeviceUse(namespace="a", claim="w", node="other", device="gpu-0", share="s", granted_bytes=20),
    ]
    found = from_history(uses, gpus, {("a", "x"): (("team", "ml"),)})
    assert [(each.part, each.model) for each in found] == [(0.25, "H100"), (0.125, "H100"), (1.0, "H100"), (None, "")]
    assert [each.labels for each in found] == [(("team", "ml"),), None, None, None]
