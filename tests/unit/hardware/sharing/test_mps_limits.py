"""MPS limits of claims as limits of a daemon."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config.device_config import MpsLimits
from dra_driver.core.errors import InvalidParametersError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.hardware.sharing import mps

UID = ClaimUid("0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e")
G1, G2 = (GpuUuid(f"GPU-00000000-0000-0000-0000-00000000000{number}") for number in (1, 2))
M1 = "MIG-00000000-0000-0000-0000-000000000001"


def limits(**changes: Any) -> MpsLimits:
    return MpsLimits(**changes)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("2Gi", 2048),
        ("10M", 9),
        ("1G", 953),
        ("1Mi", 1),
        ("1048576", 1),
        ("1.5Gi", 1536),
        ("2097151", 1),
        ("1e10", 9536),
    ],
)
def test_memory_is_whole_mebibytes_rounded_down(text: str, mib: int) -> None:
    """The values of NVIDIA's driver for the same words (`Megabyte` in sharing.go)."""
    assert mps.whole_mib(text, "f") == mib


@pytest.mark.parametrize("text", ["0", "1048575", "-1Gi", "1M", "lots", "", "1e300", "17Ti"])
def test_memory_that_no_daemon_could_be_told_names_its_field(text: str) -> None:
    with pytest.raises(InvalidParametersError, match=r"^sharing\.x: "):
        mps.whole_mib(text, "sharing.x")


@given(st.integers(2**20, 2**40))
def test_a_limit_is_never_more_than_was_asked_for(count: int) -> None:
    mib = mps.whole_mib(str(count), "f")
    assert mib * 2**20 <= count < (mib + 1) * 2**20


def test_the_default_is_for_all_and_what_is_said_for_one_goes_before_it() -> None:
    daemon = mps.group_daemon(
        UID,
        gpus=(G2, G1),
        partitions=(),
        limits=limits(default_percentage=50, default_memory="10Gi", per_device={"1": "4Gi"}),
    )
    assert daemon.devices == daemon.gpus == (G1, G2)
    assert daemon.default_percentage == 50
    assert daemon.memory_limits == {G1: 10240, G2: 4096}


def test_a_device_is_named_by_position_in_the_sorted_list_or_by_uuid() -> None:
    assert mps.memory_limits(limits(per_device={"0": "1Gi", G2: "2Gi"}), (G1, G2)) == {G1: 1024, G2: 2048}


def test_partitions_have_limits_and_no_compute_mode() -> None:
    daemon = mps.group_daemon(UID, gpus=(), partitions=(M1,), limits=limits(per_device={M1: "1Gi"}))
    assert (daemon.devices, daemon.gpus, daemon.memory_limits) == ((M1,), (), {M1: 1024})


@pytest.mark.parametrize("key", ["2", "-1", "1.0", "", "GPU-1", "٠", "0x0", "9" * 5000])
def test_a_key_that_names_nothing_says_what_would(key: str) -> None:
    with pytest.raises(
        InvalidParametersError, match=f"names no device of this config: .* 0 to 1, or one of {G1}"
    ) as told:
        mps.memory_limits(limits(per_device={key: "1Gi"}), (G1, G2))
    assert len(str(told.value)) < 400


def test_two_limits_for_one_device_are_a_contradiction() -> None:
    """NVIDIA's driver takes either, at random."""
    with pytest.raises(InvalidParametersError, match=f"'0' and '{G1}' both name {G1}, with 1024Mi and 2048Mi"):
        mps.memory_limits(limits(per_device={"0": "1Gi", G1: "2Gi"}), (G1,))
    assert mps.memory_limits(limits(per_device={"0": "1Gi", G1: "1Gi"}), (G1,)) == {G1: 1024}


def test_each_group_of_a_claim_has_a_daemon_of_its_own() -> None:
    one, two = mps.group_daemon_id(UID, [G1]), mps.group_daemon_id(UID, [G2])
    assert one != two
    assert one.startswith(UID)
    assert mps.group_daemon_id(UID, [G1, G2]) == mps.group_daemon_id(UID, [G2, G1])


def test_a_shared_gpu_has_one_daemon_without_limits_of_its_own() -> None:
    daemon = mps.shared_gpu_daemon(G1)
    assert (daemon.id, daemon.devices, daemon.gpus) == (G1, (G1,), (G1,))
    assert (daemon.default_percentage, dict(daemon.memory_limits)) == (None, {})
