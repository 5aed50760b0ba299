"""Processes that have a device open, read from /proc; the namespaces and mounts of the host.

`psutil.open_files()` lists regular files only, so this module reads descriptors itself; psutil supplies long process
names. A process may end or be hidden (hidepid) at any moment, so unreadable entries are skipped. A read of a process
that is stuck in a driver may never return: a disposable child makes each read, and the result names the processes that
do not answer. Sources: proc(5); cgroup names of the kubelet (pkg/kubelet/cm) with the systemd and cgroupfs drivers.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.adapters.host.files import names_in, text_of
from driver_manager.adapters.process.forked import each_within, lines_within
from driver_manager.domain.errors import ConfigError, ModuleFailed
from driver_manager.domain.host import UNREAD, Holder

_POD = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
"""A pod's uid. The uid of a static pod is a hash of its manifest."""
_CONTAINER = re.compile(r"([0-9a-f]{64})")
HOST_SLICE = r"(?!user\.slice|kubepods)[^/\n]+\.slice"
"""A slice (systemd.slice(5)), other than those of login sessions, whose services are another manager's, and of pods."""
_SERVICE = re.compile(rf"^\d+:[^:\n]*:(?:/\.\.)*(?:/{HOST_SLICE})+/([^/\n]+\.service)(?:/|$)", re.MULTILINE)
"""A service of the host, relative to any cgroup root of the reader: one in a container is below more than slices."""
OPEN, MAPPED = "open", "mapped"
GONE = "(gone)"
FORBIDDEN = ""
"""In place of a node: the kernel does not let us list the descriptors (ptrace(2), access mode checking)."""
DELETED = " (deleted)"
NAMES_S = 5.0
NAME = 3
"""Index of the process name in the lines of `_described`."""
COMM_LETTERS = 15
"""Maximum length of the kernel's process name (TASK_COMM_LEN, proc(5)). A name of this length may be cut."""

BY_NUMBER = "/dev/char/"
"""Begins a pattern that names devices by number, MAJOR:MINOR or MAJOR:*. A container may have a node that the host's
/dev lacks."""


class Nodes(Struct):
    """The device numbers of the driver's nodes in the host's /dev by path, None for a file that is not a character
    device, and more numbers: whole majors, and single devices."""

    by_path: dict[str, int | None] = field(default_factory=dict)
    majors: set[int] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.by_path or self.majors or self.numbers)

    def named(self, number: int | None, seen_as: str) -> Iterator[str]:
        """The paths of the node with this number; `seen_as` for one that the host's /dev does not have."""
        if number is None:
            return
        paths = [path for path, device in self.by_path.items() if device == number]
        yield from paths
        if not paths and (number in self.numbers or os.major(number) in self.majors):
            yield seen_as


LOOK_S = 20.0
"""Seconds for one look at all processes: a slow machine may have thousands."""
STALL_S = 2.0
"""Seconds without a line after which a process is skipped."""


