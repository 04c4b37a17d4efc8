"""Capacities of partitions and whole GPUs."""

from msgspec.structs import replace

from dra_driver.core.quantity import Quantity
from dra_driver.kube.published import shares
from tests.fakes.dra_objects import wire
from tests.unit.node.slices.gpus import A100, mig_gpu


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
