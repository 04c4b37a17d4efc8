"""The simulated driver root: its nvidia-smi in containers and on the node, its files, and ELF headers."""

import ctypes
import os
import platform
import subprocess
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.hardware.driver_root.search import find_library
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.hardware.gpu.simulated.root import LIBRARIES
from dra_driver.hardware.gpu.simulated.spec import parse_document
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.raising import fails

DOCUMENT = """
gpus:
- model: h100-sxm5-80gb
- model: l4-24gb
  minor: 3
- model: b300
  minor: 12
  productName: It's a "GPU" $HOME `id` \\\\n
"""
MIG_DOCUMENT = """
gpus:
- model: l4-24gb
- model: h100-sxm5-80gb
  migEnabled: true
  instances:
  - {profile: 1g.10gb+me, start: 0}
  - {profile: 2g.20gb, start: 2, compute: partial}
  - {profile: 3g.40gb, start: 4}
  - {profile: 1g.10gb, start: 1, compute: none}
- model: h100-sxm5-80gb
  migEnabled: true
  instances: [{profile: 7g.80gb, start: 0}]
"""


def snapshot(text: str = DOCUMENT) -> Snapshot:
    node = parse_document(text, "n")
    return Snapshot(
        driver_version=node.driver_version,
        cuda_driver_version=node.cuda_driver_version,
        gpus=tuple(item.gpu for item in node.gpus),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    simulated_root.write(folder, snapshot())
    return folder


class Smi:
    """Runs a root's nvidia-smi: on the node, or with a ``view`` in a container that sees these device files."""

    def __init__(
        self,
        root: Path,
        shell: list[str],
        view: Path | None = None,
        minors: tuple[int, ...] = (0, 3, 12),
        caps: tuple[int, ...] = (),
    ) -> None:
        self.command = [*shell, str(root / "usr/bin/nvidia-smi")]
        self.environment = {"PATH": os.defpath}
        if view is not None:
            self.environment = {"DRA_SIM_SYSROOT": str(view), "PATH": "/nonexistent"}
            (view / "dev/nvidia-caps").mkdir(parents=True)
            for name in (*(f"nvidia{minor}" for minor in minors), *(f"nvidia-caps/nvidia-cap{cap}" for cap in caps)):
                (view / "dev" / name).touch()

    def __call__(self, *arguments: str) -> tuple[int, str]:
        command = [*self.command, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=self.environment)
        assert done.stderr == ""
        return done.returncode, done.stdout


def test_list_shows_exactly_the_devices_of_the_container_numbered_from_zero(
    root: Path, shell: list[str], tmp_path: Path
) -> None:
    uuids = [gpu.uuid for gpu in snapshot().gpus]
    status, output = Smi(root, shell, tmp_path, (3, 12, 99))("-L")
    assert status == 0
    assert output.splitlines() == [
        f"GPU 0: NVIDIA L4 (UUID: {uuids[1]})",
        f'GPU 1: It\'s a "GPU" $HOME `id` \\\\n (UUID: {uuids[2]})',
    ]


def test_without_a_device_it_says_so_and_exits_with_6(root: Path, shell: list[str], tmp_path: Path) -> None:
    smi = Smi(root, shell, tmp_path, ())
    for arguments in ((), ("-L",), ("--query-gpu=uuid", "--format=csv")):
        assert smi(*arguments) == (6, "No devices were found\n")


def test_queries_print_csv(root: Path, shell: list[str], tmp_path: Path) -> None:
    uuids = [gpu.uuid for gpu in snapshot().gpus]
    smi = Smi(root, shell, tmp_path)
    assert smi("--query-gpu=index,uuid,memory.total", "--format=csv") == (
        0,
        f"index, uuid, memory.total [MiB]\n0, {uuids[0]}, 81559 MiB\n1, {uuids[1]}, 23034 MiB\n2, {uuids[2]}, [N/A]\n",
    )
    fields = "--query-gpu=name,memory.total,pci.bus_id,compute_cap,driver_version,count"
    assert smi("-i", "0", fields, "--format=csv,noheader,nounits") == (
        0,
        "NVIDIA H100 80GB HBM3, 81559, 00000000:01:00.0, 9.0, 580.65.06, 3\n",
    )


@pytest.mark.parametrize("by", ["index", "uuid", "bus id"])
def test_one_gpu_can_be_asked_for(root: Path, shell: list[str], tmp_path: Path, by: str) -> None:
    gpu = snapshot().gpus[1]
    wanted = {"index": "1", "uuid": gpu.uuid, "bus id": f"0000{gpu.pci_bus_id}".upper()}[by]
    status, output = Smi(root, shell, tmp_path)("-L", f"--id={wanted}")
    assert (status, output) == (0, f"GPU 1: NVIDIA L4 (UUID: {gpu.uuid})\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-q",), "-q is not known to the simulated nvidia-smi"),
        (("mig", "-lgip"), "mig is not known to the simulated nvidia-smi"),
        (("--query-gpu=uuid",), "needs --format=csv"),
        (("--query-gpu=uuid,power.draw", "--format=csv"), 'Field "power.draw" is not a valid field to query.'),
        (("-i",), "Option -i needs a value."),
        (("compute-policy",), "compute-policy needs --list or --set-timeslice"),
        (("compute-policy", "--set-timeslice", "4"), "a timeslice is 0, 1, 2 or 3, not '4'"),
        (("compute-policy", "-L"), "-L is not known"),
        (("-c", "SHARED"), "a compute mode is DEFAULT, PROHIBITED or EXCLUSIVE_PROCESS, not 'SHARED'"),
    ],
)
def test_what_it_cannot_do_is_refused_with_2(
    root: Path, shell: list[str], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    status, output = Smi(root, shell, tmp_path)(*arguments)
    assert status == 2
    assert message in output


def test_the_libraries_load_and_have_their_sonames(root: Path) -> None:
    """dlopen("libcuda.so.1") in a container has to find the mounted file under that name."""
    folder = root / f"usr/lib/{platform.machine()}-linux-gnu"
    for name, number in LIBRARIES.items():
        ctypes.CDLL(str(folder / f"{name}.so.580.65.06"))
        assert (folder / f"{name}.so.{number}").readlink() == Path(f"{name}.so.580.65.06")
        assert f"{name}.so.{number}\0".encode() in (folder / f"{name}.so.580.65.06").read_bytes()
    assert find_library(str(root)) == str(folder / "libnvidia-ml.so.580.65.06")


def test_writing_again_touches_nothing_and_an_upgrade_leaves_one_version(tmp_path: Path) -> None:
    """CDI specs are compared by content; two versions of libcuda would confuse discovery."""
    simulated_root.write(tmp_path, snapshot())
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    simulated_root.write(tmp_path, snapshot())
    assert {path: path.lstat().st_ino for path in tmp_path.rglob("*")} == before
    simulated_root.write(tmp_path, snapshot("driverVersion: 610.43.02\ngpus: []"))
    names = {path.name for path in tmp_path.rglob("libcuda.so*")}
    assert names == {"libcuda.so", "libcuda.so.1", "libcuda.so.610.43.02"}
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".new")]


