"""The node process on NVIDIA's own mock of NVML (NVIDIA/k8s-test-infra, pkg/gpu/mocknvml): seven boards.

``NVIDIA_MOCK_ROOTS`` names a folder with one driver root per board (``a100``, ``h100``, ...), each with the mock as
``usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1``, the board's YAML as ``usr/config/config.yaml``, and device nodes in
``dev``. The mock has no MIG, no sysfs and no CUDA library, so partitions, PCIe root, NUMA node and the libraries of a
real driver are not tested.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.quantity import Quantity
from dra_driver.kube.rest import RestClient
from tests.contract.node.process.processes import Node, claim_maker, devices, published, taints

ROOTS = "NVIDIA_MOCK_ROOTS"
BOARDS = ("a100", "b200", "gb200", "gb300", "h100", "l40s", "t4")
NVSWITCH_BOARDS = ("gb200", "gb300", "h100")
ARCHITECTURES = {
    "turing": "Turing",
    "ampere": "Ampere",
    "ada_lovelace": "Ada Lovelace",
    "hopper": "Hopper",
    "blackwell": "Blackwell",
}
BRANDS = {"nvidia": "Nvidia"}

SKIPPED = "MIG, PCIe root and NUMA node, libraries other than NVML, sharing: the mock has none of them"
# Read from the sysfs of the machine of the test, which may have some other device at the same PCI address.
OF_THE_HOST = ("resource.kubernetes.io/pcieRoot", "numa", "numaNode", "addressingMode")

pytestmark = pytest.mark.skipif(
    ROOTS not in os.environ, reason=f"${ROOTS} is not set; it names driver roots with the mock NVML of NVIDIA"
)


@pytest.fixture(params=BOARDS)
def board(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(board: str) -> Path:
    return Path(os.environ[ROOTS], board)


@pytest.fixture
def description(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((root / "usr/config/config.yaml").read_text())
    return document


def expected(description: dict[str, Any]) -> dict[str, dict[str, Any]]:
    system, common = description["system"], description["device_defaults"]
    found = {}
    for one in description["devices"]:
        gpu = {**common, **one}
        capability = gpu["compute_capability"]
        found[f"gpu-{one['minor_number']}"] = {
            "type": "gpu",
            "uuid": gpu["uuid"],
            "productName": gpu["name"],
            "brand": BRANDS[gpu["brand"]],
            "architecture": ARCHITECTURES[gpu["architecture"]],
            "cudaComputeCapability": f"{capability['major']}.{capability['minor']}.0",
            "driverVersion": semver(system["driver_version"]),
            "cudaDriverVersion": f"{system['cuda_version_major']}.{system['cuda_version_minor']}.0",
            "resource.kubernetes.io/pciBusID": gpu["pci"]["bus_id"].lower(),
            "memory": gpu["memory"]["total_bytes"],
        }
        if description.get("nvlink", {}).get("switches"):
            first = min(each["uuid"] for each in description["devices"])
            fabric = gpu["fabric"]
            found[f"gpu-{one['minor_number']}"] |= {
                "nvlinkIsland": first,
                "nvlinkIslandSize": len(description["devices"]),
                "nvlinkType": "switch",
                "clique": f"{fabric['cluster_uuid']}.{fabric['clique_id']}",
            }
    return found


def semver(version: str) -> str:
    """Without leading zeros: 580.65.06 is 580.65.6."""
    return ".".join(str(int(part)) for part in version.split("."))


def attributes(rest: RestClient) -> dict[str, dict[str, Any]]:
    found = {}
    for device in published(rest):
        found[device["name"]] = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        found[device["name"]]["memory"] = Quantity.parse(device["capacity"]["memory"]["value"]).as_int()
    return found


@pytest.fixture
def overrides(tmp_path: Path) -> Path:
    """The mock merges this file over the board's YAML, and reads it again every second."""
    return tmp_path / "overrides.yaml"


@pytest.fixture
def process(rest: RestClient, root: Path, node: Callable[..., Node], overrides: Path) -> Node:
    if not root.is_dir():
        pytest.skip(f"${ROOTS} has no driver root of that board")
    started = node(
        simulate=None, driver_root=str(root), poll_interval="1", environ={"MOCK_NVML_OVERRIDES": str(overrides)}
    ).start()
    started.register()
    started.wait_for(lambda: devices(rest))
    return started


