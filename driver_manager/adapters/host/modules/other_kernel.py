"""What is known on a host of a kernel that does not run: the symbols that it exports, with their checksums.

Changes nothing. Source of the form: Documentation/kbuild/modules.rst, "Symbols and Module.symvers".
"""

from __future__ import annotations

import gzip
import lzma
from functools import cached_property
from typing import BinaryIO

from driver_manager.adapters.host.files import HostFiles

PLACES = (
    "/lib/modules/{0}/build/Module.symvers",
    "/lib/modules/{0}/Module.symvers",
    "/lib/modules/{0}/symvers.gz",
    "/lib/modules/{0}/symvers.xz",
    "/usr/src/linux-headers-{0}/Module.symvers",
    "/usr/src/kernels/{0}/Module.symvers",
    "/boot/symvers-{0}.gz",
    "/boot/symvers-{0}.xz",
)
"""Where distributions have the list of a kernel's release: with its headers, or beside its modules."""

MAX_BYTES = 64 * 1024 * 1024


class OtherKernel:
    """The kernel `release` on the host whose files these are."""

    def __init__(self, files: HostFiles, release: str) -> None:
        self._files = files
        self.release = release

    @cached_property
    def checksums(self) -> dict[str, int] | None:
        """Checksum by exported symbol, 0 for a kernel without symbol versions; None where the host has no list."""
        for place in PLACES:
            found = self._read(place.format(self.release))
            if found:
                return found
        return None

    def _read(self, path: str) -> dict[str, int]:
        """The list at `path`; empty where there is none, or none that can be read."""
        try:
            there = self._files.path(path)
            if not there.is_file():
                return {}
            with there.open("rb") as file:
                text = _unpacked(file, there.suffix).read(MAX_BYTES).decode("ascii", "replace")
            rows = (line.split("\t") for line in text.splitlines())
            return {row[1]: int(row[0], 16) for row in rows if len(row) > 2}
        except (OSError, EOFError, ValueError, lzma.LZMAError):
            return {}


def _unpacked(file: BinaryIO, suffix: str) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    match suffix:
        case ".gz":
            return gzip.open(file)
        case ".xz":
            return lzma.open(file)
    return file
