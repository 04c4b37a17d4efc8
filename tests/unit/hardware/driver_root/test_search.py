"""The search for the driver root, its two views, the linker's cache, and programs that run in it."""

import os
import shutil
import signal
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config.settings import load_node_settings
from dra_driver.core.errors import ConfigurationError, DriverUnavailableError
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import Running
from dra_driver.hardware.driver_root.root import DriverRoot, resolve
from dra_driver.hardware.driver_root.search import CANDIDATES, Detector, cache_entries, find_library, read_cache
from dra_driver.hardware.gpu.nvml.session import Session
from dra_driver.node.process import hardware
from tests.fakes import elf
from tests.fakes.driver_root import FakeDriverRoot
from tests.fakes.driver_trees import driver_container, gke, ubuntu
from tests.fakes.elf import linker_cache
from tests.harness.raising import fails

X86, ARM, I386, X32 = 0x0303, 0x0A03, 0x0003, 0x0803
ENTRIES = [
    (X86, "libcuda.so.1", "/usr/lib/x/libcuda.so.1"),
    (ARM, "libcuda.so.1", "/usr/lib/a/libcuda.so.1"),
    (I386, "libcuda.so.1", "/usr/lib/i386/libcuda.so.1"),
    (X32, "libcuda.so.1", "/usr/libx32/libcuda.so.1"),
]
WANTED = [(name, path) for _, name, path in ENTRIES[:2]]


@pytest.mark.parametrize("old_entries", [None, 0, 1, 2])
def test_64_bit_entries_are_read_in_both_layouts(old_entries: int | None) -> None:
    """glibc writes the new layout alone, or behind the old one at an aligned place."""
    assert list(cache_entries(linker_cache(ENTRIES, old_entries=old_entries))) == WANTED


def test_only_as_many_entries_as_declared_are_read() -> None:
    """Behind them lie the strings, which must not be taken for entries."""
    data = linker_cache(ENTRIES)
    one = data[:20] + struct.pack("<I", 1) + data[24:]
    assert list(cache_entries(one)) == WANTED[:1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ld.so-1.7.0",
        b"ld.so-1.7.0\0" + struct.pack("<I", 2**32 - 1),
        b"glibc-ld.so.cache1.1",
        b"glibc-ld.so.cache1.0" + bytes(100),
        b"glibc-ld.so.cache1.1" + struct.pack("<II", 2**32 - 1, 0) + bytes(20),
        linker_cache(ENTRIES)[:60],
        linker_cache([(X86, "libcuda.so.1", "relative")]),
        linker_cache([(X86, "", "/usr/lib/x")]),
        linker_cache([(X86, "lib\u00e9.so", "/usr/lib/x")]),
    ],
)
def test_a_damaged_cache_has_no_entries(data: bytes) -> None:
    assert list(cache_entries(data)) == []


@given(cut=st.integers(0, 200), changes=st.dictionaries(st.integers(0, 150), st.integers(0, 255), max_size=6))
def test_random_damage_never_raises(cut: int, changes: dict[int, int]) -> None:
    data = bytearray(linker_cache(ENTRIES, old_entries=1)[: 200 - cut])
    for offset, value in changes.items():
        if offset < len(data):
            data[offset] = value
    assert all(path.startswith("/") for _, path in cache_entries(bytes(data)))


def test_a_missing_or_oversized_cache_is_empty(tmp_path: Path, large_file: Path) -> None:
    """Musl systems have none; a gigabyte is not a cache."""
    assert read_cache(str(tmp_path / "none")) == b""
    with large_file.open("wb") as file:
        file.truncate(2**30)
    assert read_cache(str(large_file)) == b""


def put(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "."])
def test_the_versioned_file_behind_the_link_is_found(tmp_path: Path, folder: str) -> None:
    """Its name changes with the driver, so an upgraded library is loaded."""
    file = put(tmp_path, f"{folder}/libnvidia-ml.so.580.65.06")
    link(tmp_path, f"{folder}/libnvidia-ml.so.1", "libnvidia-ml.so.580.65.06")
    assert find_library(str(tmp_path)) == str(file)


