"""What the output of a vendor's tool says about the devices: the parsers by the name that a profile gives. Pure."""

from __future__ import annotations

from collections.abc import Callable

from driver_manager.domain.health.parsers import (
    amd_smi,
    furiosa_smi,
    hl_smi,
    npu_smi,
    nvidia_smi,
    rbln_smi,
    tt_smi,
)
from driver_manager.domain.health.parsers.verdicts import unhealthy
from driver_manager.domain.probe_result import Health, ProbeResult
from driver_manager.domain.tool_status import NO_TOOL, TIMED_OUT, loader_failure

LAST_LINE_CHARS = 300

TELL_IDLE = frozenset({"furiosa-smi", "rbln-smi"})
"""Parsers that say what is at work on the devices."""

Parser = Callable[[int, str, str, tuple[str, ...]], ProbeResult]
"""Exit status, output, the last line for a reason, and the PCI functions that the driver should serve."""


def parse(  # noqa: PLR0913  # all that a run of a tool leaves
    parser: str, status: int, out: str, last_line: str, present: tuple[str, ...] = (), *, err: str = ""
) -> ProbeResult:
    """The sample in a tool's exit `status` and output; `last_line` is its last line, for the reason.

    `present` are the PCI addresses of the devices that the driver should serve, `err` is the standard error, where a
    tool that could not be loaded with its libraries says so: that is no word on the devices.
    """
    if status == TIMED_OUT:
        return unhealthy(last_line)
    unloadable = loader_failure(status, err)
    if unloadable:
        reason = f"the tool cannot be loaded with its libraries: {unloadable[:LAST_LINE_CHARS]}"
        return ProbeResult(Health.UNKNOWN, reason, is_tool_broken=True)
    if status in NO_TOOL:
        return ProbeResult(Health.UNKNOWN, last_line, is_tool_broken=True)
    return PARSERS[parser](status, out, last_line, present)


def _exit_status(status: int, _out: str, last_line: str, _present: tuple[str, ...]) -> ProbeResult:
    return unhealthy(last_line) if status else ProbeResult(Health.HEALTHY, "exit status 0")


PARSERS: dict[str, Parser] = {
    "exit-status": _exit_status,
    "amd-smi-list": amd_smi.listing,
    "furiosa-smi": furiosa_smi.status,
    "hl-smi": hl_smi.query,
    "npu-smi": npu_smi.table,
    "npu-smi-list": npu_smi.listing,
    "nvidia-smi": nvidia_smi.query,
    "rbln-smi": rbln_smi.devices,
    "tt-smi": tt_smi.snapshot,
}
