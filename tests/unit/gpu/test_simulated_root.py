"""The simulated driver root as containers and CDI discovery meet it."""

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_driver.errors import ConfigurationError, StorageError
from dra_driver.gpu import simulated_root
from dra_driver.gpu.library import find_library
from dra_driver.gpu.simulated_root import LIBRARIES, smi_script
from dra_driver.gpu.simulated_spec import parse_document, parse_groups
from dra_driver.model.gpu import Snapshot

DOCUMENT = """
gpus:
- model: h100-sxm5-80gb
- model: l4-24gb
  minor: 3
- model: b300
  minor: 12
  productName: It's a "GPU" $HOME `id` \\\\n
"""
SHELLS = [["dash"], ["busybox", "sh"], ["bash", "--posix"]]


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


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"{request.param[0]} is not installed")
    return list(request.param)


class Container:
    """Runs the root's nvidia-smi with nothing on PATH, over a folder that has the device files of ``minors``."""

    def __init__(self, root: Path, shell: list[str], view: Path, minors: tuple[int, ...] = (0, 3, 12)) -> None:
        (view / "dev").mkdir()
        for minor in minors:
            (view / f"dev/nvidia{minor}").touch()
        program = shutil.which(shell[0])
        assert program is not None
        self.command = [program, *shell[1:], str(root / "usr/bin/nvidia-smi")]
        self.environment = {"DRA_SIM_SYSROOT": str(view), "PATH": "/nonexistent"}

    def smi(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env=self.environment,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout


def test_list_shows_exactly_the_devices_of_the_container_numbered_from_zero(
    root: Path, shell: list[str], tmp_path: Path
) -> None:
    """The proof that a pod got its GPU and no other; the format is the real one's."""
    uuids = [gpu.uuid for gpu in snapshot().gpus]
    status, output = Container(root, shell, tmp_path, (3, 12, 99)).smi("-L")
    assert status == 0
    assert output.splitlines() == [
        f"GPU 0: NVIDIA L4 (UUID: {uuids[1]})",
        f'GPU 1: It\'s a "GPU" $HOME `id` \\\\n (UUID: {uuids[2]})',
    ]


def test_without_a_device_it_says_so_and_exits_with_6(root: Path, shell: list[str], tmp_path: Path) -> None:
    """Scripts look at the status."""
    container = Container(root, shell, tmp_path, ())
    for arguments in ((), ("-L",), ("--query-gpu=uuid", "--format=csv")):
        assert container.smi(*arguments) == (6, "No devices were found\n")


def test_queries_print_csv(root: Path, shell: list[str], tmp_path: Path) -> None:
    """Header and units as the real one prints them, [N/A] for what is not known."""
    uuids = [gpu.uuid for gpu in snapshot().gpus]
    container = Container(root, shell, tmp_path)
    assert container.smi("--query-gpu=index,uuid,memory.total", "--format=csv") == (
        0,
        f"index, uuid, memory.total [MiB]\n0, {uuids[0]}, 81559 MiB\n1, {uuids[1]}, 23034 MiB\n2, {uuids[2]}, [N/A]\n",
    )
    fields = "--query-gpu=name,memory.total,pci.bus_id,compute_cap,driver_version,count"
    assert container.smi("-i", "0", fields, "--format=csv,noheader,nounits") == (
        0,
        "NVIDIA H100 80GB HBM3, 81559, 00000000:01:00.0, 9.0, 580.65.06, 3\n",
    )


@pytest.mark.parametrize("by", ["index", "uuid", "bus id"])
def test_one_gpu_can_be_asked_for(root: Path, shell: list[str], tmp_path: Path, by: str) -> None:
    """By the number that -L shows, the UUID or the bus id."""
    gpu = snapshot().gpus[1]
    wanted = {"index": "1", "uuid": gpu.uuid, "bus id": f"0000{gpu.pci_bus_id}".upper()}[by]
    status, output = Container(root, shell, tmp_path).smi("-L", f"--id={wanted}")
    assert (status, output) == (0, f"GPU 1: NVIDIA L4 (UUID: {gpu.uuid})\n")


def test_without_arguments_it_prints_a_table(root: Path, shell: list[str], tmp_path: Path) -> None:
    """People type nvidia-smi first."""
    status, output = Container(root, shell, tmp_path).smi()
    lines = output.splitlines()
    assert status == 0
    assert len({len(line) for line in lines}) == 1
    assert "Driver Version: 580.65.06   CUDA Version: 13.0" in lines[1]
    assert [line.split()[1] for line in lines if "GPU-" in line] == ["0", "1", "2"]
    assert "81559 MiB" in output


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
    """A script must not take the silence of a simulation for an answer."""
    status, output = Container(root, shell, tmp_path).smi(*arguments)
    assert status == 2
    assert message in output


def test_an_empty_inventory_makes_a_script_that_finds_nothing(shell: list[str], tmp_path: Path) -> None:
    """A node whose GPUs all went away."""
    simulated_root.write(tmp_path / "root", snapshot("gpus: []"))
    (tmp_path / "view").mkdir()
    assert Container(tmp_path / "root", shell, tmp_path / "view", (0,)).smi("-L") == (6, "No devices were found\n")


def test_the_libraries_load_and_have_their_sonames(root: Path) -> None:
    """dlopen("libcuda.so.1") in a container has to find the mounted file under that name."""
    folder = root / f"usr/lib/{platform.machine()}-linux-gnu"
    for name, number in LIBRARIES.items():
        ctypes.CDLL(str(folder / f"{name}.so.580.65.06"))
        assert (folder / f"{name}.so.{number}").readlink() == Path(f"{name}.so.580.65.06")
        assert f"{name}.so.{number}\0".encode() in (folder / f"{name}.so.580.65.06").read_bytes()
    assert find_library(str(root)) == str(folder / "libnvidia-ml.so.580.65.06")


def test_majors_are_registered_as_on_a_node_with_a_driver(root: Path) -> None:
    """CDI edits take the major numbers from proc/devices."""
    lines = {tuple(line.split()) for line in (root / "proc/devices").read_text().splitlines()}
    assert {("195", "nvidia"), ("237", "nvidia-caps"), ("510", "nvidia-uvm")} <= lines


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
    """Whatever a crash left behind, the next start puts right."""
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
    """The error says which."""
    with pytest.raises(ConfigurationError, match="needs a driver version"):
        simulated_root.write(tmp_path, Snapshot())
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write the simulated driver root"):
        simulated_root.write(tmp_path / "file", snapshot())


def test_the_script_fits_into_a_container_image_of_any_size() -> None:
    """64 GPUs make a script of a few kilobytes, not more."""
    node = parse_groups("64xh100-sxm5-80gb", "n")
    assert len(smi_script(Snapshot(driver_version="1.2", gpus=tuple(item.gpu for item in node.gpus)))) < 20_000
