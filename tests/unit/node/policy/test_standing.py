"""What became of each policy on the GPUs of a node."""

from typing import Any

from dra_driver.config.policy import policy_of
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyState
from dra_driver.core.model.terms import Use
from dra_driver.node.policy.policy_set import PolicySet
from dra_driver.node.policy.resolve import survey
from dra_driver.node.policy.source import PolicySets, standing_of
from tests.unit.node.policy.hardware import NODE, node, uuid, whole, written


def set_of(*items: dict[str, Any], **objects: int) -> PolicySet:
    return PolicySet(tuple(policy_of(item) for item in items), items, objects)


def standing(
    newest: PolicySet | None,
    in_force: PolicySet | None = None,
    *uses: Use,
    problem: str | None = None,
    refused: dict[str, str] | None = None,
) -> dict[str, NodePolicy]:
    good = in_force or newest or PolicySet()
    terms, _ = survey(good.policies, node(), uses, NODE)
    found = PolicySets(newest=newest, in_force=good, problem=problem, refused=refused or {})
    entries = standing_of(found, node(), terms, NODE, {uuid(0): ["default/train", "default/eval"]})
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    return {entry.name: entry for entry in entries}


def test_policies_are_in_force_or_outranked_by_others() -> None:
    found = standing(
        set_of(
            written("all"),
            written("first", priority=1, select={"minors": [0]}),
            written("both", priority=2),
            written("elsewhere", select={"nodeNames": ["x"]}),
            all=3,
        )
    )
    assert {name: entry.state for name, entry in found.items()} == {
        "all": PolicyState.OUTRANKED,
        "first": PolicyState.OUTRANKED,
        "both": PolicyState.IN_FORCE,
    }
    assert found["both"].in_force == ("gpu-0", "gpu-1")
    assert found["first"].gpus == ("gpu-0",)
    assert (found["all"].origin, found["all"].generation) == (PolicyOrigin.OBJECT, 3)
    assert (found["both"].origin, found["both"].generation) == (PolicyOrigin.FILE, None)


def test_a_policy_waits_for_the_claims_that_have_its_gpu() -> None:
    found = standing(set_of(written("mps", sharing={"strategy": "MPS"})), None, whole())["mps"]
    assert found.state is PolicyState.WAITING
    assert (found.waiting, found.in_force) == (("gpu-0",), ("gpu-1",))
    assert found.waiting_for == ("default/train", "default/eval")
    assert "until it is released" in str(found.message)


def test_policies_that_contradict_each_other_name_each_other() -> None:
    """The set before stays in force where it says the same; what is new in the set is refused with it."""
    good = set_of(written("a"))
    newest = set_of(
        written("a"), written("b", availability="Hidden", select={"minors": [1]}), written("c", priority=-1)
    )
    found = standing(newest, good, problem="policies a and b both match gpu-1")
    assert found["b"].state is PolicyState.CONFLICTING
    assert found["b"].conflicts_with == ("a",)
    assert found["a"].state is PolicyState.CONFLICTING
    assert (found["a"].in_force, found["a"].conflicting) == (("gpu-0", "gpu-1"), ("gpu-1",))
    assert found["b"].in_force == ()
    assert found["c"].state is PolicyState.REFUSED
    assert found["c"].message == "policies a and b both match gpu-1"


def test_where_the_newest_policies_conflict_those_from_before_say_what_is_in_force() -> None:
    """A newer policy of higher priority does not outrank yet, and a deleted one is still there."""
    good = set_of(written("a"), written("gone", priority=1, select={"minors": [0]}), a=1, gone=4)
    newest = set_of(
        written("a"),
        written("b", availability="Hidden", select={"minors": [0]}),
        written("top", priority=2, select={"minors": [1]}),
        a=1, b=1, top=1,
    )  # fmt: skip
    found = standing(newest, good, problem="policies a and b both match gpu-0")
    assert (found["a"].in_force, found["a"].conflicting) == (("gpu-1",), ("gpu-0",))
    assert (found["gone"].state, found["gone"].in_force) == (PolicyState.IN_FORCE, ("gpu-0",))
    assert (found["gone"].origin, found["gone"].generation) == (PolicyOrigin.OBJECT, 4)
    assert (found["top"].state, found["top"].in_force) == (PolicyState.REFUSED, ())


def test_a_gpu_on_which_even_the_policies_from_before_conflict_has_none_in_force() -> None:
    both = set_of(written("a"), written("b", availability="Hidden", select={"minors": [1]}))
    found = standing(both, both, problem="policies a and b both match gpu-1")
    assert (found["a"].in_force, found["b"].in_force) == (("gpu-0",), ())


def test_a_wrong_object_is_refused_and_the_last_good_ones_are_in_force() -> None:
    found = standing(None, set_of(written("a"), a=1), problem="GpuPolicy bad: wrong", refused={"bad": "wrong"})
    assert found["a"].state is PolicyState.IN_FORCE
    assert (found["bad"].state, found["bad"].message) == (PolicyState.REFUSED, "wrong")


def test_equal_policies_of_one_priority_are_both_in_force() -> None:
    found = standing(set_of(written("a"), written("b")))
    assert [entry.state for entry in found.values()] == [PolicyState.IN_FORCE] * 2
