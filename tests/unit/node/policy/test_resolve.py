"""The policy that applies to each GPU, and its terms."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health_rules import GRACE_ATTRIBUTE, HealthRules
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import DEFAULT_TERMS, GpuTerms, Interval, SharingTerms, Strategy, Taint, Use, terms_of
from dra_driver.core.model.usage_rules import UsageRules
from dra_driver.node.policy.resolve import DRAINING_TAINT, resolve
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.unit.node.policy.hardware import (
    NODE,
    ONE_G,
    ONE_G_ME,
    SEVEN_G,
    THREE_G,
    gpu,
    node,
    partition,
    policy,
    share,
    uuid,
    whole,
)

MPS = {"strategy": "MPS"}
SLICED = {"strategy": "TimeSlicing"}


def matched(**select: Any) -> list[int]:
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
        ({"minMemory": "23034Mi", "maxMemory": "23034Mi"}, [1]),  # inclusive
        ({"minMemory": "1Gi", "maxMemory": "90Gi"}, [0, 1]),
        ({"migCapable": True}, [0, 2]),
        ({"migCapable": False}, [1]),
        ({"productNames": ["NVIDIA*"], "minors": [1, 2]}, [1]),
    ],
)
def test_every_field_that_is_given_has_to_match(select: dict[str, Any], expected: list[int]) -> None:
    assert matched(**select) == expected


def test_the_highest_priority_counts_whole_and_alone() -> None:
    low = policy("low", taints=[{"key": "example.com/x"}], sharing=MPS)
    high = policy("high", priority=5, select={"minors": [0]}, forms={"migProfiles": []})
    terms = resolve([low, high], node(), (), NODE)
    assert (terms[uuid(0)].policy, terms[uuid(0)].taints, terms[uuid(0)].sharing) == ("high", (), None)
    assert terms[uuid(1)].policy == "low"


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        ({"health": {"evict": {"xids": [79]}}}, {"health": {"ignore": {"xids": [79]}}}, "spec.health"),
        ({"usage": {"overGrant": {"action": "Evict"}}}, {}, "spec.usage"),
        ({"sharing": MPS}, {}, "spec.sharing"),
        ({"availability": "Reserved"}, {"availability": "Reserved"}, "spec.availability"),
        ({"forms": {"whole": False}}, {"taints": [{"key": "a"}]}, "spec.forms.whole, spec.taints"),
    ],
)
def test_a_contradiction_names_the_fields_that_differ(first: Any, second: Any, field: str) -> None:
    """Two reserved pools differ in the name that their taint has."""
    with pytest.raises(
        ConfigurationError, match=rf"policies a and b both match gpu-0 .* with priority 0 and differ in {field}: give"
    ):
        resolve([policy("a", **first), policy("b", **second)], node(1), (), NODE)


def test_a_contradiction_below_the_policy_that_applies_is_no_problem() -> None:
    clash = [policy("a", sharing=MPS), policy("b"), policy("top", priority=1)]
    assert resolve(clash, node(1), (), NODE)[uuid(0)].policy == "top"


def test_everything_a_policy_says_arrives_in_the_terms() -> None:
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


FOUR = SimulatedBackend.from_spec("4xl4-24gb", NODE).snapshot()
"""Addresses 0000:01:00.0 and 0000:02:00.0 are on root pci0000:00, 0000:09:00.0 and 0000:0a:00.0 on pci0000:08."""


def rails(**places: int) -> list[dict[str, object]]:
    """Entries such as ``root_08=1`` (a PCIe root) and ``bus_09=1`` (a PCI address)."""
    written = {name: (f"pci0000:{name[5:]}" if name[:4] == "root" else f"0000:{name[4:]}:00.0") for name in places}
    return [{"pci": written[name], "rail": rail} for name, rail in places.items()]


def test_rail_of_an_address_overrides_the_rail_of_its_root() -> None:
    given = policy("p", rails=rails(root_00=4, bus_02=7, bus_09=0, root_40=9), attributes=[{"name": "team", "int": 1}])
    found = [resolve([given], FOUR, (), NODE)[each.uuid].attributes for each in FOUR.gpus]
    assert found == [{"team": 1, "rail": 4}, {"team": 1, "rail": 7}, {"team": 1, "rail": 0}, {"team": 1}]


def test_rails_of_two_policies_conflict_only_where_they_differ() -> None:
    both = [policy("a", rails=rails(root_00=0, root_08=1)), policy("b", rails=rails(bus_01=0, bus_02=0, root_08=2))]
    two = replace(FOUR, gpus=FOUR.gpus[:2])
    assert [terms.attributes for terms in resolve(both, two, (), NODE).values()] == [{"rail": 0}] * 2
    with pytest.raises(ConfigurationError, match=r"both match gpu-2 .* differ in spec\.rails"):
        resolve(both, FOUR, (), NODE)


@pytest.mark.parametrize(
    ("patterns", "expected"), [(None, None), ([], set()), (["9g.*"], set()), (["*+me"], {ONE_G_ME})]
)
def test_no_list_of_profiles_allows_all_and_an_empty_one_none(patterns: Any, expected: Any) -> None:
    found = resolve([policy("p", forms={"migProfiles": patterns})], node(1), (), NODE)
    assert terms_of(found, uuid(0)).profiles == expected


def test_uses_of_gpus_that_are_gone_and_of_others_change_nothing() -> None:
    assert resolve([], node(1), [whole(5), partition(ONE_G, minor=5)], NODE) == {}
    terms = resolve([policy("p", sharing=MPS)], node(2), [whole(1)], NODE)
    assert terms_of(terms, uuid(0)).waiting is None
    assert terms_of(terms, uuid(1)).waiting is not None


def test_a_policy_that_reserves_all_memory_of_a_gpu_is_refused() -> None:
    greedy = policy("greedy", sharing={"strategy": "MPS", "reservedMemory": "80Gi"})
    with pytest.raises(ConfigurationError, match=r"policy greedy reserves 80Gi of gpu-0 .* which has 81559Mi"):
        resolve([greedy], node(), (), NODE)
    modest = policy("modest", sharing={"strategy": "MPS", "reservedMemory": "79Gi"})
    assert resolve([modest], node(), (), NODE)


@pytest.mark.parametrize(("memory", "fits"), [("80471Mi", True), ("80472Mi", False)])
def test_a_default_share_larger_than_the_gpu_is_refused(memory: str, fits: bool) -> None:
    """The driver estimates 1024Mi of 81559Mi for itself; the MPS server takes 64Mi."""
    large = policy("large", sharing={"strategy": "MPS", "defaultShare": {"memory": memory}})
    if fits:
        assert resolve([large], node(), (), NODE)
        return
    with pytest.raises(ConfigurationError, match=r"80472Mi of gpu-0 .* has 80471Mi for claims: lower"):
        resolve([large], node(), (), NODE)


def terms_in_use(spec: dict[str, Any] | None, *uses: Use) -> GpuTerms:
    policies = [] if spec is None else [policy("p", **spec)]
    return resolve(policies, node(1), uses, NODE).get(uuid(0), DEFAULT_TERMS)


def drains(terms: GpuTerms) -> bool:
    return any(taint.key == DRAINING_TAINT for taint in terms.taints)


def all_of_a_shared_gpu() -> Use:
    return replace(whole(), of_shared=True)


@pytest.mark.parametrize("sharing", [MPS, SLICED])
def test_a_claim_that_has_all_of_a_shared_gpu_leaves_its_publication_alone(sharing: dict[str, Any]) -> None:
    """It consumed all there is to share. Published as exclusive, the GPU would look free to the scheduler."""
    assert terms_in_use({"sharing": sharing}, all_of_a_shared_gpu()) == replace(
        terms_in_use({"sharing": sharing}), shares_in_use=True
    )


@pytest.mark.parametrize("spec", [{}, {"availability": "Hidden"}, {"forms": {"whole": False}}])
def test_a_shared_gpu_that_one_claim_has_stays_published_as_shared_until_it_is_free(spec: dict[str, Any]) -> None:
    """Whatever the newest policy says: what was consumed of it is counted only as long as it is shared."""
    found = terms_in_use(spec, all_of_a_shared_gpu())
    assert (found.offered, found.whole, found.sharing is not None) == (True, True, True)
    assert found.waiting is not None
    assert drains(found)


@pytest.mark.parametrize(
    ("spec", "then"),
    [
        ({"sharing": MPS}, "then it is offered shared by MPS (policy p)"),
        ({"sharing": SLICED}, "then it is offered time-sliced (policy p)"),
        ({"availability": "Hidden"}, "then it is no longer offered (policy p)"),
        ({"forms": {"whole": False}}, "then it is offered as MIG partitions only (policy p)"),
    ],
)
def test_a_gpu_that_a_claim_has_whole_stays_whole_and_exclusive(spec: dict[str, Any], then: str) -> None:
    found = terms_in_use(spec, whole())
    assert (found.offered, found.whole, found.sharing) == (True, True, None)
    assert found.waiting == f"the GPU stays exclusive until it is released; {then}"
    assert drains(found)


@pytest.mark.parametrize("spec", [None, {}, {"forms": {"migProfiles": []}}, {"availability": "Reserved"}])
def test_a_whole_gpu_in_use_waits_for_nothing_that_it_fulfils(spec: dict[str, Any] | None) -> None:
    """Profiles, taints and attributes change at once: they do not affect claims that have the GPU."""
    found = terms_in_use(spec, whole())
    assert found.waiting is None
    assert not drains(found)


@pytest.mark.parametrize(
    ("spec", "stays", "then"),
    [
        ({}, "shared by MPS", "it is offered exclusive (policy p)"),
        ({"sharing": SLICED}, "shared by MPS", "it is offered time-sliced (policy p)"),
        (None, "shared by MPS", "it is offered exclusive"),
        ({"availability": "Hidden"}, "shared by MPS", "it is no longer offered (policy p)"),
    ],
)
def test_a_shared_gpu_keeps_its_strategy_until_the_last_share_is_gone(spec: Any, stays: str, then: str) -> None:
    """The daemon that the shares run under must not be taken away."""
    found = terms_in_use(spec, share(), share())
    assert found.sharing is not None
    assert (found.offered, found.whole, found.sharing.strategy) == (True, True, Strategy.MPS)
    assert found.waiting == f"the GPU stays {stays} until its last share is released; then {then}"
    assert drains(found)


@pytest.mark.parametrize("spec", [{"sharing": MPS}, {"sharing": SLICED}, {}, {"availability": "Hidden"}])
def test_terms_tell_that_shares_are_in_use(spec: dict[str, Any]) -> None:
    assert terms_in_use(spec, share()).shares_in_use
    assert terms_in_use(spec, all_of_a_shared_gpu()).shares_in_use
    assert not terms_in_use(spec, whole()).shares_in_use
    assert not terms_in_use(spec).shares_in_use


def test_a_time_slice_stays_while_shares_are_in_use() -> None:
    found = terms_in_use(
        {"sharing": SLICED | {"interval": "Short", "maxShares": 9}}, share(Strategy.TIME_SLICING, Interval.LONG)
    )
    assert found.sharing is not None
    assert (found.sharing.interval, found.sharing.max_shares) == (Interval.LONG, 9)
    assert "time-sliced with interval Long" in str(found.waiting)


def test_a_new_number_of_shares_counts_at_once() -> None:
    found = terms_in_use({"sharing": MPS | {"maxShares": 2}}, share())
    assert found.waiting is None
    assert found.sharing is not None
    assert found.sharing.max_shares == 2


def test_partitions_in_use_stay_and_the_rest_follows() -> None:
    found = terms_in_use({"forms": {"migProfiles": ["1g.10gb"]}}, partition(THREE_G, 4), partition(ONE_G, 0))
    kept = PartitionId(uuid(0), THREE_G, 4)
    assert found.kept == {kept}
    assert found.allows(kept)
    assert not found.allows(PartitionId(uuid(0), THREE_G, 0))
    assert found.waiting == (
        "MIG 3g.40gb at memory slice 4 stays until released; then the GPU is only what policy p allows"
    )
    assert not drains(found)


@pytest.mark.parametrize("spec", [{"forms": {"migProfiles": []}}, {"availability": "Hidden"}])
def test_when_nothing_else_is_left_to_offer_new_claims_are_kept_away(spec: dict[str, Any]) -> None:
    """One claim after another on the partition that is left would keep the GPU from ever becoming what it should."""
    found = terms_in_use(spec, partition(ONE_G, 3, made=False))
    assert found.kept == {PartitionId(uuid(0), ONE_G, 3)}
    assert found.offered
    assert drains(found)


def test_a_hidden_gpu_offers_no_more_than_the_partitions_in_use() -> None:
    found = terms_in_use({"availability": "Hidden"}, *(partition(ONE_G, start) for start in range(5)))
    assert (found.whole, found.profiles, len(found.kept)) == (False, frozenset(), 5)
    assert str(found.waiting).startswith("MIG 1g.10gb at memory slice 0, 1g.10gb at memory slice 1, 1g.10gb at memory")
    assert "and 2 more stay until released; then the GPU is no longer offered" in str(found.waiting)


def test_partitions_that_the_terms_allow_make_nothing_wait() -> None:
    """Terms stay the same value while claims come and go, so slices are not written again for it."""
    assert terms_in_use({}, partition(SEVEN_G)) == terms_in_use({})
    assert terms_in_use({"sharing": MPS}, partition(ONE_G)) == terms_in_use({"sharing": MPS})


def test_the_newest_reserve_applies_to_a_shared_gpu_at_once() -> None:
    found = terms_in_use(
        {"sharing": {**SLICED, "interval": "Long", "reservedMemory": "2Gi"}}, share(Strategy.TIME_SLICING)
    )
    assert found.sharing is not None
    assert (found.sharing.reserved_bytes, found.sharing.interval) == (2 * 2**30, Interval.DEFAULT)


def test_a_layout_names_the_only_placements_of_a_gpu() -> None:
    spec: dict[str, Any] = {"forms": {"whole": False}, "mig": {"layout": [{"profile": "1g.10gb", "count": 3}]}}
    terms = terms_of(resolve([policy(**spec)], node(1), (), NODE), uuid(0))
    assert terms.layout == frozenset({(ONE_G, 0), (ONE_G, 1), (ONE_G, 2)})
    allowed = [start for start in range(7) if terms.allows(PartitionId(uuid(0), ONE_G, start))]
    assert allowed == [0, 1, 2]
    assert not terms.allows(PartitionId(uuid(0), THREE_G, 0))
    kept = replace(terms, kept=frozenset({PartitionId(uuid(0), THREE_G, 4)}))
    assert kept.allows(PartitionId(uuid(0), THREE_G, 4)), "a partition in use stays"


@pytest.mark.parametrize(
    ("profile", "count", "why"),
    [("1g.10gb", 8, "do not fit"), ("3g.40gb", 3, "do not fit"), ("2g.20gb", 1, "has no profile 2g.20gb")],
)
def test_a_layout_that_does_not_fit_the_gpu_is_refused(profile: str, count: int, why: str) -> None:
    spec: dict[str, Any] = {"forms": {"whole": False}, "mig": {"layout": [{"profile": profile, "count": count}]}}
    with pytest.raises(ConfigurationError, match=rf"{count} x {profile} \(mig.layout\), but .*{why}"):
        resolve([policy(**spec)], node(1), (), NODE)


def test_layout_waits_for_profiles_reported_only_in_mig_mode() -> None:
    spec: dict[str, Any] = {"forms": {"whole": False}, "mig": {"layout": [{"profile": "1g.5gb", "count": 7}]}}
    off = Snapshot(gpus=(gpu(mig_profiles=(), mig_resetless=False),))
    assert terms_of(resolve([policy(**spec)], off, (), NODE), uuid(0)).layout == frozenset()


@pytest.mark.parametrize(
    ("forms", "mode"), [({"whole": False}, True), ({"migProfiles": []}, False)], ids=["partitions", "whole"]
)
def test_the_wanted_mig_mode_follows_the_forms(forms: dict[str, Any], mode: bool) -> None:
    found = policy(forms=forms, mig={"mode": "WhenFree"})
    assert terms_of(resolve([found], node(1), (), NODE), uuid(0)).mig_mode is mode
    assert terms_of(resolve([policy(forms=forms)], node(1), (), NODE), uuid(0)).mig_mode is None
    without = Snapshot(gpus=(gpu(mig_capable=False, mig_profiles=()),))
    assert terms_of(resolve([found], without, (), NODE), uuid(0)).mig_mode is None


MIG_MPS = MPS | {"migDevices": True}
PLACE = PartitionId(uuid(0), ONE_G, 0)


def part_of_share(strategy: Strategy = Strategy.MPS) -> Use:
    return replace(partition(ONE_G), sharing=SharingTerms(strategy=strategy))


def test_mig_devices_are_shared_only_where_the_policy_says_so() -> None:
    """The reserve and the time slice are of the whole GPU."""
    assert terms_in_use({"sharing": MPS}).partition_sharing is None
    more = {"migDevices": True, "interval": "Long", "reservedMemory": "1Gi", "maxShares": 3}
    found = terms_in_use({"sharing": SLICED | more}).partition_sharing
    assert found is not None
    assert (found.interval, found.reserved_bytes, found.max_shares) == (Interval.DEFAULT, None, 3)
    only = terms_in_use({"sharing": MIG_MPS, "forms": {"whole": False}})
    assert (only.whole, only.sharing, only.sharing_of(PLACE) is not None) == (False, None, True)


@pytest.mark.parametrize(
    ("spec", "then"),
    [
        ({}, "MIG devices are offered exclusive (policy p)"),
        (None, "MIG devices are offered exclusive"),
        ({"sharing": SLICED | {"migDevices": True}}, "MIG devices are offered time-sliced (policy p)"),
    ],
)
def test_shared_partition_keeps_its_strategy_until_released(spec: Any, then: str) -> None:
    found = terms_in_use(spec, part_of_share(), part_of_share())
    held = found.sharing_of(PLACE)
    assert held is not None
    assert held.strategy is Strategy.MPS
    assert found.sharing_of(PartitionId(uuid(0), ONE_G, 1)) == found.partition_sharing
    assert found.waiting == f"MIG 1g.10gb at memory slice 0 stays until released; then {then}"
    assert drains(found)


def test_exclusive_partition_in_use_stays_exclusive() -> None:
    """Its claim has no share: published as shared, the scheduler could not count it."""
    found = terms_in_use({"sharing": MIG_MPS}, partition(ONE_G))
    assert found.sharing_of(PLACE) is None
    assert found.sharing_of(PartitionId(uuid(0), ONE_G, 1)) is not None
    assert not drains(found)


@pytest.mark.parametrize("use", [part_of_share(), replace(partition(ONE_G), of_shared=True)])
def test_a_shared_partition_in_use_follows_the_newest_number_of_shares(use: Use) -> None:
    found = terms_in_use({"sharing": MIG_MPS | {"maxShares": 2}}, use)
    held = found.sharing_of(PLACE)
    assert held is not None
    assert (held.max_shares, found.waiting, drains(found)) == (2, None, False)
