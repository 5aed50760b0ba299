"""Reads the reboot-required marker on the host."""

from __future__ import annotations

from driver_manager.adapters.rooted import HostFiles
from driver_manager.domain import markers
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
