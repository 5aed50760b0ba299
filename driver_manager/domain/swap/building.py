"""Parts that several rows of the plan share: acquiring the node, loading, staged slots.

Must not import the planner, which builds its rows from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from msgspec.structs import replace

from driver_manager.domain.errors import ModuleStuck
from driver_manager.domain.host import NEXT, PREVIOUS, StagedSlot, StagedSlots
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import Loader, Mode, Situation
from driver_manager.domain.pci import Binding
from driver_manager.domain.pods import workloads
from driver_manager.domain.pods.labels import is_pausable
from driver_manager.domain.profile import Profile, Strategy, beside, driver_version, joined, kept, options, unload_order
from driver_manager.domain.swap import eviction
from driver_manager.domain.swap.node_patches import found_journal, noted_driver, pausable_keys, paused_keys, take
from driver_manager.domain.swap.preflight import checks, firmware_checks, places_us, refuse, tool_checks
from driver_manager.domain.swap.steps import (
    AnyStep,
    FlipRoot,
    GiveBack,
    KeepRoot,
    LoadModules,
    PauseLast,
    RecordDigest,
    RemoveArtifacts,
    RemoveConflicting,
    SetFirmwarePath,
    StopServices,
    TakeNode,
    UnmountDriverRoot,
    WaitForOperands,
)
from driver_manager.domain.text import several

# Files and mounts of an earlier driver on the host, and which of them may go before the next one.


def is_installing(situation: Situation) -> bool:
    """Whether a driver container is at work, whose modules and root are not stale; never in its own init container.

    Where devices go to virtual machines such a pod leaves before anything is cleaned.
    """
    if situation.policy.loader is Loader.MANAGER or situation.policy.mode is Mode.VFIO:
        return False
    key = situation.profile.deploy.driver_key
    return any(key in pod.selector_keys and not pod.is_over and pod.main_started for pod in situation.obs.pods.pods)


def clean(situation: Situation, paths: tuple[str, ...]) -> list[AnyStep]:
    """Unmount what is mounted at the driver root, unless it is in use; remove those of `paths` that are there."""
    steps: list[AnyStep] = []
    host, mounts = situation.host, situation.host.root_mounts
    wanted = [source.real_root or source.root for source in (host.source, host.previous_source) if source is not None]
    is_source = any(_overlap(root, mount) for root in wanted for mount in mounts)
    may_go = situation.policy.loader is not Loader.MANAGER or not is_source
    if mounts and may_go and not is_installing(situation):
        steps.append(UnmountDriverRoot(mounts))
    ready = ready_names(situation.profile)
    # Health-watch may put the ready marker aside, or back, between our look and our lock: both names go then.
    either = ready if any(path in host.artifacts for path in ready) else ()
    present = tuple(path for path in paths if path and (path in host.artifacts or path in either))
    return [*steps, RemoveArtifacts(present)] if present else steps


def driver_files(profile: Profile) -> tuple[str, ...]:
    """What speaks of a driver that is gone, or of a run that could not replace it, or has."""
    paths = profile.paths
    return (*paths.artifacts, *ready_names(profile), paths.state_file, paths.failure_note, paths.reload_request)


def ready_names(profile: Profile) -> tuple[str, str]:
    """The ready marker, and the one that health-watch has put aside: neither is about the next driver."""
    return profile.paths.ready_marker, profile.paths.ready_withdrawn


def _overlap(root: str, mount: str) -> bool:
    """Whether a tree at `root` would lose something if `mount` went."""
    one, other = root.rstrip("/") + "/", mount.rstrip("/") + "/"
    return one.startswith(other) or (other.startswith(one) and root != "/")


def staged(situation: Situation) -> tuple[StagedSlots, StagedSlot] | None:
    """All slots, and the one that this run loads the driver from; None where it loads none, or from elsewhere."""
    slots = situation.host.slots
    if situation.policy.loader is not Loader.MANAGER or slots is None or places_us(situation):
        return None
    slot = slots.named(slots.wanted)
    return None if slot is None else (slots, slot)


def keep_root(situation: Situation) -> tuple[KeepRoot, ...]:
    """Before any pod is disturbed: the trees get the places from which one exchange brings the new driver."""
    found = staged(situation)
    if found is None or found[0].path(found[1].name) == found[0].root:
        return ()
    slots, slot = found
    previous = situation.host.previous_source
    takes = slot.digest if slots.path(slot.name) == slots.root + NEXT else ""
    brings_back = bool(takes) and previous is not None and previous.root == slots.root + PREVIOUS
    version = driver_version(situation.host.modules)
    if previous is not None:
        is_known = brings_back or slots.root in (previous.root.rstrip("/"), previous.real_root)
    else:
        is_known = not version
    if not is_known:  # the files at the root were replaced after the driver was loaded
        return (KeepRoot(slots.root, "", "", takes),)
    # Of any boot: a reboot in between changes nothing in a folder on disk.
    digest, at_root = _old_digest(situation), slots.at(slots.root)
    if previous is None and at_root is not None and not at_root.problem:
        digest = digest or at_root.digest  # no driver is loaded, as after a reboot: the one at the root is the old one
    version = version or (previous.version if previous is not None else "")
    return (KeepRoot(slots.root, digest, version, takes, brings_back),)


def flip_slots(situation: Situation) -> tuple[FlipRoot, ...]:
    """Between the old modules and the new ones: the new tree comes to the driver root."""
    found = staged(situation)
    if found is None:
        return ()
    slots, slot = found
    path, previous = slots.path(slot.name), situation.host.previous_source
    is_done = path == slots.root
    has_way_back = previous is not None and previous.root != path
    if is_done and (previous is None or previous.root != slots.root + PREVIOUS):
        return ()
    return (FlipRoot(slots.root, slot.text, has_way_back, is_done),)


def stale_keys(situation: Situation) -> frozenset[str]:
    """Deploy-label keys of operand pods that mount the driver root itself: they keep the tree that it leads to now."""
    flips = flip_slots(situation)
    if not flips or flips[0].is_done:
        return frozenset()
    own = situation.obs.own_pod
    places_us = own.selector_keys if own is not None else frozenset[str]()
    keys = situation.profile.deploy_keys(situation.obs.node.labels) - places_us
    bound = (pod for pod in workloads.placed_by(situation.obs.pods.pods, keys, own) if _mounts_root(pod, flips[0].root))
    return frozenset(key for pod in bound for key in pod.selector_keys & keys)


def slot_notes(situation: Situation) -> tuple[str, ...]:
    """Warnings for pods that no label moves and that keep seeing the old tree."""
    flips = flip_slots(situation)
    if not flips:
        return ()
    own, keys = situation.obs.own_pod, situation.profile.deploy_keys(situation.obs.node.labels)
    moved = workloads.placed_by(situation.obs.pods.pods, keys, own)
    left = [
        pod
        for pod in situation.obs.pods.pods
        if _mounts_root(pod, flips[0].root) and pod not in moved and not pod.has_left and pod != own
    ]
    if not left:
        return ()
    what = f"{several(left)} mount {flips[0].root}, and no label makes them leave"
    return (f"{what}: they see the old driver tree until they are restarted",)


def _mounts_root(pod: Pod, root: str) -> bool:
    """Whether a hostPath volume is the root, or something in it: a folder that holds the root shows where it leads."""
    return any(path == root or path.startswith(f"{root}/") for path in pod.host_paths)


def _old_digest(situation: Situation, *, of_this_boot: bool = False) -> str:
    """Digest of the driver before the swap, "" if unknown."""
    old = noted_driver(situation, of_this_boot=of_this_boot)
    return (old.digest if old is not None else situation.host.digest) or ""


# The steps that load a driver, what they go back to if it does not load, and the preflight before them.


def loading(situation: Situation) -> list[AnyStep]:
    """Steps that load the wanted driver and record its digest; none where its container does, or none is wanted."""
    source = situation.host.source
    # There is no way back from a driver that must not be unloaded.
    previous = situation.host.previous_source if situation.profile.strategy is Strategy.IN_PLACE else None
    if situation.policy.loader is not Loader.MANAGER or source is None or places_us(situation):
        return []
    paths, digest = situation.profile.paths, situation.obs.digest
    given = options(situation.profile.modules.parameters, _values_to_keep(situation))
    flips = flip_slots(situation)
    source = replace(source, given=joined(source.given, given))
    previous = replace(previous, given=joined(previous.given, given)) if previous is not None else None
    for flip in flips:
        # Either is at the root when it is loaded.
        if previous is not None and previous.root in (source.root, flip.root + PREVIOUS):
            previous = previous.moved_to(flip.root)
        source = source.moved_to(flip.root)
    return [
        *flips,
        *_firmware_path(situation),
        LoadModules(source, previous, _old_digest(situation, of_this_boot=True), _further_modules(situation)),
        *([RecordDigest(paths.state_file, digest, paths.load_record, source)] if digest else []),
    ]


def making_way(situation: Situation) -> list[AnyStep]:
    """The step that unloads what must not be loaded beside the driver that is to come; none for who only uninstalls."""
    names = unload_order(situation.host.removable, ())
    return [RemoveConflicting(names)] if names and not places_us(situation) else []


def _firmware_path(situation: Situation) -> list[AnyStep]:
    wanted = situation.profile.paths.firmware
    return [SetFirmwarePath(wanted)] if wanted and wanted != situation.host.firmware_path else []


def _values_to_keep(situation: Situation) -> Mapping[str, str]:
    """Parameters of the driver before; those that a run of this boot noted were read while that one was loaded."""
    old = noted_driver(situation)
    if old is not None and old.modules:
        return old.parameters
    return kept(situation.host.parameters, situation.profile.modules.keep_parameters)


def load_notes(situation: Situation) -> tuple[str, ...]:
    """What is worth a warning before the wanted driver is loaded; nothing where its container does."""
    source = situation.host.source
    if situation.policy.loader is not Loader.MANAGER or source is None:
        return ()
    doubts = (*firmware_checks(source), *tool_checks(source, situation.profile))
    return (*(f"{check.what}. {check.remedy}" for check in doubts), *slot_notes(situation))


def _further_modules(situation: Situation) -> tuple[str, ...]:
    """Modules of the driver that were loaded beside its roots, in the order to load those again that are not back."""
    old, roots = noted_driver(situation), situation.profile.modules.roots
    if old is None or not old.modules:
        return beside(situation.host.modules, roots, situation.profile.modules.order)
    return tuple(name for name in reversed(old.modules) if name not in roots)


def check(situation: Situation, *, keeps_driver: bool = False) -> None:
    """Raise PreflightFailed, which names every problem, if the driver cannot be replaced or loaded.

    `keeps_driver`: the run loads and unloads no module.

    Raises ModuleStuck while the kernel unloads a module of the driver: a load would wait for that without a limit, or
    fail as busy (kernel/module/main.c, add_unformed_module).
    """
    if situation.host.leaving:
        raise ModuleStuck(
            f"the kernel is still unloading module {several(situation.host.leaving)}",
            "Run again. If it persists, reboot the node; the next run continues. The kernel log (dmesg) may show what "
            "the module waits for.",
        )
    refuse(checks(situation, keeps_driver=keeps_driver))


# How a plan acquires a node, clears the device of users, and releases the node again: steps from facts.


def before_the_unload(
    situation: Situation, bindings: tuple[Binding, ...] = ()
) -> tuple[tuple[AnyStep, ...], tuple[AnyStep, ...], eviction.EvictionPlan]:
    """What makes everybody leave the device; which of it takes the node; and what becomes of users' pods.

    `bindings` are what the devices are bound to, where that will change, too.
    """
    check(situation)
    cleared, cordon = eviction.clearing(situation), not eviction.is_managed(situation)
    services = eviction.stopped_services(situation)
    first, last = pause_in_two(situation)
    patient = (
        *eviction.wait_for_owners(situation),
        *eviction.wait_for_stuck(situation, first | last, cleared.found),
        *eviction.wait_for_holders(situation, cleared.found),
    )
    taken = taking(situation, first, cordon=cordon, services=services, bindings=bindings)
    # No pod may come while the run waits for others, so the cordon is set before that, where that is not done yet.
    is_early = cordon and bool(cleared.first)
    early = take(situation, frozenset(), cordon=True, bindings=bindings) if is_early else ()
    if not any(isinstance(step, WaitForOperands) for step in taken):
        # There is no pod to wait for, but one may have come before the cordon.
        taken = (*taken, _wait_for_operands(situation, frozenset()))
    steps = (
        *patient,
        *keep_root(situation),
        *early,
        *cleared.first,
        *taken,
        *cleared.steps,
        *pause_last(situation, last),
        *((StopServices(services),) if services else ()),
    )
    warnings = (*cleared.warnings, *workloads.unread_claims(workloads.node_pods(situation.obs)))
    return steps, taken, replace(cleared, warnings=warnings)


def pause_in_two(situation: Situation) -> tuple[frozenset[str], frozenset[str]]:
    """Keys to pause at once, and those that have to wait until no claim is held any more."""
    keys = pausable_keys(situation.obs, situation.profile) | driver_gate(situation)
    waits = workloads.holds_claim(workloads.node_pods(situation.obs), situation.profile, situation.policy.eviction)
    last = workloads.plugin_keys(situation.obs.pods.pods, situation.profile) if waits else frozenset()
    return keys - last, keys & last


def pause_last(situation: Situation, keys: frozenset[str]) -> tuple[AnyStep, ...]:
    """The steps that pause `keys` when all others have left, and wait for their pods."""
    if not keys:
        return ()
    left = keys - paused_keys(situation.obs.node, situation.profile)
    return (*((PauseLast(tuple(sorted(left))),) if left else ()), _wait_for_operands(situation, keys))


def _wait_for_operands(situation: Situation, keys: Set[str]) -> WaitForOperands:
    pods = tuple(sorted(str(pod) for pod in workloads.moved_by(situation.obs.pods.pods, keys, situation.obs.own_pod)))
    return WaitForOperands(tuple(sorted(keys)), pods, situation.policy.pod_termination_timeout_s)


def driver_gate(situation: Situation) -> frozenset[str]:
    """The driver's own deploy label where devices go to virtual machines and it is on: its pod is to leave as well."""
    own, deploy = situation.obs.own_pod, situation.profile.deploy
    if situation.policy.mode is not Mode.VFIO or not deploy.prefix or (own and deploy.driver_key in own.selector_keys):
        return frozenset()
    value = situation.obs.node.labels.get(deploy.driver_key)
    is_on = is_pausable(value) and value != deploy.preinstalled_value
    return frozenset({deploy.driver_key}) if is_on else frozenset()


