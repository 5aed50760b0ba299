"""The host's mount namespace: what is run there sees the host's files and mounts, not the container's."""

from __future__ import annotations

from pathlib import Path


def in_host_mounts(proc: Path) -> list[str]:
    """Words to put before a command so that it runs among the host's mounts; none where we are there already."""
    namespace = proc / "1/ns/mnt"
    try:
        is_ours = namespace.stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return []
    return [] if is_ours else ["nsenter", f"--mount={namespace}", "--"]
