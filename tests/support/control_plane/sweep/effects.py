"""What a run changes: an audit hook in its process, which notes each effect and kills the run at one.

An effect is an audit event of the interpreter (sys.addaudithook, PEP 578) that is not known to be harmless, a program
that is not known to only read, or a write to a place that the run does not own.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_WRITING = _CHANGING | os.O_CREAT
_RANDOM_NAME = re.compile(r"((?:^|/)\.[^/]+)\.[0-9a-f]{12}$")
"""How a file is called until it is whole; the end differs from write to write."""

_ANY = r"\1.*"
_OF_ANY_RUN = r"\1(run)"

_TIMED_NAME = re.compile(r"((?:^|/)\.?)[0-9]{9,}(-[a-z]+-[a-z]+\.txt)")
_RUN_NAME = re.compile(r"(driver-manager\.run-)[0-9a-f]{12}")
_AT_ANY_TIME = r"\1(time)\2"

_HARMLESS = (
    "_thread.",  # what a thread does is an event of its own
    "array.",
    "builtins.",
    "code.",
    "compile",
    "cpython.",
    "exec",
    "fcntl.flock",  # let go of by whatever ends the process
    "gc.",
    "glob.",
    "http.client.",
    "import",
    "marshal.",
    "object.",
    "os.fork",  # what the copy does is an event of its own
    "os.listdir",
    "os.scandir",
    "os.walk",
    "pathlib.",
    "socket.",  # what is sent to the API server is seen by the proxy
    "sys.",
    "tempfile.",  # its files are opened, which is an event of its own
    "time.",
    "urllib.",
)
_READING = ("modinfo", "rbln-smi", "npu-smi")
_ASKING = (fcntl.F_GETFD, fcntl.F_GETFL, fcntl.F_GETPIPE_SZ)
_MAKING = {"os.mkdir": os.path.isdir}
_TAKING_AWAY = ("os.remove", "os.rmdir")
_FOLDER = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.rename": 2, "os.link": 2, "os.symlink": 2}
"""Which argument is the open folder that the name is in, or -1. Opening a file tells no folder: it goes by its name."""

_BY_DESCRIPTOR = ("os.chmod", "os.chown", "os.truncate", "os.utime", "os.setxattr", "os.removexattr")
_NOWHERE = ("/dev/null",)


@dataclass(frozen=True)
class Surroundings:
    """The `host`'s root, the process' `container`, and in it a folder of its `own`: writing there is no effect."""

    host: str
    container: str
    own: str


def effect_of(event: str, args: tuple[Any, ...], around: Surroundings) -> str:
    """What the event is about to change, "" for nothing."""
    if event == "open":
        return _opened(args, around)
    if event == "subprocess.Popen":
        return _program([os.fsdecode(word) for word in args[1]], around)
    if event.startswith("ctypes."):
        return _library(event, args)
    if event.startswith(_HARMLESS) or (event in ("os.kill", "os.killpg") and _is_own_copy(args[0])):
        return ""
    if event == "fcntl.fcntl" and args[1] in _ASKING:
        return ""
    return _changed(event, args, around)


def _opened(args: tuple[Any, ...], around: Surroundings) -> str:
    path, _, flags = args
    if isinstance(path, int) or not (flags or 0) & _WRITING:
        return ""
    if os.fsdecode(path).endswith(".lock") and not flags & _CHANGING:
        return ""  # made to be locked: an empty file that says nothing
    return _at("write", os.fsdecode(path), around)


def _changed(event: str, args: tuple[Any, ...], around: Surroundings) -> str:
    """A call of the operating system. Creating a file with a random name is an effect; setting its mode is none."""
    is_descriptor = bool(args) and isinstance(args[0], int) and event in _BY_DESCRIPTOR
    if not is_descriptor and not (args and isinstance(args[0], str | bytes | os.PathLike)):
        return f"{event} {args!r}"
    path = _of(args[0]) if is_descriptor else os.fsdecode(args[0])
    folder = args[_FOLDER[event]] if event in _FOLDER else -1
    if folder >= 0:
        path = str(Path(_of(folder), path))
    if is_descriptor and _RANDOM_NAME.search(path):
        return ""
    if event in _MAKING and _MAKING[event](path):
        return ""
    if event in _TAKING_AWAY and not os.path.lexists(path):
        return ""
    if event == "os.rmdir" and (Path(path).is_symlink() or not Path(path).is_dir()):
        return ""  # the kernel refuses it: ENOTDIR, rmdir(2)
    return _at(event.removeprefix("os."), path, around)


def _is_own_copy(pid: int) -> bool:
    """Whether the process is a fork of this one that became no other program, or has ended: it only reads for it."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        words = _words(str(pid))
    except OSError:
        return False
    return int(parent) == os.getpid() and (words == _words("self") if words else _has_no_program(pid))


