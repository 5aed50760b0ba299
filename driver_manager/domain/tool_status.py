"""How a tool's run ended where the tool itself had no say: exit statuses, and the words of the dynamic loader. Pure."""

from __future__ import annotations

import re

TIMED_OUT = 124
NO_TOOL = (126, 127)
"""What a shell says for a command that cannot be run, or is not there (sh(1)); a failed exec ends so too."""

_LOADER = re.compile(
    r"error while loading shared libraries:"
    r"|version `[^']*' not found"
    r"|cannot open shared object file"
    r"|symbol lookup error:"
    r"|relocation error:"
    r"|Inconsistency detected by ld\.so"
    r"|FATAL: kernel too old"
    r"|LD_PRELOAD cannot be preloaded"
    r"|wrong ELF class|invalid ELF header"
    r"|Error loading shared library"
    r"|Error relocating"
    r"|[Ee]xec format error|cannot execute binary file"
)
"""Words of ld.so(8), glibc 2.31 to 2.41, of musl's loader, and of a shell that starts what is no program of this
machine. With `version ... not found` the exit status is 1, as for a tool that has found a fault."""


def loader_failure(status: int, err: str) -> str:
    """The first line of `err` in which the loader says why a tool that ended with `status` could not work, or ""."""
    if not status:
        return ""
    return next((line.strip() for line in err.splitlines() if _LOADER.search(line)), "")
