"""The processes of the sweep: a zygote that has imported the program, and runs forked from it that note their effects.

An effect is an audit event of the interpreter (sys.addaudithook, PEP 578) that is not known to be harmless, a program
that is not known to only read, or a write to a place that the run does not own. A run kills itself at the effect that
it is given.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from driver_manager.adapters.host.system import LinuxHost
from driver_manager.core.swap.node import NodeLock, NodeSteps
from driver_manager.domain.host import Marker
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.pods import labels
from driver_manager.domain.pods.client_record import Client, ClientState
from driver_manager.domain.swap import node_patches
from driver_manager.domain.swap.steps import TakeNode

_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_WRITING = _CHANGING | os.O_CREAT
_RANDOM_NAME = re.compile(r"((?:^|/)\.[^/]+)\.[0-9a-f]{12}$")
"""How a file is called until it is whole; the end differs from write to write."""

_ANY = r"\1.*"
_OF_ANY_RUN = r"\1(run)"

_TIMED_NAME = re.compile(r"((?:^|/)\.?)[0-9]{9,}(-[a-z]+-[a-z]+\.txt)")
"""Evidence, whose name begins with its time."""

_RUN_NAME = re.compile(r"(driver-manager\.run-)[0-9a-f]{12}")
"""Of a run's record on the host."""

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
"""Commands of fcntl(2) that only ask."""

_MAKING = {"os.mkdir": os.path.isdir}
_TAKING_AWAY = ("os.remove", "os.rmdir")
_FOLDER = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.rename": 2, "os.link": 2, "os.symlink": 2}
"""Which argument is the open folder that the name is in, or -1. Opening a file tells no folder: it goes by its name."""

_BY_DESCRIPTOR = ("os.chmod", "os.chown", "os.truncate", "os.utime", "os.setxattr", "os.removexattr")
_NOWHERE = ("/dev/null",)


@dataclass(frozen=True)
class Surroundings:
    """Where the process is: the `host`'s root and the folder of its `container`, and in it one that is its `own`.

    What it writes to its own is no effect.
    """

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
    """A call of the operating system; none where there is nothing that it could change.

    Creating a file with a random name is an effect; setting its mode is none.
    """
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
    """Looking a function up is all that shows of calling it: libudev's only listen."""
    if event != "ctypes.dlsym" or str(args[-1]).startswith("udev_"):
        return ""
    return f"{event} {args[-1]}"


def _cut(word: str, around: Surroundings) -> str:
    if _is_below(word, around.host):
        return word.removeprefix(around.host)
    return f"(container){word.removeprefix(around.container)}" if _is_below(word, around.container) else word


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


@dataclass(frozen=True)
class Order:
    """One run: its words and environment, the files for what it says and does, and at which host effect it dies.

    `kill_at` counts from 0, -1 for never; `after` means once the effect is done. `mutant` names a change to the
    product.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    out: str
    err: str
    record: str
    kill_at: int = -1
    after: bool = False
    mutant: str = ""

    def encode(self) -> str:
        return json.dumps(self.__dict__)

    @classmethod
    def decode(cls, line: str) -> Order:
        fields = json.loads(line)
        return cls(**{**fields, "words": tuple(fields["words"])})


class Recorder:
    """The audit hook: a line with time and name for each effect, before it happens, also in forks of the process.

    A fork has ended before its parent has its next effect: the record is in the order of what happened.
    """

    def __init__(self, order: Order) -> None:
        self._around = Surroundings(order.env["HOST_ROOT"], os.path.dirname(order.err), order.env["TMPDIR"])  # noqa: PTH120
        self._order = order
        self._main = os.getpid()
        self._has_forked = False
        self._seen = 0
        self._is_busy = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """One audit event, before it happens."""
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
        if self._order.after and 0 <= self._order.kill_at < self._seen:
            self._die()

    def _handle(self, event: str, args: tuple[Any, ...]) -> None:
        self.end()
        self._has_forked = self._has_forked or event == "os.fork"
        effect = effect_of(event, args, self._around)
        if not effect:
            return
        if self._seen == self._order.kill_at and not self._order.after:
            self._die()
        self._note(effect)
        self._seen += 1

    def _note(self, effect: str) -> None:
        """Open for each: a fork of the program closes what it has inherited."""
        record = os.open(self._order.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(record, f"{json.dumps([time.monotonic(), effect])}\n".encode())
        os.close(record)

    def _noted(self) -> int:
        """How many effects are in the record, which the first one makes: a fork may come before that."""
        try:
            with open(self._order.record, "rb") as record:  # noqa: PTH123  # at each event
                return record.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def _die(self) -> None:
        """SIGKILL to the program, and to the fork of it that this may be: the call does not return."""
        os.kill(self._main, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def run(order: Order) -> None:
    """Be the command line, and end with its exit code unless it dies: the call does not return."""
    for number, (path, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), (order.out, os.O_WRONLY | os.O_CREAT), (order.err, os.O_WRONLY | os.O_CREAT))
    ):
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order.env)
    from tests.support.control_plane.pod_transport import enter_pod  # noqa: PLC0415  # the parent imported it

    enter_pod(order.env)
    sys.argv = ["driver-manager", *order.words]
    if order.mutant:
        apply(order.mutant)
    recorder = Recorder(order)
    sys.addaudithook(recorder)
    from driver_manager.cli import main  # noqa: PLC0415  # imported by the parent already

    code = main.run(sys.argv[1:])
    recorder.end()
    main.leave(code)


RUN_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Died:
    """How a run ended: its exit code, or minus the signal that killed it; what it said, and its host effects so far.

    `took_s` counts from the last signal, or from the start where it got none.
    """

    code: int
    out: str
    err: str
    effects: tuple[tuple[float, str], ...]
    took_s: float

    @property
    def is_killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Forked:
    """A run under way."""

    def __init__(self, zygote: Zygote, order: Order, pid: int) -> None:
        self._zygote = zygote
        self._order = order
        self._since_s = time.monotonic()
        self.pid = pid

    @property
    def err(self) -> str:
        return Path(self._order.err).read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal. It is not reaped before `end` asks for it, so the pid is its own."""
        self._since_s = time.monotonic()
        os.kill(self.pid, number)

    def end(self) -> Died:
        """Wait for its end. AssertionError when it does not come within a minute."""
        status = self._zygote.reap(self.pid)
        took_s = time.monotonic() - self._since_s
        lines = Path(self._order.record).read_text().splitlines()
        effects = tuple((float(at_s), str(name)) for at_s, name in map(json.loads, lines))
        out = Path(self._order.out).read_text(errors="replace")
        return Died(os.waitstatus_to_exitcode(status), out, self.err, effects, took_s)


