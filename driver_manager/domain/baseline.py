"""The baseline of a swap: what devices, services and modules were like before a run replaced the driver.

The new driver is judged by comparison with it: a device that was bad before does not count against the new driver, and
a device that got worse, or is missing, does. It is a JSON file beside the load record that only root can write, and
counts only in its boot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    `is_reload`: the same driver was loaded again, to recover its devices. What was bad before is then no excuse.
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
    is_reload: Annotated[bool, Part("reload", is_omitted=True)] = False

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
        bad = [one for one in result.devices if _rank(one)]
        fails = not result.devices or any(not one.is_lost for one in bad) or (not bad and not result.served)
        is_left = result.health is Health.UNHEALTHY and not fails and not result.is_slow
        remarks = tuple(f"{one.name} is {one.reason}" for one in bad)
        return replace(result, health=Health.HEALTHY, remarks=remarks) if is_left else result
    before = replace(before, devices=_renamed(before.devices, result.devices))
    worked = [one for one in before.devices if not _rank(one)]
    served = [one for one in before.served if _worst(before.devices, one) < LOST]
    lost = (*_without_driver(result, served), *_not_listed(result, worked), *_left_bus(result, served))
    excuses = _excuses(result.devices, before.devices, ())
    for at, one in enumerate(result.devices):
        known = [other.health for other in before.devices if _is_same(other, one)] or [before.rest]
        if not before.devices or Health.UNKNOWN in known:
            excuses[at] = excuses[at] or "unknown if that was so before the swap"
    had_failed = Health.UNHEALTHY in (before.rest, before.health if not before.devices else None)
    still_work = [one for one in result.devices if not _rank(one)]
    all_still_work = all(any(_is_same(one, now) for now in still_work) for one in worked)
    return _judged(result, excuses, lost, excuses_rest=had_failed and all_still_work)


def in_service(
    result: ProbeResult, before: Baseline | None, served: Collection[str], earlier: Collection[str] = ()
) -> ProbeResult:
    """`result` of a driver in service. `served` are the keys of devices that were healthy since it was loaded.

    `earlier` are those of devices that were healthy under a driver before it. A key is the PCI address, or the name of
    a device without one. A device that served, ever, and has left the bus is lost. A device that was bad before the
    swap does not count until it has been healthy once; one that was healthy before a reload counts at once. `served` of
    the result are the keys of the devices that are healthy now.
    """
    known, worked = before or Baseline(""), {*served, *earlier}
    excuses = _excuses(result.devices, known.devices, worked if known.is_reload else served)
    worked |= {one for one in known.served if not _worst(known.devices, one)}
    judged = _judged(result, excuses, tuple(_left_bus(result, worked)), excuses_rest=False)
    return replace(judged, served=_healthy(result))


def _excuses(devices: Sequence[DeviceVerdict], before: Sequence[DeviceVerdict], served: Collection[str]) -> list[str]:
    """For each of `devices`, AS_BEFORE if it is bad, no worse than in `before`, and not in `served`; else "".

    A function may hold several devices: the worst of now is compared with the worst of before.
    """
    found, seen = [""] * len(devices), dict[str, int]()
    for at in sorted(range(len(devices)), key=lambda at: _rank(devices[at]), reverse=True):
        one, key = devices[at], _key(devices[at])
        known = sorted((_rank(other) for other in before if _is_same(other, one)), reverse=True)
        nth = seen[key] = seen.get(key, -1) + 1
        if 0 < _rank(one) <= (known[nth] if nth < len(known) else 0) and key not in served:
            found[at] = AS_BEFORE
    return found


def _judged(
    result: ProbeResult, excuses: Iterable[str], lost: tuple[DeviceVerdict, ...], *, excuses_rest: bool
) -> ProbeResult:
    """`result` with the devices `lost`, and a remark in place of each bad device that has an excuse."""
    gone, devices, remarks = {_key(one) for one in lost}, list[DeviceVerdict](), list[str]()
    for one, why in zip(result.devices, excuses, strict=True):
        if _key(one) in gone:
            continue
        if _rank(one) and why:
            one = replace(one, health=Health.HEALTHY, reason=f"{one.reason}, {why}")  # noqa: PLW2901
            remarks.append(f"{one.name} is {one.reason}")
        devices.append(one)
    devices += lost
    rest = result.rest if result.devices else result.health
    if rest is Health.UNHEALTHY and excuses_rest:
        remarks.append(f"{result.reason}, {AS_BEFORE}")
        rest = Health.HEALTHY
    judged = replace(result, devices=tuple(devices), remarks=tuple(remarks))
    bad = "; ".join(f"{one.name} is {one.reason}" for one in devices if _rank(one))
    if bad or rest is Health.UNHEALTHY:
        says_all = (
            not bad or (rest is Health.UNHEALTHY and not remarks and not lost) or judged.devices == result.devices
        )
        reason = result.reason if says_all else bad
        return replace(judged, health=Health.UNHEALTHY, reason=reason, is_slow=result.is_slow and not lost)
    if rest is Health.UNKNOWN or any(one.health is Health.UNKNOWN for one in devices):
        return replace(judged, health=Health.UNKNOWN, is_slow=False)
    return replace(judged, health=Health.HEALTHY, reason="; ".join(remarks) or result.reason, is_slow=False)


def _healthy(result: ProbeResult) -> tuple[str, ...]:
    """The keys of the healthy devices. If the tool prints no addresses, the functions too if all are healthy."""
    bad = {_key(one) for one in result.devices if one.health is not Health.HEALTHY}
    good = {_key(one) for one in result.devices} - bad
    if not any(one.address for one in result.devices) and result.health is Health.HEALTHY:
        good |= {*result.served}
    return tuple(sorted(one for one in good if ":" not in one or one in result.served))


def _without_driver(result: ProbeResult, served: Iterable[str]) -> Iterator[DeviceVerdict]:
    """The functions of `served` that are on the bus and have no driver."""
    on_bus = result.on_bus or {}
    return (_lost(one, "without a driver now") for one in served if on_bus.get(one, "?") == "")


def _renamed(before: Sequence[DeviceVerdict], now: Sequence[DeviceVerdict]) -> tuple[DeviceVerdict, ...]:
    """`before` with the names of `now`, where another version of the tool names devices without addresses differently.

    Each device that only one of them has stands for one of the other, the worst for the worst.
    """
    old = [at for at, one in enumerate(before) if not any(_is_same(one, other) for other in now)]
    new = [one for one in now if not any(_is_same(other, one) for other in before)]
    old.sort(key=lambda at: _rank(before[at]), reverse=True)
    new.sort(key=_rank, reverse=True)
    found = list(before)
    for at, one in zip(old, new, strict=False):
        if not (found[at].address and one.address):
            found[at] = replace(found[at], name=one.name)
    return tuple(found)


def _not_listed(result: ProbeResult, worked: Iterable[DeviceVerdict]) -> Iterator[DeviceVerdict]:
    """The devices of `worked` without an address that the tool, if it lists any, lists no more."""
    for one in worked if result.devices else ():
        if not one.address and not any(_is_same(one, now) for now in result.devices):
            yield _lost(one.name, "not listed any more")


def _left_bus(result: ProbeResult, served: Iterable[str]) -> Iterator[DeviceVerdict]:
    """The devices of `served` that are neither on the bus nor in the tool's list."""
    if result.on_bus is None:
        return
    there = {*result.on_bus, *(one.address for one in result.devices if not one.is_lost)}
    for address in sorted(served):
        if ":" in address and address not in there:
            yield _lost(address, "lost: it served before and is not on the PCI bus any more")


def _lost(key: str, why: str) -> DeviceVerdict:
    return DeviceVerdict(key, Health.UNHEALTHY, why, key if ":" in key else "", is_lost=True)


def _key(device: DeviceVerdict) -> str:
    return device.address or device.name


def _is_same(before: DeviceVerdict, now: DeviceVerdict) -> bool:
    """By address, or by name if one of the tool's versions prints no address."""
    by_address = bool(before.address and now.address)
    return before.address == now.address if by_address else before.name == now.name


def _rank(device: DeviceVerdict) -> int:
    """0 for a device that works or whose health is unknown, else SICK or LOST."""
    if device.health is not Health.UNHEALTHY:
        return 0
    return LOST if device.is_lost else SICK


def _worst(devices: Iterable[DeviceVerdict], key: str) -> int:
    """The rank of the worst device with this key, 0 if none is bad."""
    return max((_rank(one) for one in devices if _key(one) == key), default=0)
