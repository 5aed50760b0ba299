"""AMD's `amd-smi list --json`: the GPUs that the loaded driver serves. It does not tell their health. Pure.

Source of the form: ROCm/amdsmi (amdsmi_cli), and its documentation of `amd-smi list`.
"""

from __future__ import annotations

import json

from driver_manager.domain.health.parsers.verdicts import failure, pci_address, unhealthy, unknown, whole
from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult


def listing(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """`amd-smi list --json`: a partitioned GPU is in it once for each partition, with one address.

    A GPU whose `kfd_id` is N/A takes no work: the kernel's compute driver does not have it, or the tool may not ask.
    """
    failed = failure("amd-smi", status, last_line)
    if failed is not None:
        return failed
    try:
        found = tuple(_gpu(body) for body in json.loads(out))
    except (ValueError, KeyError, TypeError, RecursionError):
        return unknown("amd-smi printed unexpected output")
    return whole(found, present) if found else unhealthy("amd-smi sees no device")


def _gpu(body: dict[str, object]) -> DeviceVerdict:
    name, address = f"gpu {int(str(body['gpu']))}", pci_address(str(body["bdf"]))
    if body.get("kfd_id") == "N/A":
        return DeviceVerdict(name, Health.UNKNOWN, "without a kfd_id", address)
    return DeviceVerdict(name, Health.HEALTHY, "listed", address)