def test_every_gpu_is_published_as_the_board_describes_it(
    rest: RestClient, process: Node, description: dict[str, Any], board: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All attributes and the memory; MIG, which the mock lacks, takes nothing away."""
    found = attributes(rest)
    for of_gpu in found.values():
        for of_the_host in OF_THE_HOST:
            of_gpu.pop(of_the_host, None)
    assert found == expected(description)
    assert taints(rest) == {}
    assert "left_out=0" in process.text
    for trouble in ("WARNING", "ERROR", "Traceback"):
        assert trouble not in process.text
    name = description["device_defaults"]["name"]
    with capsys.disabled():
        sys.stdout.write(f"\n{board}: {len(found)} times {name}; skipped: {SKIPPED}\n")


def test_a_whole_gpu_is_prepared_and_unprepared(rest: RestClient, process: Node, root: Path) -> None:
    """The last GPU, so that its minor is not 0: its device node and no other, and the driver's NVML library."""
    maker = claim_maker(rest)
    index = len(maker.gpus) - 1
    claim = maker.make(index)
    answer = process.prepare(claim)
    assert not answer.error
    (device,) = answer.devices
    assert (device.device_name, len(device.cdi_device_ids)) == (f"gpu-{index}", 2)
    (own,) = (name for name in process.cdi_files if claim["uid"] in name)
    (base,) = (name for name in process.cdi_files if name != own)
    gpus = {f"/dev/nvidia{number}" for number in range(16)}
    assert nodes(process, own) & gpus == {f"/dev/nvidia{index}"}
    assert "/dev/nvidiactl" in nodes(process, base)
    assert nodes(process, base) & gpus == set()
    library = Path(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").resolve().name
    assert any(path.endswith((library, "libnvidia-ml.so.1")) for path in mounts(process, base))
    maker.drop(claim)
    assert not process.unprepare(claim).error
    assert process.cdi_files == [base]
    assert process.end()[0] == 0


def test_a_lost_gpu_is_tainted_and_is_read_again(rest: RestClient, process: Node, overrides: Path) -> None:
    whole = set(devices(rest))
    overrides.write_text(yaml.safe_dump({"devices": {1: {"failure": {"mode": "lost"}}}}))
    process.wait_for(lambda: "gpu-1" in taints(rest))
    assert (set(devices(rest)), set(taints(rest))) == (whole, {"gpu-1"})
    assert [taint["key"] for taint in taints(rest)["gpu-1"]] == ["gpu.nvidia.com/gpu-lost"]
    process.wait_for(lambda: "GPU is lost" in process.text)
    overrides.write_text("{}")
    process.wait_for(lambda: process.text.count("left_out=0") > 1)


READ = """
import sys
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
print([one.links_down for one in NvmlBackend(sys.argv[1]).health_readings()])
"""


@pytest.mark.parametrize("board", NVSWITCH_BOARDS, indirect=True)
def test_nvlinks_are_unknown_with_mig_on(root: Path, overrides: Path) -> None:
    """In a process of its own: NVML's library is a process' global."""
    if not root.is_dir():
        pytest.skip(f"${ROOTS} has no driver root of that board")
    mig = {"mig": {"mode_current": "enabled", "mode_pending": "enabled"}}
    overrides.write_text(yaml.safe_dump({"devices": {0: mig}}))
    environment = {"MOCK_NVML_OVERRIDES": str(overrides), "MOCK_NVML_CONFIG": str(root / "usr/config/config.yaml")}
    done = subprocess.run(
        [sys.executable, "-c", READ, str(root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(done.stdout.split("[")[1].rstrip("]\n").split(", ")) == ["()"] * 7 + ["None"], done.stderr


@pytest.mark.parametrize("board", NVSWITCH_BOARDS, indirect=True)
def test_a_gpu_that_is_not_in_the_fabric_is_tainted_until_it_is(
    rest: RestClient, overrides: Path, board: str, request: pytest.FixtureRequest
) -> None:
    """As the mock plays a Fabric Manager that has not registered one GPU yet. The others are free."""
    probing = {"cluster_uuid": "00000000-0000-0000-0000-000000000001", "state": "in_progress"}
    overrides.write_text(yaml.safe_dump({"devices": {1: {"fabric": probing}}}))
    process = request.getfixturevalue("process")
    whole = set(devices(rest))
    assert len(whole) == 8, board
    assert set(taints(rest)) == {"gpu-1"}
    overrides.write_text(yaml.safe_dump({"devices": {1: {"fabric": {**probing, "state": "completed"}}}}))
    process.wait_for(lambda: not taints(rest))
    assert set(devices(rest)) == whole


def edits(process: Node, name: str) -> list[dict[str, Any]]:
    document = json.loads((process.folder / "cdi" / name).read_text())
    return [document.get("containerEdits", {}), *(device["containerEdits"] for device in document["devices"])]


def nodes(process: Node, name: str) -> set[str]:
    return {node["path"] for edit in edits(process, name) for node in edit.get("deviceNodes", ())}


def mounts(process: Node, name: str) -> set[str]:
    return {mount["containerPath"] for edit in edits(process, name) for mount in edit.get("mounts", ())}
