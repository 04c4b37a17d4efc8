"""Files of drivers of all layouts, SONAMEs (also of damaged libraries), and the watch for changes of the folders."""

import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.cdi.elf import SharedObject, read_shared_object
from dra_driver.hardware.cdi.libraries import DriverFiles, discover
from dra_driver.hardware.cdi.watch import FolderWatch, MountWatch
from dra_driver.hardware.driver_root.root import DriverRoot
from tests.fakes import elf
from tests.fakes.driver_root import VERSION, FakeDriverRoot, debian
from tests.fakes.elf import X86_64, Elf
from tests.harness.raising import fails

DEBIAN = "/usr/lib/x86_64-linux-gnu"


def found(root: FakeDriverRoot, version: str | None = None) -> DriverFiles:
    return discover(DriverRoot(root=str(root.path), host_root="/"), version)


def test_a_debian_driver_is_found_whole(tmp_path: Path) -> None:
    files = found(debian(tmp_path))
    assert (files.version, files.multiarch) == (VERSION, "x86_64-linux-gnu")
    assert {(library.path, library.soname) for library in files.libraries} == {
        (f"{DEBIAN}/libcuda.so.{VERSION}", "libcuda.so.1"),
        (f"{DEBIAN}/libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1"),
        (f"{DEBIAN}/libnvidia-ptxjitcompiler.so.{VERSION}", "libnvidia-ptxjitcompiler.so.1"),
        (f"{DEBIAN}/libnvidia-allocator.so.{VERSION}", "libnvidia-allocator.so.1"),
        (f"{DEBIAN}/libGLX_nvidia.so.{VERSION}", "libGLX_nvidia.so.0"),
        (f"{DEBIAN}/libnvidia-tls.so.{VERSION}", f"libnvidia-tls.so.{VERSION}"),
        (f"{DEBIAN}/libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1"),
        (f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1"),
    }
    assert [file.container_path for file in files.files] == [
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-persistenced",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/vulkan/icd.d/nvidia_icd.json",
    ]
    assert [socket.container_path for socket in files.sockets] == ["/run/nvidia-persistenced/socket"]


@pytest.mark.parametrize(
    ("folder", "machine", "multiarch"),
    [
        ("/usr/lib64", elf.X86_64, "x86_64-linux-gnu"),  # Fedora, RHEL, SUSE
        ("/usr/lib64", elf.AARCH64, "aarch64-linux-gnu"),
        ("/usr/lib/aarch64-linux-gnu", elf.AARCH64, "aarch64-linux-gnu"),
        ("/usr/lib/x86_64-linux-gnu/nvidia/current", elf.X86_64, "x86_64-linux-gnu"),  # Debian's own package
        ("/lib64", elf.X86_64, "x86_64-linux-gnu"),  # a bare folder, as on container-optimised hosts
        ("/usr/lib", elf.X86_64, "x86_64-linux-gnu"),  # Arch
    ],
)
def test_every_distributions_folder_is_searched(tmp_path: Path, folder: str, machine: int, multiarch: str) -> None:
    root = FakeDriverRoot(tmp_path)
    root.libraries(folder, machine=machine)
    files = found(root)
    assert set(files.library_folders) == {folder, f"{folder}/vdpau"}
    assert files.multiarch == multiarch


def test_a_driver_elsewhere_is_found_through_the_linkers_cache(tmp_path: Path) -> None:
    """NixOS and hand-made layouts; the cache's path may be a link inside the root."""
    root = FakeDriverRoot(tmp_path)
    root.libraries("/opt/nv/lib")
    entries = [(0x0303, "libc.so.6", "/lib/libc.so.6"), (0x0303, "libcuda.so.1", "/opt/nv/lib/libcuda.so.1")]
    cache = elf.linker_cache(entries)
    root.put("/etc/static/ld.so.cache", cache)
    root.link("/etc/ld.so.cache", "/etc/static/ld.so.cache")
    assert found(root).library_folders[0] == "/opt/nv/lib"


def test_debian_alternatives_are_followed_to_the_real_file(tmp_path: Path) -> None:
    root = debian(tmp_path)
    (tmp_path / "usr/bin/nvidia-smi").unlink()
    root.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia-smi")
    root.link("/etc/alternatives/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    root.put("/usr/lib/nvidia/current/nvidia-smi", b"", 0o755)
    first = found(root).files[0]
    assert (first.path, first.container_path) == ("/usr/lib/nvidia/current/nvidia-smi", "/usr/bin/nvidia-smi")


def test_32_bit_and_foreign_libraries_are_left_out(tmp_path: Path) -> None:
    """They would take the SONAME's place in containers."""
    root = debian(tmp_path)
    root.put(f"{DEBIAN}/libnvidia-a.so.{VERSION}", elf.Elf(ident=b"\x7fELF\x01\x01\x01" + bytes(9)).build())
    root.put(f"{DEBIAN}/libnvidia-b.so.{VERSION}", elf.library("libnvidia-b.so.1", elf.AARCH64))
    root.put(f"{DEBIAN}/libnvidia-c.so.{VERSION}", b"linker script")
    (tmp_path / f"usr/lib/x86_64-linux-gnu/libnvidia-d.so.{VERSION}").mkdir()
    os.mkfifo(tmp_path / f"usr/lib/x86_64-linux-gnu/libnvidia-e.so.{VERSION}")
    names = {library.stem for library in found(root).libraries}
    assert not names & {f"libnvidia-{letter}" for letter in "abcde"}


def test_of_two_versions_the_one_that_the_loader_takes_wins(tmp_path: Path) -> None:
    """An upgrade that left files behind must not mix two drivers."""
    root = debian(tmp_path, "570.10")
    root.libraries(DEBIAN, "580.20")
    assert found(root).version == "570.10"
    assert found(root, "580.20").version == "580.20"
    with pytest.raises(DriverUnavailableError, match=r"expected libcuda\.so\.590\.1"):
        found(root, "590.1")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / DEBIAN.lstrip("/") / name).unlink()
    assert found(root).version == "580.20"


def test_nvml_alone_is_a_driver(tmp_path: Path) -> None:
    root = FakeDriverRoot(tmp_path)
    root.put(f"/usr/lib64/libnvidia-ml.so.{VERSION}", elf.library("libnvidia-ml.so.1"))
    assert found(root).version == VERSION


@pytest.mark.parametrize("make", ["nothing", "empty", "file"])
def test_no_driver_is_one_sentence(tmp_path: Path, make: str) -> None:
    root = FakeDriverRoot(tmp_path / "root")
    if make == "empty":
        root.path.mkdir()
    if make == "file":
        root.path.write_text("not a folder")
    with fails(DriverUnavailableError, "DriverFilesMissing", match="root/"):
        found(root)


def test_a_root_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """The system's own reason is kept. A name that is too long fails for root too, unlike permission bits."""
    root, name = debian(tmp_path), "x" * 300
    with pytest.raises(DriverUnavailableError, match=r"cannot search the NVIDIA driver root .*File name too long"):
        discover(DriverRoot(root=f"{root.path}/{name}"))


def test_changes_of_the_root_are_noticed(tmp_path: Path) -> None:
    root = debian(tmp_path)
    smi = tmp_path / "usr/bin/nvidia-smi"
    for change in (
        partial(root.put, "/run/nvidia-fabricmanager/socket-to-be"),
        smi.unlink,
        partial(root.put, f"{DEBIAN}/libcuda.so.590.1", elf.library("libcuda.so.1")),
        partial(root.put, "/etc/OpenCL/vendors/nvidia.icd"),
    ):
        time_passes(tmp_path)
        files = found(root)
        assert files.is_current()
        change()
        assert not files.is_current()


def test_a_switched_alternative_is_noticed(tmp_path: Path) -> None:
    root = debian(tmp_path)
    (tmp_path / "usr/bin/nvidia-smi").unlink()
    root.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia/smi")
    alternative = root.link("/etc/alternatives/nvidia", "/opt/old")
    root.put("/opt/old/smi", b"", 0o755)
    root.put("/opt/new/smi", b"", 0o755)
    time_passes(tmp_path)
    files = found(root)
    assert files.is_current()
    alternative.unlink()
    alternative.symlink_to("/opt/new")
    assert not files.is_current()


def time_passes(folder: Path) -> None:
    """Set every folder's time back: the kernel's clock for files ticks only every few milliseconds."""
    past = time.time() - 60
    for path, _, _ in os.walk(folder):
        os.utime(path, (past, past))


def test_discovery_asks_little_of_libraries_that_are_not_the_drivers(tmp_path: Path) -> None:
    """It runs inside a prepare call after a driver upgrade, where a folder has seventy libraries of the driver among a
    thousand others: 20 ms, if only the driver's are looked at. Calls of the kernel are counted, which no load changes.
    """
    root = debian(tmp_path)
    folder = tmp_path / DEBIAN.lstrip("/")
    for i in range(62):
        root.put(f"{DEBIAN}/libnvidia-x{i}.so.{VERSION}", elf.library(f"libnvidia-x{i}.so.1"))
    alone = kernel_calls(root)
    for i in range(1000):
        (folder / f"libother{i}.so.1").symlink_to("nothing")
    assert kernel_calls(root) == alone
    assert alone < 20 * 70


def kernel_calls(root: FakeDriverRoot) -> int:
    """How many functions of the kernel one search calls."""
    calls = 0

    def count(_: FrameType, event: str, function: object) -> None:
        nonlocal calls
        calls += event == "c_call" and getattr(function, "__module__", None) in ("posix", "_io")

    sys.setprofile(count)
    try:
        files = found(root)
    finally:
        sys.setprofile(None)
    assert len(files.libraries) == 70
    return calls


GOOD = Elf(soname=b"libcuda.so.1")
HUGE = 2**64 - 1


def read(folder: Path, data: bytes) -> SharedObject | None:
    path = folder / "lib"
    path.write_bytes(data)
    return read_shared_object(str(path))


@pytest.mark.parametrize(
    "soname", [None, b"../../etc/passwd", b"a/b", b"..", b".", b"", b"a b", b"\xff\xfe", b"a" * 300, b"x\n"]
)
def test_a_soname_that_could_be_a_path_is_not_used(tmp_path: Path, soname: bytes | None) -> None:
    """It becomes the last part of a mount's target in every container of the node."""
    assert read(tmp_path, GOOD.but(soname=soname).build()) == SharedObject(machine=X86_64, soname=None)


@pytest.mark.parametrize(
    "lie",
    [
        {"ident": b"\x7fELF\x01\x01\x01" + bytes(9)},  # 32 bits
        {"ident": b"\x7fELF\x02\x02\x01" + bytes(9)},  # big-endian
        {"ident": b"#!/bin/sh\nexit 0"},
        {"type": 2},  # a program
        {"program_count": 0},
        {"program_count": 65535},
        {"program_entry_size": 0},
        {"program_entry_size": 65535},
        {"program_offset": HUGE},
        {"program_offset": 2**63},
        {"dynamic_offset": HUGE},
        {"dynamic_offset": 2**40},
        {"dynamic_size": HUGE},
        {"dynamic_size": 2**30},
        {"dynamic_size": 8},
        {"string_address": 0},
        {"string_address": HUGE},
        {"string_size": 0},
        {"soname_offset": HUGE},
        {"soname_offset": 2**20},
        {"load_size": 16},
    ],
    ids=str,
)
def test_a_library_that_lies_is_no_library(tmp_path: Path, lie: dict[str, int]) -> None:
    assert read(tmp_path, GOOD.but(**lie).build()) is None


def test_a_soname_that_does_not_end_within_the_strings_is_not_used(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD.but(terminated=False).build() + b"garbage\0")
    assert found == SharedObject(machine=X86_64, soname=None)
    assert read(tmp_path, GOOD.but(terminated=False).build()) == SharedObject(machine=X86_64, soname=None)


def test_every_truncation_is_harmless(tmp_path: Path) -> None:
    """A driver upgrade may be half-way through copying."""
    whole = GOOD.build()
    for length in range(len(whole)):
        found = read(tmp_path, whole[:length])
        assert found is None or found.soname is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.integers(0, len(GOOD.build()) - 1), st.integers(0, 255), max_size=8))
