"""Claims share a GPU by its policy: amounts, defaults, refusals, and consumed capacities as they are published."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ClaimError, DeviceInUseError, InvalidParametersError
from dra_driver.core.model.claim import AllocatedDevice
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.terms import DefaultShareTerms, Form, GpuTerms, Interval, SharingTerms, Strategy
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.kube.published import ALL_PERCENT
from dra_driver.kube.published.shares import MIB, capacity_of
from dra_driver.node.claims.planning.sharing_plan import share_of
from tests.fakes.claims import CONTROL_PROGRAM, claim, gpu, ref, result, share_result
from tests.fakes.dra_objects import wire
from tests.fakes.stand_in import present
from tests.unit.node.claims.conftest import (
    ClaimsNode,
    Run,
    config,
    file,
    mode,
    mps,
    one_of_some,
    shared,
    simulated,
    slicing,
    uuid,
)


@pytest.fixture
def run(node: ClaimsNode) -> Run:
    """Of a node whose first GPU is shared by MPS."""
    return shared(node)


def test_three_mps_shares_get_their_limits_and_one_daemon(node: ClaimsNode, run: Run) -> None:
    for number, (gib, percent) in enumerate(((10, 20), (20, 30), (30, 50)), 1):
        answer = run.prepare(claim(number, share_result(number, f"{gib}Gi", percent)))
        assert answer[0].share_id == share_result(number, "1Gi", 1).share_id
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={gib * 1024}M" in file(run, number)
        assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}" in file(run, number)
        assert f"/mps/{uuid(run, 0)}/pipe" in file(run, number)
    assert list(node.sharing.running) == [uuid(run, 0)]
    assert mode(run) is ComputeMode.EXCLUSIVE_PROCESS
    for number in (2, 1):
        assert run.unprepare(ref(number)) is None
        assert not node.sharing.idle
    assert run.unprepare(ref(3)) is None
    assert node.is_whole_again()
    assert mode(run) is ComputeMode.DEFAULT


@pytest.mark.parametrize("strategy", list(Strategy))
def test_containers_that_share_a_gpu_by_policy_have_no_control_program(node: ClaimsNode, strategy: Strategy) -> None:
    """Root among them could change the limits of all others."""
    run = shared(node, strategy)
    run.prepare(claim(1, share_result(1, "10Gi", 20)))
    assert CONTROL_PROGRAM in file(run, 1)
    assert '"hostPath":"/mask"' in file(run, 1).replace(" ", "")


def test_containers_with_a_gpu_or_mps_of_their_own_have_the_control_program(run: Run) -> None:
    """They may run a daemon of their own, or look after that of their claim: no other claim is concerned."""
    run.prepare(claim(1, result("gpu-0", share_id="x"), name="all-of-a-shared-one"))
    run.prepare(claim(2, result("gpu-1"), configs=[config("GpuConfig", mps())]))
    assert "/pipe" in file(run, 2)
    assert CONTROL_PROGRAM not in file(run, 1) + file(run, 2)


def test_a_share_that_does_not_fit_is_refused_with_numbers(run: Run) -> None:
    run.prepare(claim(1, share_result(1, "60Gi", 30), name="train"))
    error = run.refusal(claim(2, share_result(2, "30Gi", 30)))
    assert isinstance(error, DeviceInUseError)
    assert "requests 30Gi of memory where 20119Mi of 81559Mi are left" in str(error)
    assert "claim default/train" in str(error)
    error = run.refusal(claim(3, share_result(3, "10Gi", 71)))
    assert f"requests 71 percent of compute where 70 of {ALL_PERCENT} are left" in str(error)
    run.prepare(claim(4, share_result(4, "10Gi", 70)))


def test_shares_from_before_the_limit_do_not_count_against_it(node: ClaimsNode) -> None:
    """They consumed none of it, so the scheduler allocates as many beside them: the node must not refuse those pods."""
    run = shared(node, Strategy.TIME_SLICING)
    for number in (1, 2, 3):
        run.prepare(claim(number, share_result(number, "1Gi", 1)))
    node.terms = {uuid(run, 0): GpuTerms(sharing=SharingTerms(strategy=Strategy.TIME_SLICING, max_shares=1))}
    run.prepare(claim(4, one_of_some(4)))
    run.prepare(claim(5, share_result(5, "1Gi", 1)))  # allocated before, prepared after
    assert "requests 1 of 1 shares where 0 are left" in str(run.refusal(claim(6, one_of_some(6))))


def test_admin_access_to_the_claims_own_device_is_one_cdi_device(node: ClaimsNode) -> None:
    node.backend = simulated()
    run = node.run()
    watched = result("gpu-0", request="watch", admin_access=True)
    asked = [config("GpuConfig", mps(defaultActiveThreadPercentage=10), "work")]
    answer = run.prepare(claim(1, watched, result("gpu-0", request="work"), configs=asked))
    assert answer[0].cdi_device_ids == answer[1].cdi_device_ids
    assert file(run, 1).count("CUDA_MPS_PIPE_DIRECTORY") == 1
    assert run.prepare(ref(1)) == answer
    assert run.unprepare(ref(1)) is None
    assert node.is_whole_again()


def test_a_claim_that_consumed_everything_has_the_gpu_alone(node: ClaimsNode, run: Run) -> None:
    run.prepare(claim(1, share_result(1, "81559Mi", 100), configs=[config("GpuConfig", slicing("Long"))]))
    assert node.sharing.running == {}
    assert node.sharing.slices == {uuid(run, 0): Interval.LONG}
    assert run.journal.uses()[0].form is Form.WHOLE
    assert isinstance(run.refusal(claim(2, share_result(2, "1Gi", 1))), DeviceInUseError)
    assert run.unprepare(ref(1)) is None
    assert node.is_whole_again()


def test_time_sliced_shares_keep_their_interval_until_the_last_one_goes(node: ClaimsNode) -> None:
    run = shared(node, Strategy.TIME_SLICING, interval=Interval.SHORT)
    for number in (1, 2):
        run.prepare(claim(number, share_result(number, "10Gi", 40)))
        assert "CUDA_MPS" not in file(run, number)
    assert node.sharing.slices == {uuid(run, 0): Interval.SHORT}
    assert run.unprepare(ref(1)) is None
    assert node.sharing.slices == {uuid(run, 0): Interval.SHORT}
    assert node.sharing.asked == ["slice Short"], "once is enough"
    assert run.unprepare(ref(2)) is None
    assert node.is_whole_again()


def test_another_strategy_waits_until_the_gpu_is_free(node: ClaimsNode, run: Run) -> None:
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    node.terms = {uuid(run, 0): GpuTerms(sharing=SharingTerms(strategy=Strategy.TIME_SLICING))}
    assert isinstance(run.refusal(claim(2, share_result(2, "10Gi", 10))), DeviceInUseError)
    assert run.unprepare(ref(1)) is None
    run.prepare(claim(2, share_result(2, "10Gi", 10)))


@pytest.mark.parametrize(
    ("sharing", "why"),
    [
        (slicing("Default"), "requests TimeSlicing, but the node's policy shares that device by MPS"),
        (mps(defaultActiveThreadPercentage=10), "sets MPS limits, but a share's limits are the memory"),
    ],
)
def test_a_config_that_contradicts_the_policy_of_a_share_is_refused(sharing: Any, why: str, run: Run) -> None:
    """Otherwise this claim's config would apply to other claims' containers."""
    error = run.refusal(claim(1, share_result(1, "10Gi", 10), configs=[config("GpuConfig", sharing)]))
    assert isinstance(error, InvalidParametersError)
    assert why in str(error)


def test_another_interval_than_the_policys_is_refused(node: ClaimsNode) -> None:
    run = shared(node, Strategy.TIME_SLICING, interval=Interval.SHORT)
    for interval in ("Short", "Default"):
        configs = [config("GpuConfig", slicing(interval))]
        run.prepare(claim(1, share_result(1, "10Gi", 10), configs=configs))
        assert run.unprepare(ref(1)) is None
    error = run.refusal(claim(2, share_result(2, "10Gi", 10), configs=[config("GpuConfig", slicing("Long"))]))
    assert error.reason == "SharingConflict"
    assert all(name in str(error) for name in ("interval", "Long", "Short"))


def test_a_share_of_a_gpu_that_is_not_shared_any_more_is_refused(node: ClaimsNode, run: Run) -> None:
    node.terms = {}
    error = run.refusal(claim(1, share_result(1, "10Gi", 10)))
    assert error.reason == "GpuNotShared"


def test_two_mps_shares_in_one_claim_are_refused(run: Run) -> None:
    """A container has one pipe directory, so one share would not be used."""
    error = run.refusal(claim(1, share_result(1, "10Gi", 10), share_result(2, "10Gi", 10, request="b")))
    assert "has 2 MPS shares" in str(error)


def test_shares_of_memory_alone_share_a_gpu_without_a_limit_of_compute(node: ClaimsNode) -> None:
    run = shared(node, default_percent=0)
    for number in (1, 2):
        run.prepare(claim(number, share_result(number, "12Gi", 0)))
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=12288M" in file(run, number)
        assert "ACTIVE_THREAD_PERCENTAGE" not in file(run, number)


def test_a_share_of_nearly_all_memory_from_before_the_reserve_leaves_the_rest_to_its_neighbour(
    node: ClaimsNode,
) -> None:
    """More than is published now is not everything: as a claim for the whole GPU it would conflict."""
    run = shared(node, default_percent=0)
    run.prepare(claim(1, share_result(1, "500Mi", 0)))
    run.prepare(claim(2, share_result(2, "81000Mi", 0)))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=81000M" in file(run, 2)


def test_a_claim_for_all_is_prepared_also_when_the_policy_is_gone_meanwhile(node: ClaimsNode) -> None:
    run = shared(node)
    node.terms = {}
    run.prepare(claim(1, share_result(1, "80944Mi", 100)))
    assert "CUDA_MPS" not in file(run, 1)


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        ([("200Gi", 10)], "requests 200Gi of memory where 81559Mi of 81559Mi are left"),
        ([("60Gi", 30), ("60Gi", 30)], "requests 60Gi of memory where 20119Mi of 81559Mi are left"),
        ([("1Gi", 60), ("1Gi", 60)], f"requests 60 percent of compute where 40 of {ALL_PERCENT} are left"),
        ([("1Gi", 1)] * 3, "requests 1 of 2 shares where 0 are left"),
    ],
)
def test_a_claim_that_never_fits_is_refused_at_once(node: ClaimsNode, shares: list[tuple[str, int]], why: str) -> None:
    """Waiting for other shares to end would occupy a worker for most of a call, and blame other claims."""
    run = shared(node, Strategy.TIME_SLICING, max_shares=2)
    run.prepare(claim(1, one_of_some(1)))
    asked = [one_of_some(at, *share, request=f"r-{at}") for at, share in enumerate(shares, 2)]
    error = run.refusal(claim(2, *asked))
    assert isinstance(error, ClaimError)
    assert f"has a share of gpu-0 that {why}, counting only its own shares" in str(error)
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
def test_claim_without_amounts_has_the_default_share(memory_bytes: int | None) -> None:
    """Also on a GPU without published memory: several such claims have it at the same time."""
    one = replace(gpu(0), memory_bytes=memory_bytes)
    sharing = SharingTerms(strategy=Strategy.MPS, default_share=DefaultShareTerms(parts=4))
    amounts = {name: wire(each)["requestPolicy"]["default"] for name, each in capacity_of(one, sharing).items()}
    given = replace(result(), share_id=SHARE, consumed_capacity=amounts)
    share = present(share_of(ref(1), given, one, GpuTerms(policy="p", sharing=sharing)))
    assert share.percent == 25


@pytest.mark.parametrize("memory_bytes", MEMORIES)
def test_claim_that_asks_for_less_compute_than_its_default_has_a_share(memory_bytes: int | None) -> None:
    """On a GPU without published memory the default is 100, so 10 percent is a share there too."""
    one = replace(gpu(0), memory_bytes=memory_bytes)
    share = present(share_of(ref(1), consumed(one, 10, computePercent="5"), one, terms(10)))
    assert share.percent == 5
    if memory_bytes is None or memory_bytes < 2 * MIB:
        assert share_of(ref(1), consumed(one, 10, computePercent="10"), one, terms(10)) is not None
