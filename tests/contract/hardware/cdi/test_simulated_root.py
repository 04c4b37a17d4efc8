"""The driver root of simulated GPUs is a driver root like any other to discovery."""

import platform
import time
from pathlib import Path

import pytest

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.cdi.edits import claim_spec
from dra_driver.hardware.cdi.libraries import discover
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.provider import CdiProvider
from dra_driver.hardware.cdi.spec import decode
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.sim.node.container import ContainerView
from tests.fakes.simulated_gpus import SimulatedBackend

NAMES = CdiNames("gpu.nvidia.com")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"


@pytest.fixture
def snapshot() -> Snapshot:
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
    root = tmp_path / "root"
    simulated_root.write(root, snapshot)
    writer = CdiWriter(str(tmp_path / "cdi"), NAMES)
    provider = CdiProvider(DriverRoot(root=str(root)), NAMES, writer, str(root / "proc/devices"))
    provider.ensure_base()
    gpus = snapshot.gpus[:2]
    devices = [(NAMES.claim_device(UID, gpu.device_name), provider.edits_for(gpu)) for gpu in gpus]
    writer.write_claim(UID, claim_spec(NAMES, devices))
    base = decode((tmp_path / "cdi" / NAMES.base_file_name).read_text(), "base")
    text = (tmp_path / "cdi" / NAMES.claim_file_name(UID)).read_text()
    assert len(text) < 2048, "it is written in the prepare call"
    claim = decode(text, "claim")
    assert all(Path(mount.host_path).is_file() for mount in base.container_edits.mounts)
    assert "/usr/bin/nvidia-smi" in {mount.container_path for mount in base.container_edits.mounts}
    numbers = {
        node.path: (node.type, node.major, node.minor) for edits in claim.all_edits() for node in edits.device_nodes
    }
    assert numbers == {f"/dev/nvidia{gpu.minor}": ("c", 195, gpu.minor) for gpu in gpus}


class CutNode:
    """A node with one H100 whose driver root follows every change, as the node process lets it."""

    def __init__(self, folder: Path) -> None:
        self.cdi, root = folder / "cdi", folder / "root"
        self.backend = SimulatedBackend.from_spec(
            "1xh100-sxm5-80gb", "node-a", on_change=lambda seen: simulated_root.write(root, seen)
        )
        simulated_root.write(root, self.backend.snapshot())
        self.gpu = self.backend.snapshot().gpus[0]
        self.writer = CdiWriter(str(self.cdi), NAMES)
        driver_root = DriverRoot(root=str(root), dev_root=str(root))
        self.provider = CdiProvider(
            driver_root, NAMES, self.writer, str(root / "proc/devices"), "none", proc_driver=str(root / "proc/driver")
        )

    def make(self, profile: str, start: int) -> tuple[str, str]:
        """A partition and its claim's device; the CDI name and the UUID."""
        profile_id = next(found.profile_id for found in self.gpu.mig_profiles if found.name == profile)
        gi = self.backend.create_gpu_instance(self.gpu.uuid, profile_id, start)
        made = self.backend.create_compute_instance(self.gpu.uuid, gi)
        edits = self.provider.edits_for_partition(self.gpu, gi_id=gi, ci_id=made.ci_id, uuid=str(made.uuid))
        device = f"gpu-0-mig-{gi}"
        uid = f"{UID[:-2]}{gi:02}"
        self.writer.write_claim(uid, claim_spec(NAMES, [(NAMES.claim_device(uid, device), edits)]))
        return NAMES.claim_id(uid, device), str(made.uuid)

    def sees(self, folder: Path, *names: str) -> list[str]:
        """What ``nvidia-smi -L`` lists in a container with these devices."""
        view = ContainerView(folder)
        view.create({"name": "main"}, [NAMES.common_id, *names], [self.cdi])
        return view.check().output.splitlines()


def test_a_container_sees_its_partitions_and_no_others(tmp_path: Path) -> None:
    node = CutNode(tmp_path)
    node.backend.set_mig_mode(node.gpu.uuid, True)
    node.provider.ensure_base()
    made = [node.make(profile, start) for profile, start in (("3g.40gb", 0), ("1g.10gb", 4), ("1g.10gb", 5))]
    for at, (name, uuid) in enumerate(made):
        parent, partition = node.sees(tmp_path / f"view-{at}", name)
        assert node.gpu.uuid in parent
        assert uuid in partition
    listed = node.sees(tmp_path / "several", made[0][0], made[2][0])
    assert [line.split()[1] for line in listed[1:]] == ["3g.40gb", "1g.10gb"]
    assert [uuid in line for line, uuid in zip(listed[1:], (made[0][1], made[2][1]), strict=True)] == [True, True]


def test_a_partition_that_is_gone_gets_no_document(tmp_path: Path) -> None:
    node = CutNode(tmp_path)
    node.backend.set_mig_mode(node.gpu.uuid, True)
    node.make("1g.10gb", 4)
    (instance,) = node.backend.mig_instances(node.gpu.uuid)
    node.backend.destroy_compute_instance(node.gpu.uuid, instance.gi_id, 0)
    with pytest.raises(DeviceLostError, match=rf"instance gi{instance.gi_id}/ci0 of /dev/nvidia0"):
        node.provider.edits_for_partition(node.gpu, gi_id=instance.gi_id, ci_id=0, uuid="MIG-x")


def test_a_gpu_that_fell_off_the_bus_keeps_the_nodes_of_its_partitions(tmp_path: Path) -> None:
    """The kernel module does not take them away: a claim in the midst of its prepare must not lose its partition."""
    node = CutNode(tmp_path)
    node.backend.set_mig_mode(node.gpu.uuid, True)
    node.make("1g.10gb", 4)
    (instance,) = node.backend.mig_instances(node.gpu.uuid)
    node.backend.mark_lost(node.gpu.minor, "fallen off the bus")
    assert node.provider.edits_for_partition(node.gpu, gi_id=instance.gi_id, ci_id=0, uuid="MIG-x")
    node.backend.restore(node.gpu.minor)
    node.backend.destroy_compute_instance(node.gpu.uuid, instance.gi_id, 0)
    node.backend.destroy_gpu_instance(node.gpu.uuid, instance.gi_id)
    assert not list(tmp_path.glob("root/proc/driver/nvidia/capabilities/gpu*/mig/**/access"))
