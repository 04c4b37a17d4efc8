"""Allocations of shares that cannot be right: refused at once, with what would be valid."""

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ClaimError
from dra_driver.core.model.terms import Strategy
from dra_driver.kube.published import ALL_PERCENT
from tests.fakes.claims import claim, share_result
from tests.unit.node.claims.conftest import ClaimsNode
from tests.unit.node.claims.sharing import one_of_some, shared


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        ([("200Gi", 10)], "asks for 200Gi of memory where 81559Mi of 81559Mi are left"),
        ([("60Gi", 30), ("60Gi", 30)], "asks for 60Gi of memory where 20119Mi of 81559Mi are left"),
        ([("1Gi", 60), ("1Gi", 60)], f"asks for 60 percent of compute where 40 of {ALL_PERCENT} are left"),
        ([("1Gi", 1)] * 3, "asks for 1 of 2 shares where 0 are left"),
    ],
)
def test_a_claim_that_never_fits_is_refused_at_once(node: ClaimsNode, shares: list[tuple[str, int]], why: str) -> None:
    """Waiting for other shares to end would occupy a worker for most of a call, and blame other claims."""
    run = shared(node, Strategy.TIME_SLICING, max_shares=2)
    run.prepare(claim(1, one_of_some(1)))
    asked = [one_of_some(at, *share, request=f"r-{at}") for at, share in enumerate(shares, 2)]
    error = run.refusal(claim(2, *asked))
    assert isinstance(error, ClaimError)
    assert f"has a share of gpu-0 that {why}, its own shares alone counted" in str(error)
    assert node.clock.waits == []


@pytest.mark.parametrize(
    ("capacity", "amount", "why"),
    [
        ("memory", "-5Gi", "memory is -5Gi, expected at least 1 and less than 8Ei"),
        ("memory", "9e999", "memory is 9e999, expected at least 1 and less than 8Ei"),
        ("memory", "100", "memory is 100 bytes, expected at least 1Mi"),
        ("memory", "...", "memory: '...' is not a quantity"),
        ("computePercent", "101", "computePercent is 101, expected 0 to 100"),
        ("shares", "0", "shares is 0, expected at least 1"),
    ],
)
def test_amounts_that_no_scheduler_wrote_are_refused_with_the_valid_range(
    node: ClaimsNode, capacity: str, amount: str, why: str
) -> None:
    """They would get into containers' environments and into sums with other claims' amounts."""
    run = shared(node, max_shares=4)
    share = share_result(1, "5Gi", 10)
    broken = replace(share, consumed_capacity={**share.consumed_capacity, capacity: amount})
    error = run.refusal(claim(1, broken))
    assert isinstance(error, ClaimError)
    assert f"consumed capacity of gpu-0: {why}" in str(error)
    assert node.is_whole_again()
