"""The condition of a policy: one word and one sentence."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.controller.policy_totals import PolicyView, status_of, totals
from dra_driver.core.model.gpu_node import NodePolicy, PolicyState
from tests.unit.controller.fleets import node_object, nodes, policy, said
from tests.unit.controller.objects import at

WAITING = said(state=PolicyState.WAITING, in_force=("gpu-0",), waiting=("gpu-1",), waiting_for=("team/train",))
CONFLICTING = said(state=PolicyState.CONFLICTING, conflicting=("gpu-0", "gpu-1"), conflicts_with=("night",))
REFUSED = said(state=PolicyState.REFUSED, message="two entries have key a")


def status(written: PolicyView, *fleet: NodePolicy, seconds: float = 0.0) -> dict[str, Any] | None:
    found = totals([written], nodes(*(node_object(f"node-{at_}", each) for at_, each in enumerate(fleet))))
    return status_of(written, found["pool"], at(seconds))


def condition(*fleet: NodePolicy, **more: Any) -> dict[str, Any]:
    found = status(policy(**more), *fleet)
    assert found is not None
    (only,) = found["conditions"]
    return dict(only)


@pytest.mark.parametrize(
    ("fleet", "reason", "message"),
    [
        ([said()], "InForce", "in force on 2 of 2 GPUs of 1 node"),
        (
            [said(in_force=("gpu-0",))],
            "InForce",
            "in force on 1 of 2 GPUs of 1 node; others of higher priority apply to 1 GPU",
        ),
        ([WAITING], "Waiting", "1 GPU waits for team/train to end; in force on 1 of 2 GPUs of 1 node"),
        (
            [WAITING, CONFLICTING],
            "Conflicting",
            "conflicts on 2 GPUs with night, so what applied before stays; in force on 1 of 4 GPUs of 2 nodes",
        ),
        (
            [CONFLICTING, REFUSED],
            "Refused",
            "refused by 1 node (two entries have key a), so what applied before stays;"
            " in force on 0 of 4 GPUs of 2 nodes",
        ),
        (
            [replace(CONFLICTING, in_force=("gpu-0", "gpu-1"))],
            "Conflicting",
            "conflicts on 2 GPUs with night, so what applied before stays; in force on 2 of 2 GPUs of 1 node",
        ),
        (
            [replace(REFUSED, gpus=())],
            "Refused",
            "refused by 1 node (two entries have key a), so what applied before stays",
        ),
        ([], "NothingSelected", "selects no GPU of a node that tells its GPUs"),
        (
            [said(state=PolicyState.OUTRANKED)],
            "Outranked",
            "policies of higher priority apply to all of its 2 GPUs",
        ),
    ],
)
def test_the_worst_is_said_in_one_sentence(fleet: list[NodePolicy], reason: str, message: str) -> None:
    found = condition(*fleet)
    assert (found["status"], found["reason"], found["message"]) == (
        "True" if reason == "InForce" else "False",
        reason,
        message,
    )


def test_while_nodes_have_an_older_spec_it_is_unknown() -> None:
    """`kubectl wait` right after `kubectl apply` must not return because of what was before."""
    found = condition(said(generation=1), said(generation=2), generation=2)
    assert (found["status"], found["reason"], found["observedGeneration"]) == ("Unknown", "RollingOut", 1)


def test_claims_are_named_and_there_are_at_most_three() -> None:
    waits = said(state=PolicyState.WAITING, waiting=("gpu-0", "gpu-1"), waiting_for=("b/2", "a/1", "d/4", "c/3"))
    assert condition(waits)["message"].startswith("2 GPUs wait for a/1, b/2, c/3 and others to end; ")


def test_nothing_is_written_while_nothing_changes() -> None:
    first = status(policy(), said(), seconds=0)
    assert first is not None
    assert status(policy(**first), said(), seconds=600) is None


def test_the_time_changes_with_the_verdict_alone() -> None:
    first = status(policy(), said())
    assert first is not None
    more = status(policy(**first), said(), said(), seconds=60)
    assert more is not None
    assert more["conditions"][0]["lastTransitionTime"] == "2026-11-22T12:00:00Z"
    worse = status(policy(**more), WAITING, seconds=120)
    assert worse is not None
    assert worse["conditions"][0]["lastTransitionTime"] == "2026-11-22T12:02:00Z"


def test_conditions_of_other_writers_stay() -> None:
    other = {"type": "Reviewed", "status": "True"}
    found = status(policy(conditions=[other]), said())
    assert found is not None
    assert found["conditions"][0] == other
    assert status(policy(**found), said()) is None


def test_a_status_of_another_shape_is_replaced() -> None:
    found = status(policy(conditions="odd", selected=5, gone=True), said())
    assert found is not None
    assert "gone" not in found
    assert found["selected"]["gpus"] == 2