def test_a_damaged_root_is_repaired(tmp_path: Path) -> None:
    simulated_root.write(tmp_path, snapshot())
    smi = tmp_path / "usr/bin/nvidia-smi"
    good = smi.read_bytes()
    smi.write_bytes(b"half")
    smi.chmod(0o600)
    (tmp_path / "usr/bin/.nvidia-smi.new").write_bytes(b"left over")
    next(tmp_path.rglob("libcuda.so.1")).unlink()
    simulated_root.write(tmp_path, snapshot())
    assert smi.read_bytes() == good
    assert os.access(smi, os.X_OK)
    assert next(tmp_path.rglob("libcuda.so.1")).is_symlink()


def test_it_needs_a_driver_version_and_a_folder_it_may_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a driver version"):
        simulated_root.write(tmp_path, Snapshot())
    (tmp_path / "file").write_text("")
    with fails(StorageError, "RootNotWritable"):
        simulated_root.write(tmp_path / "file", snapshot())


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Snapshot]:
    folder = tmp_path_factory.mktemp("cut")
    simulated_root.write(folder, snapshot(MIG_DOCUMENT))
    return folder, snapshot(MIG_DOCUMENT)


def caps(gpu_minor: int, gi_id: int) -> tuple[int, int]:
    """By the rule of the kernel module: 135 numbers per GPU, 9 per GPU instance, the first of all is 3."""
    first = 3 + 135 * gpu_minor + 9 * gi_id
    return first, first + 1


