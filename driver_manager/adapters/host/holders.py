"""Which processes use a device: open files and mappings under the host's /proc, and whose container they are.

`psutil.open_files()` lists regular files only, so descriptors are read here; process names come from psutil.
A process may end or be hidden (hidepid) at any moment: what cannot be read is passed over.
Sources: proc(5); cgroup names of the kubelet (pkg/kubelet/cm) with the systemd and cgroupfs drivers.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.model import Holder

_POD = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
"""A pod's uid; that of a static pod is a hash of its manifest."""
_CONTAINER = re.compile(r"([0-9a-f]{64})")
OPEN, MAPPED = "open", "mapped"


def find_holders(proc: Path, dev: Path, patterns: tuple[str, ...], *, enough: int | None = None) -> tuple[Holder, ...]:
    """Every process that uses one of the device nodes in `patterns` (as /dev/rbln*), by pid.

    Mappings are read only where open files explain fewer than `enough` users (None: always): they cost most.
    Raises ConfigError where `proc` shows no process at all.
    """
    if not any(name == "self" or name.isdigit() for name in _listed(proc)):
        raise ConfigError(f"{proc} shows no process", "Run as root with the host's /proc (PROC_ROOT).")
    nodes = {f"/dev/{node.relative_to(dev)}": _device(node) for node in _nodes(dev, patterns)}
    pids = _pids(proc)
    found = {(pid, node): OPEN for pid in pids for node in _open_nodes(proc / str(pid), nodes)}
    if enough is None or len(found) < enough:
        for pid in pids:
            for node in _mapped_nodes(proc / str(pid), nodes):
                found.setdefault((pid, node), MAPPED)
    return tuple(_holder(proc, pid, node, how) for (pid, node), how in sorted(found.items()))


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


def _open_nodes(process: Path, nodes: dict[str, int | None]) -> set[str]:
    folder = f"{process}/fd"
    return {node for name in _listed(Path(folder)) for node in _node_of(f"{folder}/{name}", nodes)}


def _node_of(link: str, nodes: dict[str, int | None]) -> Iterator[str]:
    """The device node that a descriptor leads to. Only what lies in a /dev is looked at: a stat of a file on a dead
    network file system would never return."""
    try:
        target = os.readlink(link)  # noqa: PTH115  # a hundred thousand of them
    except OSError:
        return
    if target in nodes:
        yield target
    elif target.startswith("/dev/") and (number := _device(Path(link))) is not None:
        yield from (node for node, device in nodes.items() if device == number)


def _mapped_nodes(process: Path, nodes: dict[str, int | None]) -> set[str]:
    try:
        with open(f"{process}/maps", "rb") as file:  # noqa: PTH123  # as above
            text = file.read()
    except OSError:
        return set()
    if b"/dev/" not in text:
        return set()
    names = {line.split(None, 5)[-1].decode(errors="replace") for line in text.splitlines() if b"/dev/" in line}
    # A node that was made anew leaves its old mappings marked so.
    return {name.removesuffix(" (deleted)") for name in names} & nodes.keys()


def _holder(proc: Path, pid: int, node: str, how: str) -> Holder:
    import psutil  # noqa: PLC0415  # 2 MiB that a device in use pays for

    psutil.PROCFS_PATH = str(proc)
    try:
        name = psutil.Process(pid).name()
    except (psutil.Error, OSError, ValueError, IndexError):  # psutil believes every stat that it gets
        name = "(gone)"
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    pod_uid, container = whose(proc / str(pid))
    return Holder(pid=pid, process=name, node=node, how=how, container=container, pod_uid=pod_uid)


def whose(process: Path) -> tuple[str, str]:
    """Pod uid and container id of a process by its cgroup; each "" where the cgroup names none."""
    try:
        text = (process / "cgroup").read_text(errors="replace")
    except OSError:
        return "", ""
    pod, container = _POD.search(text), _CONTAINER.search(text)
    return pod.group(1).replace("_", "-") if pod else "", container.group(1) if container else ""


def bound_to(proc: Path, devices: frozenset[str]) -> tuple[tuple[int, str], ...]:
    """(pid, pod uid) of processes in a pod whose own mounts still show one of the file systems (`major:minor`)."""
    found: list[tuple[int, str]] = []
    seen: set[str] = set()
    for pid in _pids(proc):
        process = proc / str(pid)
        pod_uid, _ = whose(process)
        if not pod_uid or pod_uid in seen:
            continue
        try:
            lines = (process / "mountinfo").read_text(errors="replace").splitlines()
        except OSError:
            continue
        if any(line.split(" ", 3)[2] in devices for line in lines if line.count(" ") > 3):
            found.append((pid, pod_uid))
            seen.add(pod_uid)
    return tuple(found)
