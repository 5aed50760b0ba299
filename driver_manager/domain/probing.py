"""What the output of a vendor's tool says about the devices. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable

from driver_manager.domain.model import Health, ProbeResult

TIMED_OUT = 124


def parse(parser: str, status: int, out: str, said: str) -> ProbeResult:
    """The sample in a tool's exit `status` and output; `said` is its last line, for the reason."""
    if status == TIMED_OUT:
        return ProbeResult(Health.UNHEALTHY, said)
    return PARSERS[parser](status, out, said)


def _exit_status(status: int, _out: str, said: str) -> ProbeResult:
    return ProbeResult(Health.UNHEALTHY, said) if status else ProbeResult(Health.HEALTHY, "exit status 0")


def _rbln_smi(status: int, out: str, said: str) -> ProbeResult:
    """`rbln-smi -j`: healthy where there are devices and each has the status `normal`."""
    if status:
        return ProbeResult(Health.UNHEALTHY, said)
    try:
        devices = [(str(device["name"]), str(device["status"])) for device in json.loads(out)["devices"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ProbeResult(Health.UNKNOWN, "rbln-smi did not print what it should")
    bad = [f"{name} is {state}" for name, state in devices if state != "normal"]
    if bad or not devices:
        return ProbeResult(Health.UNHEALTHY, "; ".join(bad) or "rbln-smi sees no device")
    return ProbeResult(Health.HEALTHY, f"{len(devices)} device(s) normal")


PARSERS: dict[str, Callable[[int, str, str], ProbeResult]] = {"exit-status": _exit_status, "rbln-smi": _rbln_smi}
