"""The baseline of a swap: what devices, services and modules were like before a run replaced the driver.

The new driver is judged by comparison with it: a device that was bad before does not count against the new driver, and
a device that got worse, or is missing, does. It is a JSON file beside the load record that only root can write, and
counts only in its boot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import DeviceVerdict, Health, ProbeResult
from driver_manager.domain.wire import Form, Part, body_of

REASON_CHARS = 400
MAX_DEVICES = 256
AS_BEFORE = "as before the swap"


class Baseline(Struct, frozen=True):
    """The host before the driver of version `version` ("" if unknown) was replaced.

    `health`, `reason`, `devices` and `served` are those of the probe (`ProbeResult`). `functions` has the driver of
    each of the vendor's PCI functions, "" for none. `parameters` has values by `module.parameter`; `services` are the
    host services of the profile that were active; `references` has the users of each root module.
    """

    boot_id: str
    version: str = ""
    health: Health = Health.UNKNOWN
    reason: Annotated[str, Part(chars=REASON_CHARS)] = ""
    devices: tuple[DeviceVerdict, ...] = ()
    served: tuple[str, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    services: tuple[str, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was wrong before the swap, as sentences for the plan."""
        bad = [one for one in self.devices if one.health is Health.UNHEALTHY]
        if not bad and self.health is Health.UNHEALTHY:
            return (f"before the swap the probe reports: {self.reason}; the new driver has to do no better",)
        return tuple(
            f"{one.name} is `{one.reason}` before the swap; this will not count against the new driver" for one in bad
        )


class BaselineUnreadable(ConfigError):
    """This version cannot read the file as a baseline."""


FORM = Form("the baseline of the swap", BaselineUnreadable, "No action needed: the next swap writes it again.")


def encode(baseline: Baseline) -> str:
    return FORM.write(body_of(replace(baseline, devices=baseline.devices[:MAX_DEVICES]))) + "\n"


def decode(text: str) -> Baseline:
    """The baseline in `text`. Raises BaselineUnreadable for garbage and for newer versions."""
    return FORM.read(text).record(Baseline)


def baseline_of_boot(text: str, boot_id: str) -> Baseline | None:
    """The baseline in `text`; None for no text, for garbage and for another boot."""
    try:
        found = decode(text) if text else None
    except BaselineUnreadable:
        return None
    return found if found is not None and found.boot_id == boot_id else None


def of_new_driver(result: ProbeResult, before: Baseline | None) -> ProbeResult:
    """`result` of a driver that was just loaded, compared with `before`.

    Without a baseline, as after a boot, a device that the tool does not list is left to health-watch. With one, the
    result is unhealthy only if a device is worse than before: healthy, then sick, then lost. A function of the baseline
    that the driver does not take, and a device without an address whose name is missing, is lost. If the probe showed
    nothing before, only PCI functions are compared.
    """
    if before is None:
        bad = [one for one in result.devices if one.health is Health.UNHEALTHY]
        is_left = bool(bad) and all(one.is_lost for one in bad)
        return replace(result, health=Health.HEALTHY) if is_left else result
    names = {one.name for one in result.devices}
    unnamed = [one for one in before.devices if not one.address and not one.is_lost and one.name not in names]
    is_read = bool(result.devices)
    lost = [_lost(one.name, "", "not listed any more") for one in unnamed if is_read]
    if result.on_bus is not None:
        lost += [
            _lost(one, one, "not served by the new driver")
            for one in before.served
            if one in result.on_bus and one not in result.served
        ]
    is_unknown = before.health is Health.UNKNOWN and not before.devices
    compared = _without_excused(result, before, (), excuses_all=is_unknown)
    # Without a bad device the tool itself failed, which it may have done before as well.
    had_failed = before.health is Health.UNHEALTHY and not any(map(_rank, before.devices))
    if compared.health is Health.UNHEALTHY and not any(map(_rank, compared.devices)) and had_failed:
        compared = replace(compared, health=Health.HEALTHY, reason=f"{result.reason}, {AS_BEFORE}", is_slow=False)
    return _with_lost(compared, (*lost, *_left_bus(result, before.served)))