@pytest.mark.parametrize("target", ["libnvidia-ml.so.1", "/nowhere/libnvidia-ml.so.2", "../../../../../../../.."])
def test_a_link_that_loops_breaks_or_ends_in_a_folder_is_no_library(tmp_path: Path, target: str) -> None:
    link(tmp_path, "usr/lib64/libnvidia-ml.so.1", target)
    assert find_library(str(tmp_path)) is None


def found(host: Path) -> str:
    return Detector(str(host)).current().host_root or "/"


def test_a_driver_of_the_host_comes_first(tmp_path: Path) -> None:
    """Then a driver container, then Google's folder, as in the GPU operator's validator."""
    root = FakeDriverRoot(tmp_path)
    gke(root)
    assert found(tmp_path) == "/home/kubernetes/bin/nvidia"
    driver_container(root)
    assert found(tmp_path) == "/run/nvidia/driver"
    ubuntu(root)
    assert found(tmp_path) == "/"


def test_a_root_that_was_found_is_kept_while_it_has_a_driver(tmp_path: Path) -> None:
    """Pods hold mounts from it; a second driver must not change the node's root under them."""
    root = FakeDriverRoot(tmp_path)
    driver_container(root)
    detector = Detector(str(tmp_path))
    assert detector.current().host_root == "/run/nvidia/driver"
    ubuntu(root)
    assert detector.current().host_root == "/run/nvidia/driver"
    shutil.rmtree(tmp_path / "run/nvidia/driver")
    assert detector.current().shows_host


def test_a_driver_that_comes_later_is_found(tmp_path: Path) -> None:
    detector = Detector(str(tmp_path))
    with pytest.raises(DriverUnavailableError) as caught:
        detector.current()
    assert all(f"{tmp_path}{candidate}" in str(caught.value) for candidate in CANDIDATES)
    assert "wait for the driver container, or set --driver-root" in str(caught.value)
    driver_container(FakeDriverRoot(tmp_path))
    assert detector.current().root == f"{tmp_path}/run/nvidia/driver"


def test_device_nodes_are_the_drivers_own_or_the_hosts(tmp_path: Path) -> None:
    """A driver container has its own /dev; a folder with only the driver's files has none."""
    (tmp_path / "a/dev").mkdir(parents=True)
    driver_container(FakeDriverRoot(tmp_path / "a"))
    own = Detector(str(tmp_path / "a")).current()
    assert (own.dev_here("/dev/x"), own.dev_host("/dev/x")) == (f"{own.root}/dev/x", "/run/nvidia/driver/dev/x")
    (tmp_path / "b/dev").mkdir(parents=True)
    gke(FakeDriverRoot(tmp_path / "b"))
    hosts = Detector(str(tmp_path / "b")).current()
    assert (hosts.dev_here("/dev/x"), hosts.dev_host("/dev/x")) == (f"{tmp_path}/b/dev/x", "/dev/x")
    given = Detector(str(tmp_path / "b"), dev_root="/there", host_dev_root="/outside").current()
    assert (given.dev_here("/dev/x"), given.dev_host("/dev/x")) == ("/there/dev/x", "/outside/dev/x")


def test_the_setting_wins(tmp_path: Path) -> None:
    ubuntu(FakeDriverRoot(tmp_path))
    given = {"node_name": "n", "host_root": str(tmp_path), "driver_root": f"{tmp_path}/run/nvidia/driver"}
    chosen = hardware.choose(load_node_settings(given, {}), tmp_path)
    assert chosen.root().root == f"{tmp_path}/run/nvidia/driver"
    detected = hardware.choose(load_node_settings({**given, "driver_root": None}, {}), tmp_path)
    assert detected.root().root == str(tmp_path)


def wsl(root: FakeDriverRoot) -> None:
    """NVIDIA/nvidia-container-toolkit d34b3046, pkg/nvcdi/driver-wsl.go; ld.so.cache knows the folder."""
    root.put("/usr/lib/wsl/lib/libnvidia-ml.so.1", elf.library("libnvidia-ml.so.1"))
    root.put(
        "/etc/ld.so.cache", elf.linker_cache([(0x0303, "libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")])
    )


def jetson(root: FakeDriverRoot) -> None:
    """go-nvlib, pkg/nvlib/info/property-extractor.go: the release file of L4T."""
    root.put("/etc/nv_tegra_release", b"# R36 (release), REVISION: 4.0\n")


