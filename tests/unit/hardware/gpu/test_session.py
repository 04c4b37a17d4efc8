"""Sessions and answers of NVML and sysfs, interrupted waits, and processes that have a GPU open."""

import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError, DraError, DriverUnavailableError
from dra_driver.hardware.gpu.holders import GpuHolder, GpuHolders, describe, scan
from dra_driver.hardware.gpu.nvml import errors as nvml
from dra_driver.hardware.gpu.nvml import properties
from dra_driver.hardware.gpu.nvml.backend import open_device_files
from dra_driver.hardware.gpu.nvml.session import PATIENCE_S, SHORT_SLICE_S, SIGNAL, SLICE_S, DriverEnvironment, Waits

LONG_S = 20.0


@pytest.fixture
def restored() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


@pytest.mark.usefixtures("restored")
def test_another_threads_handler_of_the_signal_is_left_alone_and_waits_are_short() -> None:
    """A library that is loaded into the process may use the signal."""
    signal.signal(SIGNAL, signal.SIG_IGN)
    waits = Waits()
    assert waits.slice_s == SHORT_SLICE_S
    with waits.inside():
        waits.interrupt()
    assert signal.getsignal(SIGNAL) is signal.SIG_IGN


@pytest.mark.usefixtures("restored")
def test_made_outside_of_the_main_thread_waits_are_short() -> None:
    """Python installs handlers in the main thread only."""
    signal.signal(SIGNAL, signal.SIG_DFL)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(Waits().slice_s))
    thread.start()
    thread.join(LONG_S)
    assert found == [SHORT_SLICE_S]


@pytest.mark.parametrize(
    ("waits_at", "slice_s"),
    [
        ([[0.0, 0.4, 0.8]], SLICE_S),
        ([[0.0, 0.4, 0.8, PATIENCE_S]], SHORT_SLICE_S),  # a library that goes on waiting would hold up each change
        ([[0.0, PATIENCE_S + 1.0]], SLICE_S),  # one interrupt came too early, the next belongs to another series
        ([[0.0], [10 * PATIENCE_S]], SLICE_S),  # a wait that has ended does not count against the next one
    ],
)
def test_later_waits_are_short_only_after_a_wait_that_does_not_end(waits_at: list[list[float]], slice_s: float) -> None:
    clock = chain.from_iterable(waits_at)
    waits = Waits(lambda: next(clock))
    for times in waits_at:
        with waits.inside():
            for _ in times:
                waits.interrupt()
    assert waits.slice_s == slice_s


def test_a_thread_that_waits_gets_a_signal_and_none_when_it_waits_no_more() -> None:
    """It would end a system call of something else."""
    near, far = socket.socketpair()
    with near, far:
        for end in (near, far):
            end.setblocking(False)
        before = signal.set_wakeup_fd(far.fileno())
        try:
            waits = Waits()
            with waits.inside():
                waits.interrupt()
            waits.interrupt()
        finally:
            signal.set_wakeup_fd(before)
        assert near.recv(16) == bytes([SIGNAL])


BOUND = frozenset({("0000:01:00.0", 7), ("0000:02:00.0", 8)})
BEGAN = DriverEnvironment(bound=BOUND, library=(1, 2, 3, 4), release="580.65.06", module="580.65.06")


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (BEGAN, None),
        (replace(BEGAN, bound=frozenset({("0000:01:00.0", 7)})), r"bound \(none\) or unbound \(0000:02:00.0\)"),
        (replace(BEGAN, bound=BOUND | {("0000:03:00.0", 9)}), r"bound \(0000:03:00.0\) or unbound \(none\)"),
        (replace(BEGAN, bound=frozenset({("0000:01:00.0", 7), ("0000:02:00.0", 9)})), "0000:02:00.0"),  # bound again
        (replace(BEGAN, bound=None), None),
        (replace(BEGAN, module="610.43.02"), "kernel module is now 610.43.02, it was 580.65.06"),
        (replace(BEGAN, module=None), None),
        (replace(BEGAN, library=(1, 9, 3, 4)), "library was replaced by 580.65.06"),  # of the same release
        (replace(BEGAN, library=(1, 9, 3, 4), release="610.43.02"), None),  # without its module
        (replace(BEGAN, library=(1, 9, 3, 4), release=None), None),
        (replace(BEGAN, library=None, release=None), None),
    ],
)
def test_a_session_is_outdated_when_a_new_one_shows_more_and_would_work(
    now: DriverEnvironment, reason: str | None
) -> None:
    """Otherwise it is kept: a session that works is worth more than a new one that fails."""
    assert re.search(reason or "^None$", str(BEGAN.outdated(now)))


def test_a_session_that_began_without_the_driver_folder_is_outdated_when_it_is_there() -> None:
    assert DriverEnvironment().outdated(BEGAN) is not None
    assert DriverEnvironment().outdated(DriverEnvironment()) is None


