"""Tenstorrent's `tt-smi -s`: a snapshot of all chips as JSON. Pure.

Source of the form: tenstorrent/tt-smi, and public recordings of its snapshots.
"""

from __future__ import annotations

import json
from typing import Any

from driver_manager.domain.escaping import writable
from driver_manager.domain.health.parsers.verdicts import failure, pci_address, unhealthy, unknown, whole
from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult


def snapshot(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """The chips that are on PCI; a chip that is reached through another one has no address, and is left out."""
    failed = failure("tt-smi", status, last_line)
    if failed is not None:
        return failed
    try:
        found = [_chip(body) for body in json.loads(out)["device_info"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return unknown("tt-smi printed unexpected output")
    on_bus = tuple(chip for chip in found if chip.address)
    return whole(on_bus, present) if on_bus else unhealthy("tt-smi sees no device")


def _chip(body: dict[str, Any]) -> DeviceVerdict:
    board, telemetry = body["board_info"], body["telemetry"]
    address = pci_address(str(board["bus_id"]))
    health, word = Health.HEALTHY, "answering"
    if board.get("dram_status") is False:
        health, word = Health.UNHEALTHY, "without its DRAM"
    elif not isinstance(telemetry, dict) or not telemetry:
        health, word = Health.UNHEALTHY, "without telemetry"
    return DeviceVerdict(writable(f"{board['board_type']} {address}"), health, word, address)