def thor(root: FakeDriverRoot) -> None:
    root.put("/sys/devices/soc0/family", b"Tegra\n")


@pytest.mark.parametrize(
    ("build", "advice"),
    [
        (wsl, "is a Windows Subsystem for Linux .*use NVIDIA's device plugin with the CDI mode wsl"),
        (jetson, "is a Tegra system .*use NVIDIA's device plugin with the CDI mode csv"),
        (thor, "is a Tegra system .*use NVIDIA's device plugin with the CDI mode csv"),
    ],
)
def test_a_node_that_no_driver_helps_is_not_told_to_install_one(tmp_path: Path, build: object, advice: str) -> None:
    assert callable(build)
    build(FakeDriverRoot(tmp_path))
    with pytest.raises(DriverUnavailableError, match=advice) as searched:
        Detector(str(tmp_path)).current()
    with pytest.raises(DriverUnavailableError, match=advice) as given:
        Session(None, str(tmp_path)).open()
    assert "install" not in f"{searched.value}{given.value}"
    assert find_library(str(tmp_path)) is None, "Windows' library is not taken either"


def test_a_tegra_board_with_a_discrete_gpu_is_served(tmp_path: Path) -> None:
    root = FakeDriverRoot(tmp_path)
    jetson(root)
    ubuntu(root)
    with pytest.raises(DriverUnavailableError, match="Tegra"):
        Detector(str(tmp_path)).current()
    (tmp_path / "proc/driver/nvidia/gpus/0005:01:00.0").mkdir(parents=True)
    assert Detector(str(tmp_path)).current().shows_host


def test_a_root_is_translated_between_both_views() -> None:
    root = DriverRoot(root="/driver-root/", host_root="/run/nvidia/driver", dev_root="/host", host_dev_root="/")
    assert root.here("/usr/lib/x") == "/driver-root/usr/lib/x"
    assert root.host("/usr/lib/x") == "/run/nvidia/driver/usr/lib/x"
    assert root.dev_here("/dev/nvidia0") == "/host/dev/nvidia0"
    assert root.dev_host("/dev/nvidia0") == "/dev/nvidia0"


def test_a_relative_root_is_refused() -> None:
    with fails(ConfigurationError, "PathRelative", match="opt/driver"):
        DriverRoot(root="opt/driver")


def test_the_device_root_is_the_drivers_own_when_it_has_a_dev_folder(tmp_path: Path) -> None:
    """Driver containers carry their own /dev; a package on the host uses the host's."""
    assert DriverRoot.locate(str(tmp_path), host_root="/d").dev_host("/dev/nvidia0") == "/dev/nvidia0"
    (tmp_path / "dev").mkdir()
    assert DriverRoot.locate(str(tmp_path), host_root="/d").dev_host("/dev/nvidia0") == "/d/dev/nvidia0"
    assert DriverRoot.locate(str(tmp_path), dev_root="/other").dev_here("/dev/x") == "/other/dev/x"


def test_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    """Debian's alternatives are absolute links; outside the root they would lead to another driver."""
    (tmp_path / "usr/lib/nvidia").mkdir(parents=True)
    (tmp_path / "usr/lib/nvidia/libcuda.so.580").touch()
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/libcuda").symlink_to("/usr/lib/nvidia/libcuda.so.580")
    (tmp_path / "usr/lib/libcuda.so.1").symlink_to("/etc/alternatives/libcuda")
    (tmp_path / "lib").symlink_to("usr/lib")
    assert resolve(str(tmp_path), "/lib/libcuda.so.1") == "/usr/lib/nvidia/libcuda.so.580"


@pytest.mark.parametrize("target", ["/../../../../etc/passwd", "../../../../../../../etc/passwd", "/etc/passwd"])
def test_a_link_cannot_leave_the_root(tmp_path: Path, target: str) -> None:
    """A hostile driver image must not make the node mount a file of the host into containers."""
    (tmp_path / "libx").symlink_to(target)
    assert resolve(str(tmp_path), "/libx") is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").touch()
    assert resolve(str(tmp_path), "/libx") == "/etc/passwd"


