"""What is published about a GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.terms import GpuTerms
from dra_driver.kube.objects.resource import DeviceAttribute
from dra_driver.node.slices.build import build_devices, pool_name
from tests.fakes.dra_objects import wire
from tests.unit.node.slices.gpus import ALL, gpu, h100s, snapshot


def test_versions_are_strict_semver() -> None:
    """580.65.06 as NVML prints it would make the whole slice invalid."""
    attributes = wire(build_devices(snapshot(gpu())).devices[0].attributes)
    assert attributes["driverVersion"] == {"version": "580.65.6"}
    assert attributes["cudaDriverVersion"] == {"version": "13.0.0"}
    assert attributes["cudaComputeCapability"] == {"version": "9.0.0"}


def test_what_the_hardware_does_not_report_is_absent() -> None:
    """A guess would match a selector."""
    bare = gpu(
        product_name=None, brand=None, architecture="", cuda_compute_capability=None, memory_bytes=None,
        pci_bus_id=None, pcie_root=None, numa_node=None, addressing_mode=None,
    )  # fmt: skip
    device = build_devices(snapshot(bare)).devices[0]
    assert sorted(device.attributes) == ["cudaDriverVersion", "driverVersion", "type", "uuid"]
    assert not device.capacity


def test_numa_node_zero_is_published_and_a_negative_one_is_not() -> None:
    """Zero is a node; -1 is how sysfs reports that there is none."""
    first, second = build_devices(snapshot(gpu(0, numa_node=0), gpu(1, numa_node=-1))).devices
    assert first.attributes["resource.kubernetes.io/numaNode"] == DeviceAttribute(int_=0)
    assert "resource.kubernetes.io/numaNode" not in second.attributes


def test_a_long_product_name_is_cut_between_characters_and_a_long_identifier_is_left_out() -> None:
    """64 bytes are the limit; half a UUID would name another GPU."""
    device = build_devices(snapshot(gpu(product_name="é" * 40, pcie_root="p" * 65))).devices[0]
    assert device.attributes["productName"].string == "é" * 32
    assert "resource.kubernetes.io/pcieRoot" not in device.attributes


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_text_breaks_the_limits(name: str, version: str) -> None:
    """One value over the limit and the API server refuses all GPUs of the node."""
    from msgspec.structs import replace

    shot = replace(snapshot(gpu(product_name=name, addressing_mode=name, brand=name)), driver_version=version)
    for attribute in build_devices(shot).devices[0].attributes.values():
        text = attribute.string or attribute.version or "1"
        assert 0 < len(text.encode()) <= 64


def test_devices_come_in_order_of_minor() -> None:
    """The order in the slice is the order in which the scheduler tries devices; it must not change over restarts."""
    assert [d.name for d in build_devices(snapshot(gpu(10), gpu(2), gpu(0))).devices] == ["gpu-0", "gpu-2", "gpu-10"]


def test_devices_of_one_gpu_stay_together_after_the_whole_gpu() -> None:
    """First fit then partitions one GPU before it uses the next."""
    built = build_devices(h100s(2), features=ALL)
    assert [len(group.devices) for group in built.groups] == [26, 26]
    assert [group.devices[0].name for group in built.groups] == ["gpu-0", "gpu-1"]
    assert [one.name for one in built.counter_sets] == ["gpu-0-counter-set", "gpu-1-counter-set"]
    assert built.left_out == ()


def test_terms_apply_to_their_gpu_only() -> None:
    shot = h100s(2)
    terms = {shot.gpus[0].uuid: GpuTerms(policy="hidden", offered=False)}
    assert {device.name.split("-mig")[0] for device in build_devices(shot, terms).devices} == {"gpu-1"}
    assert build_devices(shot, terms, ALL).left_out == ()


def test_a_gpu_in_mig_mode_and_a_double_minor_are_left_out_with_a_reason() -> None:
    """Neither can be used whole, and two devices of one name make the whole pool invalid."""
    shot = snapshot(gpu(0), gpu(1, mig_enabled=True), gpu(2), gpu(2, uuid="GPU-other"))
    assert [device.name for device in build_devices(shot).devices] == ["gpu-0", "gpu-2"]
    reasons = {gpu.label: gpu.reason for gpu in build_devices(shot).left_out}
    assert "MIG mode" in reasons["GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cd001"]
    assert "same minor number" in reasons["GPU-other"]


def test_the_pool_is_named_for_node_and_driver() -> None:
    """Schedulers up to 1.36.2 mix up counters of pools with equal names, so the driver is part of it."""
    assert pool_name("node-a.example.org", "gpu.nvidia.com") == "node-a.example.org/gpu.nvidia.com"


@pytest.mark.parametrize(
    ("node", "driver", "message"),
    [
        ("node_a", "gpu.nvidia.com", "node name 'node_a'"),
        ("", "gpu.nvidia.com", "node name ''"),
        ("a", "GPU.nvidia.com", "driver name"),
        ("a", "d" * 64, "at most 63"),
        ("n" * 245, "gpu.nvidia.com", "at most 253"),
    ],
)
def test_invalid_pool_names_are_refused_at_start(node: str, driver: str, message: str) -> None:
    """Otherwise the API server would refuse every write."""
    with pytest.raises(ConfigurationError, match=message):
        pool_name(node, driver)
