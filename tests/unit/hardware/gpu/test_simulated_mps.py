"""Simulated MPS daemons, and the simulated use of GPUs by processes."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.hardware.gpu.simulated.usage import (
    BUSY_MW,
    CLAIM_VARIABLE,
    IDLE_MW,
    NAME,
    SimulatedUsage,
    SimulatedUse,
    UseStep,
    change_uses,
    parse_steps,
    read_uses,
    step_at,
)
from tests.fakes.simulated_gpus import SimulatedBackend

LIMIT_S = 20


class Mps:
    """One pipe directory and the stub in a driver root."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.root, self.pipe, self.logs = (folder / name for name in ("root", "pipe", "log"))
        simulated_root.write(self.root, SimulatedBackend.from_spec("2xh100-sxm5-80gb", "n").snapshot())
        self.pipe.mkdir()
        self.logs.mkdir()
        self.command = [*shell, str(self.root / "usr/bin/nvidia-cuda-mps-control")]
        self.environment = {
            "PATH": os.defpath,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        }
        self.daemons: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [*self.command, *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def ask(self, command: str) -> tuple[int, str]:
        return self.run(stdin=f"{command}\n")

    def start(self) -> "subprocess.Popen[bytes]":
        """A daemon that accepts commands."""
        daemon = subprocess.Popen([*self.command, "-f"], env=self.environment, stdin=subprocess.DEVNULL)
        self.daemons.append(daemon)
        deadline = time.monotonic() + LIMIT_S
        while not until(self.pid() == daemon.pid and (self.pipe / "control").exists()):
            assert time.monotonic() < deadline
        return daemon

    def pid(self) -> int | None:
        file = self.pipe / "nvidia-cuda-mps-control.pid"
        text = file.read_text() if file.exists() else ""
        return int(text) if text else None

    def log(self) -> list[str]:
        return (self.logs / "control.log").read_text().splitlines()


def until(condition: bool) -> bool:
    if not condition:
        time.sleep(0.01)  # another process does it
    return condition


@pytest.fixture
def mps(shell: list[str], tmp_path: Path) -> Iterator[Mps]:
    stub = Mps(tmp_path, shell)
    yield stub
    for daemon in stub.daemons:
        daemon.terminate()
        daemon.wait(LIMIT_S)


def test_a_daemon_answers_keeps_its_settings_and_quits(mps: Mps) -> None:
    """The whole life that NVIDIA's own driver gives it: start, two defaults, quit."""
    assert mps.ask("get_server_list") == (1, "Cannot find MPS control daemon process\n")
    mps.start()
    assert mps.ask("get_default_active_thread_percentage") == (0, "100.0\n")
    assert mps.ask("set_default_active_thread_percentage 30") == (0, "30.0\n")
    assert mps.ask("get_default_active_thread_percentage") == (0, "30.0\n")
    assert mps.ask("set_default_device_pinned_mem_limit GPU-a 4096M") == (0, "")
    assert mps.ask("get_default_device_pinned_mem_limit GPU-a") == (0, "4096M\n")
    assert mps.ask("get_server_list") == (0, "")
    assert mps.ask("quit") == (0, "")
    assert list(mps.pipe.iterdir()) == []
    expected = [
        "start -f",
        "devices GPU-a,GPU-b",
        "command get_default_active_thread_percentage",
        "command set_default_active_thread_percentage 30",
        "command get_default_active_thread_percentage",
        "command set_default_device_pinned_mem_limit GPU-a 4096M",
        "command get_default_device_pinned_mem_limit GPU-a",
        "command get_server_list",
        "command quit",
        "exit",
    ]
    assert mps.log() == expected
    record = (mps.root / simulated_root.RECORDS / "mps-control.log").read_text().splitlines()
    assert record == [f"{mps.pipe} {line}" for line in expected]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("set_default_active_thread_percentage 101", "Invalid active thread percentage: 101"),
        ("set_default_active_thread_percentage half", "Invalid active thread percentage: half"),
        ("set_default_active_thread_percentage", "Invalid active thread percentage: "),
        ("set_default_device_pinned_mem_limit 0 1024", "Invalid memory limit: 1024"),
        ("set_default_device_pinned_mem_limit 0", "Invalid memory limit: "),
        ("make_coffee *", "Unknown command: make_coffee"),
    ],
)
def test_a_wrong_command_is_refused(mps: Mps, command: str, answer: str) -> None:
    """Silence would let a wrong limit pass for one that is enforced."""
    mps.start()
    assert mps.ask(command) == (1, f"{answer}\n")


