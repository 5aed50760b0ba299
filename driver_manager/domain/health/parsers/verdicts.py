"""From verdicts on devices to one on the whole, compared with what the PCI bus shows. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult

ENDED_FROM_OUTSIDE = (-9, -15)
"""A tool that somebody killed (an administrator, the kernel short of memory) says nothing about the devices."""

_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")


def pci_address(text: str) -> str:
    """The PCI address in `text` as sysfs writes it, "" if it holds none. Tools pad the domain, or leave it out."""
    found = _ADDRESS.search(text)
    if found is None:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function}"


def unknown(reason: str) -> ProbeResult:
    """A sample that says nothing about the devices."""
    return ProbeResult(Health.UNKNOWN, reason)


def unhealthy(reason: str) -> ProbeResult:
    """A sample that fails as a whole, without a word on single devices."""
    return ProbeResult(Health.UNHEALTHY, reason)


def failure(tool: str, status: int, last_line: str) -> ProbeResult | None:
    """The sample of a tool that failed, of which nothing but 0 is known to mean success; None where it did not."""
    if status in ENDED_FROM_OUTSIDE:
        return unknown(f"{tool} was killed from outside: {last_line}")
    return unhealthy(f"{tool} failed with exit status {status}: {last_line}") if status else None


def whole(devices: tuple[DeviceVerdict, ...], present: tuple[str, ...]) -> ProbeResult:
    """The sample of `devices`; `present` are the PCI functions that the driver should serve.

    Each function must be among the devices, by its address: a function may hold two devices (Ascend 310P), so that
    their number says nothing. One without an address stands for no function; it still counts if it is bad. Where none
    has one that can be read, which functions are served is unknown.
    """
    seen = {device.address for device in devices} - {""}
    if devices and not seen:
        result = _judged(devices, "")
        unclear = "no device has a PCI address that can be read"
        return replace(result, health=Health.UNKNOWN, reason=unclear) if result.health is Health.HEALTHY else result
    devices = tuple(one for one in devices if one.address or one.health is not Health.HEALTHY)
    absent = tuple(address for address in present if address not in seen)
    lacking = _lacking(len(absent), present) + "".join(f"; {address} missing" for address in absent)
    return _judged((*devices, *(_missing(address) for address in absent)), lacking)


def counted(devices: tuple[DeviceVerdict, ...], present: tuple[str, ...]) -> ProbeResult:
    """The same for a tool that prints no addresses: the number of devices is all there is to compare."""
    return _judged(devices, _lacking(max(0, len(present) - len(devices)), present))


def _lacking(count: int, present: tuple[str, ...]) -> str:
    return f"{len(present) - count} of {len(present)} PCI devices seen" if count else ""


def _judged(devices: tuple[DeviceVerdict, ...], lacking: str) -> ProbeResult:
    bad = [f"{device.name} is {device.reason}" for device in devices if device.health is Health.UNHEALTHY]
    if bad or lacking:
        return ProbeResult(Health.UNHEALTHY, lacking or "; ".join(bad), devices)
    unclear = [f"{device.name} is {device.reason}" for device in devices if device.health is Health.UNKNOWN]
    if unclear:
        return ProbeResult(Health.UNKNOWN, "; ".join(unclear), devices)
    return ProbeResult(Health.HEALTHY, f"{len(devices)} device(s) {_words(devices)}", devices)


def partial(tool: str, devices: tuple[DeviceVerdict, ...]) -> ProbeResult:
    """The sample of an output that breaks off: a device that was seen to be bad counts, everything else is unknown."""
    result = whole(devices, ())
    return result if result.health is Health.UNHEALTHY else unknown(f"{tool} printed unexpected output")


def _missing(address: str) -> DeviceVerdict:
    return DeviceVerdict(address, Health.UNHEALTHY, "missing", address)


def _words(devices: tuple[DeviceVerdict, ...]) -> str:
    return ", ".join(dict.fromkeys(device.reason for device in devices))
