"""The node process on NVIDIA's own mock of NVML (NVIDIA/k8s-test-infra, pkg/gpu/mocknvml): seven boards.

``NVIDIA_MOCK_ROOTS`` names a folder with one driver root per board (``a100``, ``h100``, ...), each with the mock as
``usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1``, the board's YAML as ``usr/config/config.yaml``, and device nodes in
``dev``. The mock has no MIG, no sysfs and no CUDA library, so partitions, PCIe root, NUMA node and the libraries of a
real driver are not tested.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.quantity import Quantity
from dra_driver.kube.rest import RestClient
from tests.contract.node.process.processes import DRIVER, NODE, SLICES
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import NodeProcess
from tests.harness.claims_api import ClaimMaker, ensure_namespace

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
    """Attributes and memory by device name, as the board's YAML has them."""
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
    return found


def semver(version: str) -> str:
    """Without leading zeros: 580.65.06 is 580.65.6."""
    return ".".join(str(int(part)) for part in version.split("."))


def published(rest: RestClient) -> dict[str, dict[str, Any]]:
    found = {}
    for item in rest.list(SLICES)["items"]:
        for device in item["spec"].get("devices") or ():
            found[device["name"]] = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
            found[device["name"]]["memory"] = Quantity.parse(device["capacity"]["memory"]["value"]).as_int()
    return found


@pytest.fixture
def overrides(tmp_path: Path) -> Path:
    """The mock merges this file over the board's YAML, and reads it again every second."""
    return tmp_path / "overrides.yaml"


@pytest.fixture
def process(rest: RestClient, root: Path, node: Callable[..., NodeProcess], overrides: Path) -> NodeProcess:
    """A registered node process that has published."""
    if not root.is_dir():
        pytest.skip(f"${ROOTS} has no driver root of that board")
    started = node(
        simulate=None, driver_root=str(root), poll_interval="1", environ={"MOCK_NVML_OVERRIDES": str(overrides)}
    ).start()
    started.wait_for(started.registration.exists)
    register(started.registration)
    started.wait_for(lambda: published(rest))
    return started


def test_every_gpu_is_published_as_the_board_describes_it(
    rest: RestClient, process: NodeProcess, description: dict[str, Any], board: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All attributes and the memory; MIG, which the mock lacks, takes nothing away."""
    found = published(rest)
    for attributes in found.values():
        for of_the_host in OF_THE_HOST:
            attributes.pop(of_the_host, None)
    assert found == expected(description)
    assert tainted(rest) == set()
    assert "left_out=0" in process.text
    for trouble in ("WARNING", "ERROR", "Traceback"):
        assert trouble not in process.text
    name = description["device_defaults"]["name"]
    with capsys.disabled():
        sys.stdout.write(f"\n{board}: {len(found)} times {name}; skipped: {SKIPPED}\n")


def test_a_whole_gpu_is_prepared_and_unprepared(rest: RestClient, process: NodeProcess, root: Path) -> None:
    """The last GPU, so that its minor is not 0: its device node and no other, and the driver's NVML library."""
    ensure_namespace(rest)
    maker = ClaimMaker(rest, node=NODE, driver=DRIVER)
    index = len(maker.gpus) - 1
    claim = maker.make(index)
    fields: dict[str, Any] = {"namespace": claim["namespace"], "name": claim["name"]}
    with dial(process.dra) as channel:
        client = DraClient(channel)
        answer = client.prepare(claim["uid"], **fields).claims[claim["uid"]]
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
        assert not client.unprepare(claim["uid"], **fields).claims[claim["uid"]].error
    assert process.cdi_files == [base]
    assert process.end()[0] == 0


def test_a_lost_gpu_is_withdrawn_and_returns(rest: RestClient, process: NodeProcess, overrides: Path) -> None:
    """As the mock's own failure injection plays it; the other GPUs stay."""
    whole = set(published(rest))
    overrides.write_text(yaml.safe_dump({"devices": {1: {"failure": {"mode": "lost"}}}}))
    process.wait_for(lambda: set(published(rest)) == whole - {"gpu-1"})
    process.wait_for(lambda: "GPU is lost" in process.text)
    overrides.write_text("{}")
    process.wait_for(lambda: set(published(rest)) == whole)


@pytest.mark.parametrize("board", NVSWITCH_BOARDS, indirect=True)
def test_a_gpu_that_is_not_in_the_fabric_is_tainted_until_it_is(
    rest: RestClient, overrides: Path, board: str, request: pytest.FixtureRequest
) -> None:
    """As the mock plays a Fabric Manager that has not registered one GPU yet. The others are free."""
    probing = {"cluster_uuid": "00000000-0000-0000-0000-000000000001", "state": "in_progress"}
    overrides.write_text(yaml.safe_dump({"devices": {1: {"fabric": probing}}}))
    process = request.getfixturevalue("process")
    whole = set(published(rest))
    assert len(whole) == 8, board
    assert tainted(rest) == {"gpu-1"}
    overrides.write_text(yaml.safe_dump({"devices": {1: {"fabric": {**probing, "state": "completed"}}}}))
    process.wait_for(lambda: not tainted(rest))
    assert set(published(rest)) == whole


def tainted(rest: RestClient) -> set[str]:
    devices = [device for item in rest.list(SLICES)["items"] for device in item["spec"].get("devices") or ()]
    return {device["name"] for device in devices if device.get("taints")}


def edits(process: NodeProcess, name: str) -> list[dict[str, Any]]:
    document = json.loads((process.folder / "cdi" / name).read_text())
    return [document.get("containerEdits", {}), *(device["containerEdits"] for device in document["devices"])]


def nodes(process: NodeProcess, name: str) -> set[str]:
    return {node["path"] for edit in edits(process, name) for node in edit.get("deviceNodes", ())}


def mounts(process: NodeProcess, name: str) -> set[str]:
    return {mount["containerPath"] for edit in edits(process, name) for mount in edit.get("mounts", ())}