class Looks(Struct):
    """Several looks at processes: the time for them, pids that did not answer, and the number left out for time."""

    is_ending: Callable[[], bool] = lambda: False
    unread: set[int] = field(default_factory=set)
    timeout_s: float = LOOK_S
    left: int = 0

    def at(self, pids: Iterable[int], ask: Callable[[int], Iterable[str]]) -> dict[int, list[str]]:
        """The lines of `ask` by pid, from a disposable child, as a read may block in the kernel without end."""
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
    """Every process that uses a device node that matches `patterns` (as /dev/rbln*), by pid.

    Reads mappings, the slowest part, only if fewer than `enough` open files are found (None: always). Includes
    processes whose /proc does not answer, with `how` UNREAD. Raises ConfigError if `proc` shows no process at all.
    """
    if not any(name == "self" or name.isdigit() for name in names_in(proc)):
        raise ConfigError(f"{proc} shows no process", "Run as root with the host's /proc (PROC_ROOT).")
    nodes = _nodes(dev, patterns)
    pids = _pids(proc) if nodes else []
    looks = looks or Looks()
    opened = looks.at(pids, lambda pid: sorted(_open_nodes(proc / str(pid), nodes)))
    looks.unread |= {pid for pid, names in opened.items() if FORBIDDEN in names}
    found = {(pid, node): OPEN for pid, names in opened.items() for node in names if node != FORBIDDEN}
    if enough is None or len(found) < enough:
        mapped = looks.at(pids, lambda pid: sorted(_mapped_nodes(proc / str(pid), nodes)))
        for pid, names in mapped.items():
            for node in names:
                found.setdefault((pid, node), MAPPED)
    unread = sorted(looks.unread & set(pids) - {pid for pid, _ in found})
    described = _descriptions(proc, sorted({pid for pid, _ in found} | set(unread)))
    holders = [_holder(pid, node, how, described.get(pid, [])) for (pid, node), how in sorted(found.items())]
    # Name no pod: an unread process is no reason to evict one.
    holders += [replace(_holder(pid, "", UNREAD, described.get(pid, [])), pod_uid="") for pid in unread]
    if looks.left:
        holders.append(Holder(0, f"{looks.left} more process(es)", "", UNREAD))
    return tuple(holders)


def _pids(proc: Path) -> list[int]:
    return sorted(int(name) for name in names_in(proc) if name.isascii() and name.isdigit())


def device_nodes(dev: Path, patterns: tuple[str, ...]) -> list[Path]:
    """The files in the host's /dev that match `patterns` (as /dev/rbln*)."""
    return [node for pattern in patterns for node in dev.glob(pattern.removeprefix("/dev/"))]


def _nodes(dev: Path, patterns: tuple[str, ...]) -> Nodes:
    by_name = tuple(one for one in patterns if not one.startswith(BY_NUMBER))
    nodes = Nodes({f"/dev/{node.relative_to(dev)}": _device(node) for node in device_nodes(dev, by_name)})
    for pattern in patterns:
        if pattern.startswith(BY_NUMBER):
            major, _, minor = pattern.removeprefix(BY_NUMBER).partition(":")
            nodes.majors |= {int(major)} if minor == "*" else set()
            nodes.numbers |= {os.makedev(int(major), int(minor))} if minor != "*" else set()
    return nodes


def _device(node: Path) -> int | None:
    """The device number of a character device, None for any other file."""
    try:
        status = node.stat()
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


def _open_nodes(process: Path, nodes: Nodes) -> set[str]:
    """The device nodes that a process has open; FORBIDDEN if its descriptors may not be listed."""
    try:
        names = os.listdir(f"{process}/fd")  # noqa: PTH208  # no Path for each of a hundred thousand
    except PermissionError:
        return {FORBIDDEN}
    except OSError:
        return set()
    links = [f"{process}/fd/{name}" for name in names]
    if not names:
        links = [f"{task}/fd/{name}" for task in _tasks(process) for name in names_in(task / "fd")]
    return {node for link in links for node in _node_of(link, nodes)}


def _tasks(process: Path) -> list[Path]:
    """The other tasks of a process: the leader may end before them, and then shows no files (proc(5))."""
    return [process / "task" / name for name in names_in(process / "task") if name != process.name]


def _node_of(link: str, nodes: Nodes) -> Iterator[str]:
    """The device node that the descriptor `link` leads to, if any.

    Stats only targets below /dev or with the name of a node: one on a dead network file system never returns.
    """
    try:
        target = os.readlink(link)  # noqa: PTH115  # a hundred thousand of them
    except OSError:
        return
    name = target.removesuffix(DELETED)
    if target in nodes.by_path:
        yield target
    elif target.startswith("/dev/") or name.rpartition("/")[2] in _base_names(nodes):
        yield from nodes.named(_device(Path(link)), name)


def _base_names(nodes: Nodes) -> set[str]:
    return {node.rpartition("/")[2] for node in nodes.by_path}


