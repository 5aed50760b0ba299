"""Intel Gaudi's `hl-smi -Q index,bus_id,name -f csv,noheader`: one line per device that answers. Pure.

Source of the form: docs.habana.ai, System Management Interface Tool (hl-smi); public recordings of its CSV.
"""

from __future__ import annotations

from driver_manager.domain.escaping import writable
from driver_manager.domain.health.parsers.verdicts import failure, partial, pci_address, unhealthy, whole
from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult


def query(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """The query's output. A device that the driver took down has no line; one whose name is not known is bad."""
    failed = failure("hl-smi", status, last_line)
    if failed is not None:
        return failed
    rows = [[field.strip() for field in line.split(",")] for line in out.splitlines() if line.strip()]
    complete = [row for row in rows if len(row) > 2 and row[0].isdecimal() and pci_address(row[1])]
    devices = tuple(_device(row) for row in complete)
    if len(complete) < len(rows) or (rows and not out.endswith("\n")):
        return partial("hl-smi", devices)
    return whole(devices, present) if devices else unhealthy("hl-smi sees no device")


def _device(row: list[str]) -> DeviceVerdict:
    is_known = row[2] not in ("", "N/A")
    health, word = (Health.HEALTHY, "listed") if is_known else (Health.UNHEALTHY, "without a name")
    return DeviceVerdict(writable(f"aip {row[0]}"), health, word, pci_address(row[1]))
