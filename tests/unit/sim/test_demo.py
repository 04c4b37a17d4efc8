"""The chapters of the demonstration about a policy and about use: what they do not take for a success."""

import pytest

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.demo.policies import last_gpu, not_said_by_node, not_said_by_status, unlike_policy
from dra_driver.sim.demo.usage import disturbed, not_found_idle, not_idle_yet, unlike_used, used_by_pod
from tests.harness.raising import fails


def device(name: str, **attributes: str) -> Obj:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def published(node: str, *devices: Obj) -> Obj:
    return {"spec": {"nodeName": node, "devices": list(devices)}}


WHOLE = device("gpu-0", type="gpu", uuid="GPU-a")
PART = device("gpu-0-mig-1g", type="mig", uuid="MIG-a", parentUUID="GPU-a")
OTHER = device("gpu-1", type="gpu", uuid="GPU-b")


def test_the_policy_is_for_the_last_whole_gpu() -> None:
    slices = [published("b", WHOLE, PART, OTHER), published("a", device("gpu-9", type="gpu", uuid="GPU-c"))]
    assert last_gpu(slices) == ("b", "gpu-1", "GPU-b")
    with fails(RetryableError, "NoWholeGpu"):
        last_gpu([published("a", PART)])


def test_an_offer_meets_the_policy_whole_alone_and_with_the_team() -> None:
    ruled = device("gpu-0", type="gpu", uuid="GPU-a", team="vision")
    assert unlike_policy({"gpu-0": ruled}, "gpu-0") is None
    assert unlike_policy({"gpu-0": WHOLE}, "gpu-0") == "expected team=vision, found no team"
    found = unlike_policy({"gpu-0": ruled, "gpu-0-mig-1g": PART}, "gpu-0")
    assert found == "expected gpu-0 alone, found gpu-0, gpu-0-mig-1g"
    assert unlike_policy({}, "gpu-0") == "expected gpu-0 alone, found nothing"


def test_a_node_has_to_say_in_force_on_this_gpu() -> None:
    def said(**fields: object) -> str | None:
        return not_said_by_node({"status": {"policies": [{"name": "vision", **fields}]}}, "gpu-0")

    assert said(state="InForce", gpus=["gpu-0"]) is None
    assert said(state="InForce", gpus=["gpu-1"]) is not None
    assert said(state="Waiting", gpus=["gpu-0"]) == "expected InForce on gpu-0, found ('Waiting', ['gpu-0'])"
    assert not_said_by_node({}, "gpu-0") == "it does not have the policy vision"


def test_the_status_has_to_count_one_gpu_and_no_refusal() -> None:
    good = {"selected": {"gpus": 1}, "inForce": {"gpus": 1}, "refused": {"nodes": 0}, "conflicting": {"gpus": 0}}
    assert not_said_by_status({"status": good}) is None
    for field, counted in {"inForce": {"gpus": 0}, "refused": {"nodes": 1}, "conflicting": {"gpus": 1}}.items():
        assert field in (not_said_by_status({"status": {**good, field: counted}}) or "")
    assert "selected is None, expected 1" in (not_said_by_status({}) or "")


GIB = 2**30


def using(used: int | None) -> dict[str, object]:
    return {"devices": [{"usedBytes": used}]}


def test_use_is_by_pod_and_what_is_not_known_is_left_out() -> None:
    answer = {"claims": [{"pods": ["a", "b"], **using(2 * GIB)}, {"pods": ["c"], **using(None)}]}
    assert used_by_pod(answer) == {"a": 2, "b": 2}
    assert used_by_pod({}) == {}
    assert unlike_used({"a": 2.0}, {"a": 2}) is None
    assert unlike_used({"a": 2.5}, {"a": 2}) == "it sees {'a': 2.5} (GiB by pod)"
    assert unlike_used({}, {"a": 0}) == "it sees nothing (GiB by pod)"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [([20, 35], None), ([19], "it saw a unused for [19] s"), ([20, None], "[20, None]"), ([], "[]")],
)
def test_the_claim_is_unused_for_a_while_before_it_is_asked_for(seconds: list[int | None], said: str | None) -> None:
    answer = {"claims": [{"pods": ["a"], "devices": [{"idleSeconds": each} for each in seconds]}]}
    found = not_idle_yet(answer, "a")
    assert found is None if said is None else said in str(found)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"a": "1", "b": "2"}, None),
        ({"a": "1", "b": "3"}, "b ended or restarted"),  # another pod of that name
        ({}, "a, b ended or restarted"),
    ],
)
def test_a_pod_that_goes_on_is_the_same_pod(now: dict[str, str], said: str | None) -> None:
    assert disturbed({"a": "1", "b": "2", "evicted": "0"}, now, {"a": 0, "b": 0}) == said


IDLE = "CLAIM      NODE   IDLE  FINDING\nsleepy-x   gpu-u  39s   idle\n"


@pytest.mark.parametrize(
    ("printed", "is_found"),
    [
        (IDLE, True),
        (IDLE.replace("idle\n", "unknown\n"), False),
        (IDLE.replace("sleepy-x", "modest-x"), False),
        (IDLE + "modest-x   gpu-u  39s   idle\n", False),
        ("No idle or oversized claims found.\n", False),
    ],
)
def test_one_claim_is_idle(printed: str, is_found: bool) -> None:
    assert (not_found_idle(printed, "sleepy") is None) == is_found