def in_service(result: ProbeResult, before: Baseline | None, served: Collection[str]) -> ProbeResult:
    """`result` of a driver in service. `served` are the addresses of devices that were healthy since it was loaded.

    A device that served and has left the bus is lost. A device that was bad before the swap does not count until it
    has been healthy once. `served` of the result are the addresses of the devices that are healthy now.
    """
    compared = _without_excused(result, before, served) if before is not None else result
    expected = {*served, *(before.served if before is not None else ())}
    return replace(_with_lost(compared, _left_bus(result, expected)), served=_healthy(result))


def _healthy(result: ProbeResult) -> tuple[str, ...]:
    """The addresses of the physical functions that are healthy: all or none if the tool prints no addresses."""
    if not any(one.address for one in result.devices):
        return result.served if result.health is Health.HEALTHY else ()
    bad = {one.address for one in result.devices if one.health is not Health.HEALTHY}
    good = {one.address for one in result.devices} - bad
    return tuple(one for one in result.served if one in good)


def _left_bus(result: ProbeResult, served: Collection[str]) -> list[DeviceVerdict]:
    """The devices of `served` that are neither on the bus nor in the tool's list."""
    listed = {one.address for one in result.devices if not one.is_lost}
    on_bus = result.on_bus
    if on_bus is None:
        return []
    gone = (address for address in sorted(served) if address not in on_bus and address not in listed)
    return [_lost(address, address, "lost: it served before and is not on the PCI bus any more") for address in gone]


def _lost(name: str, address: str, why: str) -> DeviceVerdict:
    return DeviceVerdict(name, Health.UNHEALTHY, why, address, is_lost=True)


def _without_excused(
    result: ProbeResult, before: Baseline, served: Collection[str], *, excuses_all: bool = False
) -> ProbeResult:
    """`result` with a remark in place of each bad device that is no worse than before, and not in `served`."""
    ranks = {_key(one): _rank(one) for one in before.devices}

    def excused(one: DeviceVerdict) -> DeviceVerdict:
        is_known = excuses_all or (0 < _rank(one) <= ranks.get(_key(one), 0) and one.address not in served)
        if one.health is not Health.UNHEALTHY or not is_known:
            return one
        why = "unknown if that was so before the swap" if excuses_all else AS_BEFORE
        return replace(one, health=Health.HEALTHY, reason=f"{one.reason}, {why}")

    devices = tuple(map(excused, result.devices))
    if devices == result.devices:
        return result
    if bad := _bad(devices):
        return replace(result, devices=devices, reason=bad)
    remarks = [f"{new.name} is {new.reason}" for new, old in zip(devices, result.devices, strict=True) if new != old]
    return replace(result, health=Health.HEALTHY, reason="; ".join(remarks), devices=devices, is_slow=False)


def _with_lost(result: ProbeResult, lost: Iterable[DeviceVerdict]) -> ProbeResult:
    lost = tuple(lost)
    if not lost:
        return result
    gone = {_key(one) for one in lost}
    devices = (*(one for one in result.devices if _key(one) not in gone), *lost)
    return replace(result, health=Health.UNHEALTHY, reason=_bad(devices), devices=devices, is_slow=False)


def _bad(devices: Iterable[DeviceVerdict]) -> str:
    return "; ".join(f"{one.name} is {one.reason}" for one in devices if one.health is Health.UNHEALTHY)


def _key(device: DeviceVerdict) -> str:
    return device.address or device.name


def _rank(device: DeviceVerdict) -> int:
    """0 for a device that works or whose health is unknown, 1 for a sick one, 2 for a lost one."""
    return 0 if device.health is not Health.UNHEALTHY else 2 if device.is_lost else 1
