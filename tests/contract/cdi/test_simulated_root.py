"""The driver root of simulated GPUs is a driver root like any other to discovery."""

import json
import platform
import time
from pathlib import Path

import pytest

from dra_driver.cdi.decode import decode
from dra_driver.cdi.edits import claim_spec
from dra_driver.cdi.libraries import discover
from dra_driver.cdi.names import CdiNames
from dra_driver.cdi.provider import CdiProvider
from dra_driver.cdi.root import DriverRoot
from dra_driver.cdi.writer import CdiWriter
from dra_driver.gpu import simulated_root
from dra_driver.gpu.simulated import SimulatedBackend
from dra_driver.model.gpu import Snapshot

NAMES = CdiNames("gpu.nvidia.com")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"


@pytest.fixture
def snapshot() -> Snapshot:
    """Eight simulated GPUs."""
    backend = SimulatedBackend.from_spec("8xh100-sxm5-80gb", "node-a")
    backend.open()
    try:
        return backend.snapshot()
    finally:
        backend.close()


def test_the_simulated_root_is_discovered_fast(tmp_path: Path, snapshot: Snapshot) -> None:
    """Version, libraries with SONAMEs and the program that lists GPUs, in less than 20 ms."""
    simulated_root.write(tmp_path, snapshot)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        files = discover(DriverRoot(root=str(tmp_path)))
        times.append(time.perf_counter() - start)
    assert files.version == snapshot.driver_version
    assert files.multiarch == f"{platform.machine()}-linux-gnu"
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= {library.soname for library in files.libraries}
    programs = {file.container_path for file in files.files}
    assert programs == {f"/usr/bin/nvidia-{name}" for name in ("smi", "cuda-mps-control", "cuda-mps-server")}
    assert min(times) < 0.020


def test_both_documents_of_a_simulated_claim_are_valid_and_point_to_files(tmp_path: Path, snapshot: Snapshot) -> None:
    """What the embedded cluster and a real kubelet get: every mount's source is there, every node has numbers."""
    root = tmp_path / "root"
    simulated_root.write(root, snapshot)
    writer = CdiWriter(str(tmp_path / "cdi"), NAMES)
    provider = CdiProvider(DriverRoot(root=str(root)), NAMES, writer, str(root / "proc/devices"))
    provider.ensure_base()
    gpus = snapshot.gpus[:2]
    devices = [(NAMES.claim_device(UID, gpu.device_name), provider.edits_for(gpu)) for gpu in gpus]
    writer.write_claim(UID, claim_spec(NAMES, devices))
    base = decode((tmp_path / "cdi" / NAMES.base_file_name).read_text(), "base")
    claim = decode((tmp_path / "cdi" / NAMES.claim_file_name(UID)).read_text(), "claim")
    assert all(Path(mount.host_path).is_file() for mount in base.container_edits.mounts)
    assert "/usr/bin/nvidia-smi" in {mount.container_path for mount in base.container_edits.mounts}
    numbers = {
        node.path: (node.type, node.major, node.minor) for edits in claim.all_edits() for node in edits.device_nodes
    }
    assert numbers == {f"/dev/nvidia{gpu.minor}": ("c", 195, gpu.minor) for gpu in gpus}


def test_a_claims_document_is_small(tmp_path: Path, snapshot: Snapshot) -> None:
    """Written in the prepare call; the libraries are the base document's business."""
    root = tmp_path / "root"
    simulated_root.write(root, snapshot)
    writer = CdiWriter(str(tmp_path / "cdi"), NAMES)
    provider = CdiProvider(DriverRoot(root=str(root)), NAMES, writer, str(root / "proc/devices"))
    gpu = snapshot.gpus[0]
    spec = claim_spec(NAMES, [(NAMES.claim_device(UID, gpu.device_name), provider.edits_for(gpu))])
    assert len(json.dumps(spec.to_wire())) < 2048
