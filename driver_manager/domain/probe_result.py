"""What a probe says of the devices. Pure."""

from __future__ import annotations

from enum import Enum

from driver_manager.domain.frozen import Frozen


class Health(Enum):
    """What a probe says of the devices. Unknown is never folded into one of the others."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class DeviceVerdict(Frozen):
    """What a probe says of one device. `address` is its PCI address as sysfs writes it, "" if it was not told."""

    name: str
    health: Health
    reason: str
    address: str = ""


class ProbeResult(Frozen):
    """One sample of a probe. `is_tool_broken`: unknown for as long as nobody repairs the tool itself.

    `busy` names what is at work on the devices, as far as the tool tells.
    """

    health: Health
    reason: str
    devices: tuple[DeviceVerdict, ...] = ()
    is_tool_broken: bool = False
    busy: tuple[str, ...] = ()