def test_random_damage_never_raises_nor_yields_a_path(tmp_path: Path, changes: dict[int, int]) -> None:
    data = bytearray(GOOD.build())
    for offset, value in changes.items():
        data[offset] = value
    found = read(tmp_path, bytes(data))
    assert found is None or found.soname is None or "/" not in found.soname


def test_a_sparse_terabyte_costs_nothing(large_file: Path) -> None:
    large_file.write_bytes(GOOD.build())
    os.truncate(large_file, 2**40)
    assert read_shared_object(str(large_file)) == SharedObject(machine=X86_64, soname="libcuda.so.1")


def test_a_fifo_does_not_stop_the_process(tmp_path: Path) -> None:
    path = tmp_path / "lib"
    os.mkfifo(path)
    assert read_shared_object(str(path)) is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "lib" / "inner").mkdir(parents=True)
    (tmp_path / "lib" / "old").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "later" / "deep")
    return tmp_path


def armed(root: Path) -> FolderWatch:
    watch = FolderWatch([str(root / name) for name in ("lib", "missing/sub", "link")], [str(root)])
    assert not watch.is_quiet(), "nothing is known before the first look"
    watch.arm()
    assert watch.is_quiet()
    return watch


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is added": lambda root: (root / "lib" / "new").write_text("x"),
    "a file is removed": lambda root: (root / "lib" / "old").unlink(),
    "a file is replaced": lambda root: (root / "lib" / "inner").rename(root / "lib" / "outer"),
    "a missing folder's parent appears": lambda root: (root / "missing").mkdir(),
    "the target of a link appears": lambda root: (root / "later").mkdir(),
    "the folder is moved away": lambda root: (root / "lib").rename(root / "gone"),
}