class Zygote:
    """See `tests.support.control_plane.sweep.process`. One run at a time."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.control_plane.sweep.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._line()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=RUN_TIMEOUT_S)

    def start(self, order: Order) -> Forked:
        self._tell(order.encode())
        return Forked(self, order, int(self._line()))

    def reap(self, pid: int) -> int:
        """The wait status of the run that was begun. AssertionError when it does not end within a minute."""
        self._tell("reap")
        try:
            return int(self._line())
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            self._line()
            raise

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def _line(self) -> str:
        """Its next answer. It gives one at a time, so what comes is a line or the beginning of one."""
        assert self._process.stdout is not None
        got, end_s = b"", time.monotonic() + RUN_TIMEOUT_S
        while not got.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"timed out after {RUN_TIMEOUT_S:g} s"
            more = self._process.stdout.read(4096)
            assert more, "the zygote has ended"
            got += more
        return got.decode().strip()


_RELEASE, _REMOVE = node_patches.release, LinuxHost.remove


def two_patch_pause(self: NodeSteps, step: TakeNode) -> None:
    """The labels in one patch, the journal in a second."""
    self._context.lock.acquired(step.journal)
    first = self._context.ports.cluster.patch_node(replace(step.change, annotations={}), step.resource_version)
    self._context.ports.cluster.patch_node(NodeChange(annotations=step.change.annotations), first.resource_version)


def restore_whatever_is_there(now: dict[str, str], saved: dict[str, str], _: str) -> dict[str, str]:
    """Every label gets its saved value, even if another writer changed it."""
    return {key: value for key, value in saved.items() if now.get(key) != value}


def always_uncordon(node: Node, *rest: Any) -> NodeChange:
    return replace(_RELEASE(node, *rest), unschedulable=False if node.unschedulable else None)


def remove_and_note(self: LinuxHost, path: str) -> None:
    """A write to the host that was not there when the points were recorded."""
    self.write_text("/run/removed", path)
    _REMOVE(self, path)


def is_not_asked_for(self: Client) -> bool:
    """Who was asked for is done, whether the request ever arrived or not."""
    return self.state is ClientState.FOUND


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "two-patch-pause": (NodeSteps, "_acquire", two_patch_pause),
    "unconditional-restore": (labels, "restored", restore_whatever_is_there),
    "always-uncordon": (node_patches, "release", always_uncordon),
    "no-boot-id-check": (Marker, "is_stale", lambda *_: False),
    "never-hold": (NodeLock, "_why_hold", lambda *_: ""),
    "who-was-asked-for-is-done": (Client, "is_left", property(is_not_asked_for)),
    "an-effect-that-is-not-listed": (LinuxHost, "remove", remove_and_note),
}


def apply(name: str) -> None:
    owner, attribute, fault = MUTANTS[name]
    setattr(owner, attribute, fault)


IMPORTED = (
    "driver_manager.cli.main",
    "driver_manager.cli.reconcile",
    "driver_manager.adapters.kube.node",
    "kubernetes.config",
)


def serve() -> Order | None:
    """Fork for each order; in the child the order, in the parent None at the end of the orders."""
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            return Order.decode(line)
        print(pid, flush=True)
        sys.stdin.readline()
        print(os.waitpid(pid, 0)[1], flush=True)
    return None


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is never looked at stays shared with the children
    print("ready", flush=True)
    ordered = serve()
    if ordered is not None:
        run(ordered)
