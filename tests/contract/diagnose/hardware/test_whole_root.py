"""Checks that make a CUDA context, an MPS daemon and mount namespaces, on a simulated root with C libraries."""

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.values import CheckRecord
from dra_driver.hardware.driver_root.search import find_library
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from tests.contract.diagnose.conftest import MAIN, SPEC, Command, run_python
from tests.fakes.nvml.state import UNKNOWN, State

REPORT = "hardware-check-report.json"
UUID = parse_groups(SPEC, "node-a").gpus[0].gpu.uuid

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it needs root")
outside_tmp = pytest.mark.skipif(
    Path(sys.executable).is_relative_to("/tmp"), reason="this Python is below /tmp, which the namespace of MPS covers"
)


@pytest.fixture
def on_root(command: Command, environment: dict[str, str], whole_root: Path) -> Command:
    """The command with that root, and CUDA's UUID of the first GPU."""
    environment |= {
        "DRIVER_ROOT": str(whole_root),
        "ALT_PROC_DEVICES_PATH": str(whole_root / "proc/devices"),
        "FAKE_CUDA_UUID": UUID.removeprefix("GPU-"),
    }
    return command


def record(folder: Path, number: int) -> CheckRecord:
    return next(one for one in storage.load(folder / REPORT).records if one.number == number)


def test_cuda_works_with_the_nodes_and_libraries_of_a_claim_alone(on_root: Command, tmp_path: Path) -> None:
    done = on_root("--only", "1", "--keep-identities")
    assert done.returncode == 0, done.stdout + done.stderr
    found = record(tmp_path, 1)
    assert found.verdict == "ok"
    assert found.reading.facts["container"]["uuid"] == UUID.removeprefix("GPU-")
    assert found.reading.facts["without uvm"]["cuInit"] == 999
    nodes = found.reading.facts["edits"]["nodes"]
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(nodes)
    assert "/dev/nvidia1" not in nodes
    assert "without UVM's nodes: cuInit 999" in found.finding.seen
    assert "dra-hw-check" not in Path("/proc/mounts").read_text()


@pytest.mark.slow
def test_a_root_without_libcuda_is_skipped(on_root: Command, whole_root: Path, tmp_path: Path) -> None:
    library = find_library(str(whole_root), "libcuda.so.1")
    assert library is not None
    Path(library).unlink()
    on_root("--only", "1")
    assert record(tmp_path, 1).finding.seen.startswith("no libcuda.so.1 below the driver root")


