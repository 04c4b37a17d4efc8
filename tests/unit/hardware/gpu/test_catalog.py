"""The catalogue's facts are consistent with each other, and its errors help to correct a name."""

from itertools import pairwise

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.catalog import GpuModel

MODELS = list(catalog.models().values())
MIG_MODELS = [model for model in MODELS if model.mig is not None]


def named(model: GpuModel) -> str:
    return model.key


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_model_is_complete_enough_to_be_simulated(model: GpuModel) -> None:
    """Only memory and SM count may be unknown."""
    assert model.key == model.key.lower()
    assert 1 <= len(model.product_name) <= 95
    assert 0 < model.pci_device_id <= 0xFFFF
    assert (7, 0) <= model.cuda_compute_capability <= (12, 9)
    assert model.memory_mib is None or 10_000 < model.memory_mib < 300_000


@pytest.mark.parametrize("model", MIG_MODELS, ids=named)
def test_every_placement_fits_the_board_and_no_profile_takes_more_than_the_whole(model: GpuModel) -> None:
    """A typing error in the tables would become an impossible device in the API."""
    table = model.mig
    assert table is not None
    for profile in table.profiles:
        assert all(start + profile.memory_slices <= table.memory_slices for start in profile.starts), profile.name
        assert profile.compute_slices <= table.compute_slices
        assert profile.max_instances <= len(profile.starts)
        assert profile.memory_mib is None or model.memory_mib is None or profile.memory_mib <= model.memory_mib
        assert profile.multiprocessors is None or profile.multiprocessors <= (model.multiprocessors or 0)
    assert len({profile.profile_id for profile in table.profiles}) == len(table.profiles)
    assert len({profile.enum for profile in table.profiles}) == len(table.profiles)
    assert len({profile.name for profile in table.profiles}) == len(table.profiles)


@pytest.mark.parametrize("model", MIG_MODELS, ids=named)
def test_a_larger_profile_never_has_less(model: GpuModel) -> None:
    """Swapped rows would be noticed."""
    assert model.mig is not None
    plain = [profile for profile in model.mig.profiles if "+" not in profile.name and "-" not in profile.name]
    for smaller, larger in pairwise(plain):
        assert (smaller.compute_slices, smaller.memory_slices) < (larger.compute_slices, larger.memory_slices)
        assert (smaller.memory_mib or 0) <= (larger.memory_mib or 10**9)


@pytest.mark.parametrize(
    ("wrong", "offered"),
    [
        ("h100", "h100-nvl-94gb or h100-pcie-80gb or h100-sxm5-80gb"),
        ("a100-sxm-40gb", "a100-sxm4-40gb"),
        ("H200-SXM-141GB", "h200-sxm-141gb"),
        ("zzz", "known are a10-24gb"),
        ("", "known are a10-24gb"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_names(wrong: str, offered: str) -> None:
    """Users confuse sxm4 and sxm5."""
    with pytest.raises(ConfigurationError) as caught:
        catalog.model(wrong)
    assert offered in str(caught.value)


def test_broken_yaml_is_a_configuration_error_on_one_line() -> None:
    """The message ends up in an event."""
    with pytest.raises(ConfigurationError) as caught:
        catalog.load_yaml("a: [1\nb: {")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="not valid YAML: line 1: nested more than 100 levels deep"):
        catalog.load_yaml("[" * 60_000)
