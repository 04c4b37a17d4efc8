"""Consumable capacities and the driver's limits are valid for the API server."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DefaultShareTerms, SharingTerms, Strategy
from dra_driver.core.quantity import Quantity
from dra_driver.kube.published import limits, shares
from dra_driver.kube.published.shares import MIB
from dra_driver.sim.apiserver.rules.slices import device_problems
from tests.fakes.dra_objects import wire
from tests.unit.node.slices.gpus import A100, mig_gpu


def terms(
    max_shares: int | None = None,
    default_percent: int = 100,
    reserved: int | None = None,
    strategy: Strategy = Strategy.MPS,
    share: DefaultShareTerms | None = None,
) -> SharingTerms:
    return SharingTerms(
        strategy=strategy,
        max_shares=max_shares,
        default_percent=default_percent,
        reserved_bytes=reserved,
        default_share=share,
    )


def gpu(memory: int | None, reserved: int | None = None) -> Gpu:
    return Gpu(uuid=GpuUuid("GPU-1"), minor=0, memory_bytes=memory, reserved_bytes=reserved)


def memory_of(one: Gpu, sharing: SharingTerms) -> str:
    return str(shares.capacity_of(one, sharing)["memory"].value)


SHARES = st.builds(DefaultShareTerms, parts=st.integers(2, 100)) | st.builds(
    DefaultShareTerms, memory_bytes=st.integers(MIB, 2**60), percent=st.none() | st.integers(0, 100)
)


@given(
    st.none() | st.integers(0, 2**40),
    st.none() | st.integers(0, 2**40),
    st.none() | st.integers(0, 2**60),
    st.none() | st.integers(-1, 200),
    st.integers(0, 100) | SHARES,
)
def test_policies_are_valid_for_any_memory_and_any_number_of_shares(
    memory: int | None, reserved: int | None, left_out: int | None, count: int | None, default: int | DefaultShareTerms
) -> None:
    """A step that does not divide the range would make the slice invalid; so would a reserve above the memory."""
    percent, share = (default, None) if isinstance(default, int) else (100, default)
    sharing = terms(count, percent, left_out, share=share)
    capacity = wire(shares.capacity_of(gpu(memory, reserved), sharing))
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": capacity}
    assert device_problems(device, None, "devices[0]", per_device=False) == []


def test_memory_and_compute_default_to_all_of_it() -> None:
    found = wire(shares.capacity_of(gpu(81559 * MIB + 5), terms(3, reserved=0)))
    assert found["memory"] == {
        "value": "81559Mi",
        "requestPolicy": {"default": "81559Mi", "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"}},
    }
    assert found["computePercent"]["requestPolicy"]["default"] == "100"
    assert found["shares"] == {"value": "3", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}


def test_claims_for_memory_alone_can_share_a_gpu_if_the_policy_allows() -> None:
    """Otherwise the first of them takes all compute, and the second stays Pending."""
    assert wire(shares.capacity_of(gpu(2**30), terms(default_percent=0))["computePercent"]) == {
        "value": "100",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
    }


@pytest.mark.parametrize(
    ("share", "memory", "percent"),
    [
        (DefaultShareTerms(parts=8), "1862Mi", "12"),
        (DefaultShareTerms(memory_bytes=2**31), "2Gi", "13"),
        (DefaultShareTerms(memory_bytes=2**31 + 1, percent=0), "2049Mi", "0"),
        (DefaultShareTerms(memory_bytes=2**50), "14903Mi", "100"),
    ],
)
def test_a_default_share_is_every_default(share: DefaultShareTerms, memory: str, percent: str) -> None:
    """A claim takes all of a capacity without a default, and no second claim would fit. The GPU is a T4."""
    found = wire(shares.capacity_of(gpu(15360 * MIB, 393 * MIB), terms(8, share=share)))
    assert {name: each["requestPolicy"]["default"] for name, each in found.items()} == {
        "memory": memory,
        "computePercent": percent,
        "shares": "1",
    }


@pytest.mark.parametrize(("percent", "expected"), [(25, "25"), (0, "100"), (None, "100")])
def test_without_memory_the_default_share_has_compute(percent: int | None, expected: str) -> None:
    share = DefaultShareTerms(memory_bytes=2**30, percent=percent)
    assert (
        wire(shares.capacity_of(gpu(None), terms(share=share)))["computePercent"]["requestPolicy"]["default"]
        == expected
    )


def test_on_unified_memory_only_compute_is_shared() -> None:
    found = wire(shares.capacity_of(gpu(None), terms(default_percent=0)))
    assert set(found) == {"computePercent"}
    assert found["computePercent"]["requestPolicy"]["default"] == "100", "a plain claim still gets it alone"


@pytest.mark.parametrize(
    ("strategy", "published"), [(Strategy.TIME_SLICING, "81008Mi"), (Strategy.MPS, "80944Mi")], ids=str
)
def test_what_the_driver_keeps_is_left_out_and_under_mps_what_its_server_needs(
    strategy: Strategy, published: str
) -> None:
    """Shares that add up to NVML's total run out of memory below their own limits."""
    assert memory_of(gpu(81559 * MIB, 551 * MIB), terms(strategy=strategy)) == published


