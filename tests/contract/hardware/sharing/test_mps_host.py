"""Node process and MPS host as real processes, and time slices, with the simulated driver's programs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dra_driver.core.errors import MpsUnavailableError
from dra_driver.core.model.terms import Interval
from dra_driver.hardware.driver_root.smi import Smi
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.hardware.sharing.timeslice import TimeSlicer
from tests.contract.hardware.sharing.conftest import DRIVER, Node, until
from tests.harness.raising import fails

NOT_ANSWERED = "its program runs and has not answered yet"


def daemon_of(node: Node, *, percentage: int | None = 50, limit: int | None = 1024) -> MpsDaemon:
    gpu = node.gpus[0]
    return MpsDaemon(
        id="one",
        devices=(gpu,),
        gpus=(gpu,),
        default_percentage=percentage,
        memory_limits={gpu: limit} if limit else {},
    )


def serving(node: Node) -> "subprocess.Popen[bytes]":
    host = node.start_host()
    node.client.ensure(daemon_of(node), within_s=10.0)
    return host


def end(host: "subprocess.Popen[bytes]") -> None:
    host.kill()
    host.wait(timeout=5)


def pid_of(node: Node) -> int:
    status = node.folders.of("one").read_status()
    assert status is not None
    assert status.pid is not None
    return status.pid


def is_clean(node: Node) -> bool:
    return (
        node.client.daemons() == ()
        and node.backend.compute_mode(node.gpus[0]) is ComputeMode.DEFAULT
        and not node.notes.values
        and not node.processes()
    )


def test_a_daemon_gets_its_devices_and_defaults_before_it_is_ready(node: Node) -> None:
    node.start_host()
    daemon = daemon_of(node)
    node.client.ensure(daemon, within_s=10.0)
    folder = node.folders.of("one")
    assert (folder.log / "control.log").read_text().splitlines() == [
        "start -f",
        f"devices {node.gpus[0]}",
        "command get_default_active_thread_percentage",
        "command set_default_active_thread_percentage 50",
        f"command set_default_device_pinned_mem_limit {node.gpus[0]} 1024M",
    ]
    assert node.backend.compute_mode(node.gpus[0]) is ComputeMode.EXCLUSIVE_PROCESS
    found = node.client.directories("one")
    assert found.pipe == folder.pipe
    assert found.shm.is_dir()
    node.client.release("one", (), within_s=10.0)
    assert is_clean(node)
    record = (node.root / simulated_root.RECORDS / "mps-control.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in record[-2:]] == ["command quit", "exit"], "it was asked, not killed"


def test_the_check_says_whether_the_host_works(node: Node) -> None:
    host = node.start_host()
    assert check(node) == (0, "")
    host.send_signal(signal.SIGSTOP)
    os.utime(node.folders.lock, (1.0, 1.0))
    status, text = check(node)
    assert (status, "has not gone on for" in text) == (1, True)
    host.send_signal(signal.SIGCONT)
    host.terminate()
    host.wait(15)
    status, text = check(node)
    assert (status, "is not locked" in text) == (1, True)


def check(node: Node) -> tuple[int, str]:
    flags = [f"--kubelet-plugins-dir={node.plugins}", f"--driver-name={DRIVER}"]
    command = [sys.executable, "-m", "dra_driver.core.command_line.main", "mps-host", "--check", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout


def test_several_daemons_live_side_by_side_and_end_one_by_one(node: Node) -> None:
    node.start_host()
    for name, gpu in zip(("one", "two"), node.gpus, strict=True):
        node.client.ensure(MpsDaemon(id=name, devices=(gpu,), gpus=(gpu,)), within_s=10.0)
    first = pid_of(node)
    node.client.release("two", (), within_s=10.0)
    assert node.client.daemons() == ("one",)
    assert pid_of(node) == first
    node.client.release("one", (), within_s=10.0)
    assert is_clean(node)


def test_other_limits_give_another_process(node: Node) -> None:
    serving(node)
    before = pid_of(node)
    node.client.ensure(daemon_of(node, percentage=20), within_s=10.0)
    assert pid_of(node) != before
    assert "percentage 20\n" in (node.folders.of("one").log / "control.log").read_text()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("mps-fail", "failed, its program ended with status 1; it printed last: .*a test made it fail"),
        ("mps-never-ready", "not ready in time: starting, it does not answer yet: .*Cannot find MPS control daemon"),
        ("mps-hang", "not ready in time: starting, " + NOT_ANSWERED),
    ],
)
def test_a_daemon_that_does_not_come_up_is_a_sentence_and_leaves_nothing(node: Node, fault: str, said: str) -> None:
    node.start_host()
    path = node.fault(fault)
    with pytest.raises(MpsUnavailableError, match=said):
        node.client.ensure(daemon_of(node), within_s=10.0 if fault == "mps-fail" else 1.2)
    assert is_clean(node)
    path.unlink()
    node.client.ensure(daemon_of(node), within_s=10.0)


def test_a_daemon_that_hangs_holds_up_no_other(node: Node) -> None:
    node.start_host()
    node.fault("mps-hang", node.gpus[0])
    node.folders.of("one").make()
    node.folders.of("one").write_desired(daemon_of(node))
    until(lambda: (status := node.folders.of("one").read_status()) and status.reason == NOT_ANSWERED)
    node.client.ensure(MpsDaemon(id="two", devices=(node.gpus[1],), gpus=(node.gpus[1],)), within_s=10.0)
    status = node.folders.of("one").read_status()
    assert status is not None
    assert (status.state, status.reason) == ("starting", NOT_ANSWERED), "its first question was not waited for"


def test_a_missing_control_program_is_named(node: Node) -> None:
    node.start_host()
    (node.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    with fails(MpsUnavailableError, "DaemonFailed", match="nvidia-cuda-mps-control"):
        node.client.ensure(daemon_of(node), within_s=10.0)
    assert is_clean(node)


def test_a_default_that_the_daemon_refuses_fails_the_call(node: Node) -> None:
    """Clients without the limit that was asked for would be worse than no clients."""
    node.start_host()
    with pytest.raises(MpsUnavailableError, match=r"`set_default_active_thread_percentage 0` failed .*Invalid"):
        node.client.ensure(daemon_of(node, percentage=0), within_s=10.0)
    assert is_clean(node)


def test_a_daemon_that_dies_comes_back_with_its_defaults(node: Node) -> None:
    serving(node)
    before = pid_of(node)
    os.kill(before, signal.SIGKILL)
    until(lambda: (status := node.folders.of("one").read_status()) and status.state == "ready" and status.restarts == 1)
    assert pid_of(node) != before
    assert (node.folders.of("one").log / "control.log").read_text().count("percentage 50\n") == 2
    assert "MPS daemon failed" in node.host_log()


def test_servers_that_outlive_their_daemon_are_ended(node: Node) -> None:
    node.start_host()
    node.control_script(
        "cd $CUDA_MPS_PIPE_DIRECTORY\n"
        '[ "$1" = -f ] || { read -r command; [ "$command" != quit ] || rm up; [ -e up ]; exit; }\n'
        "setsid sleep 300 & echo $! >server\n"
        ": >up; while [ -e up ]; do sleep 0.1; done"
    )
    node.client.ensure(daemon_of(node), within_s=10.0)
    server = int((node.folders.of("one").pipe / "server").read_text())
    assert server in node.processes()
    node.client.release("one", (), within_s=15.0)
    assert is_clean(node)


def test_daemons_die_with_a_host_that_is_killed_and_come_back_with_the_next(node: Node) -> None:
    host = serving(node)
    end(host)
    until(lambda: not node.processes())
    with fails(MpsUnavailableError, "HostMissing"):
        node.client.ensure(daemon_of(node), within_s=2.0)
    assert node.client.daemons() == ("one",), "what others use stays wanted"
    serving(node)
    node.client.release("one", (), within_s=10.0)
    assert is_clean(node)


def test_a_status_of_a_former_host_is_not_taken_for_readiness(node: Node) -> None:
    host = serving(node)
    end(host)
    node.fault("mps-fail")
    node.start_host()
    until(lambda: "MPS host started" in node.host_log())
    with pytest.raises(MpsUnavailableError):
        node.client.ensure(daemon_of(node), within_s=2.0)


def test_a_release_while_no_host_runs_leaves_nothing_for_the_next(node: Node) -> None:
    host = serving(node)
    end(host)
    node.client.release("one", (), within_s=5.0)
    node.start_host()
    time.sleep(0.5)
    assert is_clean(node)


def test_sigterm_ends_all_daemons_in_time(node: Node) -> None:
    """The pod's grace period is 15 s; then the kernel would do it, and logs would end in the middle."""
    host = node.start_host()
    for name, gpu in zip(("one", "two"), node.gpus, strict=True):
        node.client.ensure(MpsDaemon(id=name, devices=(gpu,), gpus=(gpu,)), within_s=10.0)
    began = time.monotonic()
    host.send_signal(signal.SIGTERM)
    assert host.wait(timeout=12) == 0
    assert time.monotonic() - began < 5.0
    assert node.processes() == []
    assert [node.folders.of(name).read_status() for name in ("one", "two")] == [None, None]
    assert (node.folders.of("one").log / "control.log").read_text().endswith("command quit\nexit\n")


