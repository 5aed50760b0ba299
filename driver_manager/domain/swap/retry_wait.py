"""How long a run waits because an earlier one disturbed pods and failed, and nothing changed since.

Nothing has changed if all of these are the same: the boot; what is wanted (`wish`); the pod of the run, unless one of
the runs was by hand; and at least one of the pods and processes that were in the way, if any was known. A new pod of
the driver is a request to try again, so it does not wait.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from msgspec.structs import replace

from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    ManagerError,
    NodeMissing,
    OwnedElsewhere,
    RebootRequired,
    StandingDown,
)
from driver_manager.domain.host import NEXT, PREVIOUS, UNREAD, DriverSource, PastFailure, pod_blocker, process_blocker
from driver_manager.domain.observation import Situation
from driver_manager.domain.pods.labels import gate_originals, originals
from driver_manager.domain.swap import steps

AFTER_FAILURE = "failure"
"""What is waited for then, as often as it takes."""

FIRST_S = 30.0
"""The first wait; each further one is twice as long, up to RETRY_WAIT."""

MOST_DOUBLINGS = 20

_PASSING = (ApiUnavailable, Conflict, NodeMissing, OwnedElsewhere, RebootRequired, StandingDown)
"""Exit codes that do not predict the next run: an API server that is away, another run's turn, a signal."""


def wait_first(situation: Situation, decided: steps.Plan) -> steps.Plan:
    """`decided`, after a wait if it would disturb a pod for what failed a moment ago."""
    past = situation.host.failure
    # What a run of this host has paused already, as its record shows, must not stay paused any longer.
    if past is None or AFTER_FAILURE in situation.waited or situation.obs.is_resumed or not disturbs(decided):
        return decided
    left_s = _left_s(situation, past)
    if left_s <= 0 or not _is_unchanged(situation, past):
        return decided
    until = time_of_day(situation.obs.at.wall_s + left_s)
    wait = steps.WaitAfterFailure(left_s, until, past.exit_code, past.what, past.attempts)
    return replace(decided, steps=(wait, steps.PlanAgain(AFTER_FAILURE), *decided.steps))


def failure_to_record(situation: Situation, error: ManagerError, failed_s: float) -> PastFailure | None:
    """The record of a run that had acquired the node and ended with `error`, `failed_s` seconds into the boot.

    None for an end that does not predict the next run.
    """
    if isinstance(error, _PASSING):
        return None
    past, wanted = situation.host.failure, wish(situation)
    repeats = past is not None and past.wish == wanted
    return PastFailure(
        boot_id=situation.host.boot_id,
        wish=wanted,
        exit_code=int(error.exit_code),
        what=error.what,
        failed_s=failed_s,
        attempts=past.attempts + 1 if repeats and past is not None else 1,
        pod_uid=situation.obs.me.pod_uid,
        blockers=error.blockers,
    )


def wait_s(attempts: int, most_s: float) -> float:
    """Seconds from the `attempts`th failure in a row to the next try."""
    return min(most_s, FIRST_S * 2.0 ** min(attempts - 1, MOST_DOUBLINGS))


def time_of_day(wall_s: float) -> str:
    """`wall_s`, in seconds since the epoch, for people."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%H:%M:%S UTC")


def wish(situation: Situation) -> str:
    """A word for what is wanted and for all that decides how it is done; another one wherever any of it differs."""
    policy, node, keys, deploy = situation.policy, situation.obs.node, situation.profile.keys, situation.profile.deploy
    switches = situation.profile.deploy_keys(node.labels)
    # The labels as they were before a pause.
    journaled = situation.obs.journal.labels if situation.obs.journal is not None else {}
    labels = {key: node.labels.get(key, "") for key in (*switches, deploy.driver_key, keys.skip)}
    labels |= originals(node.labels, journaled, switches - set(deploy.on_unless_false), deploy.paused_value)
    known = situation.obs.journal.gates if situation.obs.journal is not None else {}
    gates = gate_originals(node.labels, known, frozenset(deploy.on_unless_false))
    labels |= {key: value or "" for key, value in gates.items()}
    wanted = [
        situation.profile.name,
        situation.obs.digest,
        # The first is the length of the wait; the others decide which run may continue, not what it does.
        steps.as_json(replace(policy, retry_wait_s=0.0, take_over=False, ignore_skip=False)),
        labels,
        node.annotations.get(keys.upgrade_enabled, ""),
        _of_source(situation.host.source),
    ]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32]


def _of_source(source: DriverSource | None) -> list[list[str]]:
    if source is None:
        return []
    files = (*source.modules, *source.dependencies)
    options = [f"{name} {text}" for name, text in sorted(source.options.items())]
    lacking = [name for missing in source.missing_firmware for name in missing.names]
    root = source.root.removesuffix(NEXT).removesuffix(PREVIOUS)  # a staged driver changes its place with each try
    return [[root, *options], lacking, *([file.name, file.version, file.stamp] for file in files)]


def _left_s(situation: Situation, past: PastFailure) -> float:
    """Seconds until the next try is due; 0 for a failure that is still to come."""
    gone_s = situation.obs.at.monotonic_s - past.failed_s
    return wait_s(past.attempts, situation.policy.retry_wait_s) - gone_s if gone_s >= 0 else 0.0


def disturbs(decided: steps.Plan) -> bool:
    """True if a pod that is on the node has to leave by this plan."""
    return any(
        (isinstance(step, steps.TakeNode) and (bool(step.change.labels) or step.change.unschedulable is not None))
        or isinstance(step, steps.EvictWorkloads | steps.DrainNode)
        for step in decided.steps
    )


def _is_unchanged(situation: Situation, past: PastFailure) -> bool:
    me = situation.obs.me.pod_uid
    is_other_pod = bool(me and past.pod_uid) and me != past.pod_uid
    if is_other_pod or past.boot_id != situation.host.boot_id or past.wish != wish(situation):
        return False
    return not past.blockers or not _still_there(situation).isdisjoint(past.blockers)


def _still_there(situation: Situation) -> frozenset[str]:
    """Names of possible obstacles: pods, and processes that hold the device."""
    pods = (pod_blocker(pod.uid) for pod in situation.obs.pods.pods)
    processes = (process_blocker(one.pid, one.process) for one in situation.obs.holders if one.how != UNREAD)
    return frozenset((*pods, *processes))
