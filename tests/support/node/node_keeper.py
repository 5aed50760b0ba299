"""The keeper of a test node: starts its first process, and removes whatever it leaves when the test run ends.

Run as `node_keeper.py STATE GROUP [OPTION…]` with a pipe as standard input; the options are `node_init`'s. It prints
the pid of the first process, then passes that one's output on. Standard input ends when the test run does, however it
does: then every process of the node is killed (they are in its pid namespace), its control groups and STATE are
removed. Standard library only.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
REMOVAL_S = 30.0


def hierarchies() -> list[Path]:
    """The roots of the control groups: one for each hierarchy of version 1, else the one of version 2."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [folder for folder in CGROUPS.iterdir() if (folder / "cgroup.procs").exists() and not folder.is_symlink()]


def make_groups(group: str) -> None:
    """The group in every hierarchy, with all controllers; a cpuset needs processors and memory before a process."""
    for root in hierarchies():
        for controller in _controllers(root):
            with contextlib.suppress(OSError):
                (root / "cgroup.subtree_control").write_text(f"+{controller}")
        (root / group).mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(OSError):
                (root / group / name).write_text((root / name).read_text())


def _controllers(root: Path) -> list[str]:
    """Those that a hierarchy of version 2 has to hand down; version 1 has one hierarchy for each."""
    file = root / "cgroup.controllers"
    return file.read_text().split() if file.exists() else []


def remove_groups(group: str) -> None:
    """The group and those below, everywhere; processes in them are killed first. OSError if some do not go."""
    deadline_s = time.monotonic() + REMOVAL_S
    for folder in [folder for root in hierarchies() for folder in _deepest_first(root / group)]:
        while True:
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)
                time.sleep(0.02)


def _deepest_first(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for one in folder.iterdir():
            if one.is_dir():
                yield from _deepest_first(one)
        yield folder


def start(state: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """unshare(1), whose child is the node's first process. The one dies with the keeper, the other with the one."""
    init = Path(__file__).with_name("node_init.py")
    words = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *NAMESPACES, "--mount-proc", "--propagation", "private"]
    words += ["--fork", "--kill-child=KILL", "--", sys.executable, "-I", "-S", str(init), str(state)]
    words += options
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd="/")


def child_of(pid: int) -> int:
    """The pid of its only child, 0 where there is none yet."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


def main() -> None:
    """Until standard input ends, or the node does."""
    state, group, options = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    state.mkdir(parents=True)
    make_groups(group)
    process = start(state, options)
    try:
        pid = 0
        while not pid and process.poll() is None:
            pid = child_of(process.pid)
        print(pid, flush=True)
        node_end = os.pidfd_open(process.pid)
        select.select([sys.stdin, node_end], [], [])
    finally:
        process.kill()
        process.wait()
        remove_groups(group)
        shutil.rmtree(state)


if __name__ == "__main__":
    main()
