"""``dra-driver hardware-check`` as users run it, on our C library and on machines without a GPU."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.diagnose.hardware import files, runner, storage
from dra_driver.diagnose.hardware.child import Task, own_module
from dra_driver.diagnose.hardware.cuda import run_probe
from dra_driver.diagnose.hardware.cuda_probe import ClaimView
from dra_driver.diagnose.hardware.values import HardwareReport, Reading
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.node.claims import GpuLocks
from tests.contract.diagnose.conftest import MAIN, ROOT, SPEC, Command, run_python
from tests.fakes.driver_root import make_small_root
from tests.fakes.nvml.state import IN_USE, UNKNOWN, State

REPORT = "hardware-check-report.json"
NVML_CHECKS = "3,4,5,9"


def verdicts(path: Path) -> dict[int, str]:
    return {record.number: record.verdict for record in storage.load(path).records}


def facts(path: Path, number: int) -> dict[str, object]:
    found: HardwareReport = storage.load(path)
    return dict(next(record.reading.facts for record in found.records if record.number == number))


def test_what_nvml_answers_is_right_on_the_library_that_the_driver_was_tested_with(
    command: Command, tmp_path: Path
) -> None:
    done = command("--only", NVML_CHECKS)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines, last = done.stdout.splitlines()
    assert first.startswith("2 x NVIDIA H100 80GB HBM3, 1 x NVIDIA L4, 1 x NVIDIA A100-SXM4-40GB; driver 580.65.06")
    assert [line.split()[0] for line in lines] == NVML_CHECKS.split(",")
    assert last == f"report: {REPORT}"
    path = tmp_path / REPORT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert verdicts(path) == {3: "ok", 4: "ok", 5: "ok", 9: "ok"}


def test_a_report_is_judged_again_without_hardware(
    command: Command, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = command("--only", "3")
    environment |= {"DRIVER_ROOT": "/nonexistent"}
    again = command("--replay", str(tmp_path / REPORT))
    assert again.returncode == done.returncode == 0
    assert again.stdout.splitlines()[1:] == done.stdout.splitlines()[1:-1]


def test_a_report_cannot_steer_the_terminal(command: Command, tmp_path: Path) -> None:
    report = HardwareReport(about={"at": "\x1b]0;x\x07", "kernel": "a\nb"}, survey=Reading(), records=())
    storage.write(tmp_path / "report.json", report)
    (line,) = command("--replay", "report.json").stdout.splitlines()
    assert line.isprintable()


@pytest.mark.slow
def test_a_code_that_the_driver_does_not_provide_for_is_a_difference(command: Command, state: State) -> None:
    state.inject("nvmlDeviceGetBrand", UNKNOWN, device=1)
    done = command("--only", "5")
    assert done.returncode == 1
    assert "GPU 1: nvmlDeviceGetBrand: NVMLError_Unknown (999)" in done.stdout
    assert "Expected: a property is readable, or missing with one of four codes. It means: " in done.stdout
    assert "Check 5 differs from dra-driver's assumptions." in done.stderr


def test_a_hanging_call_does_not_hang_the_command(
    state: State, environment: dict[str, str], tmp_path: Path, driver_root: Path
) -> None:
    state.inject("nvmlDeviceGetBrand", 0, latency_ms=600_000)
    script = (
        "import sys; from dra_driver.diagnose.hardware import runner\n"
        "from dra_driver.diagnose.hardware.child import Task\n"
        f"task = Task(reader='nvml:read_described', folder='', library={str(next(driver_root.rglob('*.so.1')))!r})\n"
        "reading = runner.run(task, 2.0); print(reading.problem, reading.seconds)"
    )
    done = run_python("-c", script, environment=environment, timeout=60)
    assert "not finished within 2 s; the last NVML call was nvmlDeviceGetBrand" in done.stdout, done.stderr
    assert processes_with(state.path) == []


def processes_with(path: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(path).encode() in (folder / "environ").read_bytes():
                found.append((folder / "comm").read_text().strip())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_identities_are_hashed_unless_they_are_to_be_kept(
    command: Command, state: State, tmp_path: Path, environment: dict[str, str], driver_root: Path
) -> None:
    """In the report and in what is printed; the node's name is one that is part of a path."""
    environment["NODE_NAME"] = driver_root.name
    state.inject("nvmlDeviceGetBrand", UNKNOWN, device=0)
    command("--only", "5", "--keep-identities", "--output", "kept.json")
    kept = json.loads((tmp_path / "kept.json").read_text())
    uuid = kept["survey"]["facts"]["gpus"][0]["answers"]["nvmlDeviceGetUUID"]["value"]
    done = command("--only", "5")
    text = (tmp_path / REPORT).read_text()
    assert uuid.removeprefix("GPU-") not in text + done.stdout
    assert driver_root.name not in text
    assert (json.loads(text)["hashed"], kept["hashed"]) == (True, False)


