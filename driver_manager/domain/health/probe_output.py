"""What the output of a vendor's tool says about the devices: the parsers by the name that a profile gives. Pure."""

from __future__ import annotations

from collections.abc import Callable

from driver_manager.domain.health.parsers import npu_smi, nvidia_smi, rbln_smi
from driver_manager.domain.health.parsers.verdicts import unhealthy, unknown
from driver_manager.domain.model import Health, ProbeResult
from driver_manager.domain.tool_status import NO_TOOL, TIMED_OUT

Parser = Callable[[int, str, str, tuple[str, ...]], ProbeResult]
"""Exit status, output, the last line for a reason, and the PCI functions that the driver should serve."""


def parse(parser: str, status: int, out: str, last_line: str, present: tuple[str, ...] = ()) -> ProbeResult:
    """The sample in a tool's exit `status` and output; `last_line` is its last line, for the reason.

    `present` are the PCI addresses of the devices that the driver should serve.
    """
    if status == TIMED_OUT:
        return unhealthy(last_line)
    if status in NO_TOOL:
        return unknown(last_line)
    return PARSERS[parser](status, out, last_line, present)


def _exit_status(status: int, _out: str, last_line: str, _present: tuple[str, ...]) -> ProbeResult:
    return unhealthy(last_line) if status else ProbeResult(Health.HEALTHY, "exit status 0")


PARSERS: dict[str, Parser] = {
    "exit-status": _exit_status,
    "npu-smi": npu_smi.table,
    "npu-smi-list": npu_smi.listing,
    "nvidia-smi": nvidia_smi.query,
    "rbln-smi": rbln_smi.devices,
}
