"""dcgm-exporter finds the GPU of a claim's device in the slices: NVIDIA/dcgm-exporter d5e5f51,
internal/pkg/transformation/dra.go, onAddOrUpdate and GetDeviceInfo; kubernetes.go asks with pool and device of
PodResources. It looks at slices of the driver gpu.nvidia.com alone, and at string attributes of these names.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.node.slices import build_devices
from tests.fakes.dra_objects import DRIVER
from tests.fakes.published import slices
from tests.fakes.simulated_gpus import SimulatedBackend

SHARED = GpuTerms(sharing=SharingTerms(strategy=Strategy.TIME_SLICING))


def text(device: dict[str, Any], name: str) -> str:
    return str(device.get("attributes", {}).get(name, {}).get("string", ""))


def device_info(device: dict[str, Any]) -> tuple[str, dict[str, str] | None]:
    """What dcgm-exporter knows of a device: the UUID by which metrics are matched, and of a partition its labels."""
    if text(device, "type") == "gpu":
        return text(device, "uuid"), None
    if text(device, "type") == "mig" and text(device, "parentUUID"):
        return text(device, "parentUUID"), {"uuid": text(device, "uuid"), "profile": text(device, "profile")}
    return "", None


def devices(terms: GpuTerms | None = None) -> list[dict[str, Any]]:
    return [device for each in slices(2, terms=terms) for device in each["spec"].get("devices", ())]


@pytest.mark.parametrize("terms", [None, SHARED], ids=["whole and partitions", "shared"])
def test_every_device_leads_to_its_gpu(terms: GpuTerms | None) -> None:
    found = devices(terms)
    assert found
    assert all(each["spec"]["driver"] == DRIVER == "gpu.nvidia.com" for each in slices(1))
    gpus = {uuid for uuid, mig in map(device_info, found) if mig is None}
    assert len(gpus) == 2
    assert all(uuid.startswith("GPU-") for uuid in gpus)
    for uuid, mig in map(device_info, found):
        assert uuid in gpus
        assert mig is None or mig["profile"]


def test_the_uuid_of_a_partition_that_is_made_at_prepare_is_not_published() -> None:
    migs = [mig for _, mig in map(device_info, devices()) if mig is not None]
    assert migs
    assert {mig["uuid"] for mig in migs} == {""}


def test_a_partition_of_another_manager_has_its_uuid() -> None:
    backend = SimulatedBackend.from_spec("1xh100-sxm5-80gb", "node-a")
    gpu = backend.snapshot().gpus[0].uuid
    backend.set_mig_mode(gpu, True)
    backend.create_compute_instance(gpu, backend.create_gpu_instance(gpu, 19, 0))
    snapshot = backend.snapshot()
    uuid = snapshot.gpus[0].mig_instances[0].device.uuid  # type: ignore[union-attr]
    built = build_devices(replace(snapshot), {})
    assert str(uuid) in str(built)