def mig_uuids(gpu: Gpu) -> dict[int, str]:
    return {i.start: str(i.compute[0].uuid) for i in gpu.mig_instances if i.compute}


def test_mig_devices_are_listed_below_their_gpu_when_both_their_nodes_are_there(
    cut: tuple[Path, Snapshot], shell: list[str], tmp_path: Path
) -> None:
    root, found = cut
    uuids = mig_uuids(found.gpus[1])
    only_gi_of_first = caps(1, 7)[:1]
    smi = Smi(root, shell, tmp_path, (1, 2), (*only_gi_of_first, *caps(1, 4), *caps(1, 2)))
    assert smi("-L") == (
        0,
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {found.gpus[1].uuid})\n"
        f"  MIG 3g.40gb     Device  0: (UUID: {uuids[4]})\n"
        f"  MIG 1c.2g.20gb  Device  1: (UUID: {uuids[2]})\n"
        f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {found.gpus[2].uuid})\n",
    )
    status, table = smi()
    assert status == 0
    assert len({len(line) for line in table.splitlines()}) == 1
    assert uuids[4] in table


def test_nodes_of_another_gpu_show_nothing(cut: tuple[Path, Snapshot], shell: list[str], tmp_path: Path) -> None:
    smi = Smi(cut[0], shell, tmp_path, (0,), caps(1, 2))
    assert smi("-L") == (0, f"GPU 0: NVIDIA L4 (UUID: {cut[1].gpus[0].uuid})\n")
    assert smi("--query-gpu=mig.mode.current", "--format=csv,noheader") == (0, "[N/A]\n")


def test_the_kernel_modules_files_list_every_existing_instance(cut: tuple[Path, Snapshot]) -> None:
    root, _ = cut
    folder = root / "proc/driver/nvidia/capabilities"
    found = {path.parent.relative_to(folder).as_posix() for path in folder.rglob("access")}
    assert found == {
        *(f"gpu1/mig/{name}" for name in ("gi7", "gi7/ci0", "gi4", "gi4/ci0", "gi2", "gi2/ci0", "gi8")),
        *(f"gpu2/mig/{name}" for name in ("gi0", "gi0/ci0")),
    }
    text = (folder / "gpu2/mig/gi0/ci0/access").read_text()
    assert text == f"DeviceFileMinor: {caps(2, 0)[1]}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    lines = (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert lines[:3] == ["config 1", "monitor 2", "gpu1/gi0/access 138"]
    assert f"gpu2/gi13/ci0/access {caps(2, 13)[1]}" in lines
    numbers = [int(line.split()[1]) for line in lines]
    assert len(set(numbers)) == len(lines) == 2 + 2 * 135


