"""Which symbols a module file needs from others: the undefined ones of its ELF symbol table.

Own reader, because it is one table of one format: a kernel module is a relocatable ELF file of the kernel's own word
size and byte order. Source: elf(5).
"""

from __future__ import annotations

import gzip
import lzma
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_SYMTAB = 2
_GLOBAL = 1
_EXPORT = "__ksymtab_"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
MAX_BYTES = 512 * 1024 * 1024
MAX_NAME_BYTES = 1024
"""The kernel's own limit is 512 (KSYM_NAME_LEN): a longer one is none."""


def needed_symbols(path: Path) -> frozenset[str] | None:
    """Names that must be exported by somebody for the module to load; None for what cannot be read as one.

    Weak symbols do not count. Not read: zstd-compressed modules and big-endian or 32-bit kernels.
    """
    symbols = _symbols(path)
    return None if symbols is None else frozenset(name for name, is_needed in symbols if is_needed)


def exported_symbols(path: Path) -> frozenset[str]:
    """Names that the module exports (EXPORT_SYMBOL leaves `__ksymtab_NAME`); none for what cannot be read."""
    names = (name for name, _ in _symbols(path) or ())
    return frozenset(name.removeprefix(_EXPORT) for name in names if name.startswith(_EXPORT))


def _symbols(path: Path) -> list[tuple[str, bool]] | None:
    """(name, whether it is an undefined global) of the module's symbols; None for what is no module."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = _content(file, path.suffix)
        return list(_table(data)) if data.startswith(_ELF64_LITTLE) else None
    except (OSError, EOFError, struct.error, lzma.LZMAError, zlib.error, IndexError, OverflowError, ValueError):
        return None


def _content(file: BinaryIO, suffix: str) -> bytes:
    if suffix == ".gz":
        with gzip.open(file) as packed:
            return packed.read(MAX_BYTES)
    if suffix == ".xz":
        with lzma.open(file) as packed:
            return packed.read(MAX_BYTES)
    return file.read(MAX_BYTES)


def _table(data: bytes) -> Iterator[tuple[str, bool]]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    if size < _SECTION.size or not count:
        raise ValueError("no section headers")
    sections = [_SECTION.unpack_from(data, table + number * size) for number in range(count)]
    # An object file has one (elf(5)); a thousand that share their bytes would be read for an hour.
    tables = [section for section in sections if section[1] == _SYMTAB]
    if len(tables) > 1:
        raise ValueError("more than one symbol table")
    for _, _, _, _, offset, length, link, _, _, _ in tables:
        names = sections[link][4]
        for at in range(offset, offset + length, _SYMBOL.size):
            name, info, _, section, _, _ = _SYMBOL.unpack_from(data, at)
            if name:
                start = names + name
                text = data[start : data.index(b"\0", start, start + MAX_NAME_BYTES)].decode("ascii", "replace")
                yield text, section == 0 and info >> 4 == _GLOBAL
