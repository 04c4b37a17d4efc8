"""The simulated nvidia-smi on the node itself: settings, faults, records."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.simulated import root as simulated_root
from tests.unit.hardware.gpu.conftest import DOCUMENT, MIG_DOCUMENT, snapshot
from tests.unit.hardware.gpu.test_simulated_root import Container


class Node:
    """Runs a root's nvidia-smi on the node, as the driver does."""

    def __init__(self, folder: Path, shell: list[str], text: str = DOCUMENT) -> None:
        self.root, self.snapshot = folder, snapshot(text)
        simulated_root.write(folder, self.snapshot)
        program = shutil.which(shell[0])
        assert program is not None
        self.command = [program, *shell[1:], str(folder / "usr/bin/nvidia-smi")]

    def smi(self, *arguments: str, timeout: float = 20) -> tuple[int, str]:
        done = subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={"PATH": os.defpath},
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    def setting(self, folder: str, number: int) -> str | None:
        file = self.root / folder / self.snapshot.gpus[number].uuid
        return file.read_text() if file.exists() else None


def test_on_the_node_it_sees_all_gpus_sets_time_slices_and_records_it(shell: list[str], tmp_path: Path) -> None:
    """There is no NVML call for it, so the driver has to run this program."""
    node = Node(tmp_path, shell)
    uuid = node.snapshot.gpus[1].uuid
    assert node.smi("compute-policy", "-i", uuid, "--set-timeslice", "2") == (
        0,
        "Set timeslice to Medium for GPU 00000000:0A:00.0.\n",
    )
    assert [node.setting(simulated_root.TIMESLICE, number) for number in range(3)] == [None, "2\n", None]
    status, listed = node.smi("compute-policy", "--list")
    assert status == 0
    assert [line.split()[1:3] for line in listed.splitlines()[4:-1]] == [
        ["0", "Default"],
        ["1", "Medium"],
        ["2", "Default"],
    ]
    assert node.smi("compute-policy", f"--id={uuid}", "--set-timeslice=0")[0] == 0
    assert node.setting(simulated_root.TIMESLICE, 1) == "0\n"
    assert (tmp_path / simulated_root.RECORDS / "nvidia-smi.log").read_text().splitlines() == [
        f"nvidia-smi compute-policy -i {uuid} --set-timeslice 2",
        "nvidia-smi compute-policy --list",
        f"nvidia-smi compute-policy --id={uuid} --set-timeslice=0",
    ]


def test_the_compute_mode_is_set_by_name_or_number(shell: list[str], tmp_path: Path) -> None:
    """As NVIDIA's own driver does it."""
    node = Node(tmp_path, shell)
    assert node.smi("-i", node.snapshot.gpus[0].uuid, "-c", "EXCLUSIVE_PROCESS") == (
        0,
        "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:01:00.0.\nAll done.\n",
    )
    assert node.smi("-c", "0")[0] == 0
    assert [node.setting(simulated_root.COMPUTE_MODE, number) for number in range(3)] == ["DEFAULT\n"] * 3


def test_a_gpu_in_mig_mode_has_neither_time_slices_nor_a_compute_mode(shell: list[str], tmp_path: Path) -> None:
    """A caller that tries has confused whole GPUs and partitions."""
    node = Node(tmp_path, shell, MIG_DOCUMENT)
    uuid = node.snapshot.gpus[1].uuid
    assert node.smi("compute-policy", "-i", uuid, "--set-timeslice", "1")[0] == 3
    assert node.smi("-i", uuid, "-c", "DEFAULT")[0] == 3
    assert node.smi("compute-policy", "-i", "GPU-none", "--set-timeslice", "1") == (6, "No devices were found\n")


def test_a_container_cannot_change_a_gpu(root: Path, shell: list[str], tmp_path: Path) -> None:
    """Settings are the node's business."""
    container = Container(root, shell, tmp_path)
    assert container.smi("compute-policy", "--set-timeslice", "1")[0] == 4
    assert container.smi("-c", "DEFAULT")[0] == 4


def test_it_fails_and_hangs_on_request_on_the_node_only(shell: list[str], tmp_path: Path) -> None:
    """Tests of other packages switch it on with a file; pods on that node go on."""
    node = Node(tmp_path / "root", shell)
    faults = node.root / simulated_root.FAULTS
    (faults / "smi-fail").write_text("Failed to initialize NVML: Driver/library version mismatch\n")
    assert node.smi("-L") == (255, "Failed to initialize NVML: Driver/library version mismatch\n")
    (tmp_path / "view").mkdir()
    assert Container(node.root, shell, tmp_path / "view").smi("-L")[0] == 0
    (faults / "smi-fail").unlink()
    (faults / "smi-hang").write_text("")
    with pytest.raises(subprocess.TimeoutExpired):
        node.smi("-L", timeout=0.2)
    (faults / "smi-hang").write_text("0.01\n")
    assert node.smi("-L")[0] == 0


def test_long_records_are_rotated(tmp_path: Path) -> None:
    """A node that runs for weeks must not fill its disk."""
    simulated_root.write(tmp_path, snapshot())
    log = tmp_path / simulated_root.RECORDS / "nvidia-smi.log"
    log.write_bytes(b"x" * simulated_root.MAX_RECORD_BYTES)
    simulated_root.write(tmp_path, snapshot())
    assert log.exists()
    log.write_bytes(b"x" * (simulated_root.MAX_RECORD_BYTES + 1))
    simulated_root.write(tmp_path, snapshot())
    assert not log.exists()