def _mapped_nodes(process: Path, nodes: Nodes) -> set[str]:
    text = _maps(process) or next(filter(None, map(_maps, _tasks(process))), b"")
    bases, folders = _base_names(nodes), ("/dev/",) if nodes.majors or nodes.numbers else ()
    if not any(base.encode() in text for base in (*bases, *folders)):
        return set()
    found: set[str] = set()
    for line in text.splitlines():
        words = line.decode(errors="replace").split(None, 5) or [""]
        # The kernel marks mappings of a device node that was replaced as deleted.
        span, name = words[0], words[-1].removesuffix(DELETED)
        if name in nodes.by_path:
            found.add(name)
        elif name.rpartition("/")[2] in bases or name.startswith(folders):
            found.update(nodes.named(_device(process / "map_files" / span), name))
    return found


def _maps(process: Path) -> bytes:
    try:
        with open(f"{process}/maps", "rb") as file:  # noqa: PTH123  # as above
            return file.read()
    except OSError:
        return b""


def _descriptions(proc: Path, pids: list[int]) -> dict[int, list[str]]:
    """The lines of `_described` by pid, then whole names: no owner of a process may wait for its name."""
    described = Looks(timeout_s=NAMES_S).at(pids, partial(_described, proc))
    longer = [pid for pid, words in described.items() if len(words) > NAME and len(words[NAME]) >= COMM_LETTERS]
    for pid, words in Looks(timeout_s=NAMES_S).at(longer, partial(_whole_name, proc)).items():
        described[pid] += words
    return described


def _described(proc: Path, pid: int) -> Iterator[str]:
    """Pod uid, container id, systemd unit and the kernel's name of a process."""
    cgroups = text_of(proc / str(pid) / "cgroup") or ""
    yield from _pod_and_container(cgroups)
    service = _SERVICE.search(cgroups)
    yield service.group(1) if service else ""
    with contextlib.suppress(OSError):
        yield (proc / str(pid) / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")[0]


def _whole_name(proc: Path, pid: int) -> Iterator[str]:
    """The uncut name of a process. Its source, cmdline, may not answer."""
    import psutil  # noqa: PLC0415  # 2 MiB, and seconds on a busy processor

    psutil.PROCFS_PATH = str(proc)
    with contextlib.suppress(psutil.Error, OSError, ValueError, IndexError):  # psutil does not validate a stat file
        yield psutil.Process(pid).name()


def _holder(pid: int, node: str, how: str, described: list[str]) -> Holder:
    pod_uid, container, service, *names = [*described, *[""] * (3 - len(described))]
    name = "".join(letter if letter.isprintable() else "?" for letter in (names or [GONE])[-1])
    return Holder(pid=pid, process=name, node=node, how=how, container=container, pod_uid=pod_uid, service=service)


def whose(process: Path) -> tuple[str, str]:
    """Pod uid and container id in the cgroup of a process; each "" if the cgroup has none."""
    return _pod_and_container(text_of(process / "cgroup") or "")


def _pod_and_container(text: str) -> tuple[str, str]:
    # The innermost container: a node of kind or minikube is itself one.
    pod, containers = _POD.search(text), _CONTAINER.findall(text)
    return pod.group(1).replace("_", "-") if pod else "", containers[-1] if containers else ""


def bound_to(proc: Path, devices: frozenset[str], looks: Looks | None = None) -> tuple[tuple[int, str], ...]:
    """(pid, pod uid) of one process in each pod whose mounts still show one of the file systems (`major:minor`).

    Skips processes that do not answer and adds them to `looks`.
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


# The host's namespaces. A command in the host's mount namespace sees the host's files and mounts.

MOUNTS = {"mnt": "--mount"}
ALL = {**MOUNTS, "ipc": "--ipc", "uts": "--uts", "net": "--net", "pid": "--pid"}
"""Options of nsenter(1) by name below /proc/pid/ns. reboot(2) ends only the caller's pid namespace, so a reboot needs
the host's."""

HOST_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/wrappers/bin:/run/current-system/sw/bin:/opt/bin"
)
"""Program folders of hosts, including NixOS and Flatcar."""


