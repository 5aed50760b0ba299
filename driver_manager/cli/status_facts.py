"""Gathers what `status` shows: every part by itself, so that what is out of sight costs its own lines only.

Changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from driver_manager import settings
from driver_manager.adapters.host.client_notes import HostClientNotes
from driver_manager.adapters.host.health_marks import HostMarks
from driver_manager.cli import reboot_status
from driver_manager.cli.sight import Sight
from driver_manager.cli.wiring import Session
from driver_manager.core.swap.reconcile import decide
from driver_manager.domain import generation
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.generation import GenerationUnreadable
from driver_manager.domain.health import record
from driver_manager.domain.health.machine import HealthState, History
from driver_manager.domain.host import Holder
from driver_manager.domain.observation import Observation, Part
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import ClientRecord
from driver_manager.domain.pods.operands import named
from driver_manager.domain.policy import Mode, Policy
from driver_manager.domain.probe_result import ProbeResult
from driver_manager.domain.setting import Values
from driver_manager.domain.status.facts import DeviceHealth, StatusFacts
from driver_manager.domain.swap.plan import Plan

HOLDERS_S = 20.0
PROBE_S = 60.0
"""Bound of a probe that was asked for: its own timeout is shorter."""


class Gathered(Frozen):
    """What `status` shows: the facts, and the rebooter's side as it is printed."""

    facts: StatusFacts
    reboot: dict[str, Any] | None


def gather(values: Values, wanted: Callable[[Mode], Policy], *, probes: bool) -> Gathered:
    """Everything that can be seen. Raises ManagerError where neither the Node nor the host can.

    `wanted` is what a run would want in each mode. `probes`: take a sample of the devices' health now.
    """
    missing = Sight()
    session = missing.session(values)
    session.mode = _mode(session)
    obs = session.observe(session.node, reading=missing)
    session.warn_of_refused(obs)
    has_node = not {Part.CLUSTER, Part.NODE} & missing.errors.keys()
    if not has_node and obs.host is None:
        raise missing.first() or ManagerError("nothing can be seen", "Report this bug.")
    verdict, drivers = _verdict(session, obs, wanted(session.mode), missing), wanted(Mode.CONTAINER)
    reboot = reboot_status.facts(session, obs.node, on_host=obs.host is not None)
    facts = StatusFacts(
        obs=obs,
        profile=session.profile,
        verdict=verdict,
        now_s=session.clock.wall(),
        health=_health(session, obs, probes=probes),
        missing=missing.errors,
        reboot_waits_for=reboot["waitsFor"] if reboot else "",
        clients=_clients(session, obs),
        mode=session.mode,
        loader=drivers.loader,
        group_holders=_group_holders(session, obs),
        kmm=drivers.kmm,
    )
    return Gathered(facts, reboot)


def _mode(session: Session) -> Mode:
    """Whom the user's label wants the node's devices for."""
    known = session.profile.passthrough
    return Mode.VFIO if known is not None and known.is_wanted(session.node.labels) else Mode.CONTAINER


def _group_holders(session: Session, obs: Observation) -> tuple[Holder, ...]:
    """Who has a device that is on vfio, or between two drivers; none where that cannot be seen."""
    functions = obs.host.bus.functions if obs.host is not None else ()
    nodes = frozenset[str]().union(*(one.user_nodes for one in functions if one.is_on_vfio or not one.driver))
    if not nodes:
        return ()
    with contextlib.suppress(ManagerError):
        found = session.ports().devices.holders(nodes, Deadline.after(HOLDERS_S, session.clock.monotonic))
        return named(found, obs.pods.pods)
    return ()


def _verdict(session: Session, obs: Observation, wanted: Policy, missing: Sight) -> Plan | ManagerError:
    """What a run would do; where a part that it decides by is out of sight, the error of that part."""
    unseen = missing.first()
    if unseen is not None:
        return unseen
    try:
        return decide(session.ports(), obs, session.profile, wanted)[1]
    except ManagerError as error:
        return error


def _health(session: Session, obs: Observation, *, probes: bool) -> DeviceHealth:
    """What health-watch remembers of this boot, and where it is asked for, a sample taken now."""
    if obs.host is None:
        return DeviceHealth()
    marks = HostMarks(session.roots, session.profile, session.clock)
    text = marks.recall()
    history = record.recorded(text, obs.host.boot_id)
    withdrawn = session.profile.paths.ready_withdrawn
    seen = DeviceHealth(is_withdrawn=bool(withdrawn) and withdrawn in obs.host.artifacts)
    if history != History():
        seen = replace(
            seen,
            source="health-watch",
            state=history.state,
            reason=history.reason,
            since_s=_since_s(history),
            sampled_s=marks.touched_s(),
            devices=history.devices,
            has_stuck_probe=history.stuck is not None,
        )
    return _probed(session, seen) if probes else seen


def _clients(session: Session, obs: Observation) -> ClientRecord | None:
    """The generation of the driver that is loaded, as the host has noted it; away from it, as the Node shows it."""
    if obs.host is None:
        text = obs.node.annotations.get(session.profile.keys.generation, "")
        with contextlib.suppress(GenerationUnreadable):
            return ClientRecord(generation.decode(text)) if text else None
        return None
    notes = HostClientNotes(session.roots, session.profile, session.clock)
    with contextlib.suppress(ManagerError):
        there, seen = client_record.recorded(notes.recall()), notes.sighting()
        if there is not None and there.generation.goes_on_as(seen):
            return there
    return None


def _since_s(history: History) -> float | None:
    """When the wedge was declared, in seconds since the epoch; None where there is none, or that is not known."""
    is_wedged = history.state is HealthState.WEDGED
    return float(history.wedge.since_s) if is_wedged and history.wedge.since_s else None


def _probed(session: Session, seen: DeviceHealth) -> DeviceHealth:
    """`seen` with a sample of now, unless an earlier one is stuck: then another would be, too."""
    if seen.has_stuck_probe:
        return seen
    root = session.values[settings.DRIVER_ROOT] or session.profile.paths.driver_root
    host = session.ports().host
    result: ProbeResult = host.probe(root, Deadline.after(PROBE_S, session.clock.monotonic))
    reason = seen.reason or f"{result.health.value}: {result.reason}"
    return replace(seen, source="probe", reason=reason, sampled_s=session.clock.wall(), devices=result.devices)
