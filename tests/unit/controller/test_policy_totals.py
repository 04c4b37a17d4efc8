"""What all nodes say of a policy, added up."""

from dra_driver.controller.policy_totals import totals
from dra_driver.core.model.gpu_node import PolicyOrigin, PolicyPlace, PolicyState, PolicyStatus
from tests.unit.controller.fleets import node_object, nodes, policy, said


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