def host_path() -> dict[str, str]:
    """An environment with a PATH of this process's folders, then `HOST_PATH`, to find programs of the host."""
    known = f"{os.environ.get('PATH', os.defpath)}:{HOST_PATH}".split(":")
    return {"PATH": ":".join(dict.fromkeys(known))}


def in_host(proc: Path, kinds: Mapping[str, str] = ALL) -> list[str]:
    """The argv prefix that runs a command in these namespaces of the host's first process; empty if we are in them.

    Raises ModuleFailed if one cannot be read: a command in the container's mounts would not affect the host.
    """
    options = [f"{option}={proc / '1/ns' / kind}" for kind, option in kinds.items() if not _is_ours(proc, kind)]
    return ["nsenter", *options, "--"] if options else []


def is_of_a_kernel(proc: Path) -> bool:
    """True if `proc` is a kernel's /proc; that of a sandbox is a folder of regular files, without real mounts."""
    try:
        os.lstat(proc / "1/ns/mnt")
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


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


# Mounts below a driver root, in the host's mount namespace.

_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_points_below(mountinfo: str, root: str) -> tuple[str, ...]:
    """Mount points at or below `root`, the last mounted first; format: proc(5), /proc/pid/mountinfo.

    Unmount them in this order: a mount is newer than the mount that contains it and than those that it hides. An order
    by depth would miss a mount that a later mount of its parent hides.
    """
    below = root.rstrip("/") + "/"
    return tuple(point for _, point in reversed(_mounts(mountinfo)) if point == root or point.startswith(below))


def devices_of(mountinfo: str, points: Iterable[str]) -> frozenset[str]:
    """`major:minor` of the file systems that are mounted at `points` and nowhere else."""
    wanted, mounts = set(points), _mounts(mountinfo)
    elsewhere = {device for device, point in mounts if point not in wanted}
    return frozenset(device for device, point in mounts if point in wanted) - elsewhere


def _mounts(mountinfo: str) -> list[tuple[str, str]]:
    """`major:minor` and mount point of each mount. The kernel writes white space in a path as octal numbers."""
    rows = (line.split(" ") for line in mountinfo.splitlines())
    return [(row[2], _OCTAL.sub(lambda code: chr(int(code.group(1), 8)), row[4])) for row in rows if len(row) > 4]


# umount2(2) in the host's mount namespace, as a system call, which needs no program of the host.
#
# A child calls it, because a process cannot leave a namespace that it entered, and because the call may never return.

CLONE_NEWNS = 0x00020000
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
"""include/uapi/linux/sched.h, include/linux/fs.h"""


def why_not_unmounted(proc: Path, mount_point: str, here: Path, timeout_s: float, *, lazily: bool = False) -> str:
    """Unmount the host's `mount_point`, `here` for us, perhaps `lazily`: "" or the error. Raises ModuleFailed."""
    namespace = None if _is_ours(proc, "mnt") else proc / "1/ns/mnt"
    target = str(here) if namespace is None else mount_point
    flags = UMOUNT_NOFOLLOW | (MNT_DETACH if lazily else 0)
    answer = lines_within(timeout_s, lambda: _unmounted(namespace, target, flags))
    return f"timed out after {timeout_s:g} s" if answer is None else "".join(answer)


def _unmounted(namespace: Path | None, target: str, flags: int) -> list[str]:
    """Enter the namespace and unmount; the error of the first call that failed, if any. Leaves the process in it."""
    import ctypes  # noqa: PLC0415  # half a MiB that only the child needs

    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if namespace is not None and libc.setns(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWNS):
            return [f"its mounts cannot be entered: {os.strerror(ctypes.get_errno())}"]
    except OSError as error:
        return [f"its mounts cannot be entered: {error.strerror}"]
    failed = libc.umount2(os.fsencode(target), flags)
    return [os.strerror(ctypes.get_errno())] if failed else []
