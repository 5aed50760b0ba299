"""`rollout plan`: who goes when, why each node waits, and whom it disturbs. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from driver_manager.cli import rollout_plan_text
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option
from driver_manager.cli.printing import in_form, put
from driver_manager.cli.rollout_body import Shown, body, moment, outlook_of
from driver_manager.cli.rollout_options import named_rollout, with_verb_options
from driver_manager.cli.rollout_session import RolloutSession, if_readable, open_rollouts
from driver_manager.cli.rollout_status import exit_code, leader
from driver_manager.domain.fleet.advance import survey
from driver_manager.domain.fleet.asking import asking_waves
from driver_manager.domain.fleet.forecast import Expected, Forecast
from driver_manager.domain.fleet.forecast import plan as foresee
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.pods.workloads import NodePods, namespaces_with_claims, workloads
from driver_manager.domain.policy import EvictionRules
from driver_manager.domain.setting import Values

Json = dict[str, Any]


@click.command(
    cls=ScreenCommand, name="plan", short_help="Show when each node will be upgraded, and which pods that disturbs."
)
@named_rollout
@output_option
@with_verb_options
def plan_command(*, name: str, output: str, values: Values) -> int:
    """Show what the rollout NAME will do: which nodes go in which wave, when, and why each of them waits.

    Times are estimated from the nodes that are done; before the first one there are none. Each wave shows how many
    pods use the accelerator on its nodes still to go; the run on each node decides what happens to them.
    """
    session = open_rollouts(values)
    sight = session.look(name)
    shown = Shown(sight, session.profile.name, session.clock.wall(), leader(session))
    outlook = outlook_of(shown)
    planned = None
    if sight.fleet is not None:
        forecast = foresee(sight.fleet, shown.now_s)
        pods = if_readable(lambda: users(session, forecast), session.log, "the pods that use the accelerator")
        planned = plan_body(sight.fleet, forecast, shown.now_s, pods)
    found = body(shown, outlook, planned)
    put(in_form(output, found, lambda words: rollout_plan_text.text(words, shown.now_s)))
    return exit_code(outlook)


def users(session: RolloutSession, forecast: Forecast) -> Mapping[str, int]:
    """How many pods use the accelerator on each node that is to go. Raises ManagerError."""
    rules = EvictionRules()
    found = session.desk.users_by_node({one.name for one in forecast.nodes})
    every = [pod for pods in found.values() for pod in pods]
    namespaces = namespaces_with_claims(every, session.profile, rules)
    claims = session.desk.claims(namespaces) if namespaces else ()
    return {
        node: sum(one.has_asked for one in workloads(NodePods(pods, claims, (), None), session.profile, rules))
        for node, pods in found.items()
    }


def plan_body(fleet: Fleet, forecast: Forecast, now_s: float, pods: Mapping[str, int] | None) -> Json:
    """What only a plan has; `pods` are those on each node that use the accelerator, None where that is not known."""
    seen = survey(fleet, now_s)
    asking = asking_waves(seen, fleet.wishes)
    by_wave: dict[int, list[Expected]] = {}
    for one in forecast.nodes:
        by_wave.setdefault(one.wave, []).append(one)
    waves = []
    for number, wave in enumerate(fleet.policy.waves, 1):
        before = [at for at in asking if at < number and number > seen.scene.turn.upto]
        waves.append(_wave(by_wave.get(number, ()), pods, number=number, name=wave.name, after=before[-1:]))
    return {
        "toGo": len(forecast.nodes),
        "typicalSeconds": None if forecast.typical_s is None else round(forecast.typical_s),
        "windowSeconds": None if forecast.window_s is None else round(forecast.window_s, 3),
        "ends": moment(forecast.ends_s),
        "pods": _sum(forecast.nodes, pods),
        "waves": waves,
    }


def _wave(
    nodes: Sequence[Expected], pods: Mapping[str, int] | None, *, number: int, name: str, after: Sequence[int]
) -> Json:
    """One wave; `after` is the wave at whose end somebody has to approve it, if there is one."""
    begins = [one.begins_s for one in nodes if one.begins_s is not None]
    ends = [one.ends_s for one in nodes if one.ends_s is not None]
    return {
        "number": number,
        "name": name,
        "approvalAfter": after[0] if after and nodes else None,
        "begins": moment(min(begins, default=None)),
        "ends": moment(max(ends)) if ends and len(ends) == len(nodes) else None,
        "pods": _sum(nodes, pods),
        "nodes": [
            {
                "node": one.name,
                "order": one.order,
                "reason": one.reason,
                "begins": moment(one.begins_s),
                "ends": moment(one.ends_s),
                "pods": None if pods is None else pods.get(one.name, 0),
            }
            for one in nodes
        ],
    }


def _sum(nodes: Sequence[Expected], pods: Mapping[str, int] | None) -> int | None:
    return None if pods is None else sum(pods.get(one.name, 0) for one in nodes)
