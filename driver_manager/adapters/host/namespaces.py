"""The host's namespaces: what is run in its mounts sees the host's files and mounts, not the container's."""

from __future__ import annotations

import os
from pathlib import Path

from driver_manager.domain.errors import ModuleFailed

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