def test_sigterm_ends_daemons_that_neither_answer_nor_react_too(node: Node) -> None:
    host = serving(node)
    node.fault("mps-hang")
    os.kill(pid_of(node), signal.SIGSTOP)
    began = time.monotonic()
    host.send_signal(signal.SIGTERM)
    assert host.wait(timeout=12) == 0
    assert time.monotonic() - began < 10.0
    assert node.processes() == []


def test_a_second_host_waits_for_the_first_to_end(node: Node) -> None:
    first = node.start_host()
    second = node.start_host()
    time.sleep(0.3)
    assert second.poll() is None
    first.terminate()
    first.wait(timeout=10)
    until(lambda: "MPS host started" in node.host_log())
    node.client.ensure(daemon_of(node), within_s=10.0)


def test_a_node_process_that_is_killed_while_it_waits_leaves_what_the_next_one_can_undo(node: Node) -> None:
    """The daemon may even come up after its asker's death: its folder says that it is there."""
    node.start_host()
    node.fault("mps-never-ready")
    script = (
        "import sys; from pathlib import Path; from dra_driver.hardware.sharing.mps import MpsClient;"
        "from dra_driver.hardware.sharing.mps_files import MpsDaemon;"
        "from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend;"
        "from tests.fakes.sharing import FakeGpuNotes;"
        "backend = SimulatedBackend.from_spec('2xh100-sxm5-80gb', 'node'); backend.open();"
        f"MpsClient(Path({str(node.folders.root)!r}), backend, FakeGpuNotes())"
        f".ensure(MpsDaemon(id='one', devices=({node.gpus[0]!r},)), within_s=60.0)"
    )
    repository = Path(__file__).parents[4]
    with subprocess.Popen([sys.executable, "-c", script], cwd=repository) as asker:
        until(lambda: (status := node.folders.of("one").read_status()) and status.pid)
        asker.kill()
    assert node.client.daemons() == ("one",)
    node.client.release("one", (), within_s=10.0)
    assert is_clean(node)


