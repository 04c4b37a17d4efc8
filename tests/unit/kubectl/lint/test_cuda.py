"""NVIDIA_REQUIRE_CUDA of containers, compared with published devices."""

from typing import Any

import pytest

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.lint import Finding
from dra_driver.kubectl.lint.check_cuda import alternatives_of
from dra_driver.kubectl.lint.scope import KnownObjects, known_from_cluster
from tests.fakes.dra_objects import device_class, node, resource_slice
from tests.fakes.dra_objects import gpu as gpu_object
from tests.unit.kubectl.lint.helpers import findings, pod, template

USES = "[{name: gpu, resourceClaimTemplateName: t}]"
PLAIN = "- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}"
A = 'device.attributes["gpu.nvidia.com"]'


def gpu(cuda: str, driver: str, brand: str = "Nvidia") -> dict[str, Any]:
    found = gpu_object("gpu-0", brand=brand, productName="H100", architecture="Hopper")
    versions = {"cudaDriverVersion": cuda, "driverVersion": driver, "cudaComputeCapability": "9.0.0"}
    found["attributes"] |= {name: {"version": value} for name, value in versions.items() if value}
    return found


def cluster(**devices: dict[str, Any]) -> KnownObjects:
    """One GPU per node."""
    slices = [resource_slice(name, device) for name, device in devices.items()]
    return known_from_cluster(
        ClusterState(nodes=[node(name) for name in devices], classes=[device_class()], slices=slices)
    )


def requiring(value: str, known: KnownObjects, *, requests: str = PLAIN, more: str = "") -> list[Finding]:
    env = f'    env: [{{name: NVIDIA_REQUIRE_CUDA, value: "{value}"}}{more}]\n    resources:'
    text = f"{template(requests)}---\n{pod(USES).replace('    resources:', env)}"
    return [each for each in findings(text, known) if each.rule == "DRA056"]


MIXED = cluster(old=gpu("12.2.0", "535.54.3"), new=gpu("12.4.0", "550.54.14"))


def test_requirement_that_some_nodes_meet_has_a_selector_for_them() -> None:
    (found,) = requiring("cuda>=12.4 brand=tesla,driver>=470,driver<471", MIXED)
    assert "1 of 2 nodes do not meet" in found.message
    assert "CUDA 12.2.0 with driver 535.54.3 on old" in found.message
    selector = f'device.driver == "gpu.nvidia.com" && (({A}.cudaDriverVersion.compareTo(semver("12.4.0")) >= 0))'
    assert found.hint.endswith(selector)


def test_the_selector_in_the_request_ends_the_finding() -> None:
    (found,) = requiring("cuda>=12.4", MIXED)
    selector = found.hint.partition(": ")[2]
    requests = (
        "- name: gpu\n  exactly:\n    deviceClassName: gpu.nvidia.com\n    selectors:\n    - cel:\n"
        f"        expression: >-\n          {selector}\n"
    )
    assert requiring("cuda>=12.4", MIXED, requests=requests) == []


def test_an_alternative_by_brand_and_driver_is_enough() -> None:
    """CUDA's images list older drivers of data center GPUs, which are compatible."""
    value = "cuda>=12.4 brand=tesla,driver>=535,driver<536"
    assert requiring(value, cluster(a=gpu("12.2.0", "535.54.3", "Tesla"))) == []
    (found,) = requiring(value, cluster(a=gpu("12.2.0", "535.54.3", "GeForce")))
    assert "no node meets NVIDIA_REQUIRE_CUDA" in found.message


def test_an_unknown_version_does_not_meet_a_requirement() -> None:
    (found,) = requiring("cuda>=11.0", cluster(a=gpu("", "535.54.3")))
    assert "CUDA unknown with driver 535.54.3 on a" in found.message


def test_requirement_needs_published_devices_and_can_be_disabled() -> None:
    assert requiring("cuda>=99.0", cluster()) == []
    assert requiring("cuda>=99.0", MIXED, more=', {name: NVIDIA_DISABLE_REQUIRE, value: "1"}') == []


@pytest.mark.parametrize(
    "value",
    ["cuda>12.x", "cuda", "brand>tesla", "gpu>=1", ",", "cuda>=12.4,,driver>1", "cuda=>1", "cuda>=1.2'||true||'1",
     " ".join(["cuda>1"] * 65), ",".join(["cuda>1"] * 9), "cuda>1 " * 900],
)  # fmt: skip
def test_text_that_is_no_requirement_is_reported(value: str) -> None:
    assert alternatives_of(value) is None
    assert "cannot be read" in requiring(value, MIXED)[0].message


@pytest.mark.parametrize(
    ("text", "cel"),
    [
        ("driver<536", f'{A}.driverVersion.compareTo(semver("536.0.0")) < 0'),
        ("cuda=12.4", f'{A}.cudaDriverVersion.compareTo(semver("12.4.0")) == 0'),
        ("arch>7.0", f'{A}.cudaComputeCapability.compareTo(semver("7.0.0")) > 0'),
        ("brand!=Tesla", f'{A}.brand.lowerAscii() != "tesla"'),
    ],
)
def test_conditions_are_selectors(text: str, cel: str) -> None:
    assert alternatives_of(text) == [cel]
