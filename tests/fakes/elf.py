"""Shared libraries and linker caches of exactly the numbers that a test wants, sound or damaged. Written from the
System V ABI and glibc's ``dl-cache.h``, apart from the code under test, so that one misreading cannot make both
agree."""

import struct
from dataclasses import dataclass, replace

X86_64, AARCH64 = 62, 183


@dataclass(frozen=True, kw_only=True)
class Elf:
    """A 64-bit shared object with two segments. Every number can be falsified; None means the true one."""

    soname: bytes | None = b"libx.so.1"
    machine: int = X86_64
    ident: bytes = b"\x7fELF\x02\x01\x01" + bytes(9)
    type: int = 3  # ET_DYN
    program_offset: int | None = None
    program_entry_size: int = 56
    program_count: int | None = None
    dynamic_offset: int | None = None
    dynamic_size: int | None = None
    load_size: int | None = None
    string_address: int | None = None
    string_size: int | None = None
    soname_offset: int = 1
    terminated: bool = True
    base: int = 0x1000  # addresses differ from offsets, as in real libraries

    def but(self, **changes: object) -> "Elf":
        return replace(self, **changes)  # type: ignore[arg-type]

    def build(self) -> bytes:
        strings = b"\0" + (self.soname or b"") + (b"\0" if self.terminated else b"")
        dynamic_at = 64 + 2 * 56
        strings_at = dynamic_at + 4 * 16
        entries = [(5, _or(self.string_address, self.base + strings_at)), (10, _or(self.string_size, len(strings)))]
        entries += [(14, self.soname_offset)] if self.soname is not None else [(21, 0)]  # DT_DEBUG fills the place
        dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (0, 0)])
        total = strings_at + len(strings)
        load = struct.pack("<IIQQQQQQ", 1, 5, 0, self.base, 0, _or(self.load_size, total), total, 4096)
        dyn_offset, dyn_size = _or(self.dynamic_offset, dynamic_at), _or(self.dynamic_size, len(dynamic))
        dyn = struct.pack("<IIQQQQQQ", 2, 6, dyn_offset, self.base + dynamic_at, 0, dyn_size, dyn_size, 8)
        header = self.ident + struct.pack(
            "<HHIQQQIHHHHHH", self.type, self.machine, 1, 0, _or(self.program_offset, 64), 0, 0, 64,
            self.program_entry_size, _or(self.program_count, 2), 0, 0, 0,
        )  # fmt: skip
        return header + load + dyn + dynamic + strings


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def library(soname: str | None, machine: int = X86_64) -> bytes:
    return Elf(soname=None if soname is None else soname.encode(), machine=machine).build()


def linker_cache(entries: list[tuple[int, str, str]], *, old_entries: int | None = None) -> bytes:
    """An ``ld.so.cache`` of ``(flags, name, path)``, behind an old-format cache of ``old_entries`` entries if given."""
    start = 48 + 24 * len(entries)
    table, strings = b"", b""
    for flags, name, path in entries:
        key = start + len(strings)
        strings += name.encode() + b"\0"
        table += struct.pack("<iIIIQ", flags, key, start + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    new = b"glibc-ld.so.cache1.1" + struct.pack("<II", len(entries), len(strings)) + bytes(20) + table + strings
    if old_entries is None:
        return new
    old = b"ld.so-1.7.0\0" + struct.pack("<I", old_entries) + bytes(12 * old_entries)
    return old + bytes(-len(old) % 8) + new
