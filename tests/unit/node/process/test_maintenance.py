"""Periodic tasks, and settings of the whole process: free memory, waits of gRPC and names of sockets."""

import ctypes
import json
import platform
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.endpoints import GOOD_S, Probe
from dra_driver.node.process.main import DEFAULT, M_MMAP_THRESHOLD, keep_large_blocks_apart, trimmer
from dra_driver.node.process.maintenance import Maintenance, PeriodicTask, Wakeup
from dra_driver.node.process.sockets import MAX_PATH_BYTES, SocketPaths, private_path
from tests.harness.raising import fails


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_task_runs_at_its_own_interval() -> None:
    clock, done = Clock(), []
    tasks = [
        PeriodicTask(name="often", every_s=1.0, work=lambda: done.append("often")),
        PeriodicTask(name="rarely", every_s=3.0, work=lambda: done.append("rarely")),
    ]
    maintenance = Maintenance("test", tasks, clock)
    assert maintenance.step() == 1.0, "nothing is due at the start"
    for second in range(1, 7):
        clock.now = float(second)
        assert maintenance.step() == 1.0
    assert done == ["often", "often", "often", "rarely", "often", "often", "often", "rarely"]
    clock.now = 60.0
    assert maintenance.step() == 1.0
    assert done[8:] == ["often", "rarely"], "after a hang of a minute they run once"


def test_tasks_run_together() -> None:
    """Each wake-up of a thread costs as much as most tasks; but none is run much more often than it asks."""
    clock, done = Clock(), []

    def takes(name: str, seconds: float) -> None:
        done.append((name, clock.now))
        clock.now += seconds

    tasks = [
        PeriodicTask(name="often", every_s=1.0, work=lambda: takes("often", 0.02)),
        PeriodicTask(name="slow", every_s=5.0, work=lambda: takes("slow", 0.2)),
        PeriodicTask(name="rarely", every_s=5.0, work=lambda: takes("rarely", 0.0)),
    ]
    maintenance = Maintenance("test", tasks, clock)
    steps = 0
    while clock.now < 30.0:
        wait_s = maintenance.step()  # moves the clock, too
        clock.now += wait_s
        steps += 1
    assert steps <= 31  # not much more than once a second
    for name, every_s in (("often", 0.5), ("slow", 4.5), ("rarely", 4.5)):
        times = [at for each, at in done if each == name]
        assert all(after - before >= every_s for before, after in pairwise(times)), times
        assert len(times) >= 30 // (every_s + 0.5) - 1


def test_a_failing_task_is_repeated_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    clock, done = Clock(), []

    def fails(error: Exception) -> None:
        done.append(type(error).__name__)
        raise error

    tasks = [
        PeriodicTask(name="world", every_s=1.0, work=lambda: fails(StorageError("disk full"))),
        PeriodicTask(name="defect", every_s=1.0, work=lambda: fails(ZeroDivisionError())),
        PeriodicTask(name="good", every_s=1.0, work=lambda: done.append("good")),
    ]
    maintenance = Maintenance("test", tasks, clock)
    counted = metrics.internal_errors_total.labels("maintenance")._value.get()
    for second in (1, 2):
        clock.now = float(second)
        maintenance.step()
    assert done == ["StorageError", "ZeroDivisionError", "good"] * 2
    assert [bool(record.exc_info) for record in caplog.records] == [False, True] * 2
    assert metrics.internal_errors_total.labels("maintenance")._value.get() == counted + 2


class FakeWakeup(Wakeup):
    watches = True

    @property
    def watches_directories(self) -> bool:
        return self.watches


def event_driven(wakeup: FakeWakeup, clock: Clock, done: list[str], hurries: list[bool]) -> Maintenance:
    tasks = [
        PeriodicTask(
            name="soon", every_s=1.0, resync_s=5.0, work=lambda: done.append("soon"), needs_poll=lambda: bool(hurries)
        ),
        PeriodicTask(name="later", every_s=10.0, work=lambda: done.append("later")),
    ]
    return Maintenance("test", tasks, clock, wakeup=wakeup)