@pytest.mark.parametrize(("reserved", "published"), [(0, "81559Mi"), (1, "81558Mi"), (2**30, "80535Mi")])
def test_a_policy_says_how_much_is_left_out(reserved: int, published: str) -> None:
    assert memory_of(gpu(81559 * MIB, 551 * MIB), terms(reserved=reserved)) == published


@pytest.mark.parametrize(("mib", "published"), [(4096, 4096 - 256), (20000, 20000 - 600), (81920, 81920 - 1024)])
def test_the_drivers_part_is_estimated_where_nvml_does_not_report_it(mib: int, published: int) -> None:
    """Drivers before R510: 3 percent, at least 256Mi and at most 1Gi."""
    assert memory_of(gpu(mib * MIB), terms(strategy=Strategy.TIME_SLICING)) == str(Quantity.from_bytes(published * MIB))


def test_an_estimate_leaves_at_least_half() -> None:
    assert memory_of(gpu(300 * MIB), terms()) == "150Mi"


def test_capacities_are_nvidias() -> None:
    """Selectors like device.capacity['gpu.nvidia.com'].memory depend on them."""
    profile = mig_gpu(A100).profile(19)
    assert profile is not None
    assert wire(shares.of_profile(profile)) == {
        "multiprocessors": {"value": "14"}, "copyEngines": {"value": "1"}, "decoders": {"value": "0"},
        "encoders": {"value": "0"}, "jpegEngines": {"value": "0"}, "ofaEngines": {"value": "0"},
        "memory": {"value": "4864Mi"},
    }  # fmt: skip
    assert Quantity.parse("4864Mi").as_int() == profile.memory_bytes
    assert "multiprocessors" not in shares.of_profile(replace(profile, multiprocessors=None))


NAMES = st.text(max_size=70) | st.from_regex(r"([a-z.-]{1,70}/)?[A-Za-z0-9_-]{1,34}", fullmatch=True)


@given(NAMES)
@example("//")
@example("a.example/b/c")
def test_attribute_names_are_judged_as_the_api_server_does(name: str) -> None:
    """A name that only the driver accepts would make the slice invalid.

    The driver refuses a name with two slashes, which the API server accepts through a gap in its validation.
    """
    device = {"name": "gpu-0", "attributes": {name: {"int": 1}}}
    accepted = device_problems(device, None, "d", per_device=False) == []
    assert limits.is_attribute_name(name) == (accepted and name.count("/") < 2)


@given(NAMES, st.text(max_size=70) | st.from_regex(r"[A-Za-z0-9_.-]{0,66}", fullmatch=True))
def test_taints_are_judged_as_the_api_server_does(key: str, value: str) -> None:
    device = {"name": "gpu-0", "taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}
    assert limits.is_taint(key, value) == (device_problems(device, None, "d", per_device=False) == [])


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("é" * 32, True),
        ("é" * 33, False),
        ("\ud800", False),
        (2**63 - 1, True),
        (2**63, False),
        (True, True),
        (1.5, False),
    ],
)
def test_values_are_text_of_64_bytes_numbers_of_64_bits_or_booleans(value: object, fits: bool) -> None:
    assert limits.is_attribute_value(value) == fits