def test_logs_and_folders_of_a_driver_with_another_name_are_elsewhere(node: Node) -> None:
    node.start_host("--driver-name", "other.example")
    assert (node.plugins / "other.example/mps/host.lock").exists()
    until((node.base / "shm/other.example-mps").is_dir)


def test_a_link_in_place_of_the_folder_for_memory_is_refused(node: Node) -> None:
    precious = node.base / "precious"
    precious.mkdir()
    (node.base / "run").mkdir()
    (node.base / f"run/{DRIVER}-mps").symlink_to(precious)
    host = node.start_host("--namespaces", "own")
    assert host.wait(timeout=10) != 0
    said = (
        f"cannot make the folder for pipes and shared memory, {node.base}/run/{DRIVER}-mps, in a volume of the MPS host"
    )
    assert said in node.host_log()


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--namespaces", "some", "--namespaces (MPS_NAMESPACES): 'some': expected one of own, none"),
        ("--tmpfs-size", "1Mi", "expected 16Mi to 1Ti in whole Mi, Gi or Ti, such as 4Gi"),
        ("--tmpfs-size", "2Ti", "expected 16Mi to 1Ti in whole Mi, Gi or Ti, such as 4Gi"),
        ("--tmpfs-size", "1.5Gi", "expected 16Mi to 1Ti in whole Mi, Gi or Ti, such as 4Gi"),
        ("--tmpfs-files", "100", "expected 256 to 1048576"),
        ("--tmpfs-files", "10000000", "expected 256 to 1048576"),
    ],
)
def test_a_wrong_setting_is_status_2_with_its_bounds(node: Node, flag: str, value: str, said: str) -> None:
    host = node.start_host(flag, value)
    assert host.wait(timeout=10) == 2
    assert said in node.host_log()


