"""The ELF files, read back by their headers."""

import struct

import pytest

from dra_driver.hardware.gpu.simulated.root import shared_object


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_headers_describe_the_whole_file_and_the_soname(machine: str, number: int) -> None:
    """What ldconfig and CDI discovery read: machine, one load segment, DT_SONAME through DT_STRTAB."""
    data = shared_object("libcuda.so.1", machine)
    assert data[:6] == b"\x7fELF\x02\x01"
    assert struct.unpack_from("<HH", data, 16) == (3, number)
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, offset + size * index) for index in range(count)]
    load = next(segment for segment in segments if segment[0] == 1)
    assert load[2:7] == (0, 0, 0, len(data), len(data))
    assert all(segment[1] & 1 == 0 for segment in segments), "nothing is executable"
    dynamic = next(segment for segment in segments if segment[0] == 2)
    entries = dict(struct.unpack_from("<qQ", data, at) for at in range(dynamic[2], dynamic[2] + dynamic[5], 16))
    at = entries[5] + entries[14]
    assert data[at : data.index(b"\0", at)] == b"libcuda.so.1"


def test_an_unknown_machine_is_not_guessed() -> None:
    """A library of the wrong machine would fail in the container instead of here."""
    with pytest.raises(KeyError):
        shared_object("libcuda.so.1", "riscv64")
