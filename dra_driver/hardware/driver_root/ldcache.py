"""Read the dynamic linker's cache, to find a driver outside of the usual folders.

Supports ``/etc/ld.so.cache`` as glibc >= 2.2 writes it, alone or after the older format. Every offset is checked: a
damaged cache has no entries.

Source: glibc ``sysdeps/generic/dl-cache.h`` (``struct cache_file_new``, ``FLAG_*_LIB64``).
"""

import os
import stat
import struct
from collections.abc import Iterator

_OLD_MAGIC = b"ld.so-1.7.0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_NEW_HEADER = 48
_ENTRY = struct.Struct("<iIIIQ")
_LIB64 = (0x0300, 0x0A00)  # x86-64 and aarch64
_MAX_BYTES = 16 * 1024 * 1024  # a large desktop's cache is below 1 MiB
_MAX_STRING = 4096  # PATH_MAX


def read_cache(path: str) -> bytes:
    """The cache's bytes, empty when it is missing, larger than 16 MiB or not a file. Raises other OSErrors."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(file.fileno())
        is_sane = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
        return file.read(_MAX_BYTES) if is_sane else b""


def entries(data: bytes) -> Iterator[tuple[str, str]]:
    """``(library name, path)`` of the 64-bit x86 and ARM libraries in ``data``, in the cache's order."""
    base = _new_format_offset(data)
    if data[base : base + len(_NEW_MAGIC)] != _NEW_MAGIC or len(data) < base + _NEW_HEADER:
        return
    (count,) = struct.unpack_from("<I", data, base + len(_NEW_MAGIC))
    count = min(count, (len(data) - base - _NEW_HEADER) // _ENTRY.size)
    for i in range(count):
        flags, key, value, _, _ = _ENTRY.unpack_from(data, base + _NEW_HEADER + i * _ENTRY.size)
        name, path = _string(data, base + key), _string(data, base + value)
        if flags & 0xFF00 in _LIB64 and name and path.startswith("/"):
            yield name, path


def _new_format_offset(data: bytes) -> int:
    """Offset of the new format: 0, or after the old format (aligned to 8 bytes)."""
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER:
        return 0
    (count,) = struct.unpack_from("<I", data, 12)
    end: int = _OLD_HEADER + _OLD_ENTRY * count
    return end + -end % 8


def _string(data: bytes, start: int) -> str:
    """The NUL-terminated string at ``start``, "" when it does not end within bounds or is not ASCII."""
    end = data.find(b"\0", start, start + _MAX_STRING)
    raw = data[start:end] if end >= 0 else b""
    return raw.decode("ascii", "ignore") if raw.isascii() else ""
