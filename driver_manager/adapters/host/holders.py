"""Processes that have a device open, read from /proc.

`psutil.open_files()` lists regular files only, so descriptors are read here; long names of processes come from psutil.
A process may end or be hidden (hidepid) at any moment: what cannot be read is passed over. What is read of a process
that is stuck in a driver may never come: every look is taken in a disposable child, and who does not answer is named.
Sources: proc(5); cgroup names of the kubelet (pkg/kubelet/cm) with the systemd and cgroupfs drivers.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.adapters.process.forked import each_within
from driver_manager.domain.errors import ConfigError, ModuleFailed
from driver_manager.domain.host import UNREAD, Holder

_POD = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
"""A pod's uid; that of a static pod is a hash of its manifest."""
_CONTAINER = re.compile(r"([0-9a-f]{64})")
_SERVICE = re.compile(r"/system\.slice/(?:[^/\n]+\.slice/)*([^/\n]+\.service)(?![^/\n])")
"""A unit of systemd, wherever the reader's own cgroup is (systemd.slice(5))."""
OPEN, MAPPED = "open", "mapped"
GONE = "(gone)"
DELETED = " (deleted)"
NAMES_S = 5.0
NAME = 3
"""Its place among what is said of a process."""
COMM_LETTERS = 15
"""A kernel's name of a process has no more (TASK_COMM_LEN, proc(5)): one of so many may go on."""

Nodes = dict[str, int | None]
"""Device numbers by path, None for what is no device."""


LOOK_S = 20.0
"""For one look at all processes, thousands of them on a slow machine."""
STALL_S = 2.0
"""A process that says nothing for so long does not answer: it is left out, and the look goes on after it."""


class Looks(Struct):
    """What looks at processes have in common: when to stop, and who did not answer, who is not asked again.

    `left`: how many processes there was no time for.
    """

    is_ending: Callable[[], bool] = lambda: False
    unread: set[int] = field(default_factory=set)
    timeout_s: float = LOOK_S
    left: int = 0

    def at(self, pids: Iterable[int], ask: Callable[[int], Iterable[str]]) -> dict[int, list[str]]:
        """What `ask` says of each process in a disposable child: it may stand still in the kernel for ever."""
        end_s = time.monotonic() + self.timeout_s
        asked = each_within(
            self.timeout_s, STALL_S, [pid for pid in pids if pid not in self.unread], ask, self.is_ending
        )
        self.unread |= set(asked.stuck)
        self.left = max(self.left, len(asked.left))
        self.timeout_s = max(0.0, end_s - time.monotonic())
        return asked.lines


def find_holders(
    proc: Path, dev: Path, patterns: tuple[str, ...], *, enough: int | None = None, looks: Looks | None = None
) -> tuple[Holder, ...]:
    """Every process that uses one of the device nodes in `patterns` (as /dev/rbln*), by pid.

    Mappings are read only where open files explain fewer than `enough` users (None: always): they cost most. A process
    whose /proc does not answer is among them, as one that could not be read. Raises ConfigError where `proc` shows no
    process at all.
    """
    if not any(name == "self" or name.isdigit() for name in _listed(proc)):
        raise ConfigError(f"{proc} shows no process", "Run as root with the host's /proc (PROC_ROOT).")
    nodes = {f"/dev/{node.relative_to(dev)}": _device(node) for node in _nodes(dev, patterns)}
    pids = _pids(proc) if nodes else []
    looks = looks or Looks()
    opened = looks.at(pids, lambda pid: sorted(_open_nodes(proc / str(pid), nodes)))
    found = {(pid, node): OPEN for pid, names in opened.items() for node in names}
    if enough is None or len(found) < enough:
        mapped = looks.at(pids, lambda pid: sorted(_mapped_nodes(proc / str(pid), nodes)))
        for pid, names in mapped.items():
            for node in names:
                found.setdefault((pid, node), MAPPED)
    unread = sorted(looks.unread & set(pids) - {pid for pid, _ in found})
    described = _descriptions(proc, sorted({pid for pid, _ in found} | set(unread)))
    holders = [_holder(pid, node, how, described.get(pid, [])) for (pid, node), how in sorted(found.items())]
    # Nobody is evicted for what may be so: no pod is named.
    holders += [replace(_holder(pid, "", UNREAD, described.get(pid, [])), pod_uid="") for pid in unread]
    if looks.left:
        holders.append(Holder(0, f"{looks.left} more process(es)", "", UNREAD))
    return tuple(holders)


