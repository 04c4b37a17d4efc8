"""Compute of a claim that asks for a part of a shared GPU and not for compute, by policy."""

import pytest

from tests.fakes.claims import claim, ref, share_result
from tests.unit.node.claims.conftest import ClaimsNode
from tests.unit.node.claims.sharing import file, shared


def test_shares_of_memory_alone_share_a_gpu_without_a_limit_of_compute(node: ClaimsNode) -> None:
    """Under a policy by which a claim that asks for no compute consumes none."""
    run = shared(node, default_percent=0)
    for number in (1, 2):
        run.prepare(claim(number, share_result(number, "12Gi", 0)))
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=12288M" in file(run, number)
        assert "ACTIVE_THREAD_PERCENTAGE" not in file(run, number)


def test_a_plain_claim_gets_the_gpu_alone_whatever_the_default_of_compute(node: ClaimsNode) -> None:
    """It asks for nothing and has neither daemon nor limits; a claim that asks for a part gets that part."""
    run = shared(node, default_percent=10)
    run.prepare(claim(1, share_result(1, "81559Mi", 10)))
    assert "CUDA_MPS" not in file(run, 1)
    run.unprepare(ref(1))
    run.prepare(claim(2, share_result(2, "81559Mi", 25)))
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in file(run, 2)


def test_shares_that_were_allocated_before_there_was_a_reserve_are_prepared(node: ClaimsNode) -> None:
    """An earlier version published all of the memory: their sum is more than what is published now."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "41559Mi", 50)))
    run.prepare(claim(2, share_result(2, "40000Mi", 50)))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=40000M" in file(run, 2)


def test_a_share_of_nearly_all_memory_from_before_the_reserve_leaves_the_rest_to_its_neighbour(
    node: ClaimsNode,
) -> None:
    """More than is published now is not everything: as a claim for the whole GPU it would conflict."""
    run = shared(node, default_percent=0)
    run.prepare(claim(1, share_result(1, "500Mi", 0)))
    run.prepare(claim(2, share_result(2, "81000Mi", 0)))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=81000M" in file(run, 2)


@pytest.mark.parametrize("memory", ["80944Mi", "81559Mi"], ids=["published", "before the reserve"])
def test_all_that_is_published_is_the_gpu_alone(node: ClaimsNode, memory: str) -> None:
    """81559Mi less 551Mi that the driver keeps and 64Mi for the MPS server; or all of it, from an earlier version."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, memory, 100)))
    assert "CUDA_MPS" not in file(run, 1)


def test_a_claim_for_all_is_prepared_also_when_the_policy_is_gone_meanwhile(node: ClaimsNode) -> None:
    """What it consumed was all that was published when it was allocated."""
    run = shared(node)
    node.terms = {}
    run.prepare(claim(1, share_result(1, "80944Mi", 100)))
    assert "CUDA_MPS" not in file(run, 1)
