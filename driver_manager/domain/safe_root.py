"""Which folders of a host a driver root may be: none that the host or its containers live in. Pure."""

from __future__ import annotations

_VITAL = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/sbin",
    "/run/containerd",
    "/run/crio",
    "/run/docker",
    "/run/k3s",
    "/run/netns",
    "/run/systemd",
    "/run/user",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/rancher",
)
"""Folders that the host and its containers live in."""


def is_safe_root(path: str) -> bool:
    """Whether everything mounted at and below `path` may be unmounted: it holds nothing vital, nor lies in it."""
    parts = path.rstrip("/").split("/")[1:]
    if len(parts) < 2 or {"", ".", ".."} & set(parts):
        return False
    below = f"/{'/'.join(parts)}/"
    return not any(f"{vital}/".startswith(below) or below.startswith(f"{vital}/") for vital in _VITAL)
