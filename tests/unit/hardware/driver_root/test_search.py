"""The linker's cache in both layouts, sound and damaged."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.hardware.driver_root.root import resolve
from dra_driver.hardware.driver_root.search import cache_entries, find_library, read_cache
from tests.fakes.elf import linker_cache

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
    """The search then reports that no driver was found."""
    assert list(cache_entries(data)) == []


@given(
    cut=st.integers(0, 200),
    changes=st.dictionaries(st.integers(0, 150), st.integers(0, 255), max_size=6),
)
def test_random_damage_never_raises(cut: int, changes: dict[int, int]) -> None:
    """Offsets may point anywhere."""
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


def test_absolute_links_point_into_the_root(tmp_path: Path) -> None:
    """Debian's alternatives chain, seen through a mount of the host's root."""
    file = put(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.1")
    link(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1", "libnvidia-ml.so.535.1")
    link(tmp_path, "etc/alternatives/nvml", "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1")
    link(tmp_path, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/etc/alternatives/nvml")
    assert find_library(str(tmp_path)) == str(file)


def test_a_linked_folder_is_followed_inside_the_root(tmp_path: Path) -> None:
    """/lib is a link to usr/lib on merged systems."""
    file = put(tmp_path, "opt/nv/libnvidia-ml.so.1")
    link(tmp_path, "usr/lib64", "/opt/nv")
    assert find_library(str(tmp_path)) == str(file)


@pytest.mark.parametrize("target", ["libnvidia-ml.so.1", "/nowhere/libnvidia-ml.so.2", "../../../../../../../.."])
def test_a_link_that_loops_breaks_or_ends_in_a_folder_is_no_library(tmp_path: Path, target: str) -> None:
    """It must neither hang nor leave the root."""
    link(tmp_path, "usr/lib64/libnvidia-ml.so.1", target)
    assert find_library(str(tmp_path)) is None


def test_dots_never_leave_the_root(tmp_path: Path) -> None:
    """As with chroot, the parent of the root is the root."""
    put(tmp_path, "root/secret")
    put(tmp_path, "secret")
    assert resolve(str(tmp_path / "root"), "../.././secret") == "/secret"


def test_an_empty_or_missing_root_has_no_library(tmp_path: Path) -> None:
    """The driver container has not started yet."""
    assert find_library(str(tmp_path)) is None
    assert find_library(str(tmp_path / "missing")) is None