def test_it_reads_links_of_gpus_and_versions(tmp_path: Path) -> None:
    """The driver's folder also has files of the kernel, and a link to the module."""
    folder = tmp_path / "bus/pci/drivers/nvidia"
    folder.mkdir(parents=True)
    for name in ("0000:01:00.0", "10000:ff:1f.7", "module", "new_id", "uevent"):
        (folder / name).symlink_to("anywhere")
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("580.65.06\n")
    library = tmp_path / "libnvidia-ml.so.580.65.06"
    library.touch()
    link = tmp_path / "libnvidia-ml.so.1"
    link.symlink_to(library.name)
    found = DriverEnvironment.read(str(tmp_path), str(link))
    assert {address for address, _ in found.bound or ()} == {"0000:01:00.0", "10000:ff:1f.7"}
    assert (found.release, found.module) == ("580.65.06", "580.65.06")
    assert found.library is not None
    assert found.library[1] == library.stat().st_ino


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_bytes(b"")
    assert DriverEnvironment.read(str(tmp_path), str(tmp_path / "none")) == DriverEnvironment()
    assert DriverEnvironment.read(str(tmp_path), None) == DriverEnvironment()


UUID = "GPU-0"


def process(proc: Path, pid: int, name: str, *files: str) -> Path:
    fds = proc / str(pid) / "fd"
    fds.mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    for number, target in enumerate(("/dev/null", *files)):
        (fds / str(number)).symlink_to(target)
    return fds


def test_known_programs_come_first_with_advice(tmp_path: Path) -> None:
    process(tmp_path, 7, "python3", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21")
    process(tmp_path, 8, "python3", "/dev/nvidia10", "/dev/nvidiactl", "/dev/nvidia-uvm")
    process(tmp_path, 4711, "nv-hostengine", "/dev/nvidia0")
    found = scan(tmp_path, 0)
    assert found.holders == (
        GpuHolder(pid=4711, name="nv-hostengine"),
        GpuHolder(pid=7, name="python3", capabilities=True),
    )
    assert describe(found) == (
        "open in nv-hostengine (process 4711), python3 (process 7, with MIG instances); nv-hostengine: stop DCGM on "
        "this node, or detach it: dcgmi set --detach-driver (DCGM 4.5, driver 590)"
    )


def test_a_removed_device_node_counts(tmp_path: Path) -> None:
    process(tmp_path, 7, "train", "/dev/nvidia3 (deleted)")
    assert [one.pid for one in scan(tmp_path, 3).holders] == [7]


@pytest.mark.parametrize("gone", ["fd", "comm", "all"])
def test_a_process_that_ends_during_the_scan_is_passed_over(tmp_path: Path, gone: str) -> None:
    process(tmp_path, 7, "ending", "/dev/nvidia0")
    process(tmp_path, 9, "staying", "/dev/nvidia0")
    ending = tmp_path / "7"
    if gone in ("comm", "all"):
        (ending / "comm").unlink()
    if gone in ("fd", "all"):
        for link in (ending / "fd").iterdir():
            link.unlink()
        (ending / "fd").rmdir()
    assert [one.name for one in scan(tmp_path, 0).holders] == ["staying"]


def test_names_are_made_harmless(tmp_path: Path) -> None:
    fds = process(tmp_path, 7, "x", "/dev/nvidia0")
    (fds.parent / "comm").write_bytes(b"\x1b[2J\xff\nline two and much more\n")
    assert scan(tmp_path, 0).holders[0].name == "?[2J??line two "


def test_the_scan_ends_in_time(tmp_path: Path) -> None:
    for pid in range(10):
        process(tmp_path, pid, "busy", "/dev/nvidia0")
    ticks = count(0.0, 0.3)
    found = scan(tmp_path, 0, clock=lambda: next(ticks))
    assert not found.complete
    assert found.processes == 3
    assert "not all of them" in describe(found)


def test_the_number_of_processes_is_limited(tmp_path: Path) -> None:
    for pid in range(10):
        process(tmp_path, pid, "idle")
    found = scan(tmp_path, 0, clock=lambda: 0.0, most=4)
    assert (found.processes, found.complete) == (4, False)


def test_many_holders_fit_into_an_event(tmp_path: Path) -> None:
    """An event has 1024 characters for the whole sentence."""
    for pid in range(100, 130):
        process(tmp_path, pid, "a" * 40, "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1")
    text = describe(scan(tmp_path, 0))
    assert "and 26 more" in text
    assert len(text) < 300


def test_the_first_proc_with_processes_is_read(tmp_path: Path) -> None:
    """A host root without a mounted proc file system has an empty folder there."""
    empty, missing, full = tmp_path / "empty", tmp_path / "missing", tmp_path / "full"
    empty.mkdir()
    process(full, 3, "Xorg", "/dev/nvidia1")
    asked = GpuHolders(lambda: (missing, empty, full), lambda _: 1)
    assert asked(UUID) == "open in Xorg (process 3); Xorg: keep the display server off this GPU"


def test_nothing_found_says_where_it_was_looked_for(tmp_path: Path) -> None:
    process(tmp_path, 3, "sh")
    answer = GpuHolders(lambda: (tmp_path,), lambda _: 1)(UUID)
    assert answer is not None
    assert f"1 processes were checked in {tmp_path}" in answer


def test_the_answer_never_raises(tmp_path: Path) -> None:

    def failing() -> Iterator[Path]:
        raise RuntimeError("defect")

    assert GpuHolders(failing, lambda _: 0)(UUID) is None
    assert GpuHolders(lambda: (tmp_path / "none",), lambda _: 0)(UUID) is None
    assert GpuHolders(lambda: (tmp_path,), lambda _: None)(UUID) is None


def failing(error: Exception) -> Callable[[], int]:
    def nvmlDeviceGetName() -> int:  # noqa: N802 - the messages have the name of NVML's function
        raise error

    return nvmlDeviceGetName


@pytest.mark.parametrize(
    ("error", "message"),
    [
        *((pynvml.NVMLError(code), rf"failed: .*\(NVML code {code}\)") for code in sorted(nvml.ABSENT)),
        (pynvml.NVMLLibraryMismatchError("old"), "upgrade the driver"),  # of an older form of the call; no NVMLError
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "its answer cannot be read"),
    ],
)
def test_what_nvml_does_not_offer_is_absent_but_not_when_a_gpu_cannot_do_without_it(
    error: Exception, message: str
) -> None:
    """A GPU without a name, or with a damaged one, can be used; one without a UUID cannot."""
    assert nvml.optional(failing(error)) is None
    with pytest.raises(DeviceLostError, match=f"^nvmlDeviceGetName .*{message}"):
        nvml.required(failing(error))