def test_a_root_follows_the_instances_inside_the_calls_that_change_them(tmp_path: Path) -> None:
    """What prepare hands out next has its numbers, and what is gone has none; whole GPUs leave no trace of MIG."""
    root = tmp_path / "root"
    backend = SimulatedBackend.from_spec("1xh100-sxm5-80gb", "n", on_change=lambda now: simulated_root.write(root, now))
    backend.announce()
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    uuid = backend.snapshot().gpus[0].uuid
    backend.set_mig_mode(uuid, True)
    gi_id = backend.create_gpu_instance(uuid, 19, 3)
    access = root / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{gi_id}/access"
    assert access.exists()
    made = backend.create_compute_instance(uuid, gi_id)
    assert (access.parent / "ci0/access").exists()
    assert str(made.uuid) in (root / "usr/bin/nvidia-smi").read_text()
    backend.destroy_compute_instance(uuid, gi_id, 0)
    assert not (access.parent / "ci0").exists()
    backend.destroy_gpu_instance(uuid, gi_id)
    assert not (root / "proc/driver/nvidia/capabilities/gpu0").exists()
    backend.set_mig_mode(uuid, False)
    after = {path: path.lstat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    smi = root / "usr/bin/nvidia-smi"
    assert {path: time for path, time in after.items() if path != smi} == {
        path: time for path, time in before.items() if path != smi
    }


def settings(folder: Path) -> list[str | None]:
    files = [folder / gpu.uuid for gpu in snapshot().gpus]
    return [file.read_text() if file.exists() else None for file in files]


def test_on_the_node_it_sees_all_gpus_sets_time_slices_and_records_it(shell: list[str], tmp_path: Path) -> None:
    """There is no NVML call for it, so the driver has to run this program."""
    simulated_root.write(tmp_path, snapshot())
    smi = Smi(tmp_path, shell)
    uuid = snapshot().gpus[1].uuid
    assert smi("compute-policy", "-i", uuid, "--set-timeslice", "2") == (
        0,
        "Set timeslice to Medium for GPU 00000000:0A:00.0.\n",
    )
    assert settings(tmp_path / simulated_root.TIMESLICE) == [None, "2\n", None]
    status, listed = smi("compute-policy", "--list")
    assert status == 0
    assert [line.split()[1:3] for line in listed.splitlines()[4:-1]] == [
        ["0", "Default"],
        ["1", "Medium"],
        ["2", "Default"],
    ]
    assert smi("compute-policy", f"--id={uuid}", "--set-timeslice=0")[0] == 0
    assert settings(tmp_path / simulated_root.TIMESLICE)[1] == "0\n"
    assert (tmp_path / simulated_root.RECORDS / "nvidia-smi.log").read_text().splitlines() == [
        f"nvidia-smi compute-policy -i {uuid} --set-timeslice 2",
        "nvidia-smi compute-policy --list",
        f"nvidia-smi compute-policy --id={uuid} --set-timeslice=0",
    ]


def test_the_compute_mode_is_set_by_name_or_number(shell: list[str], tmp_path: Path) -> None:
    simulated_root.write(tmp_path, snapshot())
    smi = Smi(tmp_path, shell)
    assert smi("-i", snapshot().gpus[0].uuid, "-c", "EXCLUSIVE_PROCESS") == (
        0,
        "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:01:00.0.\nAll done.\n",
    )
    assert smi("-c", "0")[0] == 0
    assert settings(tmp_path / simulated_root.COMPUTE_MODE) == ["DEFAULT\n"] * 3


def test_a_gpu_in_mig_mode_has_neither_time_slices_nor_a_compute_mode(shell: list[str], tmp_path: Path) -> None:
    simulated_root.write(tmp_path, snapshot(MIG_DOCUMENT))
    smi = Smi(tmp_path, shell)
    uuid = snapshot(MIG_DOCUMENT).gpus[1].uuid
    assert smi("compute-policy", "-i", uuid, "--set-timeslice", "1")[0] == 3
    assert smi("-i", uuid, "-c", "DEFAULT")[0] == 3
    assert smi("compute-policy", "-i", "GPU-none", "--set-timeslice", "1") == (6, "No devices were found\n")


def test_a_container_cannot_change_a_gpu(root: Path, shell: list[str], tmp_path: Path) -> None:
    smi = Smi(root, shell, tmp_path)
    assert smi("compute-policy", "--set-timeslice", "1")[0] == 4
    assert smi("-c", "DEFAULT")[0] == 4


def test_long_records_are_rotated(tmp_path: Path) -> None:
    simulated_root.write(tmp_path, snapshot())
    log = tmp_path / simulated_root.RECORDS / "nvidia-smi.log"
    log.write_bytes(b"x" * simulated_root.MAX_RECORD_BYTES)
    simulated_root.write(tmp_path, snapshot())
    assert log.exists()
    log.write_bytes(b"x" * (simulated_root.MAX_RECORD_BYTES + 1))
    simulated_root.write(tmp_path, snapshot())
    assert not log.exists()