@pytest.mark.parametrize(("arguments", "count"), [((), 14), (("--for", "45m", "--allow-xid"), 24)])
def test_a_machine_without_a_driver_gets_a_sentence_for_each_check(
    command: Command, environment: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], count: int
) -> None:
    environment |= {"DRIVER_ROOT": str(tmp_path)}
    done = command(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    first, *lines, _ = done.stdout.splitlines()
    assert first.startswith("no usable NVIDIA GPU: no libnvidia-ml.so.1 below the driver root")
    assert len(lines) == count
    assert all(" skipped     without a usable NVIDIA GPU " in line for line in lines)
    assert set(verdicts(tmp_path / REPORT).values()) == {"skipped"}


@pytest.mark.slow
def test_a_report_is_printed_in_lines_for_a_log(command: Command, tmp_path: Path) -> None:
    done = command("--only", "3", "--print-report")
    report = storage.unpack(done.stdout)
    assert report is not None
    assert [record.verdict for record in report.records] == ["ok"]
    assert not (tmp_path / REPORT).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "25"), "--only 25: expected numbers from 1 to 24"),
        (("--for", "3 weeks"), "--for 3 weeks: expected a time from 10s to 4h, such as 45m"),
        (("--gpu", "9"), "--gpu 9: GPU not found"),
        (("--i-own-this-gpu",), "name the GPU to change with --gpu INDEX"),
        (("--replay", "none.json"), "cannot read the report none.json"),
        (("--output", "missing/x.json", "--only", "3"), "cannot write the report missing/x.json"),
    ],
)
def test_wrong_usage_is_one_sentence(command: Command, arguments: tuple[str, ...], message: str) -> None:
    done = command(*arguments)
    assert done.returncode in {1, 2}
    assert message in done.stderr
    assert "Traceback" not in done.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="it needs root")


@needs_root
def test_changes_of_mig_beside_a_second_client_are_restored(command: Command, state: State, tmp_path: Path) -> None:
    """IN_USE for the first instance beside the client is what the driver provides for."""
    state.inject("nvmlDeviceCreateGpuInstanceWithPlacement", IN_USE, times=1)
    done = command("--i-own-this-gpu", "--gpu", "1", "--only", "12,13,14")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(tmp_path / REPORT) == {12: "ok", 13: "ok", 14: "skipped"}
    assert "create beside client: GpuBusyError (code 19)" in done.stdout
    assert state.modes(1) == (0, 0)
    assert state.count(1) == (0, 0)
    assert not (tmp_path / "plugins").exists(), "without a node process nothing is left in its place"


@pytest.mark.slow
@needs_root
def test_the_node_process_keeps_a_gpu_that_it_is_changing(
    command: Command, environment: dict[str, str], tmp_path: Path, state: State
) -> None:
    """By its lock; the check waits ten seconds for it."""
    folder = Path(environment["KUBELET_PLUGINS_DIR"], "gpu.nvidia.com")
    uuid = parse_groups(SPEC, "node-a").gpus[1].gpu.uuid
    with GpuLocks(folder / "locks").acquire([uuid], 0.0):
        command("--i-own-this-gpu", "--gpu", "1", "--only", "12")
    assert verdicts(tmp_path / REPORT) == {12: "skipped"}
    assert state.calls("nvmlDeviceSetMigMode") == 0


@needs_root
@pytest.mark.slow
def test_a_mode_that_needs_a_reset_is_left_alone(command: Command, state: State, tmp_path: Path) -> None:
    done = command("--i-own-this-gpu", "--gpu", "3", "--only", "12")
    assert "enabling it needs a reset of the GPU" in done.stdout
    assert verdicts(tmp_path / REPORT) == {12: "skipped"}