def test_an_event_driven_task_runs_when_notified_and_else_at_its_resync() -> None:
    clock, done = Clock(), list[str]()
    maintenance = event_driven(FakeWakeup(), clock, done, [])
    assert maintenance.step() == 5.0
    clock.now = 2.5
    assert maintenance.step(notified=True) == 5.5, "the next whole second after five"
    assert done == ["soon"]
    clock.now = 8.0
    maintenance.step()
    assert done == ["soon", "soon"]


def test_a_task_that_needs_to_poll_runs_at_its_short_interval() -> None:
    """No inotify instance may be left on a node; and what time alone changes rings no wakeup."""
    clock, done, wakeup, hurries = Clock(), list[str](), FakeWakeup(), [True]
    maintenance = event_driven(wakeup, clock, done, hurries)
    assert maintenance.step() == 1.0
    clock.now = 1.0
    hurries.clear()
    assert maintenance.step() == 5.0
    wakeup.watches = False
    clock.now = 6.0
    assert maintenance.step() == 1.0
    assert done == ["soon", "soon"]


LONG_S, NOW_S = 20.0, 0.0


def test_notifications_and_files_that_come_and_go_end_one_wait(tmp_path: Path) -> None:
    """A socket that is removed, a file that is moved in; what is written into a file does not."""
    wakeup = Wakeup([str(tmp_path)])
    assert wakeup.watches_directories
    assert not wakeup.wait(NOW_S)
    wakeup.notify()
    wakeup.notify()
    assert wakeup.wait(LONG_S)
    assert not wakeup.wait(NOW_S)
    file = tmp_path / "dra.sock"
    file.write_text("")
    assert wakeup.wait(LONG_S)
    file.write_text("more")
    assert not wakeup.wait(NOW_S)
    file.unlink()
    assert wakeup.wait(LONG_S)
    assert not wakeup.wait(NOW_S)


def test_a_folder_that_is_replaced_is_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    wakeup = Wakeup([str(folder)])
    folder.rmdir()
    assert wakeup.wait(LONG_S)
    folder.mkdir()
    assert wakeup.wait(LONG_S)
    while wakeup.wait(NOW_S):
        pass
    (folder / "dra.sock").write_text("")
    assert wakeup.wait(LONG_S)


def test_file_change_runs_task_before_its_interval(tmp_path: Path) -> None:
    done = threading.Event()
    task = PeriodicTask(name="c", every_s=3600.0, resync_s=3600.0, work=done.set)
    maintenance = Maintenance("test", [task], wakeup=Wakeup([str(tmp_path)]))
    maintenance.worker.start()
    (tmp_path / "detach").write_text("")
    assert done.wait(LONG_S)
    maintenance.worker.stop(LONG_S)
    assert "test" not in {thread.name for thread in threading.enumerate()}


def test_the_c_library_keeps_nothing_and_another_one_is_left_alone() -> None:
    asked: list[int] = []
    set_to: list[tuple[int, int]] = []
    library = SimpleNamespace(malloc_trim=asked.append, mallopt=lambda *given: set_to.append(given))
    keep_large_blocks_apart(library)
    trimmer(library)()
    assert (asked, set_to) == ([0], [(M_MMAP_THRESHOLD, DEFAULT)])
    keep_large_blocks_apart(SimpleNamespace())
    assert trimmer(SimpleNamespace())() is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_glibc_takes_both() -> None:
    assert trimmer()() in (0, 1)
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, DEFAULT) == 1


WAITS = """
import json, time
from pathlib import Path
import grpc._server as server
from grpc._cython import cygrpc
from dra_driver.node.process import main

queue = cygrpc.CompletionQueue()

def switches():
    (line,) = [l for l in Path("/proc/thread-self/status").read_text().splitlines() if l.startswith("voluntary_")]
    return int(line.split()[1])

def wakes():
    before = switches()
    queue.poll(time.time() + 0.7)
    return switches() - before

print(json.dumps([wakes(), main.sleep_long(), wakes(), server._DEALLOCATED_SERVER_CHECK_PERIOD_S]))
"""
OTHER_VERSION = """
import json
import grpc._server as server
from grpc._cython import cygrpc
from dra_driver.node.process import main

del cygrpc.__pyx_capi__["g_interrupt_check_period_ms"]
print(json.dumps([main.sleep_long(), server._DEALLOCATED_SERVER_CHECK_PERIOD_S]))
"""