def _pids(proc: Path) -> list[int]:
    return sorted(int(name) for name in _listed(proc) if name.isascii() and name.isdigit())


def _nodes(dev: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [node for pattern in patterns for node in dev.glob(pattern.removeprefix("/dev/"))]


def _device(node: Path) -> int | None:
    """The device number of a node, None for what is none."""
    try:
        status = node.stat()
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  # thousands of names, no Path for each
    except OSError:
        return []


def _open_nodes(process: Path, nodes: Nodes) -> set[str]:
    folder = f"{process}/fd"
    return {node for name in _listed(Path(folder)) for node in _node_of(f"{folder}/{name}", nodes)}


def _node_of(link: str, nodes: Nodes) -> Iterator[str]:
    """The device node that a descriptor leads to. Only what lies in a /dev or has a node's name is looked at, by its
    device number: a stat of every file is slow, and one on a dead network file system never returns."""
    try:
        target = os.readlink(link)  # noqa: PTH115  # a hundred thousand of them
    except OSError:
        return
    if target in nodes:
        yield target
    elif target.startswith("/dev/") or target.rpartition("/")[2].removesuffix(DELETED) in _base_names(nodes):
        yield from _same_device(Path(link), nodes)


def _same_device(path: Path, nodes: Nodes) -> Iterator[str]:
    number = _device(path)
    yield from (node for node, device in nodes.items() if number is not None and device == number)


def _base_names(nodes: Nodes) -> set[str]:
    return {node.rpartition("/")[2] for node in nodes}


def _mapped_nodes(process: Path, nodes: Nodes) -> set[str]:
    try:
        with open(f"{process}/maps", "rb") as file:  # noqa: PTH123  # as above
            text = file.read()
    except OSError:
        return set()
    bases = _base_names(nodes)
    if not any(base.encode() in text for base in bases):
        return set()
    found: set[str] = set()
    for line in text.splitlines():
        words = line.decode(errors="replace").split(None, 5) or [""]
        # A node that was made anew leaves its old mappings marked so.
        span, name = words[0], words[-1].removesuffix(DELETED)
        if name in nodes:
            found.add(name)
        elif name.rpartition("/")[2] in bases:
            found.update(_same_device(process / "map_files" / span, nodes))
    return found


def _descriptions(proc: Path, pids: list[int]) -> dict[int, list[str]]:
    """What `_described` says of each process, with its whole name where that may be longer.

    That comes last: whose process it is decides over a run, and must not wait for a name.
    """
    described = Looks(timeout_s=NAMES_S).at(pids, partial(_described, proc))
    longer = [pid for pid, said in described.items() if len(said) > NAME and len(said[NAME]) >= COMM_LETTERS]
    for pid, said in Looks(timeout_s=NAMES_S).at(longer, partial(_whole_name, proc)).items():
        described[pid] += said
    return described


def _described(proc: Path, pid: int) -> Iterator[str]:
    """Pod uid, container, unit and the kernel's name of a process."""
    cgroups = _cgroups(proc / str(pid))
    yield from _pod_and_container(cgroups)
    service = _SERVICE.search(cgroups)
    yield service.group(1) if service else ""
    with contextlib.suppress(OSError):
        yield (proc / str(pid) / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")[0]


def _whole_name(proc: Path, pid: int) -> Iterator[str]:
    """The name of a process, its end too: what that is read from may not answer (cmdline)."""
    import psutil  # noqa: PLC0415  # 2 MiB, and seconds where the processor is not ours

    psutil.PROCFS_PATH = str(proc)
    with contextlib.suppress(psutil.Error, OSError, ValueError, IndexError):  # psutil believes every stat that it gets
        yield psutil.Process(pid).name()


def _holder(pid: int, node: str, how: str, described: list[str]) -> Holder:
    pod_uid, container, service, *names = [*described, *[""] * (3 - len(described))]
    name = "".join(letter if letter.isprintable() else "?" for letter in (names or [GONE])[-1])
    return Holder(pid=pid, process=name, node=node, how=how, container=container, pod_uid=pod_uid, service=service)


def whose(process: Path) -> tuple[str, str]:
    """Pod uid and container id of a process by its cgroup; each "" where the cgroup names none."""
    return _pod_and_container(_cgroups(process))


def _cgroups(process: Path) -> str:
    try:
        return (process / "cgroup").read_text(errors="replace")
    except OSError:
        return ""


def _pod_and_container(text: str) -> tuple[str, str]:
    pod, container = _POD.search(text), _CONTAINER.search(text)
    return pod.group(1).replace("_", "-") if pod else "", container.group(1) if container else ""


def bound_to(proc: Path, devices: frozenset[str], looks: Looks | None = None) -> tuple[tuple[int, str], ...]:
    """(pid, pod uid) of processes in a pod whose own mounts still show one of the file systems (`major:minor`).

    One for each pod. Processes that do not answer are left out, and are in `looks`.
    """
    found: dict[str, int] = {}
    for pid, pods in (looks or Looks()).at(_pids(proc), partial(_pod_bound, proc, devices)).items():
        for pod_uid in pods:
            found.setdefault(pod_uid, pid)
    return tuple((pid, pod_uid) for pod_uid, pid in found.items())


def _pod_bound(proc: Path, devices: frozenset[str], pid: int) -> Iterator[str]:
    process = proc / str(pid)
    pod_uid, _ = whose(process)
    if pod_uid:
        lines = (process / "mountinfo").read_text(errors="replace").splitlines()
        if any(line.split(" ", 3)[2] in devices for line in lines if line.count(" ") > 3):
            yield pod_uid


# The host's namespaces: what is run in its mounts sees the host's files and mounts, not the container's.

MOUNTS = {"mnt": "--mount"}
ALL = {**MOUNTS, "ipc": "--ipc", "uts": "--uts", "net": "--net", "pid": "--pid"}
"""By their names below /proc/pid/ns, as nsenter(1) calls them. reboot(2) ends only its own pid namespace, so that one
has to be the host's."""


HOST_PATHS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/run/wrappers/bin",
    "/run/current-system/sw/bin",
    "/opt/bin",
)
"""Where hosts keep their programs, NixOS and Flatcar among them."""


def host_path() -> dict[str, str]:
    """The environment by which a host's program is found among the host's mounts: after ours, the hosts' folders."""
    ours = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return {"PATH": os.pathsep.join(dict.fromkeys((*ours, *HOST_PATHS)))}


def in_host_mounts(proc: Path) -> list[str]:
    """Words to put before a command so that it runs among the host's mounts; none where we are there already.

    Raises ModuleFailed where we may not look: what is done among our own mounts would not reach the host.
    """
    return _entering(proc, MOUNTS)


def mount_namespace(proc: Path) -> Path | None:
    """The host's mounts, None where they are ours. Raises ModuleFailed as `in_host_mounts`."""
    return None if _is_ours(proc, "mnt") else proc / "1/ns/mnt"


def is_of_a_kernel(proc: Path) -> bool:
    """Whether this /proc is a kernel's; that of a sandbox is a folder of files, and so are its mounts."""
    try:
        os.lstat(proc / "1/ns/mnt")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def in_host(proc: Path) -> list[str]:
    """The same for all namespaces of the host's first process. Raises ModuleFailed."""
    return _entering(proc, ALL)


def _entering(proc: Path, kinds: dict[str, str]) -> list[str]:
    options = [f"{option}={proc / '1/ns' / kind}" for kind, option in kinds.items() if not _is_ours(proc, kind)]
    return ["nsenter", *options, "--"] if options else []


def _is_ours(proc: Path, kind: str) -> bool:
    namespace = proc / "1/ns" / kind
    try:
        return namespace.stat().st_ino == Path(f"/proc/self/ns/{kind}").stat().st_ino
    except FileNotFoundError:  # not a kernel's /proc
        return True
    except OSError as error:
        raise ModuleFailed(
            f"cannot enter the host's mounts by {namespace}: {error.strerror}", "Run privileged, as root."
        ) from error