def test_one_daemon_per_pipe_directory(mps: Mps) -> None:
    """Two would share a GPU's compute mode and each other's limits."""
    pid = mps.start().pid
    assert mps.run("-f") == (1, f"An instance of this daemon is already running (pid {pid}).\n")
    assert mps.pid() == pid


def test_a_daemon_ends_on_sigterm_and_leaves_nothing(mps: Mps) -> None:
    daemon = mps.start()
    daemon.terminate()
    assert daemon.wait(LIMIT_S) == 0
    assert list(mps.pipe.iterdir()) == []
    assert mps.log()[-1] == "exit"


def test_a_daemon_that_ends_while_it_is_looked_for_is_not_running(mps: Mps) -> None:
    """Nothing else is printed: `quit` looks for its daemon until it has ended, and its output is its answer."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    victim = "sleep 1000 & echo $! >$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid; wait"
    with subprocess.Popen(["/bin/sh", "-c", victim], env=mps.environment, stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + LIMIT_S
        while not until(mps.pid() is not None):
            assert time.monotonic() < deadline
        # The trap runs before each command, so the process ends between the test of its /proc folder and its reading.
        trap = "case $BASH_COMMAND in tr*) kill -9 $pid; while [ -e /proc/$pid ]; do :; done ;; esac"
        mps.command = [bash, "--posix", "-T", "-c", f"trap '{trap}' DEBUG; . $0", mps.command[-1]]
        assert mps.ask("get_server_list") == (1, "Cannot find MPS control daemon process\n")
        parent.wait(LIMIT_S)
    (mps.pipe / "nvidia-cuda-mps-control.pid").unlink()


def test_what_a_killed_daemon_leaves_does_not_stop_the_next(mps: Mps) -> None:
    """kill -9, an OOM kill or a reboot: the pid file names no process, or another one."""
    for left in (str(os.getpid()), "", "4194304"):
        daemon = mps.start()
        daemon.kill()
        daemon.wait(LIMIT_S)
        (mps.pipe / "nvidia-cuda-mps-control.pid").write_text(left and f"{left}\n")
        assert mps.ask("get_server_list")[0] == 1
        mps.start()
        assert mps.ask("quit")[0] == 0


GI = 2**30
START = 1_000_000.0


class Bed:
    """One or more simulated GPUs, a file of uses, and clocks that the test moves."""

    def __init__(self, folder: Path, spec: str = "1xh100-sxm5-80gb", proc: Path | None = None) -> None:
        self.gpus = SimulatedBackend.from_spec(spec, "node")
        self.uuid = GpuUuid(self.gpus.snapshot().gpus[0].uuid)
        self.file, self.now = folder / NAME, START
        self.source = SimulatedUsage(self.gpus, self.file, proc=proc, now=lambda: self.now, clock=lambda: self.now)

    def use(self, text: str, *pids: int, gi_id: int | None = None, claim: str | None = None) -> None:
        one = SimulatedUse(
            key=f"{pids}{gi_id}{claim}",
            gpu_uuid=self.uuid,
            since=START,
            steps=parse_steps(text),
            gi_id=gi_id,
            pids=pids,
            claim_uid=claim,
        )
        change_uses(self.file, lambda uses: (*uses, one))


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_steps_follow_each_other_and_end() -> None:
    steps = parse_steps('[{"after": "10s", "memory": "2Gi", "for": "1m"}, {"memory": "1Gi", "utilization": 60}]')
    assert steps[0] == UseStep(memory_bytes=GI, percent=60)
    assert [step_at(steps, at) for at in (0, 9.9)] == [steps[0]] * 2
    assert step_at(steps, 69.9) == steps[1]
    assert step_at(steps, 70) is None
    assert step_at(parse_steps('[{"after": "1s"}]'), 0.5) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nonsense", "JSON expected"),
        ("[" * 3999, "JSON expected"),
        ("[]", "a list of 1 to 32 steps"),
        ('[{"memory": "1Gi", "cores": 1}]', "a step with"),
        ('[{"memory": "-1Gi"}]', "memory"),
        ('[{"memory": 5}]', "memory"),
        ('[{"memory": "2Ei"}]', "memory"),
        ('[{"utilization": 101}]', "utilization"),
        ('[{"utilization": true}]', "utilization"),
        ('[{"processes": 65}]', "processes"),
        ('[{"after": "5"}]', "after: a time"),
        ('[{"for": "9999999h"}]', "for: a time"),
        ("x" * 4001, "4000 characters"),
    ],
)
def test_a_wrong_annotation_is_refused_in_words(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_steps(text)


def test_two_processes_share_what_their_step_says(bed: Bed) -> None:
    bed.use('[{"memory": "12Gi", "utilization": 60, "processes": 2}]', 7, 8, 9)
    (first,) = bed.source.usage()
    assert [process.sm_percent for process in first.processes or ()] == [None, None]
    (gpu,) = bed.source.usage()
    assert [(each.pid, each.memory_bytes, each.sm_percent) for each in gpu.processes or ()] == [
        (7, 6 * GI, 30),
        (8, 6 * GI, 30),
    ]
    assert (gpu.memory_used, gpu.gpu_percent) == (12 * GI, 60)
    assert gpu.memory_total is not None
    assert gpu.memory_reserved is not None


def test_energy_follows_the_utilisation(bed: Bed) -> None:
    bed.use('[{"after": "10s", "utilization": 100}]', 7)
    bed.source.usage()
    bed.now += 5
    (idle,) = bed.source.usage()
    bed.now += 10
    (busy,) = bed.source.usage()
    assert (idle.power_mw, idle.energy_mj) == (IDLE_MW, IDLE_MW * 5)
    assert (busy.power_mw, busy.energy_mj) == (BUSY_MW, IDLE_MW * 5 + BUSY_MW * 10)
    bed.now -= 100
    assert bed.source.usage()[0].energy_mj == busy.energy_mj


def test_processes_of_a_claim_are_found_by_their_environment(tmp_path: Path) -> None:
    """On a real node they are the pods' own; what cannot be read is of no claim."""
    proc = tmp_path / "proc"
    for pid, environ in (
        (5, b"A=1\0" + CLAIM_VARIABLE + b"_u0=u0\0" + CLAIM_VARIABLE + b"_u1=u1\0"),
        (6, b"PATH=/bin\0"),
        (12, CLAIM_VARIABLE + b"_u1=u1"),
    ):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "environ").write_bytes(environ)
    (proc / "8").mkdir()
    (proc / "self").mkdir()
    bed = Bed(tmp_path, proc=proc)
    bed.use('[{"memory": "4Gi", "processes": 3}]', claim="u1")
    bed.use('[{"memory": "1Gi"}]', claim="gone")
    (gpu,) = bed.source.usage()
    assert [(each.pid, each.memory_bytes) for each in gpu.processes or ()] == [(5, 2 * GI), (12, 2 * GI)]


