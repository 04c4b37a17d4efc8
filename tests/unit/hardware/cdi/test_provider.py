"""The base document's life while drivers, modules and files change underneath."""

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.cdi.hook import HookVersions
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.provider import CdiProvider
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.driver_root.root import DriverRoot
from tests.fakes.driver_root import debian
from tests.fakes.fuse import FlakyFiles
from tests.harness.raising import fails

NAMES = CdiNames("gpu.nvidia.com")
LIBS = "usr/lib/x86_64-linux-gnu"
GPU = Gpu(uuid=GpuUuid("GPU-6a1f3c52-9d7e-4b8a-8c1d-2e3f4a5b6c7d"), minor=3, pci_bus_id="0000:65:00.0")


class Node:
    """A driver root, a CDI directory and a provider between them."""

    def __init__(self, folder: Path, files: FlakyFiles | None = None, **settings: Any) -> None:
        self.root = debian(folder / "root")
        self.cdi = folder / "cdi"
        self.base_path = self.cdi / NAMES.base_file_name
        past = time.time() - 60  # so that every later change has another time
        for path, _, _ in os.walk(self.root.path):
            os.utime(path, (past, past))
        writer = CdiWriter(str(self.cdi), NAMES, files=files)
        root = DriverRoot(root=str(self.root.path), host_root="/", dev_root=str(self.root.path), host_dev_root="/")
        self.provider = CdiProvider(root, NAMES, writer, self.root.proc_devices, **settings)

    def base(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.base_path.read_text())
        return document

    def majors(self) -> dict[str, int]:
        return {node["path"]: node["major"] for node in self.base()["containerEdits"]["deviceNodes"]}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_base_file_is_written_once_and_restored(node: Node) -> None:
    assert node.provider.refresh()
    assert not node.provider.refresh()
    assert not node.provider.ensure_base()
    whole = node.base_path.read_bytes()
    node.base_path.unlink()
    assert node.provider.ensure_base()
    node.base_path.write_text("{}")
    assert node.provider.ensure_base()
    assert node.base_path.read_bytes() == whole


def test_an_upgraded_driver_is_picked_up_by_the_next_prepare(node: Node) -> None:
    node.provider.refresh()
    for path in (node.root.path / LIBS).glob("lib*"):
        path.unlink()
    node.root.libraries(f"/{LIBS}", "590.10")
    assert node.provider.ensure_base()
    assert node.base()["devices"][0]["containerEdits"]["env"] == ["DRA_GPU_DRIVER_VERSION=590.10"]


def test_the_driver_is_another_one_when_its_numbers_or_folder_change(tmp_path: Path) -> None:
    """Documents of claims are written again then; a new base document alone does not change them."""
    node = Node(tmp_path)
    assert node.provider.driver_identity is None
    node.provider.refresh()
    first = node.provider.driver_identity
    node.base_path.unlink()
    node.provider.ensure_base()
    assert node.provider.driver_identity == first
    path = Path(node.root.proc_devices)
    path.write_text(path.read_text().replace("510 nvidia-uvm", "507 nvidia-uvm"))
    node.provider.ensure_base()
    assert node.provider.driver_identity != first


def test_a_vanished_driver_is_an_error_until_it_is_back(node: Node) -> None:
    """During a driver container's restart prepare fails with a sentence, then works again."""
    node.provider.refresh()
    folder = node.root.path / LIBS
    folder.rename(folder.with_name("away"))
    with pytest.raises(DriverUnavailableError, match="no NVIDIA driver found"):
        node.provider.ensure_base()
    folder.with_name("away").rename(folder)
    node.provider.ensure_base()
    assert node.base()["kind"] == "k8s.gpu.nvidia.com/device"