def _switched_off(situation: Situation) -> frozenset[str]:
    """Deploy labels that placed pods of this node and are gone from it: their pods leave, and the run waits for them.

    Not if a driver stays or follows: the device's users are found by themselves.
    """
    if situation.policy.mode is not Mode.VFIO:
        return frozenset()
    deploy, labels, own = situation.profile.deploy, situation.obs.node.labels, situation.obs.own_pod
    used = {key for pod in situation.obs.pods.pods for key in pod.selector_keys if key not in labels}
    # A component that is on unless its label is false needs no label.
    found = deploy.keys_in(dict.fromkeys(used, "")) - set(deploy.on_unless_false) | ({deploy.driver_key} & used)
    return found - (own.selector_keys if own is not None else frozenset())


def taking(
    situation: Situation,
    pause: Set[str],
    *,
    cordon: bool,
    services: tuple[str, ...] = (),
    bindings: tuple[Binding, ...] = (),
) -> tuple[AnyStep, ...]:
    """The step that takes the node with the labels in `pause` paused, and the wait for those whom that makes leave."""
    taken = take(situation, pause, cordon=cordon, services=services, bindings=bindings)
    keys = frozenset(pause) | _switched_off(situation)
    return (*taken, _wait_for_operands(situation, keys)) if keys else taken


def releasing(situation: Situation, taken: tuple[AnyStep, ...] = ()) -> tuple[GiveBack, ...]:
    """The step that releases the node as `taken` acquired it, or as an earlier run left it; none if it is free."""
    journals = (step.journal for step in taken if isinstance(step, TakeNode))
    journal = next(journals, None) or found_journal(situation.obs, situation.profile)
    return (GiveBack(journal),) if journal is not None else ()


def users_stay(situation: Situation, why: str) -> tuple[workloads.Workload, ...]:
    """The pods that use the driver, of which none has to leave."""
    return workloads.staying(workloads.node_pods(situation.obs), situation.profile, situation.policy.eviction, why)
