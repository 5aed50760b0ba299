"""ELF files of kernel modules, made byte by byte for tests."""

from __future__ import annotations

import struct

LOCAL, GLOBAL, WEAK = 0, 1, 2
SYMTAB, STRTAB = 2, 3
MAGIC = b"\x7fELF\x02\x01\x01"
HEADER_BYTES, SECTION_BYTES, SYMBOL_BYTES = 64, 64, 24

Symbol = tuple[str, int, int]
"""Name, binding, section (0: undefined)."""


def section(kind: int, offset: int, length: int, link: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, length, link, 0, 1, SYMBOL_BYTES)


def elf(*symbols: Symbol) -> bytes:
    """A relocatable ELF64 file with one symbol table: header, names, symbols, section headers (elf(5))."""
    names, table = b"\0", bytes(SYMBOL_BYTES)
    for name, binding, place in symbols:
        table += struct.pack("<IBBHQQ", len(names) if name else 0, binding << 4, 0, place, 0, 0)
        names += name.encode() + b"\0" if name else b""
    names_at, table_at = HEADER_BYTES, HEADER_BYTES + len(names)
    sections_at = table_at + len(table)
    header = bytearray(HEADER_BYTES)
    header[: len(MAGIC)] = MAGIC
    struct.pack_into("<Q", header, 0x28, sections_at)
    struct.pack_into("<HH", header, 0x3A, SECTION_BYTES, 3)
    sections = bytes(SECTION_BYTES) + section(SYMTAB, table_at, len(table), 2) + section(STRTAB, names_at, len(names))
    return bytes(header) + names + table + sections


MODULE = elf(
    ("printk", GLOBAL, 0),
    ("rebellions_core_open", GLOBAL, 0),
    ("init_module", GLOBAL, 1),
    ("local", LOCAL, 0),
    ("maybe", WEAK, 0),
    ("", GLOBAL, 0),
)
