"""The smallest ELF shared library that a dynamic linker loads and ldconfig recognises: a name and nothing else.

Implements the System V gABI: one load segment over the whole file, a dynamic section with SONAME, and
an empty symbol table behind a SysV hash table. The segment is writable because glibc before 2.36 relocates the dynamic
section in place; a non-executable PT_GNU_STACK keeps the loading process's stack as it is.
"""

import struct

MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
HEADER_SIZE, PROGRAM_HEADER_SIZE = 64, 56
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ_WRITE = 6
PAGE = 0x10000  # arm64 kernels may use pages of 64 KiB
DT_NULL, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 4, 5, 6, 10, 11, 14
SYMBOL_SIZE = 24


def shared_object(soname: str, machine: str) -> bytes:
    """A library whose DT_SONAME is ``soname`` for ``machine`` (``x86_64`` or ``aarch64``; KeyError otherwise)."""
    hash_table = struct.pack("<4I", 1, 1, 0, 0)  # one bucket and one chain: the null symbol
    symbols = bytes(SYMBOL_SIZE)
    strings = b"\0" + soname.encode("ascii") + b"\0"
    hash_at = HEADER_SIZE + 3 * PROGRAM_HEADER_SIZE
    symbols_at = hash_at + len(hash_table)
    strings_at = symbols_at + len(symbols)
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    entries = (
        (DT_SONAME, 1),
        (DT_HASH, hash_at),
        (DT_STRTAB, strings_at),
        (DT_SYMTAB, symbols_at),
        (DT_STRSZ, len(strings)),
        (DT_SYMENT, SYMBOL_SIZE),
        (DT_NULL, 0),
    )
    dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in entries)
    size = dynamic_at + len(dynamic)
    head = (
        _header(MACHINES[machine])
        + _segment(PT_LOAD, 0, size, PAGE)
        + _segment(PT_DYNAMIC, dynamic_at, len(dynamic), 8)
        + _segment(PT_GNU_STACK, 0, 0, 16)
    )
    body = head + hash_table + symbols + strings
    return body + bytes(dynamic_at - len(body)) + dynamic


def _header(machine: int) -> bytes:
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)  # 64 bits, little-endian, version 1, System V
    et_dyn = 3
    return ident + struct.pack("<HHIQQQIHHHHHH", et_dyn, machine, 1, 0, HEADER_SIZE, 0, 0, HEADER_SIZE, 56, 3, 64, 0, 0)


def _segment(kind: int, offset: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, READ_WRITE, offset, offset, offset, size, size, align)
