"""How a program that lies in another root file system is run from here: by the loader and the libraries of that one.

A driver root is as a rule another distribution's root file system. Its programs need its own C library: with ours they
fail in ways that say nothing of the device (`version GLIBC_2.38 not found`, an exit status of 1 or 127).

Why its loader, and not a chroot: the program goes on seeing our own /dev, /proc and /sys. A driver root need not have
them mounted, and in a chroot without its device node a tool says "no device", which would pass for a dead driver.
What does not work this way is a tool that starts other programs, or opens libraries, by absolute paths: it ends as one
that cannot be run, which is unknown and not unhealthy.

Reads heads of files only, runs nothing. Sources: elf(5), ld.so(8), execve(2) (interpreter scripts).
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.host.files import OWN_ROOT, resolve
from driver_manager.domain.frozen import Frozen

LIBRARY_DIRS = (
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "usr/local/lib",
)
"""Where distributions keep their libraries; ld.so.cache of that root would name paths that are not ours."""

PROGRAM_DIRS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")

HEAD_BYTES = 256
"""As much of a script's first line as the kernel reads (execve(2), BINPRM_BUF_SIZE)."""

MAX_INTERPRETER_BYTES = 4096
MAX_PROGRAM_HEADERS = 128
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<QQQIHHH")
"""e_entry, e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum; at byte 24."""
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PT_INTERP = 3
_ENV = "env"


class Interpreted(Frozen):
    """What a file says it is run by, as paths of its own root; both "" for what runs by itself or cannot be read.

    `script` is the words of a `#!` line, `loader` the dynamic loader of an ELF program.
    """

    loader: str = ""
    script: tuple[str, ...] = ()


def interpreted(program: Path) -> Interpreted:
    """What runs `program`: by its head alone, bounded, whatever it holds."""
    try:
        descriptor = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Interpreted()
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Interpreted()
        head = os.pread(descriptor, HEAD_BYTES, 0)
        if head.startswith(b"#!"):
            return Interpreted(script=_words(head))
        return Interpreted(loader=_loader(descriptor, head) if head.startswith(_ELF64_LITTLE) else "")
    except (OSError, struct.error, OverflowError, UnicodeError):
        return Interpreted()
    finally:
        os.close(descriptor)


def _words(head: bytes) -> tuple[str, ...]:
    """Interpreter and its one argument, if it has any."""
    line = head[2:].split(b"\n", 1)[0].decode()
    return tuple(word.strip() for word in line.strip().split(None, 1))


def _loader(descriptor: int, head: bytes) -> str:
    """Content of PT_INTERP, "" for a static program."""
    _, offset, _, _, _, size, count = _HEADER.unpack_from(head, 24)
    if size != _PROGRAM_HEADER.size or count > MAX_PROGRAM_HEADERS:
        return ""
    table = os.pread(descriptor, size * count, offset)
    for kind, _, start, _, _, length, _, _ in _PROGRAM_HEADER.iter_unpack(table[: len(table) // size * size]):
        if kind == _PT_INTERP and length <= MAX_INTERPRETER_BYTES:
            return os.pread(descriptor, length, start).rstrip(b"\0").decode()
    return ""


def inside(root: Path, path: str) -> Path | None:
    """The regular file `path` of the root file system `root`, its links resolved inside of it; None where none is."""
    try:
        found = resolve(root, path)
        return found if found.is_file() else None
    except (OSError, ValueError):
        return None


def command(program: Path, roots: Iterable[Path], libraries: Iterable[Path] = ()) -> tuple[str, ...]:
    """The words before `program`'s arguments, `program` among them.

    `roots`: the root file systems that it may belong to, the likeliest first; the first that has what runs it counts.
    Where none has it, and where that is our own root, the kernel finds it as ever. `libraries` come before the root's.
    """
    found = interpreted(program)
    if found.script:
        return _script(program, found.script, tuple(roots), tuple(libraries))
    for root in roots if found.loader else ():
        loader = inside(root, found.loader)
        if loader is not None:
            return (*_by_loader(root, loader, libraries), str(program))
    return (str(program),)


def _script(
    program: Path, words: tuple[str, ...], roots: tuple[Path, ...], libraries: tuple[Path, ...]
) -> tuple[str, ...]:
    names: tuple[str, ...] = (words[0],)
    rest = words[1:]
    if words[0].rpartition("/")[2] == _ENV and len(words) > 1 and not words[1].startswith("-"):
        names, rest = tuple(f"/{folder}/{words[1]}" for folder in PROGRAM_DIRS), ()
    for root in roots:
        if root == OWN_ROOT:
            break
        interpreter = next((path for name in names if (path := inside(root, name)) is not None), None)
        if interpreter is not None and not interpreted(interpreter).script:
            return (*command(interpreter, roots, libraries), *rest, str(program))
    return (str(program),)


def _by_loader(root: Path, loader: Path, libraries: Iterable[Path]) -> tuple[str, ...]:
    """Words that run a program by the loader of `root`; none for the root that we live in ourselves.

    The loader's own folder is where its C library is, also where a distribution has folders of its own (NixOS).
    """
    if root == OWN_ROOT:
        return ()
    usual = (path for folder in LIBRARY_DIRS if (path := _folder(root, folder)) is not None)
    folders = dict.fromkeys(str(path) for path in (*libraries, *usual, loader.parent))
    return (str(loader), "--inhibit-cache", "--library-path", ":".join(folders))


def _folder(root: Path, path: str) -> Path | None:
    try:
        found = resolve(root, path)
        return found if found.is_dir() else None
    except OSError:
        return None
