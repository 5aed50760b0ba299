"""`rollout status` and `rollout plan` as JSON and as text, which is made from the JSON: both have the same content."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from msgspec import Struct

from driver_manager import profiles, schemas
from driver_manager.adapters.kube import transport
from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import INSTALL, KubeDesk, node_label_keys, readers
from driver_manager.adapters.kube.transport import is_in_pod
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.options import fitted, styled, table, titled, when, written_moment, zone
from driver_manager.cli.session import connection, log_form, named_profile
from driver_manager.core.fleet.world import ObservedRollout, look
from driver_manager.core.fleet_ports import FactKind, Leader, Subject
from driver_manager.core.ports_base import Reporter
from driver_manager.domain import settings
from driver_manager.domain.errors import ConfigError, ManagerError
from driver_manager.domain.fleet.advance import advance, last_good
from driver_manager.domain.fleet.spec import Fleet, RolloutObject
from driver_manager.domain.fleet.state import NodePhase, NodeView, Outlook, Pace, Phase
from driver_manager.domain.fleet.status import (
    INVALID_SPEC,
    STANDING,
    by_reason,
    node_counts,
    outlook_of_problems,
    recorded,
    wave_body,
)
from driver_manager.domain.fleet.waves import preflight_reason
from driver_manager.domain.profile import NodeKeys, Profile
from driver_manager.domain.settings import Values
from driver_manager.domain.text import MOST_NAMED, several, spoken
from driver_manager.domain.wire import seconds_of

# Hints: the next commands for a rollout that does not continue by itself

PROGRAM = "driver-manager rollout"
NO_CONTROLLER = (
    f"no controller leads, so nothing happens: install it as docs/rollout.md shows ({INSTALL}), or check its pods"
)


Json = dict[str, Any]


def hints(
    rollout: RolloutObject, fleet: Fleet | None, outlook: Outlook, *, has_leader: bool, way: str = ""
) -> list[Json]:
    """The next steps, the most likely first, each with its command, "" without one; `way` is that of Shown."""
    steps = _next_steps(rollout, fleet, outlook, f"{way} -n {rollout.namespace}".strip())
    found = [*steps] if has_leader else [(NO_CONTROLLER, ""), *steps]
    return [{"what": what, "command": command} for what, command in found]


def _next_steps(rollout: RolloutObject, fleet: Fleet | None, outlook: Outlook, where: str) -> Iterator[tuple[str, str]]:
    phase, reason = outlook.phase, outlook.reason

    def command(verb: str, *words: str) -> str:
        return " ".join((PROGRAM, verb, where, *words))

    if reason == INVALID_SPEC:
        yield "fix the spec", f"kubectl {where} edit driverrollout {rollout.name}"
    if reason not in ("FailedBefore", "Undoing"):
        failed = [one.name for one in outlook.nodes if one.place is NodePhase.FAILED]
        refused = [one.name for one in outlook.nodes if _is_refused(one)]
        for nodes, what in (
            (failed, "retry a failed node, after checking it"),
            (refused, "check again a node that is left out, after checking it"),
        ):
            if nodes:
                rest = " ..." if len(nodes) > MOST_NAMED else ""
                yield what, command("retry", "--rollout", rollout.name, *nodes[:MOST_NAMED]) + rest
    if reason == "FailedBefore":
        yield "try this revision again", command("retry", "--rollout", rollout.name, "--revision")
    if phase is Phase.HALTED and reason != "Undoing" and fleet is not None:
        to = last_good(fleet, outlook.target)
        if to:
            yield f"go back to revision {to}", command("undo", rollout.name)
    if phase is Phase.WAITING_FOR_APPROVAL:
        yield "approve the next wave", command("approve", rollout.name)
    if phase is Phase.PAUSED:
        yield "resume", command("resume", rollout.name)


def _is_refused(node: NodeView) -> bool:
    """True if the node is left out because of its preflight."""
    found = node.preflight
    return node.place is NodePhase.LEFT_OUT and found is not None and node.reason == preflight_reason(found)


# `rollout status` and `rollout plan` as JSON, in the form of `schemas/rollout.schema.json`

LATE_S = 60.0
"""Seconds after its expiry until a Lease counts as free: the clocks of two machines may differ by less."""


class Shown(Struct, frozen=True):
    """What is shown: a rollout as read at `now_s`, its profile's name, and the leader (None if unknown).

    `way` has the options of the command line by which the cluster is reached, for the commands in hints.
    """

    sight: ObservedRollout
    profile: str
    now_s: float
    leader: Leader | None = None
    way: str = ""


def outlook_of(shown: Shown) -> Outlook:
    """The rollout as shown; one whose spec has problems is stalled."""
    if shown.sight.fleet is not None:
        return advance(shown.sight.fleet, shown.now_s).outlook
    return outlook_of_problems(shown.sight.rollout.problems)


def body(shown: Shown, outlook: Outlook, plan: Json | None = None) -> Json:
    """Everything that is shown; `plan` has the fields of `rollout plan`."""
    rollout, fleet = shown.sight.rollout, shown.sight.fleet
    leader = leader_body(shown.leader, shown.now_s)
    return {
        "schemaVersion": schemas.VERSION,
        "rollout": rollout.key,
        "daemonSet": fleet.policy.daemon_set if fleet is not None else None,
        "profile": shown.profile,
        "phase": outlook.phase.value,
        "reason": outlook.reason,
        "message": outlook.message,
        "hints": hints(rollout, fleet, outlook, has_leader=leader is None or leader["isLeading"], way=shown.way),
        "target": _revision(fleet, outlook.target, _began(shown, outlook.target)),
        "good": _revision(fleet, rollout.memory.good, None),
        "failedRevisions": list(rollout.memory.failed),
        "wave": outlook.wave,
        "counts": node_counts(outlook.nodes),
        "waves": [{**wave_body(one), "ended": written_moment(one.ended_s)} for one in outlook.waves],
        "nodes": [_node(one) for one in sorted(outlook.nodes, key=lambda one: one.name)],
        "controller": leader,
        "pace": _pace(outlook.pace, shown.now_s) if fleet is not None else None,
        "plan": plan,
    }


def _pace(found: Pace, now_s: float) -> Json:
    return {
        "typicalSeconds": None if found.node_s is None else round(found.node_s),
        "windowSeconds": None if found.window_s is None else round(found.window_s, 3),
        "ends": written_moment(None if found.left_s is None else now_s + found.left_s),
    }


def _began(shown: Shown, target: str) -> float | None:
    history = shown.sight.rollout.memory.history
    return history[-1].began_s if history and history[-1].revision == target else None


def _revision(fleet: Fleet | None, name: str, began_s: float | None) -> Json | None:
    """A revision by its hash, with its number if it still exists; None for ""."""
    if not name:
        return None
    number = next((one.number for one in fleet.revisions if one.hash == name), None) if fleet is not None else None
    return {"revision": name, "number": number, "began": written_moment(began_s)}


def _node(one: NodeView) -> Json:
    return {
        "node": one.name,
        "place": one.place.value,
        "wave": one.wave,
        "reason": one.reason,
        "since": written_moment(one.since_s),
    }


def leader_body(found: Leader | None, now_s: float) -> Json | None:
    if found is None:
        return None
    over_s = (found.renewed_s or 0.0) + (found.lasts_s or 0.0) + LATE_S
    return {
        "leader": found.name,
        "renewed": written_moment(found.renewed_s),
        "isLeading": bool(found.name) and found.renewed_s is not None and now_s < over_s,
    }


COLOURS = {Phase.COMPLETE.value: "green", **{phase.value: "red" for phase in STANDING}}
"""Other phases are yellow."""

WORDS = {"updated": "updated", "underWay": "under way", "waiting": "waiting", "failed": "failed", "leftOut": "left out"}
WIDTH = 11
MOST_NODES = 20
"""Maximum nodes of one phase that have a line each."""


def rollout_text(body: Json, now_s: float) -> str:
    """The screen of `rollout status`; words in `body` are on one line each, `now_s` is in seconds since the epoch."""
    return _screen(
        body,
        now_s,
        ("nodes", [rollout_in_short(body["counts"])]),
        ("pace", _pace_text(body, now_s)),
        ("waves", table(_waves(body, now_s), WIDTH + 1) if body["waves"] else []),
    )


Rows = tuple[str, list[str]]
"""Lines and their title."""


def _screen(body: Json, now_s: float, *parts: Rows) -> str:
    """The headline, the hints, `parts`, each node that is not done with its reason, and what is rolled out."""
    places = [
        *((place.value, _each(body, place, now_s)) for place in (NodePhase.FAILED, NodePhase.UNDER_WAY)),
        *((place.value, _groups(body, place)) for place in (NodePhase.WAITING, NodePhase.LEFT_OUT)),
    ]
    hints = [line for one in body["hints"] for line in (one["what"], f"  {one['command']}") if line.strip()]
    lines = titled([("to do", hints), *parts, *places, *_facts(body, now_s)], WIDTH)
    for node in body["nodes"]:  # each has a line with its reason below
        if node["place"] == NodePhase.FAILED.value:
            body = {**body, "message": body["message"].replace(f"; {node['node']}: {node['reason']}", "")}
    return fitted("\n".join([rollout_headline(body), *lines]))


def rollout_headline(body: Json) -> str:
    phase, reason = body["phase"], body["reason"]
    word = styled(phase, fg=COLOURS.get(phase, "yellow"), bold=True)
    return f"{word}{f' ({reason})' if reason != phase else ''}: {body['message']}"


def _pace_text(body: Json, now_s: float) -> list[str]:
    pace, counts = body["pace"], body["counts"]
    if pace is None or not counts["waiting"] + counts["underWay"]:
        return []
    if pace["typicalSeconds"] is None:
        return ["no estimate before the first node is done"]
    text = f"a node takes about {spoken(pace['typicalSeconds'])}"
    if pace["windowSeconds"] is not None:
        text += f", its users are without their device for {pace['windowSeconds']:.1f} s of it"
    ends = f"done by {when(pace['ends'], now_s)} at the earliest" if pace["ends"] else "no estimate of the end now"
    return [f"{text}; {ends}"]


def rollout_in_short(counts: Json) -> str:
    parts = [f"{counts[key]} {word}" for key, word in WORDS.items() if counts[key]]
    return f"{counts['total']} in all{': ' if parts else ''}{', '.join(parts)}"


def _facts(body: Json, now_s: float) -> Iterator[Rows]:
    target, good = body["target"], body["good"]
    about = f" of DaemonSet {body['daemonSet']}" if body["daemonSet"] else ""
    yield "rollout", [f"{body['rollout']}{about}, profile {body['profile']}"]
    if target is not None:
        since = f", since {when(target['began'], now_s)}" if target["began"] else ""
        last = f"; good on all nodes: {_named(good)}" if good is not None and good != target else ""
        yield "revision", [f"{_named(target)}{since}{last}"]
    yield "controller", [_controller(body["controller"], now_s)]


def _waves(body: Json, now_s: float) -> list[list[str]]:
    """The table of the waves, with the phases that have nodes as columns."""
    waves = body["waves"]
    shown_words = {key: word for key, word in WORDS.items() if any(wave[key] for wave in waves)}
    cells = [["WAVE", "NAME", "NODES", *(word.upper() for word in shown_words.values()), "ENDED"]]
    for wave in waves:
        mark = "*" if wave["number"] == body["wave"] else " "
        counted = [str(wave[key] or "-") for key in shown_words]
        ended = when(wave["ended"], now_s) if wave["ended"] else "-"
        cells.append([f"{wave['number']}{mark}", wave["name"], str(wave["total"]), *counted, ended])
    return cells


def _each(body: Json, place: NodePhase, now_s: float) -> list[str]:
    """Nodes in this place, each with its reason; those that have been there for longest first."""
    found = sorted(
        (node for node in body["nodes"] if node["place"] == place.value),
        key=lambda node: (node["since"] is None, node["since"] or "", node["node"]),
    )
    texts = [_one(node, now_s) for node in found[:MOST_NODES]]
    return texts + ([f"and {len(found) - MOST_NODES} more"] if len(found) > MOST_NODES else [])


def _one(node: Json, now_s: float) -> str:
    then_s = seconds_of(node["since"]) if node["since"] else None
    since = f" (for {spoken(now_s - then_s)})" if then_s is not None else ""
    return f"{node['node']}{since}: {node['reason']}" if node["reason"] else f"{node['node']}{since}"


def _groups(body: Json, place: NodePhase) -> list[str]:
    found = by_reason((node["node"], node["reason"]) for node in body["nodes"] if node["place"] == place.value)
    above = body["message"]
    lines = []
    for why, names in found:
        count = f" ({len(names)})" if len(names) > 1 else ""
        lines.append(f"{several(names)}{count}: {'as in the first line' if why in above else why}")
    return lines


def _named(revision: Json) -> str:
    number = f" (number {revision['number']})" if revision["number"] is not None else ""
    return f"{revision['revision']}{number}"


def _controller(leader: Json | None, now_s: float) -> str:
    if leader is None:
        return "unknown"
    if leader["isLeading"]:
        return f"{leader['leader']} leads"
    last = f"; {leader['leader']} led until {when(leader['renewed'], now_s)}" if leader["renewed"] else ""
    return f"none leads{last}"


# `rollout plan` as text

FATE = "the run on each node decides what happens to them"


def plan_text(body: Json, now_s: float) -> str:
    """The screen of `rollout plan`; words in `body` are on one line each, `now_s` is in seconds since the epoch."""
    plan = body["plan"]
    if plan is None:
        return _screen(body, now_s)
    to_go = _count(plan["toGo"], "node") if plan["toGo"] else "no node"
    parts = [("to go", [to_go]), ("pace", _pace_text(body, now_s))]
    if plan["toGo"]:
        parts += [("disturbs", [_disturbed(plan)]), ("waves", table(_planned_waves(plan), WIDTH + 1))]
    return _screen(body, now_s, *parts)


def _disturbed(plan: Json) -> str:
    if plan["pods"] is None:
        return "unknown: the pods on these nodes cannot be listed"
    if not plan["pods"]:
        return "no pod that uses the accelerator"
    return f"{_count(plan['pods'], 'pod')} that use the accelerator; {FATE}"


def _planned_waves(plan: Json) -> list[list[str]]:
    cells = [["WAVE", "NAME", "TO GO", "PODS", "APPROVAL", "NODES IN THEIR ORDER"]]
    for wave in plan["waves"]:
        nodes, pods = wave["nodes"], "?" if wave["pods"] is None else str(wave["pods"] or "-")
        approval = "-" if wave["approvalAfter"] is None else f"after wave {wave['approvalAfter']}"
        row = [str(wave["number"]), wave["name"], str(len(nodes) or "-"), pods, approval]
        cells.append([*row, several(one["node"] for one in nodes)])
    return cells


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# `rollout list`, in the form of `schemas/rollout-list.schema.json`


UNSEEN = "no controller has read it yet"


def listed_body(one: RolloutObject) -> Json:
    found = recorded(one.status)
    problem = f"the spec is not valid: {one.problems[0]}" if one.problems else ""
    return {
        "namespace": one.namespace,
        "name": one.name,
        "daemonSet": one.policy.daemon_set if one.policy is not None else None,
        "created": written_moment(one.created_s),
        **found,
        "message": found["message"] or problem or ("" if found["phase"] else UNSEEN),
    }


def list_text(rows: list[Json], namespace: str, now_s: float) -> str:
    """The table of `rows` in `namespace`, "" for all."""
    if not rows:
        here = f" in namespace {namespace}; -A lists those of all namespaces" if namespace else ""
        return f"there is no rollout{here}"
    cells = [["NAMESPACE", "NAME", "TARGET", "PHASE", "WAVE", "UPDATED", "FAILED", "AGE", "MESSAGE"]]
    for one in rows:
        counts, created_s = one["counts"], seconds_of(one["created"] or "")
        updated = f"{counts['updated']}/{counts['total']}" if one["phase"] else "-"
        age = "-" if created_s is None else spoken(now_s - created_s)
        row = [one["namespace"], one["name"], one["target"] or "-", _phase(one["phase"]), str(one["wave"] or "-")]
        cells.append([*row, updated, str(counts["failed"] or "-"), age, one["message"]])
    return "\n".join(table([row[bool(namespace) :] for row in cells]))


def _phase(phase: str | None) -> str:
    return styled(phase, fg=COLOURS.get(phase, "yellow")) if phase else "-"


# Namespace, profile and connection of every command


def namespace_of(values: Values, profile: Callable[[], Profile]) -> str:
    """The namespace of the option, the account, the kubeconfig or the profile. Raises ManagerError."""
    namespace = values[settings.ROLLOUT_NAMESPACE] or _namespace_there(values) or profile().namespace
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace):
        raise ConfigError(f"{namespace!r} is not the name of a namespace", f"Fix {settings.ROLLOUT_NAMESPACE.flag}.")
    return namespace


def _namespace_there(values: Values) -> str:
    """The namespace of the service account, or of the kubeconfig's context; "" without one."""
    kubeconfig, context = values[settings.KUBECONFIG], values[settings.KUBE_CONTEXT]
    if not (kubeconfig or context) and is_in_pod(transport.SERVICE_ACCOUNT, os.environ):
        with contextlib.suppress(OSError, ValueError):
            return (transport.SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        return ""
    from driver_manager.adapters.kube.kubeconfig import kubeconfig_namespace  # noqa: PLC0415  # in a pod, nothing of it is needed

    return kubeconfig_namespace(kubeconfig, context)


def refuse_without_state(profile: Profile) -> None:
    """Raise ConfigError for a profile without a label for the state of an upgrade."""
    if not profile.keys.upgrade_state:
        raise ConfigError(
            f"profile {profile.name} has no label for the state of a node's upgrade",
            "Add keys.upgrade_state to it; the shipped profiles show it.",
        )


R = TypeVar("R")


class RolloutSession(Struct, frozen=True):
    desk: KubeDesk
    profile: Profile
    namespace: str
    clock: SystemClock
    log: Reporter
    way: str = ""

    def look(self, name: str) -> ObservedRollout:
        """The rollout `name`, "" for the only one. Raises ManagerError."""
        its = self.profile
        return look(self.desk.listed, self.namespace, name, profile=its.name, clears_first=its.container_unloads)

    def readable(self, name: str) -> tuple[ObservedRollout, Fleet]:
        """The same with its facts. Raises ManagerError, also if its spec has problems."""
        sight = self.look(name)
        if sight.fleet is None:
            problem = sight.rollout.problems[0]
            raise ConfigError(
                f"rollout {sight.rollout.key} cannot be read: {problem}", "Fix its spec with kubectl edit."
            )
        return sight, sight.fleet


def open_rollouts(
    values: Values,
    clock: SystemClock | None = None,
    log: Reporter | None = None,
    budget_s: float = settings.BY_HAND_API_TIMEOUT_S,
) -> RolloutSession:
    """Connect and select the profile; a request takes at most `budget_s` seconds. Raises ManagerError."""
    found = clock or SystemClock()
    api, log = _opened(values, found, log, budget_s)
    profile = picked(values, api)
    desk = KubeDesk(api, readers(profile.keys, zone))
    return RolloutSession(desk, profile, namespace_of(values, lambda: profile), found, log, _way(values))


def _way(values: Values) -> str:
    """The options that name the cluster, if the command line has them; variables stay for the next command."""
    context = click.get_current_context(silent=True)
    typed = [
        (one.flag, values[one])
        for one in (settings.KUBECONFIG, settings.KUBE_CONTEXT)
        if context is not None and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    ]
    return shlex.join(word for pair in typed for word in pair)


def _opened(values: Values, clock: SystemClock, log: Reporter | None, budget_s: float) -> tuple[KubeApi, Reporter]:
    clock.install()
    log = log or log_form(values).reporter(clock.wall)
    return KubeApi(connection(values), clock, log, budget_s), log


def rollouts_in(values: Values, clock: SystemClock, *, is_of_all: bool) -> tuple[str, list[RolloutObject]]:
    """The namespace, "" for all, and its rollouts by name. Raises ManagerError."""
    api, _ = _opened(values, clock, None, settings.BY_HAND_API_TIMEOUT_S)
    namespace = "" if is_of_all else namespace_of(values, lambda: picked(values, api))
    desk = KubeDesk(api, readers(NodeKeys("", ""), zone))
    facts = [item.fact for item in desk.listed(Subject(FactKind.ROLLOUTS, namespace)).items]
    return namespace, sorted((one for one in facts if isinstance(one, RolloutObject)), key=lambda one: one.key)


def picked(values: Values, api: KubeApi) -> Profile:
    """The named profile, else the one whose labels the Nodes have. Raises ManagerError."""
    named, known = named_profile(values)
    if named is not None:
        refuse_without_state(named)
        return named
    serving = {name: one for name, one in known.items() if one.keys.upgrade_state}
    keys = node_label_keys(api)
    try:
        return profiles.pick(profiles.AUTO, serving, keys)
    except ConfigError as error:
        option = settings.DRIVER_PROFILE
        raise ConfigError(
            f"the profile cannot be determined from the labels of the Nodes: {error.what.rpartition(': ')[2]}",
            f"Name it with {option.flag} ({option.env}).",
        ) from error


def if_readable(read: Callable[[], R], log: Reporter, what: str) -> R | None:
    """The result of `read`, or None after a warning, as it is only shown."""
    try:
        return read()
    except ManagerError as error:
        log.warn(f"{what} cannot be shown: {error.what}")
        return None
