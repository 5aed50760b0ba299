"""Rebellions' `rbln-smi -j`: one status per device; `normal` is healthy. Pure."""

from __future__ import annotations

import json
from dataclasses import replace

from driver_manager.domain.escaping import writable
from driver_manager.domain.health.parsers.verdicts import (
    ENDED_FROM_OUTSIDE,
    counted,
    pci_address,
    unhealthy,
    unknown,
    whole,
)
from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult

_NAMED_BY = ("npu", "name", "uuid", "device", "pci")
"""What tells one device from another; a version may leave some of it out."""


def devices(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """`rbln-smi -j`."""
    if status in ENDED_FROM_OUTSIDE:
        return unknown(f"rbln-smi was killed from outside: {last_line}")
    if status:
        return unhealthy(last_line)
    try:
        body = json.loads(out)
        found = tuple(_device(one) for one in body["devices"])
        names = {tuple(str(one.get(key)) for key in _NAMED_BY) for one in body["devices"]}
        prints_addresses = any("pci" in one for one in body["devices"])
        count = len(body.get("contexts") or ())
    except (ValueError, KeyError, TypeError, RecursionError):
        return unknown("rbln-smi printed unexpected output")
    if len(names) < len(found):
        return unknown("rbln-smi printed a device twice")
    busy = (f"{count} context(s)",) if count else ()
    if not found:
        return unhealthy("rbln-smi sees no device")
    return replace(whole(found, present) if prints_addresses else counted(found, present), busy=busy)


def _device(body: dict[str, object]) -> DeviceVerdict:
    status = writable(body["status"])
    health = Health.HEALTHY if status == "normal" else Health.UNHEALTHY
    return DeviceVerdict(writable(body["name"]), health, status, pci_address(str(body.get("pci", ""))))
