"""Runs a command as a container runtime would: own mounts, root, host name and environment. Run as a program."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

DEVICES = ("null", "zero", "random", "urandom")
FRESH = ("dev", "run", "host", "sys", "var/lib")
"""Empty in the container. What is mounted must lie below one of them, or the machine's own folders would be written."""

BEHIND = "machine-dev"
"""Where the container's own devices come from once /dev is the sandbox host's."""

NAMESPACES = ("--mount", "--uts", "--propagation", "private")


@dataclass(frozen=True)
class Mount:
    """`source` of this machine at `target` of the container; as in Kubernetes, read-only does not reach submounts."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Spec:
    """`root` is an empty folder of this machine, `last_line` the file that becomes the termination log."""

    root: str
    hostname: str
    last_line: str
    mounts: tuple[Mount, ...]
    env: Mapping[str, str]
    argv: tuple[str, ...]

    def command(self) -> list[str]:
        return [*unshare(), sys.executable, "-I", "-S", __file__, json.dumps(asdict(self))]


def unshare() -> list[str]:
    """Words before a command that gets mounts of its own; without root in a user namespace."""
    return ["unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), *NAMESPACES]


def why_not() -> str:
    """Why no container can be made here, "" if one can."""
    if shutil.which("unshare") is None:
        return "the unshare command is not on PATH"
    done = subprocess.run([*unshare(), "true"], capture_output=True, text=True, check=False)
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else ""


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def build(root: Path) -> None:
    """Lay out the container's root: the machine's folders, and fresh ones."""
    mount("-t", "tmpfs", "tmpfs", str(root))
    for entry in Path("/").iterdir():
        here = root / entry.name
        if entry.is_symlink():
            here.symlink_to(entry.readlink())
        elif entry.is_dir():
            here.mkdir()
            if entry.name not in FRESH:
                mount("--rbind", str(entry), str(here))
    for name in FRESH:
        (root / name).mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "tmpfs", str(root / name))
    (root / BEHIND).mkdir()
    mount("--rbind", "/dev", str(root / BEHIND))


def place(one: Mount) -> None:
    """Mount it; called inside the new root, where the machine's paths still lead to its files."""
    target = Path(one.target).resolve()
    if not any(target.is_relative_to(f"/{name}") for name in FRESH):
        raise SystemExit(f"{target} is a folder of this machine")
    if Path(one.source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.touch()
    mount("--rbind", one.source, str(target))


def main(document: str) -> None:
    body = json.loads(document)
    spec = Spec(**{**body, "mounts": tuple(Mount(**one) for one in body["mounts"])})
    socket.sethostname(spec.hostname)
    build(Path(spec.root))
    os.chroot(spec.root)
    os.chdir("/")
    devices = [Mount(f"/{BEHIND}/{name}", f"/dev/{name}") for name in DEVICES]
    for one in (*spec.mounts, *devices, Mount(spec.last_line, "/dev/termination-log")):
        place(one)
    for one in spec.mounts:
        if one.read_only:
            mount("-o", "remount,bind,ro", one.target)
    program = shutil.which(spec.argv[0], path=spec.env["PATH"])
    if program is None:
        raise SystemExit(f"{spec.argv[0]} is not on the image's PATH")
    os.execve(program, list(spec.argv), dict(spec.env))  # noqa: S606  # without a shell is what is wanted


if __name__ == "__main__":
    main(sys.argv[1])
