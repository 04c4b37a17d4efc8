"""DeviceClasses for what the fleet publishes."""

from typing import Any

import pytest

from dra_driver.kube.published.device_classes import MANAGED_BY, MANAGER, Offer, class_of, offers, plan, users
from dra_driver.scheduler.cel import DeviceView, compile_selector

DRIVER = "gpu.nvidia.com"
MIG = Offer("profile", "1g.10gb+me")
SHARED = Offer("sharingStrategy", "MPS")


def device(name: str, **attributes: str) -> dict[str, Any]:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


PARTITION = device("gpu-0-mig", type="mig", profile="1g.10gb+me")
SHARE = device("gpu-1", type="gpu", sharingStrategy="MPS")
WHOLE = device("gpu-2", type="gpu")


def slices(*devices: dict[str, Any], driver: str = DRIVER) -> list[dict[str, Any]]:
    return [{"spec": {"driver": driver, "devices": list(devices)}}]


def stored(offer: Offer, **more: Any) -> dict[str, Any]:
    made = class_of(offer, DRIVER)
    return {**made, "metadata": {**made["metadata"], "uid": "u", "resourceVersion": "1"}, **more}


def foreign(offer: Offer, name: str = "") -> dict[str, Any]:
    made = class_of(offer, DRIVER)
    return {**made, "metadata": {"name": name or made["metadata"]["name"]}}


def states(*classes: dict[str, Any]) -> dict[str, str]:
    return {each.device_class: each.state for each in plan({MIG: 7, SHARED: 1}, classes, DRIVER)}


def test_profiles_and_strategies_are_counted() -> None:
    assert offers(slices(PARTITION, PARTITION, SHARE, WHOLE), DRIVER) == {MIG: 2, SHARED: 1}


def test_other_drivers_and_odd_values_are_left_out() -> None:
    odd = [
        device("a", profile="../x"),
        device("b", sharingStrategy="Other"),
        {"name": "c", "attributes": {"profile": {"int": 1}}},
    ]
    assert offers([*slices(PARTITION, driver="x.example"), *slices(*odd), {}], DRIVER) == {}


def test_a_plus_is_a_dot_in_names_and_a_plus_in_the_selector() -> None:
    made = class_of(MIG, DRIVER)
    assert made["metadata"]["name"] == "mig-1g.10gb.me.nvidia.com"
    assert made["spec"]["extendedResourceName"] == "nvidia.com/mig-1g.10gb.me"
    assert '"1g.10gb+me"' in made["spec"]["selectors"][0]["cel"]["expression"]


def test_shared_gpus_have_no_extended_resource() -> None:
    made = class_of(SHARED, DRIVER)
    assert made["metadata"]["name"] == "shared-mps.nvidia.com"
    assert "extendedResourceName" not in made["spec"]


@pytest.mark.parametrize(("offer", "selected"), [(MIG, PARTITION), (SHARED, SHARE)])
def test_selectors_match_their_devices_and_fail_on_none(offer: Offer, selected: dict[str, Any]) -> None:
    (selector,) = class_of(offer, DRIVER)["spec"]["selectors"]
    program = compile_selector(selector["cel"]["expression"])
    views = [(item, DeviceView(DRIVER, item)) for item in (PARTITION, SHARE, WHOLE)]
    assert [item for item, view in views if program.evaluate(view)] == [selected]
    assert not program.evaluate(DeviceView("other.example", {"name": "x"}))


def test_what_is_missing_is_made_and_what_is_there_is_left() -> None:
    assert states(stored(MIG)) == {"mig-1g.10gb.me.nvidia.com": "present", "shared-mps.nvidia.com": "missing"}


def test_a_class_that_was_changed_by_hand_is_put_right() -> None:
    assert states(stored(MIG, spec={"selectors": []}))["mig-1g.10gb.me.nvidia.com"] == "changed"


def test_a_class_of_another_is_never_touched() -> None:
    assert states(foreign(MIG))["mig-1g.10gb.me.nvidia.com"] == "foreign"
    labelled = {**foreign(SHARED), "metadata": {"name": "shared-mps.nvidia.com", "labels": {MANAGED_BY: "Helm"}}}
    assert states(labelled)["shared-mps.nvidia.com"] == "foreign"


def test_an_extended_resource_of_another_class_is_left_to_it() -> None:
    """Of two classes with one resource the scheduler takes one, and it is not said which."""
    assert states(foreign(MIG, "small-gpus"))["mig-1g.10gb.me.nvidia.com"] == "taken"


def test_only_own_classes_can_be_unused() -> None:
    own, other = stored(Offer("profile", "3g.40gb")), foreign(Offer("profile", "2g.20gb"))
    found = states(own, other, {"metadata": {"name": "gpu.nvidia.com"}, "spec": {}})
    assert found["mig-3g.40gb.nvidia.com"] == "unused"
    assert "mig-2g.20gb.nvidia.com" not in found
    assert "gpu.nvidia.com" not in found


@pytest.mark.parametrize(
    "request_",
    [
        {"exactly": {"deviceClassName": "x"}},
        {"deviceClassName": "x"},
        {"firstAvailable": [{"deviceClassName": "y"}, {"deviceClassName": "x"}]},
    ],
)
def test_users_of_a_class_are_found_in_every_form(request_: dict[str, Any]) -> None:
    spec = {"devices": {"requests": [request_]}}
    claim = {"metadata": {"namespace": "team", "name": "a"}, "spec": spec}
    template = {"metadata": {"namespace": "team", "name": "b"}, "spec": {"spec": spec}}
    assert users("x", [claim], [template]) == ["claim team/a", "template team/b"]
    assert users("z", [claim], [template]) == []


def test_the_label_is_for_ever() -> None:
    assert class_of(MIG, DRIVER)["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "dra-driver-classes"}
    assert MANAGER == "dra-driver-classes"