def slice_of(node: Node) -> str:
    path = node.root / simulated_root.TIMESLICE / node.gpus[0]
    return path.read_text().strip() if path.exists() else "0"


@pytest.fixture
def slicer(node: Node) -> TimeSlicer:
    return TimeSlicer(Smi(str(node.root)), node.backend, node.notes)


def test_an_interval_arrives_at_the_gpu_and_is_taken_back(node: Node, slicer: TimeSlicer) -> None:
    node.backend.set_compute_mode(node.gpus[0], ComputeMode.EXCLUSIVE_PROCESS)
    slicer.set(node.gpus[0], Interval.MEDIUM, within_s=10.0)
    assert (slice_of(node), node.backend.compute_mode(node.gpus[0])) == ("2", ComputeMode.DEFAULT)
    slicer.reset(node.gpus[0], within_s=10.0)
    assert (slice_of(node), node.backend.compute_mode(node.gpus[0])) == ("0", ComputeMode.EXCLUSIVE_PROCESS)
    assert not node.notes.values


LOADED = """
import sys
from dra_driver.core.command_line import main; from dra_driver.hardware.sharing import main as mps_host
from dra_driver.config.options import flags_of
import dra_driver.hardware.sharing.host, dra_driver.core.telemetry.logs
print(*sys.modules)
"""
TOO_MUCH = {
    "pydantic", "kubernetes", "grpc", "sqlite3", "yaml", "prometheus_client", "pynvml", "asyncio", "ssl", "_hashlib",
}  # fmt: skip
PACKAGES = {"core", "config", "hardware"}


def test_nothing_of_the_node_process_is_loaded() -> None:
    output = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    loaded = set(output.split())
    assert not loaded & TOO_MUCH
    assert {name.split(".")[1] for name in loaded if name.startswith("dra_driver.")} <= PACKAGES
    assert not {name for name in loaded if name.startswith(("dra_driver.hardware.gpu", "dra_driver.hardware.mig"))}
    assert not {name for name in loaded if name.startswith("dra_driver.core.telemetry.")} - {
        "dra_driver.core.telemetry.logs"
    }


@pytest.mark.usefixtures("new_interpreters")
def test_an_idle_host_takes_little_memory_and_next_to_no_cpu(node: Node) -> None:
    """Measured 17 MiB and 0.1 % of a core; the bounds allow for slow machines, not for another library."""
    host = node.start_host()
    until(lambda: "MPS host started" in node.host_log())
    before, began = _cpu_s(host.pid), time.monotonic()
    time.sleep(2.0)
    used, passed = _cpu_s(host.pid) - before, time.monotonic() - began
    assert used / passed < 0.02
    resident = int(Path(f"/proc/{host.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 24 * 2**20


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