def test_wrong_uses_are_left_out_and_a_wrong_file_lists_no_processes(bed: Bed) -> None:
    right = {"key": "a", "gpu": bed.uuid, "since": START, "pids": [7], "steps": [{"memory": "1Gi"}]}
    wrong = [5, right | {"pids": [-1]}, right | {"gi": "x"}, right | {"steps": []}, right | {"since": "now"}]
    bed.file.write_text(json.dumps({"version": 1, "uses": [*wrong, right]}))
    assert len(read_uses(bed.file)[1]) == len(wrong)
    assert [each.pid for each in bed.source.usage()[0].processes or ()] == [7]
    bed.file.write_text("{")
    (gpu,) = bed.source.usage()
    assert gpu.processes is None
    assert "is not JSON" in str(gpu.problem)


def test_a_use_that_was_written_is_read_again(bed: Bed) -> None:
    bed.use('[{"after": "1500ms", "for": "24h", "memory": "3", "utilization": 7, "processes": 0}]', 1, gi_id=2)
    (use,), problems = read_uses(bed.file)
    assert (use.gi_id, use.pids, problems) == (2, (1,), ())
    assert use.steps == (UseStep(after_s=1.5, for_s=86400.0, memory_bytes=3, percent=7, processes=0),)
    assert bed.file.stat().st_mode & 0o777 == 0o600
