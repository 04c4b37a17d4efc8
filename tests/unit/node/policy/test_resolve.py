"""Which policy counts for which GPU, and what it comes to."""

from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health_rules import GRACE_ATTRIBUTE, HealthRules
from dra_driver.core.model.terms import Interval, SharingTerms, Strategy, Taint, terms_of
from dra_driver.core.model.usage_rules import UsageRules
from dra_driver.node.policy.resolve import resolve, survey
from tests.unit.node.policy.hardware import NODE, ONE_G, ONE_G_ME, gpu, node, partition, policy, uuid, whole


def matched(**select: Any) -> list[int]:
    """Minors of the GPUs of a mixed node that a selection matches."""
    snapshot = Snapshot(
        gpus=(
            gpu(0),
            gpu(
                1, product_name="NVIDIA L4", architecture="Ada Lovelace", memory_bytes=23034 * 2**20, mig_capable=False
            ),
            gpu(2, product_name=None, architecture=None, memory_bytes=None, pci_bus_id=None),
        )
    )
    terms = resolve([policy("hide", select=select, availability="Hidden")], snapshot, (), NODE)
    return [found.minor for found in snapshot.gpus if found.uuid in terms]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"nodeNames": ["node-?"]}, [0, 1, 2]),
        ({"nodeNames": ["other"]}, []),
        ({"minors": [1, 2, 7]}, [1, 2]),
        ({"minors": []}, []),
        ({"uuids": [uuid(1)]}, [1]),
        ({"pciBusIDs": ["00000000:10:00.0"]}, [0]),
        ({"productNames": ["NVIDIA H100*", "x"]}, [0]),
        ({"productNames": ["*"]}, [0, 1]),
        ({"architectures": ["Ada Lovelace"]}, [1]),
        ({"minMemory": "24Gi"}, [0]),
        ({"maxMemory": "24Gi"}, [1]),
        ({"minMemory": "1Gi", "maxMemory": "90Gi"}, [0, 1]),
        ({"migCapable": True}, [0, 2]),
        ({"migCapable": False}, [1]),
        ({"productNames": ["NVIDIA*"], "minors": [1, 2]}, [1]),
    ],
)
def test_every_field_that_is_given_has_to_match(select: dict[str, Any], expected: list[int]) -> None:
    """A property that a GPU does not report matches no pattern, so that no policy matches by accident."""
    assert matched(**select) == expected


def test_without_policies_every_gpu_has_the_default_terms() -> None:
    """Without configuration the driver offers everything it finds."""
    assert resolve([], node(), (), NODE) == {}


def test_the_highest_priority_counts_whole_and_alone() -> None:
    """Nothing of a lower one shines through: one object says all about a GPU."""
    low = policy("low", taints=[{"key": "example.com/x"}], sharing={"strategy": "MPS"})
    high = policy("high", priority=5, select={"minors": [0]}, forms={"migProfiles": []})
    terms = resolve([low, high], node(), (), NODE)
    assert (terms[uuid(0)].policy, terms[uuid(0)].taints, terms[uuid(0)].sharing) == ("high", (), None)
    assert terms[uuid(1)].policy == "low"


def test_two_of_the_same_priority_that_differ_are_refused_by_name() -> None:
    """Either choice would surprise an administrator; the sentence says what to change and where."""
    clash = [policy("a", sharing={"strategy": "MPS"}), policy("b", select={"minors": [1]})]
    with pytest.raises(ConfigurationError) as caught:
        resolve(clash, node(), (), NODE)
    text = str(caught.value)
    assert text.startswith(f"policies a and b both match gpu-1 ({uuid(1)}) with priority 0 and differ in spec.sharing:")


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        ({"health": {"evict": {"xids": [79]}}}, {"health": {"ignore": {"xids": [79]}}}, "spec.health"),
        ({"usage": {"overGrant": {"action": "Evict"}}}, {}, "spec.usage"),
        ({"availability": "Reserved"}, {"availability": "Reserved"}, "spec.availability"),
        ({"forms": {"whole": False}}, {"taints": [{"key": "a"}]}, "spec.forms.whole, spec.taints"),
    ],
)
def test_a_contradiction_names_the_fields_that_differ(first: Any, second: Any, field: str) -> None:
    """Two reserved pools differ in the name that their taint has."""
    with pytest.raises(ConfigurationError, match=f"differ in {field}: give"):
        resolve([policy("a", **first), policy("b", **second)], node(1), (), NODE)


