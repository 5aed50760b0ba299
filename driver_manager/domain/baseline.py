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
DEVICE_CHARS = 200
AS_BEFORE = "as before the swap"
SICK, LOST = 1, 2
"""Ranks of bad devices. The higher one is worse."""


class Baseline(Struct, frozen=True):
    """The host before the driver of version `version` ("" if unknown) was replaced.

    `health`, `rest`, `reason`, `devices` and `served` are those of the probe (`ProbeResult`). `load` differs for each
    load of a driver, "" if unknown. `functions` has the driver of each of the vendor's PCI functions, "" for none.
    `parameters` has values by `module.parameter`; `services` are the host services of the profile that were active;
    `references` has the users of each root module.
    """

    boot_id: str
    version: str = ""
    health: Health = Health.UNKNOWN
    rest: Health = Health.HEALTHY
    load: str = ""
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
    devices = (
        replace(one, name=one.name[:DEVICE_CHARS], reason=one.reason[:DEVICE_CHARS])
        for one in baseline.devices[:MAX_DEVICES]
    )
    shown = replace(baseline, devices=tuple(devices), reason=baseline.reason[:REASON_CHARS])
    return FORM.write(body_of(shown)) + "\n"


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
    that has no driver now is lost. If the tool showed no device before, only PCI functions are compared.
    """
    if before is None:
        bad = [one for one in result.devices if one.health is Health.UNHEALTHY]
        fails = not result.devices or any(not one.is_lost for one in bad) or (not bad and not result.served)
        is_left = result.health is Health.UNHEALTHY and not fails and not result.is_slow
        return replace(result, health=Health.HEALTHY) if is_left else result
    served = [one for one in before.served if _worst(before.devices, one) < LOST]
    on_bus = result.on_bus or {}
    lost = [_lost(one, "without a driver now") for one in served if on_bus.get(one, "?") == ""]
    listed = {_key(one) for one in result.devices}
    working = [one for one in before.devices if not _rank(one)]
    if result.devices:
        lost += [
            _lost(one.name, "not listed any more") for one in working if not one.address and one.name not in listed
        ]
    still_work = {_key(one) for one in result.devices if not _rank(one)}
    excuses_all = before.health is Health.UNKNOWN or not before.devices
    had_failed = Health.UNHEALTHY in (before.rest, before.health if not before.devices else None)
    had_failed = had_failed and all(_key(one) in still_work for one in working)
    return _compared(result, before, (), (*lost, *_left_bus(result, served)), excuses_all, had_failed)


def in_service(result: ProbeResult, before: Baseline | None, served: Collection[str]) -> ProbeResult:
    """`result` of a driver in service. `served` are the keys of devices that were healthy since it was loaded.

    A key is the PCI address, or the name of a device without one. A device that served and has left the bus is lost. A
    device that was bad before the swap does not count until it has been healthy once. `served` of the result are the
    keys of the devices that are healthy now.
    """
    worked = [one for one in before.served if not _worst(before.devices, one)] if before is not None else []
    gone = _left_bus(result, {*worked, *served})
    compared = _compared(result, before or Baseline(""), served, gone)
    return replace(compared, served=_healthy(result))


def _compared(  # noqa: PLR0913, PLR0917  # the two comparisons differ in these
    result: ProbeResult,
    before: Baseline,
    served: Collection[str],
    lost: Iterable[DeviceVerdict],
    excuses_all: bool = False,
    excuses_rest: bool = False,
) -> ProbeResult:
    """`result` with a remark in place of each bad device that is no worse than before and not in `served`."""
    lost = tuple(lost)
    gone, seen, devices = {_key(one) for one in lost}, dict[str, int](), list[DeviceVerdict]()
    for one in sorted(result.devices, key=_rank, reverse=True):
        key = _key(one)
        if key in gone:
            continue
        known = [*_ranks(before.devices, key), *[0] * len(result.devices)]
        at = seen[key] = seen.get(key, -1) + 1
        is_excused = excuses_all or (_rank(one) <= known[at] and key not in served)
        if _rank(one) and is_excused:
            why = "unknown if that was so before the swap" if excuses_all else AS_BEFORE
            devices.append(replace(one, health=Health.HEALTHY, reason=f"{one.reason}, {why}"))
        else:
            devices.append(one)
    order = {_key(one): at for at, one in enumerate(result.devices)}
    found = (*sorted(devices, key=lambda one: order[_key(one)]), *lost)
    rest = result.rest if result.devices else result.health
    is_whole = rest is Health.UNHEALTHY and not excuses_rest
    bad = "; ".join(f"{one.name} is {one.reason}" for one in found if _rank(one))
    remarks = [f"{one.name} is {one.reason}" for one in found if one not in result.devices and not _rank(one)]
    if rest is Health.UNHEALTHY and excuses_rest:
        remarks.append(f"{result.reason}, {AS_BEFORE}")
    if bad or is_whole:
        reason = bad if bad and (remarks or lost or not is_whole) and tuple(found) != result.devices else result.reason
        is_slow = result.is_slow and not lost
        return replace(result, health=Health.UNHEALTHY, reason=reason, devices=found, is_slow=is_slow)
    is_unclear = rest is Health.UNKNOWN or any(one.health is Health.UNKNOWN for one in found)
    health = Health.UNKNOWN if is_unclear else Health.HEALTHY
    reason = "; ".join(remarks) if remarks and not is_unclear else result.reason
    return replace(result, health=health, reason=reason, devices=found, is_slow=False)


def _healthy(result: ProbeResult) -> tuple[str, ...]:
    """The keys of the healthy devices. If the tool prints no addresses, the functions too if all are healthy."""
    bad = {_key(one) for one in result.devices if one.health is not Health.HEALTHY}
    good = {_key(one) for one in result.devices} - bad
    if not any(one.address for one in result.devices) and result.health is Health.HEALTHY:
        good |= {*result.served}
    return tuple(sorted(one for one in good if ":" not in one or one in result.served))


def _left_bus(result: ProbeResult, served: Collection[str]) -> list[DeviceVerdict]:
    """The devices of `served` that are neither on the bus nor in the tool's list."""
    listed = {one.address for one in result.devices if not one.is_lost}
    on_bus = result.on_bus
    if on_bus is None:
        return []
    gone = (one for one in sorted(served) if ":" in one and one not in on_bus and one not in listed)
    return [_lost(address, "lost: it served before and is not on the PCI bus any more") for address in gone]


def _lost(key: str, why: str) -> DeviceVerdict:
    return DeviceVerdict(key, Health.UNHEALTHY, why, key if ":" in key else "", is_lost=True)


def _key(device: DeviceVerdict) -> str:
    return device.address or device.name


def _rank(device: DeviceVerdict) -> int:
    """0 for a device that works or whose health is unknown, else SICK or LOST."""
    if device.health is not Health.UNHEALTHY:
        return 0
    return LOST if device.is_lost else SICK


def _ranks(devices: Iterable[DeviceVerdict], key: str) -> list[int]:
    """The ranks of the devices with this key, the worst first: a function may hold several."""
    return sorted((_rank(one) for one in devices if _key(one) == key), reverse=True)


def _worst(devices: Iterable[DeviceVerdict], key: str) -> int:
    """The rank of the worst device with this key, 0 if none is bad."""
    return max(_ranks(devices, key), default=0)