@needs_root
@pytest.mark.slow
def test_instances_that_exist_are_left_alone(command: Command, state: State, tmp_path: Path) -> None:
    state.foreign_mode(1, True)
    state.foreign_create(1, 19, 0)
    done = command("--i-own-this-gpu", "--gpu", "1", "--only", "12")
    assert "has MIG instances" in done.stdout
    assert state.count(1) == (1, 1)


@needs_root
def test_a_gpu_is_restored_although_the_command_was_killed(
    environment: dict[str, str], state: State, tmp_path: Path
) -> None:
    """The kernel tells the check's process; the report has what was read before."""
    process = changing(environment, state, tmp_path)
    process.kill()
    process.communicate(timeout=40)
    assert within(40.0, lambda: state.count(1) == (0, 0) and state.modes(1) == (0, 0))
    assert within(40.0, lambda: processes_with(state.path) == [])
    report = storage.load(tmp_path / REPORT)
    assert (report.about["complete"], report.has_driver, report.records) == (False, True, ())


def changing(environment: dict[str, str], state: State, tmp_path: Path) -> "subprocess.Popen[str]":
    """The command while the instance of check 13 exists: what its second client lists takes time."""
    state.inject("nvmlDeviceGetGpuInstances", 0, latency_ms=300)
    arguments = ("--i-own-this-gpu", "--gpu", "1", "--only", "13", "--output", str(tmp_path / REPORT))
    process = subprocess.Popen(
        [sys.executable, *MAIN, "hardware-check", *arguments],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert within(60.0, lambda: state.count(1) == (1, 0))
    return process


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


@pytest.mark.usefixtures("new_interpreters")  # the test reads the environ of each process
@needs_root
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_interrupted_change_of_mig_is_restored(
    environment: dict[str, str], state: State, tmp_path: Path, number: int
) -> None:
    process = changing(environment, state, tmp_path)
    assert processes_with(state.path).count("dra-hw-check") >= 2, "the command and its check; a client may just start"
    process.send_signal(number)
    out, err = process.communicate(timeout=80)
    assert process.returncode == 130, out + err
    assert state.count(1) == (0, 0)
    assert state.modes(1) == (0, 0)
    report = storage.load(tmp_path / REPORT)
    assert report.about["interrupted"] is True
    assert report.records[0].reading.facts["after"] == {"mode": False, "instances": []}


def test_no_module_is_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs as root, and the folder may belong to anybody."""
    (tmp_path / "dra_driver").mkdir()
    (tmp_path / "dra_driver/__init__.py").write_text("open('taken', 'w')")
    monkeypatch.chdir(tmp_path)
    task = Task(reader="files:read_kernel", folder="", proc_devices="/dev/null")
    reading = runner.run(task, 30.0)
    client = subprocess.run(own_module("client"), input="", capture_output=True, text=True, check=False)
    assert str(run_probe(ClaimView(library="/nonexistent"))["error"]).startswith("cannot load /nonexistent")
    assert "json.decoder" in client.stderr
    assert (reading.problem, reading.facts["proc_devices"]) == ("", "")
    assert not (tmp_path / "taken").exists()


def test_the_hosts_program_is_read_whatever_it_logs_and_however_much_it_prints(tmp_path: Path) -> None:
    """It logs to stderr, and lists hundreds of files; the host's root may be mounted read-only."""
    host, folder = tmp_path / "host", tmp_path / "folder"
    for path in (host / "usr/bin", folder):
        path.mkdir(parents=True)
    make_small_root(host)
    mounts = [
        {"hostPath": f"/usr/lib/{number:040}", "containerPath": f"/usr/lib/{number:040}"} for number in range(500)
    ]
    (host / "document").write_text(json.dumps({"containerEdits": {"mounts": mounts}}) + "\n")
    program = host / "usr/bin/nvidia-ctk"
    program.write_text('#!/bin/sh\necho "level=info" >&2\nwhile read -r line; do echo "$line"; done </document\n')
    program.chmod(0o755)
    found = files._ctk(replace(Task(reader="", folder=str(folder)), host=str(host)))
    assert "error" not in found, found
    assert len(found["mounts"]) == 500
