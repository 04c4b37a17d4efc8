"""What all nodes say of a policy, added up, and its condition: one word and one sentence."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.controller.policy_status import PolicyView, status_of, totals
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyPlace, PolicyState, PolicyStatus
from tests.unit.controller.fleets import node_object, nodes, policy, said
from tests.unit.controller.objects import at


def status(*objects: object, **more: object) -> PolicyStatus:
    return totals([policy(**more)], nodes(*objects))["pool"]  # type: ignore[arg-type]


def test_gpus_of_all_nodes_count() -> None:
    found = status(node_object("b", said()), node_object("a", said()))
    assert (found.selected.nodes, found.selected.gpus, found.in_force.gpus) == (2, 4, 4)
    assert [place.node for place in found.in_force.places] == ["a", "b"]


def test_a_policy_that_no_node_mentions_selects_nothing() -> None:
    assert status(node_object("a", said("other"))) == PolicyStatus(observed_generation=1)


def test_a_node_that_waits_says_for_whom() -> None:
    waits = said(
        state=PolicyState.WAITING,
        in_force=("gpu-0",),
        waiting=("gpu-1",),
        waiting_for=("team/train",),
        message="gpu-1 stays whole",
    )
    found = status(node_object("a", waits))
    place = PolicyPlace(node="a", gpus=("gpu-1",), claims=("team/train",), message="gpu-1 stays whole")
    assert found.waiting.places == (place,)
    assert (found.in_force.gpus, found.waiting.gpus, found.outranked.gpus) == (1, 1, 0)


def test_a_refused_policy_counts_nowhere_else() -> None:
    """What a node had in force before is not this spec."""
    refused = said(state=PolicyState.REFUSED, in_force=("gpu-0",), message="more than 128 policies")
    found = status(node_object("a", refused))
    assert found.refused.places == (PolicyPlace(node="a", gpus=("gpu-0", "gpu-1"), message="more than 128 policies"),)
    assert (found.in_force.gpus, found.outranked.gpus) == (0, 0)


def test_a_refused_policy_that_cannot_be_read_counts_its_nodes() -> None:
    found = status(node_object("a", said(state=PolicyState.REFUSED, gpus=(), message="wrong")))
    assert (found.refused.nodes, found.refused.gpus, found.selected.nodes) == (1, 0, 0)


def test_conflicts_name_the_other_policies() -> None:
    conflicts = said(
        state=PolicyState.CONFLICTING, conflicting=("gpu-1",), in_force=("gpu-0",), conflicts_with=("night",)
    )
    found = status(node_object("a", conflicts))
    assert found.conflicting.places == (PolicyPlace(node="a", gpus=("gpu-1",), policies=("night",)),)


def test_gpus_left_to_others_are_outranked() -> None:
    found = status(node_object("a", said(in_force=("gpu-1",))), node_object("b", said(state=PolicyState.OUTRANKED)))
    assert [(place.node, place.gpus) for place in found.outranked.places] == [
        ("a", ("gpu-0",)),
        ("b", ("gpu-0", "gpu-1")),
    ]


def test_each_gpu_counts_once() -> None:
    """The sum of the outcomes is what is selected."""
    mixed = said(state=PolicyState.CONFLICTING, gpus=("a", "b", "c", "d"), in_force=("a",), waiting=("b",),
                 conflicting=("c",))  # fmt: skip
    found = status(node_object("a", mixed))
    parts = (found.in_force, found.waiting, found.conflicting, found.outranked, found.refused)
    assert sum(part.gpus for part in parts) == found.selected.gpus == 4


def test_places_are_the_first_twenty_and_counts_are_of_all() -> None:
    found = status(*(node_object(f"node-{number:03}", said()) for number in range(500)))
    assert (found.in_force.nodes, found.in_force.gpus) == (500, 1000)
    assert [place.node for place in found.in_force.places] == [f"node-{number:03}" for number in range(20)]


def test_files_of_nodes_are_not_objects() -> None:
    """A file may have the name of an object on another node; nothing may be said of the object by it."""
    assert status(node_object("a", said(origin=PolicyOrigin.FILE, generation=None))).selected.gpus == 0


def test_the_oldest_spec_that_a_node_has_is_observed() -> None:
    behind = (node_object("a", said(generation=2)), node_object("b", said(generation=3)))
    assert status(*behind, generation=3).observed_generation == 2


def test_a_node_without_a_status_says_nothing() -> None:
    assert (
        status({"metadata": {"name": "a"}}, {"metadata": {"name": "b"}, "status": {"policies": 5}}).selected.nodes == 0
    )


WAITING = said(state=PolicyState.WAITING, in_force=("gpu-0",), waiting=("gpu-1",), waiting_for=("team/train",))
CONFLICTING = said(state=PolicyState.CONFLICTING, conflicting=("gpu-0", "gpu-1"), conflicts_with=("night",))
REFUSED = said(state=PolicyState.REFUSED, message="two entries have key a")


def written_status(written: PolicyView, *fleet: NodePolicy, seconds: float = 0.0) -> dict[str, Any] | None:
    found = totals([written], nodes(*(node_object(f"node-{at_}", each) for at_, each in enumerate(fleet))))
    return status_of(written, found["pool"], at(seconds))


def condition(*fleet: NodePolicy, **more: Any) -> dict[str, Any]:
    found = written_status(policy(**more), *fleet)
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
    first = written_status(policy(), said(), seconds=0)
    assert first is not None
    assert written_status(policy(**first), said(), seconds=600) is None


def test_the_time_changes_with_the_verdict_alone() -> None:
    first = written_status(policy(), said())
    assert first is not None
    more = written_status(policy(**first), said(), said(), seconds=60)
    assert more is not None
    assert more["conditions"][0]["lastTransitionTime"] == "2026-11-22T12:00:00Z"
    worse = written_status(policy(**more), WAITING, seconds=120)
    assert worse is not None
    assert worse["conditions"][0]["lastTransitionTime"] == "2026-11-22T12:02:00Z"


def test_conditions_of_other_writers_stay() -> None:
    other = {"type": "Reviewed", "status": "True"}
    found = written_status(policy(conditions=[other]), said())
    assert found is not None
    assert found["conditions"][0] == other
    assert written_status(policy(**found), said()) is None


def test_a_status_of_another_shape_is_replaced() -> None:
    found = written_status(policy(conditions="odd", selected=5, gone=True), said())
    assert found is not None
    assert "gone" not in found
    assert found["selected"]["gpus"] == 2