def output_of(script: str) -> Any:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_wait_for_calls_is_one_sleep() -> None:
    """grpc's own are slices of 200 ms; the rest of a server's loop comes once in the second number."""
    own_wakes, done, wakes, look_s = output_of(WAITS)
    assert done
    assert own_wakes >= 4
    assert wakes < own_wakes - 1
    assert look_s == 600


def test_other_versions_of_grpc_are_left_alone() -> None:
    assert output_of(OTHER_VERSION) == [False, 1.0]


REGISTRY = Path("/var/lib/kubelet/plugins_registry")
UID = "b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2e"


def choose(
    driver: str = "gpu.nvidia.com", *, pod_uid: str | None = None, registrar_dir: Path = REGISTRY
) -> SocketPaths:
    return SocketPaths.choose(
        driver=driver,
        registrar_dir=registrar_dir,
        plugin_dir=Path("/var/lib/kubelet/plugins") / driver,
        pod_uid=pod_uid,
    )


def test_names_are_the_usual_ones_and_those_of_a_pod_have_its_uid() -> None:
    paths, of_pod = choose(), choose(pod_uid=UID)
    assert paths.registration == REGISTRY / "gpu.nvidia.com-reg.sock"
    assert str(paths.dra) == "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"
    assert (of_pod.registration.name, of_pod.dra.name) == (f"gpu.nvidia.com-{UID}-reg.sock", f"dra-{UID}.sock")


@pytest.mark.parametrize("length", range(1, 64))
def test_every_driver_name_gets_sockets_that_fit_and_differ_between_pods(length: int) -> None:
    """Readable names up to 27 characters, hashes beyond, in the kubelet's own directories."""
    driver = "d" * length
    mine, other = choose(driver, pod_uid=UID), choose(driver, pod_uid=UID.replace("b", "c"))
    for paths in (mine, other, choose(driver)):
        for path in (paths.registration, paths.dra):
            assert len(str(path).encode()) <= MAX_PATH_BYTES
    assert mine.registration != other.registration
    assert mine.dra != other.dra
    assert (UID in mine.registration.name) == (length <= 27)
    names = {choose(each * length, pod_uid=uid).registration for each in "ab" for uid in (UID, UID[::-1])}
    assert len(names) == 4, "hashes depend on driver and pod"


@pytest.mark.parametrize("name", ["r" * 100, "ü" * 45], ids=["characters", "bytes"])
def test_directory_that_is_too_long_by_itself_is_an_error_with_numbers(name: str) -> None:
    with fails(ConfigurationError, "PathTooLong", match="107: .* --kubelet-reg"):
        choose(registrar_dir=Path("/" + name))


def test_private_name_is_hidden_stable_and_short() -> None:
    """The kubelet skips names with a dot in front; a crashed process' file must be found and reused."""
    public = Path("/p/dra.sock")
    assert private_path(public) == private_path(public)
    assert private_path(public).name.startswith(".")
    assert len(private_path(public).name) <= len("dra.sock")
    assert private_path(public) != private_path(Path("/p/dra-x.sock"))


class Sockets:
    """Sockets that answer until a test says that they do not, and the time."""

    def __init__(self) -> None:
        self.now, self.checks = 0.0, 0
        self.found: list[str] = []
        self.probe = Probe(self.check, lambda: self.now)

    def check(self) -> list[str]:
        self.checks += 1
        return self.found


def test_a_good_answer_counts_for_a_while_and_a_bad_one_once() -> None:
    sockets = Sockets()
    for sockets.now in (0.0, GOOD_S / 2, GOOD_S - 0.1):
        assert sockets.probe.problems() == []
    assert sockets.checks == 1
    sockets.now, sockets.found = GOOD_S, ["no answer"]
    assert [sockets.probe.problems() for _ in range(2)] == [["no answer"]] * 2
    sockets.found = []
    assert sockets.probe.problems() == []
    assert sockets.checks == 4