def _has_no_program(pid: int) -> bool:
    """Whether the process is on its way out: one that just becomes another program has no words either, but that."""
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except OSError:
        return True
    return False


def _words(process: str) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def _of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _at(verb: str, path: str, around: Surroundings) -> str:
    if path in _NOWHERE or _is_below(path, around.own):
        return ""
    name = _RUN_NAME.sub(_OF_ANY_RUN, _cut(path, around))
    return f"{verb} {_TIMED_NAME.sub(_AT_ANY_TIME, _RANDOM_NAME.sub(_ANY, name))}"


def _program(argv: list[str], around: Surroundings) -> str:
    tool = argv[0].rpartition("/")[2]
    if tool in _READING or {"--dump-modversions", "--show-depends"} & set(argv):
        return ""
    return f"run {' '.join([tool, *(_cut(word, around) for word in argv[1:])])}"


def _library(event: str, args: tuple[Any, ...]) -> str:
    if event != "ctypes.dlsym" or str(args[-1]).startswith("udev_"):
        return ""
    return f"{event} {args[-1]}"


def _cut(word: str, around: Surroundings) -> str:
    if _is_below(word, around.host):
        return word.removeprefix(around.host)
    return f"(container){word.removeprefix(around.container)}" if _is_below(word, around.container) else word


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


class Recorder:
    """The audit hook: a line with time and name for each effect, before it happens, also in forks of the process.

    A fork has ended before its parent has its next effect: the record is in the order of what happened. The process
    dies at effect `kill_at`, counted from 0, -1 for never; with `after` once the effect is done.
    """

    def __init__(self, around: Surroundings, record: str, kill_at: int, *, after: bool = False) -> None:
        self._around, self._record, self._kill_at, self._after = around, record, kill_at, after
        self._main = os.getpid()
        self._has_forked = False
        self._seen = 0
        self._is_busy = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        try:
            self._handle(event, args)
        finally:
            self._is_busy = False

    def end(self) -> None:
        """The program is done: an effect that nothing followed is followed by this."""
        if self._has_forked:
            self._seen = self._noted()
        if self._after and 0 <= self._kill_at < self._seen:
            self._die()

    def _handle(self, event: str, args: tuple[Any, ...]) -> None:
        self.end()
        self._has_forked = self._has_forked or event == "os.fork"
        effect = effect_of(event, args, self._around)
        if not effect:
            return
        if self._seen == self._kill_at and not self._after:
            self._die()
        self._note(effect)
        self._seen += 1

    def _note(self, effect: str) -> None:
        """Open for each: a fork of the program closes what it has inherited."""
        record = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(record, f"{json.dumps([time.monotonic(), effect])}\n".encode())
        os.close(record)

    def _noted(self) -> int:
        """How many effects are in the record, which the first one makes: a fork may come before that."""
        try:
            with open(self._record, "rb") as record:  # noqa: PTH123  # at each event
                return record.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def _die(self) -> None:
        """SIGKILL to the program, and to the fork of it that this may be: the call does not return."""
        os.kill(self._main, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
