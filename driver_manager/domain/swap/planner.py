"""plan(observation, profile, policy) → Plan: the decision table of reconcile-driver-state.

Pure: no clock, no I/O. Resuming is planning again: a journal from an earlier run is one more fact.
Raises the errors that stop a run before its first effect.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.errors import (
    ConfigError,
    OwnedElsewhere,
    PodsRemain,
    PreflightFailed,
    RebootRequired,
    StandingDown,
)
from driver_manager.domain.model import Host, Loader, Observation, Policy
from driver_manager.domain.modules import driver_version, unload_order
from driver_manager.domain.pods.operands import bound_to_root, placed_by
from driver_manager.domain.pods.workloads import holds_claim, node_pods, staying, unread_claims
from driver_manager.domain.profile import Profile, Strategy
from driver_manager.domain.reboot.state import is_granted
from driver_manager.domain.swap.driver_state import is_host_driver, is_loaded, why_replace
from driver_manager.domain.swap.eviction_plan import clearing, is_managed, safe_load, stale_safe_load
from driver_manager.domain.swap.loading import check, loading
from driver_manager.domain.swap.node_patches import found_journal, give_back, pausable_keys, paused_keys, take
from driver_manager.domain.swap.reboot_rows import plan_reboot_driver
from driver_manager.domain.swap.steps import (
    Decision,
    GiveBack,
    PauseLast,
    Plan,
    RemoveArtifacts,
    StandDown,
    Step,
    StopServices,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForDevice,
    WaitForOperands,
)


def plan(obs: Observation, profile: Profile, policy: Policy) -> Plan:
    """What a run would do now, and why.

    Raises ConfigError away from the node or without a digest to compare, OwnedElsewhere while another run's owner
    lives, PreflightFailed when the driver could not be replaced.
    """
    host = _host_of(obs)
    refuse_if_owned(obs, take_over=policy.take_over)
    skipped = _is_skipped(obs, profile, policy)
    try:
        decided = _decided(obs, host, profile, policy)
    except (PodsRemain, PreflightFailed) as error:
        raise skipped or error from None
    if skipped and any(not isinstance(step, GiveBack) for step in decided.steps):
        raise skipped
    loads = decided.decision in (Decision.NOT_LOADED, Decision.REPLACE)
    first = safe_load(obs, profile, policy) if loads else ()
    _refuse_before_a_reboot(obs, host, profile, decided)
    return replace(decided, steps=(*(first or stale_safe_load(obs, profile)), *decided.steps))


def _refuse_before_a_reboot(obs: Observation, host: Host, profile: Profile, decided: Plan) -> None:
    """Raise RebootRequired where the node would be taken though its reboot was granted, and may come at any moment."""
    if is_granted(obs.node, profile.keys, host.boot_id) and any(isinstance(step, TakeNode) for step in decided.steps):
        raise RebootRequired(
            f"the reboot of node {obs.node.name} was granted, and may come at any moment",
            "Nothing: the run after the reboot goes on. `driver-manager status` says what the reboot waits for. "
            f"Where no rebooter runs any more, remove the annotation {profile.keys.reboot_in_progress}.",
        )


def wants_users(obs: Observation, profile: Profile, policy: Policy) -> bool:
    """Whether claims and holders of the device matter to the plan: the loaded driver, or its root, is to go.

    Raises as `plan`.
    """
    host = _host_of(obs)
    refuse_if_owned(obs, take_over=policy.take_over)
    if profile.strategy is Strategy.REBOOT or not is_loaded(host, profile):
        return False
    if policy.loader is Loader.CONTAINER and is_host_driver(obs, host):
        return False
    return bool(why_replace(obs, host, policy)) or (bool(host.root_mounts) and _container_starts_anew(obs, policy))


def _decided(obs: Observation, host: Host, profile: Profile, policy: Policy) -> Plan:
    if profile.strategy is Strategy.REBOOT:
        return plan_reboot_driver(obs, host, profile, policy)
    if policy.loader is Loader.CONTAINER and is_host_driver(obs, host):
        return _stand_down(obs, host, profile, policy)
    if not is_loaded(host, profile):
        return _first_install(obs, host, profile, policy)
    why = why_replace(obs, host, policy)
    if why:
        return _replace(obs, host, profile, policy, why)
    return _keep(obs, host, profile, policy)


def _is_skipped(obs: Observation, profile: Profile, policy: Policy) -> StandingDown | None:
    """By hand, the error for a node that is labelled to be left out; a pod's run is the operator's."""
    key = profile.keys.skip
    if not key or obs.node.labels.get(key) != "true" or obs.own_pod is not None or policy.ignore_skip:
        return None
    return StandingDown(
        f"node {obs.node.name} is labelled {key}=true: it is left out of upgrades",
        "Remove the label, or use --ignore-skip.",
    )


def refuse_if_owned(obs: Observation, *, take_over: bool) -> None:
    """Raise OwnedElsewhere when the journal belongs to another run that still lives and `take_over` is not asked."""
    journal = obs.journal
    if journal is None or take_over or obs.owner_alive is False or journal.owner == obs.me:
        return
    doubt = "which is still there" if obs.owner_alive else "of which cannot be told from here whether it lives"
    raise OwnedElsewhere(
        f"node {obs.node.name} is taken by {journal.owner}, {doubt}",
        "Wait for it: a pod resumes by itself when its container starts again. --take-over continues in its place, "
        "once you are sure that it does nothing any more.",
    )


def _host_of(obs: Observation) -> Host:
    if obs.host is None:
        raise ConfigError(
            f"this is not node {obs.node.name}: its machine id and boot id differ from this host's",
            "Run it on the node (init container, or `kubectl debug node/NAME` with the host at /host), "
            "or set --node-name to the node this is.",
        )
    return obs.host


def _stand_down(obs: Observation, host: Host, profile: Profile, policy: Policy) -> Plan:
    deploy = profile.deploy
    step = StandDown(
        key=deploy.driver_key,
        value=deploy.preinstalled_value,
        timeout_s=policy.pod_termination_timeout_s if obs.own_pod else 0.0,
        why=f"the host has its own driver ({host.host_driver})",
        already_labelled=obs.node.labels.get(deploy.driver_key) == deploy.preinstalled_value,
    )
    return Plan(
        Decision.HOST_DRIVER,
        f"the host has its own driver, {host.host_driver}; a container must not install another",
        (*give_back(found_journal(obs, profile)), step),
    )


def _first_install(obs: Observation, host: Host, profile: Profile, policy: Policy) -> Plan:
    """No module loaded: nothing can hold the device, so nobody is evicted or waited for but pods of a stale root."""
    check(host, profile, policy)
    work: list[Step] = []
    if not _is_installing(obs, profile, policy):
        if host.modules:  # left behind by a load that failed or was killed
            work.append(UnloadModules(unload_order(host.modules)))
        paths = (*profile.paths.artifacts, *_ready(profile), profile.paths.state_file)
        work += _clean(obs, host, profile, policy, paths)
    work += loading(obs, host, profile, policy)
    stale = bound_to_root(obs, profile) if any(isinstance(step, UnmountDriverRoot) for step in work) else frozenset()
    # Whoever loads, unloads or unmounts takes the node, so that two runs never do so at once.
    owns = obs.journal is not None or any(not isinstance(step, RemoveArtifacts) for step in work)
    taken = _taken(obs, profile, policy, stale, cordon=False) if owns else ()
    steps = [*taken, *work, *_release(obs, profile, taken)]
    loads = policy.loader is Loader.MANAGER
    reason = "the driver is not loaded: " + ("load it" if loads else "its container loads it, the way is made clear")
    users = staying(node_pods(obs), profile, policy.eviction, "no driver is loaded, so nothing is unloaded")
    return Plan(Decision.NOT_LOADED, reason, tuple(steps), workloads=users)


def _keep(obs: Observation, host: Host, profile: Profile, policy: Policy) -> Plan:
    """Loaded and current. A driver container about to start anew replaces its root: operands must let go of it."""
    version = driver_version(host.modules)
    reason = f"driver is current: digest {obs.digest[:12]}, version {version or 'unknown'}, loaded since this boot"
    users = staying(node_pods(obs), profile, policy.eviction, "the driver stays loaded")
    if not _container_starts_anew(obs, policy):
        return Plan(Decision.CURRENT, reason, give_back(found_journal(obs, profile)), workloads=users)
    work = _clean(obs, host, profile, policy, _ready(profile))
    if not host.root_mounts:
        return Plan(Decision.CURRENT, reason, (*work, *give_back(found_journal(obs, profile))), workloads=users)
    check(host, profile, policy)
    first, last = _pause_in_two(obs, profile, policy)
    taken = _taken(obs, profile, policy, first, cordon=False)
    steps = (*taken, *work, *_release(obs, profile, taken))
    reason += "; its container starts anew, so pods must let go of the old root"
    held = tuple(f"{key} is not paused: pods may hold claims, and could not end without it" for key in sorted(last))
    return Plan(Decision.REBIND, reason, steps, held, users)


def _container_starts_anew(obs: Observation, policy: Policy) -> bool:
    """Whether we are the init container of a driver container: what an earlier one left on the host is stale."""
    return policy.loader is Loader.CONTAINER and obs.own_pod is not None and not obs.own_pod.main_started


def _replace(obs: Observation, host: Host, profile: Profile, policy: Policy, why: str) -> Plan:
    check(host, profile, policy)
    cleared, cordon = clearing(obs, profile, policy), not is_managed(obs, profile)
    services = host.active_services if policy.stop_host_services else ()
    first, last = _pause_in_two(obs, profile, policy)
    taken = _taken(obs, profile, policy, first, cordon=cordon, services=services)
    # Nothing new shall come while others are waited for, so the cordon is set before that.
    early = _taken(obs, profile, policy, frozenset(), cordon=True) if cordon and cleared.first else ()
    if not first:  # nobody to wait for, but somebody may have come before the cordon
        taken = (*taken, WaitForOperands((), (), policy.pod_termination_timeout_s))
    steps: list[Step] = [
        *early,
        *cleared.first,
        *taken,
        *cleared.steps,
        *_pause_last(obs, policy, last),
        *((StopServices(services),) if services else ()),
        WaitForDevice(policy.device_free_timeout_s),
        UnloadModules(unload_order(host.modules)),
        *_clean(
            obs,
            host,
            profile,
            policy,
            (*profile.paths.artifacts, *_ready(profile), profile.paths.state_file),
        ),
        *loading(obs, host, profile, policy),
        *_release(obs, profile, taken),
    ]
    warnings = [*cleared.warnings, *unread_claims(node_pods(obs))]
    if policy.loader is Loader.CONTAINER and obs.own_pod is None:
        warnings.append(
            "run by hand with DRIVER_LOAD=container: nothing loads the driver until the driver pod is restarted"
        )
    return Plan(Decision.REPLACE, why, tuple(steps), tuple(warnings), cleared.found)


def _pause_in_two(obs: Observation, profile: Profile, policy: Policy) -> tuple[frozenset[str], frozenset[str]]:
    """Keys to pause at once, and those that have to wait until no claim is held any more."""
    keys = pausable_keys(obs.node, profile)
    last = profile.deploy.last_keys if holds_claim(node_pods(obs), profile, policy.eviction) else frozenset()
    return keys - last, (keys & last) - paused_keys(obs.node, profile)


def _pause_last(obs: Observation, policy: Policy, keys: frozenset[str]) -> tuple[Step, ...]:
    if not keys:
        return ()
    names = tuple(sorted(keys))
    pods = tuple(sorted(str(pod) for pod in placed_by(obs.pods.pods, keys, obs.own_pod)))
    return (PauseLast(names), WaitForOperands(names, pods, policy.pod_termination_timeout_s))


def _taken(
    obs: Observation,
    profile: Profile,
    policy: Policy,
    pause: frozenset[str],
    *,
    cordon: bool,
    services: tuple[str, ...] = (),
) -> tuple[Step, ...]:
    step = take(obs, profile, pause, cordon=cordon, services=services)
    pods = tuple(sorted(str(pod) for pod in placed_by(obs.pods.pods, pause, obs.own_pod)))
    wait = WaitForOperands(tuple(sorted(pause)), pods, policy.pod_termination_timeout_s) if pause else None
    return tuple(found for found in (step, wait) if found is not None)


def _release(obs: Observation, profile: Profile, taken: tuple[Step, ...]) -> tuple[GiveBack, ...]:
    for step in taken:
        if isinstance(step, TakeNode):
            return (GiveBack(step.journal),)
    return give_back(found_journal(obs, profile))


def _is_installing(obs: Observation, profile: Profile, policy: Policy) -> bool:
    """Whether a driver container is at work, whose modules and root are not stale; never in its own init container."""
    if policy.loader is Loader.MANAGER:
        return False
    pods = (pod for pod in obs.pods.pods if profile.deploy.driver_key in pod.selector_keys and not pod.is_over)
    return any(pod.main_started for pod in pods)


def _clean(obs: Observation, host: Host, profile: Profile, policy: Policy, paths: tuple[str, ...]) -> list[Step]:
    """Unmount what is mounted at the driver root, unless it is in use; remove those of `paths` that are there."""
    steps: list[Step] = []
    wanted = [source.real_root or source.root for source in (host.source, host.previous_source) if source is not None]
    is_source = policy.loader is Loader.MANAGER and any(
        _overlap(root, mount) for root in wanted for mount in host.root_mounts
    )
    if host.root_mounts and not is_source and not _is_installing(obs, profile, policy):
        steps.append(UnmountDriverRoot(host.root_mounts))
    ready = _ready(profile)
    # Health-watch may put the ready marker aside, or back, between our look and our lock: both names go then.
    either = ready if any(path in host.artifacts for path in ready) else ()
    present = tuple(path for path in paths if path and (path in host.artifacts or path in either))
    if present:
        steps.append(RemoveArtifacts(present))
    return steps


def _ready(profile: Profile) -> tuple[str, str]:
    """The ready marker, and the same put aside by health-watch: neither says anything of the next driver."""
    return profile.paths.ready_marker, profile.paths.ready_withdrawn


def _overlap(root: str, mount: str) -> bool:
    """Whether a tree at `root` would lose something if `mount` went."""
    one, other = root.rstrip("/") + "/", mount.rstrip("/") + "/"
    return one.startswith(other) or (other.startswith(one) and root != "/")
