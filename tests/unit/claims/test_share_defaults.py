"""Compute of a claim that asks for a part of a shared GPU and not for compute, by policy."""

from tests.fakes.claims import claim, ref, share_result
from tests.unit.claims.conftest import ClaimsNode
from tests.unit.claims.sharing import file, shared


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
