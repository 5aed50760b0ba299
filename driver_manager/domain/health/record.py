"""What a later process of health-watch goes on with: one versioned line of JSON, gone with the boot.

Owns its form and how it is reconciled with the marks on the host. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.escaping import writable
from driver_manager.domain.health.machine import EVIDENCE_CHARS, EVIDENCE_LINES, RECENT, HealthState, History
from driver_manager.domain.health.surroundings import Mute, Surroundings
from driver_manager.domain.health.wedge import NO_WEDGE, NoticeKind, Wedge
from driver_manager.domain.journal import Owner
from driver_manager.domain.probe_result import DeviceVerdict, Health
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form


class HistoryUnreadable(ConfigError):
    """The file is no history that this version can go on with."""


FORM = Form("health-watch's record", HistoryUnreadable, "No action needed: it is written again.")
MAX_FAILURES = 2**31
MAX_PID = 2**22
"""The kernel gives no higher process id (proc(5), pid_max); more failures than that take four thousand years."""


MAX_DEVICES = 256
MAX_REASON_CHARS = 200


def encode(history: History, boot_id: str) -> str:
    """The history as a later process of this boot needs it, and whoever looks at it: one line of JSON."""
    body = {
        "bootId": boot_id,
        "state": history.state.value,
        "failures": history.failures,
        "failedAt": history.failed_at_s,
        "wasHealthy": history.was_healthy,
        "isFlapping": history.is_flapping,
        "recent": list(history.recent),
        "evidence": list(history.evidence),
        "reason": history.reason,
        **({"driver": history.driver} if history.driver else {}),
        **({"stuck": _of_process(history.stuck)} if history.stuck is not None else {}),
        **({"wedge": _of_wedge(history.wedge)} if history.wedge != NO_WEDGE else {}),
        **({"mute": _of_mute(history.mute)} if history.mute is not None else {}),
        **({"devices": [_of_device(one) for one in history.devices[:MAX_DEVICES]]} if history.devices else {}),
    }
    return FORM.write(body) + "\n"


def resume(text: str, seen: Surroundings, now_s: float, patience_s: float, threshold: int) -> History:
    """The history to go on with: what `encode` wrote, corrected by the marks on the host.

    It is written before the marks are changed. So marks are a wedge, unless the record says that the driver recovered
    and only their removal was cut short. Without marks a suspicion needs one more failure, whatever was counted, and
    one whose last failure is more than `patience_s` seconds past is dropped. Garbage and other boots' records count
    for nothing.
    """
    history = recorded(text, seen.boot_id)
    if seen.is_marked and history.state not in (HealthState.HEALTHY, HealthState.SUSPECT):
        reason = history.reason if history.state is HealthState.WEDGED else "already marked on the host at the start"
        failures = max(history.failures, threshold) if seen.has_request_of_ours else history.failures
        wedge = history.wedge
        if not wedge.since_s and seen.has_request_of_ours and seen.marker is not None:
            wedge = replace(wedge, since_s=seen.marker.written_s)
        return replace(history, state=HealthState.WEDGED, failures=failures, reason=reason, wedge=wedge)
    is_fresh = 0 <= now_s - history.failed_at_s <= patience_s
    failures = min(history.failures, threshold - 1) if is_fresh else 0
    calm = HealthState.HEALTHY if seen.is_marked else HealthState.STARTING
    return replace(history, state=HealthState.SUSPECT if failures else calm, failures=failures)


def adopted(history: History, text: str, boot_id: str) -> History:
    """`history` of a fresh wedge, as the record in `text` has it where another process has declared it already.

    Two that watch one driver see the same wedge moments apart: one Event is to come of it.
    """
    there = recorded(text, boot_id)
    return replace(history, wedge=there.wedge) if there.state is HealthState.WEDGED and there.wedge.since_s else history


def _of_device(device: DeviceVerdict) -> dict[str, str]:
    """What a healthy device says of itself changes with every sample, and is not worth a write."""
    reason = "" if device.health is Health.HEALTHY else writable(device.reason)[:MAX_REASON_CHARS]
    return {"name": device.name, "address": device.address, "health": device.health.value, "reason": reason}


def _device(body: Fields) -> DeviceVerdict:
    health = Health(body.choice("health", [health.value for health in Health]))
    reason = writable(body.text("reason"))[:MAX_REASON_CHARS]
    return DeviceVerdict(writable(body.text("name")), health, reason, writable(body.text("address")))


def _of_process(owner: Owner) -> dict[str, int]:
    """What tells a process from all others of one boot."""
    return {"pid": owner.pid, "startTicks": owner.start_ticks, "pidNamespace": owner.pid_namespace}


def _of_wedge(wedge: Wedge) -> dict[str, Any]:
    told = wedge.told.value if wedge.told else ""
    return {"since": wedge.since_s, "told": told, **({"evidence": wedge.evidence} if wedge.evidence else {})}


def _wedge(body: Fields) -> Wedge:
    told = body.choice("told", ["", *(kind.value for kind in NoticeKind)])
    since_s, evidence = body.whole("since", least=0, most=LAST_MOMENT_S), writable(body.text("evidence", ""))
    return Wedge(since_s, NoticeKind(told) if told else None, evidence)


def _of_mute(mute: Mute) -> dict[str, Any]:
    return {"until": mute.until_s, "said": mute.said, "where": mute.where}


def _mute(body: Fields) -> Mute:
    return Mute(body.seconds("until"), writable(body.text("said")), writable(body.text("where")))


def _process(body: Fields) -> Owner:
    return Owner(
        pid=body.whole("pid", least=1, most=MAX_PID),
        start_ticks=body.whole("startTicks"),
        pid_namespace=body.whole("pidNamespace"),
    )


def recorded(text: str, boot_id: str) -> History:
    """What `encode` wrote in this boot; a fresh start for anything else."""
    try:
        body = FORM.read(text)
        if body.text("bootId") != boot_id:
            return History()
        return History(
            state=HealthState(body.choice("state", [state.value for state in HealthState])),
            failures=body.whole("failures", least=0, most=MAX_FAILURES),
            was_healthy=body.flag("wasHealthy"),
            is_flapping=body.flag("isFlapping"),
            recent=body.flags("recent")[-RECENT:],
            evidence=tuple(writable(line)[: EVIDENCE_CHARS + 20] for line in body.texts("evidence"))[-EVIDENCE_LINES:],
            reason=writable(body.text("reason")),
            failed_at_s=body.seconds("failedAt"),
            driver=writable(body.text("driver", "")),
            stuck=_process(body.fields("stuck")) if "stuck" in body else None,
            devices=tuple(_device(one) for one in body.each("devices"))[:MAX_DEVICES] if "devices" in body else (),
            wedge=_wedge(body.fields("wedge")) if "wedge" in body else NO_WEDGE,
            mute=_mute(body.fields("mute")) if "mute" in body else None,
        )
    except HistoryUnreadable:
        return History()