@pytest.mark.usefixtures("inotify")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_at_the_next_look(root: Path, change: str) -> None:
    watch = armed(root)
    CHANGES[change](root)
    assert not watch.is_quiet()


@pytest.mark.usefixtures("inotify")
def test_after_a_look_the_same_change_is_not_reported_again(root: Path) -> None:
    watch = armed(root)
    (root / "missing").mkdir()
    watch.arm()
    assert watch.is_quiet()
    (root / "missing" / "sub").mkdir()
    watch.arm()
    (root / "missing" / "sub" / "file").write_text("x")
    assert not watch.is_quiet()


@pytest.mark.usefixtures("inotify")
def test_another_folder_in_place_of_an_anchor_is_seen(root: Path) -> None:
    """A mount that covers the root makes no event; a rename of a folder above shows the same."""
    inner = root / "lib" / "inner"
    watch = FolderWatch([], [str(inner)])
    watch.arm()
    assert watch.is_quiet()
    inner.rename(root / "kept")
    assert not watch.is_quiet()
    inner.mkdir()
    assert not watch.is_quiet()


# No instance is left; it cannot be read; the kernel refuses watches on a pipe, as at the limit of watches.
UNUSABLE: list[Callable[[Path], int]] = [
    lambda _: -1,
    lambda root: os.open(root, os.O_RDONLY),
    lambda _: os.pipe2(os.O_NONBLOCK)[0],
]


