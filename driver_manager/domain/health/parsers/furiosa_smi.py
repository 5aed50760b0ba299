"""Furiosa's `furiosa-smi status --format json`: whether each NPU is alive, and whether it is at work. Pure.

Source of the form: a public recording of furiosa-smi on RNGD cards; developer.furiosa.ai, Furiosa SMI CLI.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from driver_manager.domain.escaping import writable
from driver_manager.domain.health.parsers.verdicts import counted, failure, unhealthy, unknown
from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult

ALIVE = "alive"


def status(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """One entry per NPU; it does not tell PCI addresses, so they are counted."""
    failed = failure("furiosa-smi", status, last_line)
    if failed is not None:
        return failed
    try:
        bodies = json.loads(out)
        found = tuple(_npu(body) for body in bodies)
        busy = tuple(writable(body["device"]) for body in bodies if _is_at_work(body))
    except (ValueError, KeyError, TypeError, RecursionError):
        return unknown("furiosa-smi printed unexpected output")
    if len({npu.name for npu in found}) < len(found):
        return unknown("furiosa-smi printed an NPU twice")
    return replace(counted(found, present), busy=busy) if found else unhealthy("furiosa-smi sees no device")


def _is_at_work(body: dict[str, Any]) -> bool:
    """Whether a process has one of the NPU's processing elements."""
    return any(one["pe_occupancy"] is True for one in body.get("pe_utilizations") or ())


def _npu(body: dict[str, object]) -> DeviceVerdict:
    word = writable(body["liveness"])
    health = Health.HEALTHY if word == ALIVE else Health.UNHEALTHY
    return DeviceVerdict(writable(body["device"]), health, word)
