"""Catalog devices must be what the driver would publish, or lint would talk about other devices."""

from dataclasses import replace

import pytest

from dra_driver.cel import compile_selector
from dra_driver.gpu import catalog
from dra_driver.gpu.simulated_spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.lint.catalog_devices import OPTIONAL, VARYING, catalog_devices
from dra_driver.lint.scope import WELL_KNOWN
from dra_driver.model.gpu import Snapshot
from dra_driver.slices.build import build_devices


@pytest.mark.parametrize("key", list(catalog.models()))
def test_whole_gpus_are_as_slices_publish_them(key: str) -> None:
    """Attribute by attribute; lint cannot import the room that publishes."""
    gpu = replace(invent(catalog.model(key), 0, "catalog"), mig_enabled=False)
    snapshot = Snapshot(driver_version=DEFAULT_DRIVER_VERSION, cuda_driver_version=DEFAULT_CUDA_VERSION, gpus=(gpu,))
    published = build_devices(snapshot).devices[0]
    found = next(d for d in catalog_devices() if d.model == key and d.wire["attributes"]["type"]["string"] == "gpu")
    attributes = dict(found.wire["attributes"])
    if "addressingMode" not in published["attributes"]:
        del attributes["addressingMode"]
    assert attributes == published["attributes"]
    assert found.wire["capacity"] == published.get("capacity", {})


def test_every_model_and_every_mig_profile_is_there() -> None:
    profiles = sum(len(model.mig.profiles) if model.mig else 0 for model in catalog.models().values())
    real = [device for device in catalog_devices() if not device.bare]
    assert len(real) == len(catalog.models()) + profiles
    assert len({device.label for device in real}) == len(real)


def test_well_known_classes_divide_them_by_type() -> None:
    for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig")):
        program = compile_selector(WELL_KNOWN[name])
        for device in catalog_devices():
            assert program.evaluate(device.view) == (device.wire["attributes"]["type"]["string"] == kind)


def test_bare_devices_lack_exactly_what_is_optional() -> None:
    for device in catalog_devices():
        assert OPTIONAL.isdisjoint(device.wire["attributes"]) == device.bare
    assert OPTIONAL <= VARYING
