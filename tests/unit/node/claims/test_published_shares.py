"""Planning reads consumed capacities as `published.shares` publishes them."""

import pytest
from msgspec.structs import replace

from dra_driver.core.model.claim import AllocatedDevice
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.kube.published.shares import MIB, capacity_of
from dra_driver.node.claims.planning.sharing_plan import share_of
from tests.fakes.claims import gpu, ref, result
from tests.fakes.dra_objects import wire
from tests.fakes.stand_in import present

MEMORIES = (None, 0, MIB, 2 * MIB - 1, 2 * MIB, 80 * 2**30 + 5)
SHARE = "aaaaaaaa-0000-0000-0000-000000000000"


def terms(default_percent: int) -> GpuTerms:
    return GpuTerms(policy="p", sharing=SharingTerms(strategy=Strategy.MPS, default_percent=default_percent))


def consumed(one: Gpu, default_percent: int, **asked: str) -> AllocatedDevice:
    """What the scheduler writes for a claim that asks for ``asked``: the published defaults elsewhere."""
    sharing = present(terms(default_percent).sharing)
    published = capacity_of(one, sharing)
    amounts = {name: asked.get(name, wire(each)["requestPolicy"]["default"]) for name, each in published.items()}
    return replace(result(), share_id=SHARE, consumed_capacity=amounts)


@pytest.mark.parametrize("default_percent", [0, 10, 100])
@pytest.mark.parametrize("memory_bytes", MEMORIES)
def test_claim_that_asks_for_no_amount_gets_the_gpu_alone(memory_bytes: int | None, default_percent: int) -> None:
    """Whatever the policy's default of compute is, and also on a GPU without memory of its own."""
    one = replace(gpu(0), memory_bytes=memory_bytes)
    assert share_of(ref(1), consumed(one, default_percent), one, terms(default_percent)) is None


@pytest.mark.parametrize("memory_bytes", MEMORIES)
def test_claim_that_asks_for_less_compute_than_its_default_has_a_share(memory_bytes: int | None) -> None:
    """On a GPU without published memory the default is 100, so 10 percent is a share there too."""
    one = replace(gpu(0), memory_bytes=memory_bytes)
    share = present(share_of(ref(1), consumed(one, 10, computePercent="5"), one, terms(10)))
    assert share.percent == 5
    if memory_bytes is None or memory_bytes < 2 * MIB:
        assert share_of(ref(1), consumed(one, 10, computePercent="10"), one, terms(10)) is not None
