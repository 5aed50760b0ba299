"""The host's mount namespace: what is run there sees the host's files and mounts, not the container's."""

from __future__ import annotations

from pathlib import Path

from driver_manager.domain.errors import ModuleFailed


def in_host_mounts(proc: Path) -> list[str]:
    """Words to put before a command so that it runs among the host's mounts; none where we are there already.

    Raises ModuleFailed where we may not look: what is done among our own mounts would not reach the host.
    """
    namespace = proc / "1/ns/mnt"
    try:
        is_ours = namespace.stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino
    except FileNotFoundError:  # not a kernel's /proc
        return []
    except OSError as error:
        raise ModuleFailed(
            f"cannot enter the host's mounts by {namespace}: {error.strerror}", "Run privileged, as root."
        ) from error
    return [] if is_ours else ["nsenter", f"--mount={namespace}", "--"]
