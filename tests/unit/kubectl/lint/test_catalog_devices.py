"""Catalog devices are equal to the devices that the driver publishes."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.kubectl.lint.catalog_devices import OPTIONAL, VARYING, KnownDevice, catalog_devices
from dra_driver.kubectl.lint.scope import WELL_KNOWN
from dra_driver.node.slices import ApiServerFeatures, build_devices
from dra_driver.scheduler.cel import compile_selector
from tests.fakes.dra_objects import wire


@pytest.mark.parametrize("key", list(catalog.models()))
def test_whole_gpus_are_as_slices_publish_them(key: str) -> None:
    """All attributes and capacities are equal."""
    gpu = replace(invent(catalog.model(key), 0, "catalog"), mig_enabled=False)
    published = wire(build_devices(_snapshot(gpu), {}, ApiServerFeatures(counters=True)).devices[0])
    found = next(d for d in catalog_devices() if d.model == key and d.wire["attributes"]["type"]["string"] == "gpu")
    assert _described(found, published) == published["attributes"]
    assert found.wire["capacity"] == published.get("capacity", {})


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("key", list(catalog.models()))
def test_shared_gpus_are_as_slices_publish_them(key: str, strategy: Strategy) -> None:
    """Attributes and capacities of a GPU that a policy shares are equal."""
    gpu = replace(invent(catalog.model(key), 0, "catalog"), mig_enabled=False)
    terms = {gpu.uuid: GpuTerms(policy="p", sharing=SharingTerms(strategy=strategy))}
    published = wire(build_devices(_snapshot(gpu), terms, ApiServerFeatures(multi_allocation=True)).devices[0])
    found = next(d for d in catalog_devices() if d.model == key and d.shared and strategy.value in d.label)
    assert _described(found, published) == published["attributes"]
    assert found.wire["capacity"] == published["capacity"]
    assert found.wire["allowMultipleAllocations"] is published["allowMultipleAllocations"] is True


@pytest.mark.parametrize("key", ["a100-sxm4-40gb", "h100-sxm5-80gb", "b200-180gb"])
def test_partitions_have_the_names_and_types_that_slices_publish(key: str) -> None:
    """Otherwise lint would report valid selectors, or miss invalid ones."""
    gpu = replace(invent(catalog.model(key), 0, "catalog"), mig_enabled=False, mig_resetless=True)
    devices = wire(build_devices(_snapshot(gpu), {}, ApiServerFeatures(counters=True)).devices[1:])
    for known in (d for d in catalog_devices() if d.model == key and not d.bare and "profile" in d.wire["attributes"]):
        profile = known.wire["attributes"]["profile"]
        published = next(d for d in devices if d["attributes"]["profile"] == profile)
        assert {name: list(value) for name, value in _described(known, published).items()} == {
            name: list(value) for name, value in published["attributes"].items()
        }
        assert known.wire["attributes"]["placementSize"] == published["attributes"]["placementSize"]


def _snapshot(gpu: Gpu) -> Snapshot:
    return Snapshot(driver_version=DEFAULT_DRIVER_VERSION, cuda_driver_version=DEFAULT_CUDA_VERSION, gpus=(gpu,))


def _described(known: KnownDevice, published: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a catalog device, without optional ones that are invented."""
    invented = OPTIONAL - published["attributes"].keys()
    return {name: value for name, value in known.wire["attributes"].items() if name not in invented}


def test_boards_with_nvlinks_know_the_attributes_of_an_island() -> None:
    """So that lint takes selectors and constraints on them; boards without NVLinks and partitions have none."""
    real = [device for device in catalog_devices() if not device.bare]
    with_islands = {device.model for device in real if "nvlinkIsland" in device.wire["attributes"]}
    assert {"a100-pcie-80gb", "h100-sxm5-80gb"} <= with_islands
    assert "l4-24gb" not in with_islands
    assert not any("profile" in d.wire["attributes"] and "nvlinkIsland" in d.wire["attributes"] for d in real)


def test_every_form_of_every_model_is_there() -> None:
    """Every model is whole, shared by two strategies, and in every MIG profile."""
    profiles = sum(len(model.mig.profiles) if model.mig else 0 for model in catalog.models().values())
    real = [device for device in catalog_devices() if not device.bare]
    assert len(real) == 3 * len(catalog.models()) + profiles
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