def test_a_gpus_edits_are_its_node_and_its_uuid(node: Node) -> None:
    assert node.provider.edits_for(GPU).to_wire() == {
        "env": ["DRA_GPU_3_UUID=GPU-6a1f3c52-9d7e-4b8a-8c1d-2e3f4a5b6c7d"],
        "deviceNodes": [
            {"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3, "fileMode": 438, "permissions": "rwm"}
        ],
    }


def test_a_partitions_edits_follow_the_kernel_modules_files(tmp_path: Path) -> None:
    node = Node(tmp_path, graphics=True, proc_driver=str(tmp_path / "driver"))
    for instance, minor in (("gi7", 471), ("gi7/ci0", 472)):
        path = tmp_path / f"driver/nvidia/capabilities/gpu3/mig/{instance}/access"
        path.parent.mkdir(parents=True)
        path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    made = node.provider.edits_for_partition(GPU, gi_id=7, ci_id=0, uuid="MIG-1")
    assert made.env == ("DRA_GPU_3_MIG_7_0_UUID=MIG-1",)
    assert [(entry.path, entry.major, entry.minor, entry.file_mode) for entry in made.device_nodes] == [
        ("/dev/nvidia3", 195, 3, 0o666),
        ("/dev/nvidia-caps/nvidia-cap471", 237, 471, 0o444),
        ("/dev/nvidia-caps/nvidia-cap472", 237, 472, 0o444),
    ]
    path.write_text("DeviceFileMinor: 500\n")
    again = node.provider.edits_for_partition(GPU, gi_id=7, ci_id=0, uuid="MIG-1")
    assert again.device_nodes[2].minor == 500


def test_a_module_without_capability_nodes_refuses_partitions_only(tmp_path: Path) -> None:
    node = Node(tmp_path, proc_driver=str(tmp_path / "driver"))
    path = Path(node.root.proc_devices)
    path.write_text(path.read_text().replace("237 nvidia-caps\n", ""))
    assert node.provider.edits_for(GPU).device_nodes
    with pytest.raises(DriverUnavailableError, match=r"'nvidia-caps'.*450\.80\.02.*nv_cap_enable_devfs=0"):
        node.provider.edits_for_partition(GPU, gi_id=7, ci_id=0, uuid="MIG-1")


def test_graphics_nodes_are_given_only_when_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:65:00.0/drm/renderD128"
    folder.mkdir(parents=True)
    (folder / "dev").write_text("226:128\n")
    sysfs = str(tmp_path / "sys")
    without = Node(tmp_path / "a", sysfs_root=sysfs).provider.edits_for(GPU)
    with_graphics = Node(tmp_path / "b", graphics=True, sysfs_root=sysfs).provider.edits_for(GPU)
    assert [node.path for node in without.device_nodes] == ["/dev/nvidia3"]
    assert [node.path for node in with_graphics.device_nodes] == ["/dev/nvidia3", "/dev/dri/renderD128"]


def commands(node: Node) -> list[str]:
    return [hook["args"][1] for hook in node.base()["containerEdits"].get("hooks", [])]


def test_the_hook_is_used_where_it_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path, hook_versions=HookVersions(lambda root, path: b"NVIDIA CDI Hook version 1.17.8"))
    node.root.put("/usr/bin/nvidia-cdi-hook", b"", 0o755)
    with caplog.at_level(logging.INFO, "dra_driver.hardware.cdi.provider"):
        node.provider.refresh()
    assert commands(node) == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    assert (caplog.records[0].__dict__["mode"], caplog.records[0].__dict__["hook_version"]) == ("hooks", "1.17.8")


def test_a_hook_with_a_known_hole_is_reported_once_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    printed = ["NVIDIA CDI Hook version 1.17.7"]
    node = Node(tmp_path, hook_versions=HookVersions(lambda root, path: printed[0].encode()))
    hook = node.root.put("/usr/local/nvidia/toolkit/nvidia-cdi-hook", b"old", 0o755)
    with caplog.at_level(logging.WARNING, "dra_driver.hardware.cdi.provider"):
        node.provider.refresh()
        node.provider.refresh()
    assert commands(node) == []
    (record,) = caplog.records
    assert "install the NVIDIA Container Toolkit 1.17.8 or newer" in record.__dict__["reason"]
    printed[0] = "NVIDIA CDI Hook version 1.18.0"
    (hook.parent / "new").write_bytes(b"newer")
    (hook.parent / "new").chmod(0o755)
    (hook.parent / "new").rename(hook)
    assert node.provider.ensure_base()
    assert commands(node)[-1] == "disable-device-node-modification"


