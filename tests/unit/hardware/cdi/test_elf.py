"""SONAMEs of shared libraries, and files that lie about themselves."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.hardware.cdi.elf import SharedObject, read_shared_object
from tests.fakes.elf import X86_64, Elf

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
