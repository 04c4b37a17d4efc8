"""The demonstration's chapter about use: what it does not take for a success."""

import pytest

from dra_driver.sim.demo.usage import (
    disturbed,
    not_found_idle,
    not_idle_yet,
    unlike_used,
    used_by_pod,
)

GIB = 2**30


def device(used: int | None) -> dict[str, object]:
    return {"devices": [{"usedBytes": used}]}


def test_use_is_by_pod_and_what_is_not_known_is_left_out() -> None:
    answer = {"claims": [{"pods": ["a", "b"], **device(2 * GIB)}, {"pods": ["c"], **device(None)}]}
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


IDLE = "NAMESPACE  CLAIM      IDLE  FINDING  PODS\nns         sleepy-x   39s   idle     sleepy\n"


@pytest.mark.parametrize(
    ("printed", "is_found"),
    [
        (IDLE, True),
        (IDLE.replace("idle     sleepy", "unknown  sleepy"), False),
        (IDLE.replace("idle     sleepy", "idle     modest"), False),
        (IDLE + "ns         modest-x   39s   idle     modest\n", False),
        ("No claim is idle or too large, as far as is known.\n", False),
    ],
)
def test_one_claim_is_idle(printed: str, is_found: bool) -> None:
    assert (not_found_idle(printed, "sleepy") is None) == is_found
