"""What is in use stays until it is free, and says what waits for it."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import DEFAULT_TERMS, GpuTerms, Interval, Strategy, Use
from dra_driver.node.policy.resolve import DRAINING_TAINT, resolve
from tests.unit.node.policy.hardware import (
    NODE,
    ONE_G,
    SEVEN_G,
    THREE_G,
    node,
    partition,
    policy,
    share,
    uuid,
    whole,
)

MPS = {"strategy": "MPS"}
SLICED = {"strategy": "TimeSlicing"}


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


def test_a_free_gpu_follows_at_once() -> None:
    found = terms_in_use({"sharing": MPS})
    assert found.sharing is not None
    assert (found.waiting, found.kept, drains(found)) == (None, frozenset(), False)


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
    """The claim's pod goes on; the sentence says what comes when it ends, and no new claim takes the GPU before."""
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
    """Kept or wanted: without them the GPU would be published as exclusive when shares cannot be, and given away."""
    assert terms_in_use(spec, share()).shares_in_use
    assert terms_in_use(spec, all_of_a_shared_gpu()).shares_in_use
    assert not terms_in_use(spec, whole()).shares_in_use
    assert not terms_in_use(spec).shares_in_use


def test_a_time_slice_stays_while_shares_are_in_use() -> None:
    """It is set for the GPU as a whole, so a new one would be felt by the pods that run."""
    found = terms_in_use(
        {"sharing": SLICED | {"interval": "Short", "maxShares": 9}}, share(Strategy.TIME_SLICING, Interval.LONG)
    )
    assert found.sharing is not None
    assert (found.sharing.interval, found.sharing.max_shares) == (Interval.LONG, 9)
    assert "time-sliced with interval Long" in str(found.waiting)


def test_a_new_number_of_shares_counts_at_once() -> None:
    """Only the scheduler counts with it; present shares keep what they have."""
    found = terms_in_use({"sharing": MPS | {"maxShares": 2}}, share())
    assert found.waiting is None
    assert found.sharing is not None
    assert found.sharing.max_shares == 2


def test_partitions_in_use_stay_and_the_rest_follows() -> None:
    """Other partitions that the new terms allow can be had at once, so nothing is held back for it."""
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
    """Neither the whole GPU nor the memory slices between them."""
    found = terms_in_use({"availability": "Hidden"}, *(partition(ONE_G, start) for start in range(5)))
    assert (found.whole, found.profiles, len(found.kept)) == (False, frozenset(), 5)
    assert str(found.waiting).startswith("MIG 1g.10gb at memory slice 0, 1g.10gb at memory slice 1, 1g.10gb at memory")
    assert "and 2 more stay until released; then the GPU is no longer offered" in str(found.waiting)


def test_partitions_that_the_terms_allow_make_nothing_wait() -> None:
    """Terms stay the same value while claims come and go, so slices are not written again for it."""
    assert terms_in_use({}, partition(SEVEN_G)) == terms_in_use({})
    assert terms_in_use({"sharing": MPS}, partition(ONE_G)) == terms_in_use({"sharing": MPS})


def test_the_newest_reserve_applies_to_a_shared_gpu_at_once() -> None:
    """It changes no share that is allocated: only what is left for others."""
    found = terms_in_use(
        {"sharing": {**SLICED, "interval": "Long", "reservedMemory": "2Gi"}}, share(Strategy.TIME_SLICING)
    )
    assert found.sharing is not None
    assert (found.sharing.reserved_bytes, found.sharing.interval) == (2 * 2**30, Interval.DEFAULT)