def test_a_full_disk_is_a_storage_error_and_repairs_itself(tmp_path: Path) -> None:
    files = FlakyFiles("write")
    node = Node(tmp_path, files)
    with fails(StorageError, errno="ENOSPC"):
        node.provider.ensure_base()
    files.step = ""
    assert node.provider.ensure_base()


def test_many_threads_may_ask_at_once(node: Node) -> None:
    results: list[bool] = []
    start = threading.Barrier(8, timeout=10)

    def ask() -> None:
        start.wait()
        results.append(node.provider.ensure_base())
        node.provider.edits_for(GPU)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == [False] * 7 + [True]


def test_checking_costs_little(node: Node) -> None:
    """Every prepare does it: below 2 ms, so that 3 ms for the whole call stay possible."""
    node.provider.refresh()

    def timed() -> float:
        start = time.perf_counter()
        assert not node.provider.ensure_base()
        return time.perf_counter() - start

    assert min(timed() for _ in range(5)) < 0.002


def test_modules_are_loaded_before_their_numbers_are_written(tmp_path: Path) -> None:
    """And asked for again only when the kernel's list changes, which every prepare reads."""
    asked: list[Majors] = []

    def majors() -> Majors:
        asked.append(Majors.read(made.root.proc_devices))
        return asked[-1]

    made = Node(tmp_path, majors=majors)
    made.provider.ensure_base()
    made.provider.ensure_base()
    assert len(asked) == 1
    devices = Path(made.root.proc_devices)
    devices.write_text(devices.read_text().replace("510 nvidia-uvm", "509 nvidia-uvm"))
    assert made.provider.ensure_base()
    assert made.majors()["/dev/nvidia-uvm"] == 509


def test_a_share_hides_the_programs_of_mps_where_the_base_document_mounts_them(node: Node) -> None:
    """CDI replaces the mount of a container path by a later one; what is not mounted needs no mask."""
    assert node.provider.edits_of_share().to_wire() == {}
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        program = node.root.path / "usr/bin" / name
        program.write_text("")
        program.chmod(0o755)
    node.provider.refresh()
    mounts = node.provider.edits_of_share().to_wire()["mounts"]
    base = {mount["containerPath"]: mount["hostPath"] for mount in node.base()["containerEdits"]["mounts"]}
    assert {mount["hostPath"] for mount in mounts} == {str(node.base_path)}
    assert node.base_path.stat().st_mode & 0o7777 == 0o644, "not a program, and not a device: those have no ID mapping"
    masked = [mount["containerPath"] for mount in mounts]
    assert masked == ["/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server"]
    assert [base[path] for path in masked] == masked


def searches(caplog: pytest.LogCaptureFixture) -> int:
    return [record.getMessage() for record in caplog.records].count("NVIDIA driver files found")


class Surroundings:
    """A clock, and a mount table in which a test mounts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.remounted = False

    def asked(self) -> bool:
        remounted, self.remounted = self.remounted, False
        return remounted


@pytest.mark.usefixtures("inotify")
def test_folders_are_compared_after_a_mount_and_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mount over one of the driver's folders, and a change on a file server, make no event of inotify: nor does
    another time of a folder. Comparing costs some forty system calls."""
    caplog.set_level(logging.INFO)
    around = Surroundings()
    node = Node(tmp_path, remounted=around.asked, clock=lambda: around.now)
    node.provider.refresh()
    node.provider.check_base()
    os.utime(node.root.path / LIBS)
    node.provider.check_base()
    assert searches(caplog) == 1
    around.remounted = True
    node.provider.check_base()
    node.provider.check_base()
    assert searches(caplog) == 2
    os.utime(node.root.path / LIBS, (1, 1))
    around.now = 59.0
    node.provider.check_base()
    assert searches(caplog) == 2
    around.now = 60.0
    node.provider.check_base()
    node.provider.check_base()
    assert searches(caplog) == 3
