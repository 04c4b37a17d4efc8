"""Read the SONAME of a shared library (DT_SONAME) from a 64-bit little-endian ELF file that may be damaged or hostile.

Uses ``pread``, not ``mmap``: a library truncated while mapped (driver upgrade, full disk) raises SIGBUS. Source: System
V ABI, chapters 4 and 5; ``elf.h`` for the numbers.
"""

import os
import re
import stat
import struct

from msgspec import Struct

EM_X86_64 = 62
EM_AARCH64 = 183
_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 5, 10, 14

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_MAX_PROGRAM_HEADERS = 256  # real libraries have about ten
_MAX_DYNAMIC_BYTES = 4096 * _DYNAMIC.size  # real ones have about thirty entries
_MAX_SONAME = 255  # NAME_MAX: it becomes a file name

# It becomes the last part of a mount's target in containers, so it must not be a path.
_SAFE_SONAME = re.compile(rb"[A-Za-z0-9_+][A-Za-z0-9._+-]*")


class SharedObject(Struct, frozen=True, kw_only=True):
    """A library's machine (``EM_…`` of elf.h) and its usable SONAME, if any."""

    machine: int
    soname: str | None


class _Damaged(Exception):  # noqa: N818 - never leaves this module
    """The file contradicts itself."""


def read_shared_object(path: str) -> SharedObject | None:
    """Machine and SONAME of a valid shared object, else None. Reads a few kilobytes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait for a FIFO's writer
    try:
        status = os.fstat(fd)
        return _read(fd, status.st_size) if stat.S_ISREG(status.st_mode) else None
    except (_Damaged, struct.error):
        return None
    finally:
        os.close(fd)


def _read(fd: int, size: int) -> SharedObject | None:
    fields = _HEADER.unpack(_bytes(fd, 0, _HEADER.size, size))
    ident, kind, machine, program_offset, entry_size, count = (fields[i] for i in (0, 1, 2, 5, 9, 10))
    if not ident.startswith(b"\x7fELF\x02\x01") or kind != _ET_DYN:
        return None
    if entry_size < _PROGRAM.size or not 0 < count <= _MAX_PROGRAM_HEADERS:
        return None
    table = _bytes(fd, program_offset, entry_size * count, size)
    segments = [_PROGRAM.unpack_from(table, i * entry_size) for i in range(count)]
    dynamic = next((s for s in segments if s[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return None
    loads = [(s[3], s[2], s[5]) for s in segments if s[0] == _PT_LOAD]
    return SharedObject(machine=machine, soname=_soname(fd, size, dynamic[2], dynamic[5], loads))


def _soname(fd: int, size: int, offset: int, length: int, loads: list[tuple[int, int, int]]) -> str | None:
    if length > _MAX_DYNAMIC_BYTES:
        raise _Damaged
    raw = _bytes(fd, offset, length - length % _DYNAMIC.size, size)
    values: dict[int, int] = {}
    for tag, value in _DYNAMIC.iter_unpack(raw):
        if tag == _DT_NULL:
            break
        values.setdefault(tag, value)
    if _DT_SONAME not in values or _DT_STRTAB not in values:
        return None
    name_offset, strings = values[_DT_SONAME], values[_DT_STRTAB]
    strings_size = values.get(_DT_STRSZ, size)
    start = _file_offset(strings + name_offset, loads)
    length = min(_MAX_SONAME + 1, strings_size - name_offset, size - start)
    name, end, _ = _bytes(fd, start, length, size).partition(b"\0")
    return name.decode("ascii") if end and _SAFE_SONAME.fullmatch(name) else None


def _file_offset(address: int, loads: list[tuple[int, int, int]]) -> int:
    for start, offset, length in loads:
        if start <= address < start + length:
            return offset + address - start
    raise _Damaged


def _bytes(fd: int, offset: int, length: int, size: int) -> bytes:
    if length <= 0 or offset + length > size:
        raise _Damaged
    data = os.pread(fd, length, offset)
    if len(data) != length:  # the file shrank since fstat
        raise _Damaged
    return data