@pytest.mark.parametrize("code", sorted(nvml.DRIVER_TROUBLE))
@pytest.mark.parametrize("ask", [nvml.optional, nvml.required, nvml.driver_call])
def test_errors_of_the_whole_driver_are_not_reported_for_one_gpu(code: int, ask: Callable[..., object]) -> None:
    with pytest.raises(DriverUnavailableError) as caught:
        ask(failing(pynvml.NVMLError(code)))
    assert nvml.DRIVER_TROUBLE[code] in str(caught.value)
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


@pytest.mark.parametrize("code", [*range(1, 30), 999, 12345])
def test_every_code_of_nvml_becomes_none_or_an_error_of_this_project(code: int) -> None:
    """No pynvml exception leaves gpu/nvml: it is unhashable and cannot be compared."""
    answer: object
    try:
        answer = nvml.optional(failing(pynvml.NVMLError(code)))
    except DraError as error:
        answer = str(error)
    assert answer is None or f"(NVML code {code})" in str(answer)


BUS_ID = "0000:65:00.0"


def sysfs(root: Path, target: str, numa: str | None) -> str:
    device = root / "devices" / target
    device.mkdir(parents=True)
    links = root / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / BUS_ID).symlink_to(f"../../../devices/{target}")
    if numa is not None:
        (device / "numa_node").write_text(numa)
    return str(root)


@pytest.mark.parametrize(
    ("target", "numa", "expected"),
    [
        (f"pci0000:64/0000:64:02.0/{BUS_ID}", "1\n", ("pci0000:64", 1)),
        (f"pci10000:e0/{BUS_ID}", "0\n", ("pci10000:e0", 0)),
        (f"pci0000:64/{BUS_ID}", "-1\n", ("pci0000:64", None)),
        (f"pci0000:64/{BUS_ID}", "many\n", ("pci0000:64", None)),
        (f"pci0000:64/{BUS_ID}", None, ("pci0000:64", None)),
        (f"LNXSYSTM:00/vmbus/{BUS_ID}", "0\n", (None, 0)),
    ],
)
def test_root_and_numa_node_are_read_independently(
    tmp_path: Path, target: str, numa: str | None, expected: tuple[str | None, int | None]
) -> None:
    """One missing fact does not cost the other; -1 is the kernel's word for unknown."""
    assert properties.read_topology(BUS_ID, sysfs(tmp_path, target, numa)) == expected


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_device_that_sysfs_does_not_know_has_no_place(tmp_path: Path, is_loop: bool) -> None:
    """A container without /sys, a virtual GPU; for a loop Path.resolve raises RuntimeError or OSError."""
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    if is_loop:
        (links / BUS_ID).symlink_to(BUS_ID)
    assert properties.read_topology(BUS_ID, str(tmp_path)) == (None, None)


def test_sysfs_itself_may_be_behind_a_link(tmp_path: Path) -> None:
    sysfs(tmp_path / "real", f"pci0000:64/{BUS_ID}", "0")
    (tmp_path / "link").symlink_to("real")
    assert properties.read_topology(BUS_ID, str(tmp_path / "link")) == ("pci0000:64", 0)


def test_device_files_of_the_driver_are_found_below_any_root(tmp_path: Path) -> None:
    """A driver container has a /dev of its own; capabilities lie in a folder."""
    targets = [
        "/dev/nvidia0",
        "/dev/nvidia0",
        "/run/nvidia/driver/dev/nvidiactl",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/null",
        "/usr/lib/libnvidia-ml.so.1",
        "socket:[12]",
    ]
    for number, target in enumerate(targets):
        (tmp_path / str(number)).symlink_to(target)
    assert open_device_files(tmp_path) == (
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia0",
        "/run/nvidia/driver/dev/nvidiactl",
    )
    assert open_device_files(tmp_path / "none") == ()
