"""What the kernel tier needs of the machine, and how the tier's commands are run.

Standard library only: `python -m tests.support.kernel.guest --check` must work before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.tiers import TierError

CHECKOUT = Path(__file__).resolve().parents[3]
SOURCES = Path(__file__).resolve().parent
TESTS = CHECKOUT / "tests/system/kernel"
GUEST_TESTS = TESTS / "guest_tests"
ON_NODE = GUEST_TESTS / "on_node"

# What provides each command on Debian: the message must say what to install, not only what is absent.
PACKAGE_OF = {
    "qemu-system-x86_64": "qemu-system-x86",
    "depmod": "kmod",
    "modprobe": "kmod",
    "cpio": "cpio",
    "busybox": "busybox-static",
    "gcc-12": "gcc-12",
    "make": "make",
    "apt-get": "apt",
    "dpkg": "dpkg",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
# virtiofsd is outside PATH: inside qemu-system-common up to Debian 12, in a package of its own after that.
VIRTIOFSD_PLACES = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")
# kmod's tools are in sbin, which is not on every user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


class KernelTierError(TierError):
    """The tier could not be prepared or the guest did not run to its end; the message says why."""


def find_virtiofsd() -> Path | None:
    return next((Path(place) for place in VIRTIOFSD_PLACES if os.access(place, os.X_OK)), None)


def missing() -> list[str]:
    lines = [
        f"{command} (Debian package {package})"
        for command, package in PACKAGE_OF.items()
        if shutil.which(command, path=SEARCH_PATH) is None
    ]
    if find_virtiofsd() is None:
        lines.append("virtiofsd (Debian package qemu-system-common, or virtiofsd)")
    if os.geteuid() != 0:
        lines.append("root (the read-only bind of / that the guest sees needs CAP_SYS_ADMIN)")
    return lines


def run(argv: Iterable[str | Path], *, timeout_s: float, cwd: Path | None = None, stdin: bytes = b"") -> bytes:
    """Standard output of a command.

    Raises KernelTierError, with the end of the command's output, when it fails, is absent or takes over `timeout_s`.
    """
    words = [str(word) for word in argv]
    shown = " ".join(words[:6])
    try:
        done = subprocess.run(
            words, cwd=cwd, input=stdin, capture_output=True, timeout=timeout_s, check=False, env=_plain_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelTierError(f"{shown}: {error}") from error
    if done.returncode != 0:
        output = tail((done.stdout + done.stderr).decode(errors="replace"))
        raise KernelTierError(f"{shown} … exited {done.returncode}:\n{output}")
    return done.stdout


def tail(text: str, lines: int = 40) -> str:
    return "\n".join(text.splitlines()[-lines:])


def _plain_environment() -> Mapping[str, str]:
    return {**os.environ, "PATH": SEARCH_PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