@pytest.mark.slow
def test_a_node_on_which_no_claim_can_be_prepared_is_skipped(
    on_root: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    """Without UVM, for example: the node process refuses claims with the same words."""
    devices = tmp_path / "devices"
    devices.write_text("Character devices:\n195 nvidia\n\nBlock devices:\n")
    environment["ALT_PROC_DEVICES_PATH"] = str(devices)
    on_root("--only", "1")
    assert record(tmp_path, 1).verdict == "skipped"
    assert "no claim can be prepared on this node" in record(tmp_path, 1).finding.seen
    assert "nvidia-uvm" in record(tmp_path, 1).finding.seen


@pytest.mark.slow
def test_a_hanging_cuda_call_is_a_difference(on_root: Command, environment: dict[str, str], tmp_path: Path) -> None:
    environment["FAKE_CUDA_HANGS"] = "1"
    assert on_root("--only", "1").returncode == 1
    assert "no end within 25 s" in record(tmp_path, 1).finding.seen


@outside_tmp
@pytest.mark.slow
def test_an_mps_daemon_takes_the_drivers_commands(on_root: Command, tmp_path: Path) -> None:
    done = on_root("--only", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = record(tmp_path, 10).reading.facts
    assert [one["command"].split()[0] for one in facts["commands"]] == [
        "get_default_active_thread_percentage",
        "set_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit",
        "get_server_list",
        "get_server_list",
        "quit",
    ]
    assert (facts["client"]["cuMemAlloc 64 MiB"], facts["client"]["cuMemAlloc 2048 MiB"]) == (0, 2)
    assert facts["end"] == {"status": 0}
    assert "command quit" in facts["logs"]["control.log"]
    assert not Path("/tmp/nvidia-mps").exists()


@outside_tmp
@pytest.mark.slow
def test_probes_of_a_first_session_end_in_time_and_prove_nothing_without_a_gpu(
    on_root: Command, environment: dict[str, str], state: State, tmp_path: Path
) -> None:
    environment["CUDA_MPS_PIPE_DIRECTORY"] = "/nowhere"  # libcuda of the test needs no device nodes then
    state.configure(0, flood=31)
    done = on_root("--for", "80s", "--allow-xid", "--only", "15,16,17,20,21,22,23,24")
    assert "Traceback" not in done.stdout + done.stderr
    found = {one.number: one for one in storage.load(tmp_path / REPORT).records}
    working, blind = dict.fromkeys((21, 22, 23), "ok"), dict.fromkeys((15, 20, 24), "cannot tell")
    assert {number: one.verdict for number, one in found.items()} == working | blind | {16: "differs", 17: "differs"}
    assert all("error" not in found[number].reading.facts["load"] for number in (15, 16, 17, 20))


@pytest.mark.slow
def test_a_daemon_that_answers_nothing_is_a_difference(on_root: Command, whole_root: Path, tmp_path: Path) -> None:
    faults = whole_root / "etc/nvidia-stub"
    faults.mkdir(parents=True, exist_ok=True)
    (faults / "mps-never-ready").touch()
    assert on_root("--only", "10").returncode == 1
    assert "get_default_active_thread_percentage" in record(tmp_path, 10).finding.seen
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(whole_root).encode() in line for line in running)


@pytest.mark.slow
def test_a_busy_gpu_is_left_alone(on_root: Command, state: State, tmp_path: Path) -> None:
    """The next free one is used; with the owner's consent the busy one."""
    for index in range(4):
        state.configure(index, clients=1)
    on_root("--only", "1,10")
    assert record(tmp_path, 1).verdict == "skipped"
    assert "GPU 0 has 1 processes" in record(tmp_path, 1).finding.seen
    assert on_root("--only", "1", "--i-own-this-gpu", "--gpu", "0").returncode == 0


def test_a_gpu_of_a_prepared_claim_is_left_alone(on_root: Command, environment: dict[str, str], tmp_path: Path) -> None:
    folder = Path(environment["KUBELET_PLUGINS_DIR"], "gpu.nvidia.com")
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        connection.execute("CREATE TABLE device (gpu_uuid TEXT, admin INTEGER)")
        connection.execute("INSERT INTO device VALUES (?, 0)", (UUID,))
        connection.commit()
    before = (folder / "state.db").read_bytes()
    on_root("--only", "1", "--gpu", "0")
    assert "GPU 0 has 1 devices of claims prepared" in record(tmp_path, 1).finding.seen
    assert (folder / "state.db").read_bytes() == before
    (folder / "state.db").write_bytes(b"not a database")
    on_root("--only", "1", "--gpu", "0")
    assert "GPU 0 may have claims" in record(tmp_path, 1).finding.seen


def test_files_of_the_driver_and_nvidia_smi_are_right_on_a_simulated_root(on_root: Command, tmp_path: Path) -> None:
    done = on_root("--only", "8,9,11")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / REPORT).read_text())["checks"][0]["facts"]["own"]["version"] == "580.65.06"


@pytest.mark.slow
def test_nodes_that_are_missing_in_a_private_dev_do_not_touch_the_machines(on_root: Command, tmp_path: Path) -> None:
    """The stand-in needs no node, so the check cannot tell."""
    before = sorted(Path("/dev").iterdir())
    on_root("--only", "6")
    assert record(tmp_path, 6).verdict == "cannot tell"
    assert record(tmp_path, 6).reading.problem == ""
    assert sorted(Path("/dev").iterdir()) == before


@pytest.mark.usefixtures("on_root")
def test_the_doctor_has_the_read_only_checks_as_a_layer(environment: dict[str, str], state: State) -> None:
    state.inject("nvmlDeviceGetBrand", UNKNOWN, device=1)
    done = run_python(*MAIN, "doctor", "--output", "json", "--node-name", "n", environment=environment)
    findings = json.loads(done.stdout)["items"]
    assert "NVML counts 4 GPUs" in [each["seen"] for each in findings if each["check"] == "nvml"]
    hardware = {each["seen"].partition(",")[0]: each for each in findings if each["layer"] == "hardware"}
    statuses = {name: each["status"] for name, each in hardware.items()}
    assert statuses == {"check 5": "warn", "check 7": statuses["check 7"], "check 8": "ok"}
    assert "GPU 1: nvmlDeviceGetBrand" in hardware["check 5"]["seen"]
