"""Reads the reboot-required marker on the host, and removes the one that was read."""

from __future__ import annotations

from driver_manager.adapters.host.files import HostFiles
from driver_manager.domain import markers
from driver_manager.domain.errors import ModuleFailed
from driver_manager.domain.markers import Marker, MarkerUnreadable


def read_marker(files: HostFiles, path: str) -> tuple[Marker | None, str]:
    """The marker at `path`, or what keeps it from being read; neither where there is none, or no path."""
    try:
        text = files.read(path) if path else None
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    if text is None:
        return None, ""
    try:
        return markers.decode(text), ""
    except MarkerUnreadable as error:
        return None, error.what


def remove_marker(files: HostFiles, path: str, seen: Marker) -> None:
    """Remove the marker at `path` if it still is `seen`: one written since stays. Raises ModuleFailed."""
    if read_marker(files, path)[0] != seen:
        return
    try:
        files.remove(path)
    except OSError as error:
        raise ModuleFailed(f"cannot remove {path} on the host: {error.strerror}", "Remove it by hand.") from error
