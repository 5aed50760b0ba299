"""NVIDIA's `nvidia-smi --query-gpu=index,pci.bus_id,… --format=csv,noheader`: one line per GPU. Pure."""

from __future__ import annotations

import re

from driver_manager.domain.health.parsers.verdicts import (
    ENDED_FROM_OUTSIDE,
    partial,
    pci_address,
    unhealthy,
    unknown,
    whole,
)
from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult

SAYS_NOTHING = (2, 3, 4, 12, 13)
"""nvidia-smi(1), RETURN VALUE: bad argument, not available, no permission, library not found, function not in it."""

_REMARK = re.compile(r"\[([^\]]*)\]|(ERR!)")
_HARMLESS = {"n/a", "not supported", "insufficient permissions"}


def query(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """The query's output. A GPU is bad where a field holds a remark such as `[GPU requires reset]` or `ERR!`."""
    if status in ENDED_FROM_OUTSIDE:
        return unknown(f"nvidia-smi was killed from outside: {last_line}")
    if status in SAYS_NOTHING:
        return unknown(f"nvidia-smi failed with exit status {status}: {last_line}")
    if status:
        return unhealthy(f"nvidia-smi failed with exit status {status}: {last_line}")
    if "No devices were found" in out:
        return unhealthy("nvidia-smi sees no device")
    rows = [[field.strip() for field in line.split(",")] for line in out.splitlines() if line.strip()]
    complete = [row for row in rows if len(row) > 1 and row[0].isdecimal() and pci_address(row[1])]
    gpus = tuple(_gpu(row) for row in complete)
    if len(complete) < len(rows) or not gpus or not out.endswith("\n"):
        return partial("nvidia-smi", gpus)
    return whole(gpus, present)


def _gpu(row: list[str]) -> DeviceVerdict:
    remarks = [first or second for first, second in _REMARK.findall(", ".join(row[2:]))]
    bad = [remark for remark in remarks if remark.lower() not in _HARMLESS]
    health = Health.UNHEALTHY if bad else Health.HEALTHY
    return DeviceVerdict(f"gpu {row[0]}", health, "; ".join(bad) or "without errors", pci_address(row[1]))