def test_what_is_missing_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, target in {"dangling": "nowhere", "a": "b", "b": "a"}.items():
        (tmp_path / name).symlink_to(target)
    for path in ("/nope", "/nope/deeper", "/file/below", "/dangling", "/a", "/a/b/c"):
        assert resolve(str(tmp_path), path) is None


def test_for_the_hosts_own_root_it_agrees_with_the_system(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/f").touch()
    (tmp_path / "link").symlink_to("real")
    for path in (f"{tmp_path}/link/f", f"{tmp_path}/link/../link/./f", "/"):
        assert resolve("", path) == os.path.realpath(path)


ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
PATIENCE_S = 30.0
"""How long a test waits for another process on a busy machine; nothing is measured with it."""


def run(script: str, within_s: float = 5.0, stdin: str = "") -> process.Ended:
    return process.run(["/bin/sh", "-c", script], environment=ENVIRONMENT, within_s=within_s, stdin=stdin)


def test_input_and_output_of_both_streams_arrive() -> None:
    ended = run("read -r line; echo got $line; echo err >&2; exit 3", stdin="quit\n")
    assert (ended.status, ended.output, ended.stuck) == (3, "got quit\nerr\n", False)


def test_nothing_of_the_own_environment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment of the node process must not reach a program of the driver."""
    monkeypatch.setenv("SECRET", "token")
    assert "token" not in run("env").output


def test_the_deadline_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    now = [0.0]
    running = Running(shell(tmp_path, wait=True), environment=ENVIRONMENT, within_s=60.0, clock=lambda: now[0])
    program, child = pids(tmp_path)
    assert running.poll() is None
    now[0] = 59.9
    assert running.poll() is None
    assert is_alive(program)
    now[0] = 60.0
    ended = running.wait()
    assert (ended.status, ended.stuck) == (None, False)
    until_gone(program, child)


def test_a_child_that_keeps_the_output_open_does_not_prolong_the_wait(tmp_path: Path) -> None:
    """A daemon that a program leaves behind inherits its output and never closes it."""
    ended = process.run(shell(tmp_path, wait=False), environment=ENVIRONMENT, within_s=60.0)
    _, child = pids(tmp_path)
    assert (ended.status, is_alive(child)) == (0, True)
    os.kill(child, signal.SIGKILL)


def test_endless_output_is_cut_and_does_not_stop_the_program() -> None:
    ended = run("head -c 300000 /dev/zero")
    assert ended.status == 0
    assert len(ended.output) == process.MAX_OUTPUT


def test_a_program_that_closes_its_output_and_works_on_is_waited_for_without_effort() -> None:
    looks: list[None] = []

    def clock() -> float:
        looks.append(None)
        return time.monotonic()

    arguments = ["/bin/sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 4"]
    ended = Running(arguments, environment=ENVIRONMENT, within_s=60.0, clock=clock).wait()
    assert ended.status == 4
    assert len(looks) < 100, "it must sleep between looks; a loop without pauses looks thousands of times"


def test_an_abandoned_run_is_gone(tmp_path: Path) -> None:
    running = Running(shell(tmp_path, wait=True), environment=ENVIRONMENT, within_s=60.0)
    program, child = pids(tmp_path)
    assert running.poll() is None
    assert is_alive(program)
    running.abandon()
    until_gone(program, child)


def test_descriptors_do_not_add_up() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run("true")
    with pytest.raises(FileNotFoundError):
        process.run(["/nonexistent/tool"], environment={}, within_s=1.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("output", "shown"), [("", "nothing"), ("  one\n two\t\n", "one two"), ("x" * 1000, "x" * 299 + "…")]
)
def test_output_in_a_message_is_short_and_printable(output: str, shown: str) -> None:
    assert process.shown(output) == shown


def shell(folder: Path, *, wait: bool) -> list[str]:
    script = f"sleep 100000 & echo $$ $! >{folder}/new; mv {folder}/new {folder}/pids"
    return ["/bin/sh", "-c", f"{script}; wait" if wait else script]


def pids(folder: Path) -> tuple[int, int]:
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline, "the program has not started"
        time.sleep(0.005)
    program, child = (folder / "pids").read_text().split()
    return int(program), int(child)


def is_alive(pid: int) -> bool:
    """False for a zombie too: it has no command line any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def until_gone(*pids: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} still run"
        time.sleep(0.005)