@pytest.mark.parametrize("start", UNUSABLE)
def test_without_a_usable_watch_every_look_is_a_thorough_one(root: Path, start: Callable[[Path], int]) -> None:
    watch = FolderWatch([str(root / "lib")], [], start=lambda: start(root))
    watch.arm()
    assert not watch.is_quiet()


@pytest.mark.usefixtures("inotify")
def test_a_watch_that_is_dropped_gives_its_descriptor_back(root: Path) -> None:
    watch = armed(root)
    gc.collect()  # descriptors of earlier tests would be counted
    before = set(Path("/proc/self/fd").iterdir())
    del watch
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before) - 1


@pytest.fixture
def table() -> Iterator[tuple[socket.socket, MountWatch, socket.socket]]:
    """The kernel's end, the watch, and the end that it watches."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as kernel:
        watched, _ = listener.accept()
        with watched:
            yield kernel, MountWatch(start=watched.dup().detach), watched


def test_a_mount_is_seen_once(table: tuple[socket.socket, MountWatch, socket.socket]) -> None:
    kernel, watch, watched = table
    kernel.send(b"content, which is readable at any time")
    assert not watch.changed()
    kernel.send(b"!", socket.MSG_OOB)
    assert watch.changed()
    watched.recv(1, socket.MSG_OOB)  # the mount table forgets it by itself
    assert not watch.changed()


def test_without_a_mount_table_everything_may_have_changed() -> None:
    assert MountWatch(start=lambda: -1).changed()


def test_the_own_mount_table_can_be_watched() -> None:
    watch = MountWatch()
    assert not all(watch.changed() for _ in range(10))