def test_two_of_the_same_priority_that_say_the_same_are_no_contradiction() -> None:
    """The first by name is the one that is told."""
    terms = resolve([policy("b", availability="Hidden"), policy("a", availability="Hidden")], node(1), (), NODE)
    assert terms[uuid(0)].policy == "a"


def test_a_contradiction_below_the_policy_that_applies_is_no_problem() -> None:
    """It is reported when the higher policy is removed."""
    clash = [policy("a", sharing={"strategy": "MPS"}), policy("b"), policy("top", priority=1)]
    assert resolve(clash, node(1), (), NODE)[uuid(0)].policy == "top"


def test_a_survey_withholds_only_the_gpu_that_is_contradicted() -> None:
    """The others follow their policies."""
    clash = [policy("a", sharing={"strategy": "MPS"}), policy("b", select={"minors": [1]})]
    terms, conflicts = survey(clash, node(), (), NODE)
    assert terms[uuid(0)].sharing is not None
    assert not terms[uuid(1)].offered
    assert len(conflicts) == 1


def test_everything_a_policy_says_arrives_in_the_terms() -> None:
    """Profiles as ids of this GPU's own, the rest as written."""
    told = policy(
        "all",
        availability="Reserved",
        forms={"migProfiles": ["1g.*"]},
        sharing={"strategy": "TimeSlicing", "interval": "Long", "maxShares": 3},
        taints=[{"key": "example.com/x", "value": "y"}],
        attributes=[{"name": "team", "string": "blue"}, {"name": "n", "int": 0}, {"name": "b", "bool": False}],
        health={"evict": {"xids": [79]}},
        usage={"idle": {"afterMinutes": 30}},
    )
    found = resolve([told], node(1), (), NODE)[uuid(0)]
    assert found.profiles == frozenset({ONE_G, ONE_G_ME})
    assert found.sharing == SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.LONG, max_shares=3)
    assert found.taints == (
        Taint(key="gpu.dra-driver.io/reserved", value="all", effect="NoSchedule"),
        Taint(key="example.com/x", value="y", effect="NoSchedule"),
    )
    assert found.attributes == {"team": "blue", "n": 0, "b": False}
    assert found.health == HealthRules(evicting_xids=frozenset({79}))
    assert found.usage == UsageRules(idle_after_min=30)
    assert found.waiting is None


@pytest.mark.parametrize(
    ("seconds", "published"), [(None, {}), (60, {}), (0, {GRACE_ATTRIBUTE: 0}), (300, {GRACE_ATTRIBUTE: 300})]
)
def test_the_controller_learns_another_grace_time_from_an_attribute(seconds: int | None, published: Any) -> None:
    told = policy("all", health={} if seconds is None else {"evictionGraceSeconds": seconds})
    assert resolve([told], node(1), (), NODE)[uuid(0)].attributes == published


@pytest.mark.parametrize(
    ("patterns", "expected"), [(None, None), ([], set()), (["9g.*"], set()), (["*+me"], {ONE_G_ME})]
)
def test_no_list_of_profiles_allows_all_and_an_empty_one_none(patterns: Any, expected: Any) -> None:
    """The difference between saying nothing and saying nothing is allowed."""
    found = resolve([policy("p", forms={"migProfiles": patterns})], node(1), (), NODE)
    assert terms_of(found, uuid(0)).profiles == expected


def test_uses_of_gpus_that_are_gone_and_of_others_change_nothing() -> None:
    """A GPU fell off the bus while a claim had it: the others go on."""
    assert resolve([], node(1), [whole(5), partition(ONE_G, minor=5)], NODE) == {}
    terms = resolve([policy("p", sharing={"strategy": "MPS"})], node(2), [whole(1)], NODE)
    assert terms_of(terms, uuid(0)).waiting is None
    assert terms_of(terms, uuid(1)).waiting is not None


def test_a_policy_that_reserves_all_memory_of_a_gpu_is_refused() -> None:
    """Nothing would be left for claims; the numbers say what to change."""
    greedy = policy("greedy", sharing={"strategy": "MPS", "reservedMemory": "80Gi"})
    with pytest.raises(ConfigurationError, match=r"policy greedy reserves 80Gi of gpu-0 .* which has 81559Mi"):
        resolve([greedy], node(), (), NODE)
    modest = policy("modest", sharing={"strategy": "MPS", "reservedMemory": "79Gi"})
    assert resolve([modest], node(), (), NODE)
