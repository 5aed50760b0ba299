"""Checks before the first effect: what would make the run fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from driver_manager.domain.errors import (
    ConfigError,
    ManagerError,
    ModuleStuck,
    OwnedElsewhere,
    PreflightFailed,
    RebootRequired,
)
from driver_manager.domain.host import UPGRADE_REASON, DriverSource, Host, MissingFirmware, ModuleFile, StagedSlots
from driver_manager.domain.node import REVISION_LABEL, ROLLOUT, Pod
from driver_manager.domain.observation import Loader, Mode, Observation, Policy, Situation, transition
from driver_manager.domain.profile import ChangeBy, Profile, Strategy, driver_version, has_root, is_own, users
from driver_manager.domain.swap.steps import EVICT_PODS, PATCH_NODES, WATCH_NODES, WATCH_PODS, Right, Step
from driver_manager.domain.text import FROM_ENVIRONMENT, differing, in_words, several

# Whether the driver that this host has is the wanted one: the questions that every row of the plan asks first.


def is_host_driver(situation: Situation) -> bool:
    """True if the host has a driver of its own. A digest, or a record with a driver, is a trace of an installer.

    An observed journal has a driver only from the host record, never from the Node.
    """
    host, journal = situation.host, situation.obs.journal
    is_traced = host.digest is not None or host.digest_problem or (journal is not None and journal.driver)
    return bool(host.host_driver) and not is_traced


def places_us(situation: Situation) -> str:
    """The deploy label of a run that only uninstalls, "" for a run of the driver pod.

    The manager's command is also the init container of other operands, which need the driver uninstalled and install
    none (vfio-manager, vgpu-manager): another deploy label than the driver's places their pods.
    """
    own, deploy = situation.obs.own_pod, situation.profile.deploy
    if own is None or not deploy.prefix or deploy.driver_key in own.selector_keys:
        return ""
    return next((key for key in sorted(own.selector_keys) if key.startswith(deploy.prefix)), "")


def is_loaded(host: Host, profile: Profile) -> bool:
    """Whether the driver is in the kernel: any of the profile's root modules."""
    return has_root(host.modules, profile.modules)


def why_replace(situation: Situation) -> str:
    """Why the loaded driver is replaced, or only goes; "" when current. Raises ConfigError without a digest."""
    if key := places_us(situation):
        return f"pod {situation.obs.own_pod}, which is placed by {key}, needs the driver uninstalled"
    if situation.policy.force_reinstall:
        return "a reinstall was forced"
    if not situation.obs.digest:
        raise ConfigError(
            "the wanted driver is unknown: no DRIVER_CONFIG_DIGEST, and no driver pod on this node to read it from",
            "Set DRIVER_CONFIG_DIGEST (or --driver-config-digest) as in the driver DaemonSet.",
        )
    if situation.host.digest_problem:
        return f"the recorded digest is unusable: {situation.host.digest_problem}"
    if situation.host.digest is None:
        return "no digest was recorded for the loaded driver"
    if situation.host.digest != situation.obs.digest:
        recorded, wanted, hint = differing(situation.host.digest, situation.obs.digest)
        return f"recorded digest {recorded} differs from the wanted {wanted}{hint}"
    because = f": {situation.host.reload}" if situation.host.reload else ""
    return f"a reload was requested to recover the driver{because}" if is_reload(situation) else ""


def is_reload(situation: Situation) -> bool:
    """True if the run is to load the same driver again, to recover its devices."""
    host = situation.host
    is_same = host.digest == situation.obs.digest and not places_us(situation)
    return host.reload is not None and is_same and situation.profile.strategy is Strategy.IN_PLACE


def is_owned_elsewhere(obs: Observation, *, take_over: bool) -> bool:
    """Whether the journal belongs to another run that may still live and `take_over` is not asked."""
    journal = obs.journal
    return not (journal is None or take_over or obs.owner_alive is False or journal.owner == obs.me)


def refuse_if_owned(obs: Observation, *, take_over: bool) -> None:
    """Raise OwnedElsewhere when the journal belongs to another run that still lives and `take_over` is not asked."""
    journal = obs.journal
    if journal is None or not is_owned_elsewhere(obs, take_over=take_over):
        return
    unknown = "and this host cannot determine whether it is still running"
    doubt = "which is still running" if obs.owner_alive else unknown
    raise OwnedElsewhere(
        f"node {obs.node.name} is taken by {journal.owner}, {doubt}",
        "Wait for it: a pod resumes by itself when its container restarts. Set TAKE_OVER=true (--take-over) once you "
        "are sure that it has stopped.",
    )


def ending_clear_pod(obs: Observation) -> Pod | None:
    """The pod that cleared the node for the driver pod that we run in; None if there is none, or it has left.

    It has no controller if a person made it. Its run ends once the old driver pod has left, which is when ours is
    created.
    """
    journal, own = obs.journal, obs.own_pod
    if journal is None or own is None or own.labels.get(REVISION_LABEL) != journal.cleared:
        return None
    there = (pod for pod in obs.pods.pods if pod.uid == journal.owner.pod_uid and pod.owner_kind in (ROLLOUT, ""))
    return next((pod for pod in there if not pod.has_left), None)


# `DRIVER_LOAD=none`: has a host that ships and loads its driver itself loaded the wanted one?
#
# Such hosts allow no other process to load a module, or lose the change at the next boot: a run compares, and names
# what the host's administrator has to do.

_UPDATE = "Update the host image or extension that ships the driver, then reboot the node. This run changes nothing."
_REBOOT = "Drain and reboot the node: the host loads the driver of its image at boot. This run does not reboot it."
_NAME_IT = "Set DRIVER_VERSION to the version that the host has to have loaded."


class Verified(Struct, frozen=True):
    """Why there is nothing to do; `doubts` are what could not be determined."""

    reason: str
    doubts: tuple[str, ...] = ()


def verified(situation: Situation) -> Verified:
    """Why the driver that the kernel has is the wanted one: by DRIVER_VERSION where it is set, else by
    DRIVER_CONFIG_DIGEST, else by what the host has on disk.

    Raises RebootRequired where the host has the wanted driver on disk and another one loaded, or where only a reboot
    replaces a driver and its disk is not known; PreflightFailed where the host has to be updated first, and where an
    expectation cannot be compared; ModuleStuck while the kernel unloads a module of the driver.
    """
    host = situation.host
    if host.leaving:
        raise ModuleStuck(
            f"the kernel is unloading module {several(host.leaving)}, and the host has to load the driver again",
            "Reboot the node. The kernel log (dmesg) may show what the module waits for.",
        )
    if places_us(situation):
        return _uninstalled(situation)
    missing = tuple(name for name in situation.profile.modules.roots if name not in host.modules)
    if not situation.profile.modules.are_loaded(lambda name: name in host.modules):
        raise _not_loaded(situation, missing)
    loaded, on_disk = _versions(situation)
    if situation.policy.driver_version:
        return _by_version(situation, loaded, on_disk)
    if situation.obs.digest_source == FROM_ENVIRONMENT:
        return _by_digest(situation, loaded)
    if not loaded or not on_disk:
        side = "loaded module" if on_disk else "host's disk"
        doubt = f"unknown whether the host's image has another driver: the {side} shows no version. {_NAME_IT}"
        return Verified(_reason(loaded), (doubt,))
    if loaded != on_disk:
        raise _differs(situation, f"driver {loaded} is loaded, and the host has {on_disk} on disk", has_wanted=True)
    return Verified(_reason(loaded))


def _reason(loaded: str, by: str = "") -> str:
    return f"driver is current: {by}version {loaded or 'unknown'}, loaded by the host itself (DRIVER_LOAD=none)"


def _uninstalled(situation: Situation) -> Verified:
    if not is_loaded(situation.host, situation.profile):
        return Verified("no driver is loaded: there is nothing to uninstall")
    raise PreflightFailed(
        f"pod {situation.obs.own_pod}, which is placed by {places_us(situation)}, needs the driver uninstalled, and "
        "the host loads it itself (DRIVER_LOAD=none)",
        "Remove the driver from the host image or from the modules that it loads at boot, then reboot the node.",
    )


def _not_loaded(situation: Situation, missing: tuple[str, ...]) -> PreflightFailed:
    source, names = situation.host.source, several(missing)
    what = f"the host has to load the driver itself (DRIVER_LOAD=none), and module {names} is not loaded"
    if source is None or source.problem:
        there = f": {source.problem}" if source is not None else ""
        remedy = f"Add the driver for kernel {situation.host.kernel_release} to the host image, then reboot the node."
        return PreflightFailed(f"{what}{there}", remedy)
    remedy = f"Add {names} to the modules that the host loads at boot, then reboot the node."
    return PreflightFailed(f"{what}; version {source.version or 'unknown'} is on the host's disk", remedy)


def _versions(situation: Situation) -> tuple[str, str]:
    """Version of the first root module that has one, as loaded and as on the host's disk; "" if unknown."""
    host = situation.host
    files = {file.name: file.version for file in host.source.modules} if host.source is not None else {}
    roots = [name for name in situation.profile.modules.roots if name in host.modules]
    name = next((name for name in roots if host.modules[name].version), roots[0])
    return host.modules[name].version, files.get(name, "")


def _by_version(situation: Situation, loaded: str, on_disk: str) -> Verified:
    wanted = situation.policy.driver_version
    if not loaded:
        raise PreflightFailed(
            f"driver {wanted} is wanted, and the version of the loaded driver cannot be determined",
            "Unset DRIVER_VERSION if the module of this driver never has a version.",
        )
    if loaded == wanted:
        return Verified(_reason(loaded))
    disk = f"the host has {on_disk} on disk" if on_disk else "what the host has on disk is unknown"
    what = f"driver {loaded} is loaded, {wanted} is wanted, and {disk}"
    raise _differs(situation, what, has_wanted=on_disk == wanted if on_disk else None)


def _by_digest(situation: Situation, loaded: str) -> Verified:
    host, digest = situation.host, situation.obs.digest
    if host.digest is None:
        why = host.digest_problem or f"the host has none recorded in {situation.profile.paths.state_file}"
        raise PreflightFailed(f"the wanted digest {in_words(digest)} cannot be compared: {why}", _NAME_IT)
    if host.digest == digest:
        return Verified(_reason(loaded, f"digest {in_words(digest)}, "))
    recorded, wanted, hint = differing(host.digest, digest)
    raise _differs(situation, f"recorded digest {recorded} differs from the wanted {wanted}{hint}", has_wanted=None)


def _differs(situation: Situation, what: str, *, has_wanted: bool | None) -> ManagerError:
    """The error if the loaded driver is not the wanted one; `has_wanted`: the host has that on its disk."""
    by_reboot = has_wanted is None and situation.profile.strategy is Strategy.REBOOT
    if has_wanted or by_reboot:
        return RebootRequired(what, _REBOOT if has_wanted else _UPDATE)
    return PreflightFailed(what, _UPDATE)


_BUILD_IT = "Use a driver that was built for this kernel, or set DRIVER_ROOT to the tree that holds it."
_LOOK_AT_IT = "Run again. If it persists, run modinfo on that file by hand: the file may be damaged or truncated."


class Check(Struct, frozen=True):
    """One thing looked at. `ok` is None where it could not be found out, which stops nothing."""

    name: str
    ok: bool | None
    what: str
    remedy: str = ""


def remedies(found: Iterable[Check]) -> str:
    """What to do about all of `found`, each remedy once."""
    return " ".join(dict.fromkeys(check.remedy for check in found))


def checks(situation: Situation, *, keeps_driver: bool = False) -> tuple[Check, ...]:
    """Everything that decides whether the driver can be loaded or replaced, apart from access rights.

    `keeps_driver`: the run loads and unloads no module.
    """
    if situation.policy.loader is Loader.NONE and situation.policy.mode is Mode.CONTAINER:
        return (_shipped(situation),)
    # A driver that is only unloaded has no successor; virtual machines bring their own.
    has_successor = not places_us(situation) and situation.policy.mode is not Mode.VFIO
    return (
        _deadline(situation.policy),
        *((*_driver(situation), *_conflicts(situation), *_removable(situation)) if has_successor else ()),
        *versions(situation),
        _users(situation),
        *(() if keeps_driver else (*_frozen(situation), *_permanent(situation))),
        host_files(situation, situation.host.unwritable),
        *_evidence(situation),
    )


def _shipped(situation: Situation) -> Check:
    """Whether the host has loaded the wanted driver itself: a run does no more than look."""
    try:
        found = verified(situation)
    except ManagerError as error:
        return Check("driver", False, error.what, error.remedy)
    return Check("driver", None if found.doubts else True, ". ".join((found.reason, *found.doubts)))


def firmware_checks(source: DriverSource) -> tuple[Check, ...]:
    """The firmware for `source` that the kernel would not find; none of it stops a run."""
    return tuple(map(_firmware, source.missing_firmware))


def tool_checks(source: DriverSource, profile: Profile) -> tuple[Check, ...]:
    """Whether the probe's tool can be executed in `source`; else a run loads the driver, and cannot verify it."""
    if not source.noexec or profile.probe is None:
        return ()
    what = f"{profile.probe.tool} in {source.root} cannot be executed: {source.noexec} is mounted noexec"
    remedy = "Set DRIVER_ROOT to a folder on another mount, such as one below /var/lib; else no wedge is ever seen."
    return (Check("tools", None, what, remedy),)


def refuse(found: Iterable[Check]) -> None:
    """Raise PreflightFailed, which names every one of `found` that stops the run."""
    failed = [check for check in found if check.ok is False]
    if failed:
        raise PreflightFailed(f"preflight: {'; '.join(check.what for check in failed)}", remedies(failed))


def rights(steps: Iterable[Step]) -> tuple[Right, ...]:
    """What `steps` need beyond the reads that made the plan, each right once."""
    return tuple(dict.fromkeys(right for step in steps for right in step.rights()))


def rights_to_replace(profile: Profile, policy: Policy) -> tuple[Right, ...]:
    """The rights of a run that replaces the driver, independent of the node's present state."""
    needed = [PATCH_NODES]
    if policy.loader is Loader.NONE:
        return tuple(needed)
    if profile.strategy is Strategy.IN_PLACE:
        needed.append(WATCH_PODS)
        if policy.eviction.is_enabled or policy.eviction.drains:
            needed.append(EVICT_PODS)
    if policy.safe_load:
        needed.append(WATCH_NODES)
    return tuple(needed)


def access(refused: Iterable[Right], needed: Iterable[Right]) -> tuple[Check, ...]:
    """One check per needed right. One to watch stops nothing: what may be read can be looked at again and again."""
    gone = set(refused)
    return tuple(_right(verb, resource, has=(verb, resource) not in gone) for verb, resource in needed)


def _right(verb: str, resource: str, *, has: bool) -> Check:
    name, remedy = f"may {verb} {resource}", f"Give this service account the verb {verb} on {resource}."
    if has:
        return Check(name, True, f"this account may {verb} {resource}", remedy)
    instead = ": a run polls every few seconds instead" if verb == "watch" else ""
    return Check(name, None if instead else False, f"this account may not {verb} {resource}{instead}", remedy)


def _deadline(policy: Policy) -> Check:
    rules = policy.eviction
    budget_s = policy.pod_termination_timeout_s + policy.device_free_timeout_s
    budget_s += rules.timeout_s if rules.is_enabled else 0.0
    budget_s += policy.completion_timeout_s if policy.completion else 0.0
    budget_s += policy.operator_timeout_s if policy.safe_load else 0.0
    fits = policy.deadline_s >= budget_s
    relation = "holds" if fits else "is shorter than"
    return Check(
        "deadline",
        fits,
        f"the deadline of {policy.deadline_s:g} s {relation} the timeouts in it ({budget_s:g} s)",
        "Raise RECONCILE_DEADLINE, or lower POD_TERMINATION_TIMEOUT, POD_EVICTION_TIMEOUT, "
        "DEVICE_FREE_TIMEOUT, WAIT_FOR_COMPLETION_TIMEOUT or OPERATOR_TIMEOUT.",
    )


def _driver(situation: Situation) -> tuple[Check, ...]:
    if situation.policy.loader is Loader.CONTAINER:
        return (Check("driver", None, "the driver's container loads the driver and checks its own modules"),)
    source = situation.host.source
    if source is None:
        return (Check("driver", False, "there is no driver root to load from", "Set DRIVER_ROOT to a driver tree."),)
    if source.problem:
        return source_checks(source, situation.host)
    return (
        *_slot(situation.host.slots),
        *source_checks(source, situation.host),
        *_options(source),
        *firmware_checks(source),
        *tool_checks(source, situation.profile),
        *_firmware_path(situation),
    )


def source_checks(source: DriverSource, host: Host) -> tuple[Check, ...]:
    """What decides whether modules can be loaded from `source` on `host`, apart from what is loaded there now."""
    if source.problem:
        return (Check("driver", False, source.problem, source.remedy),)
    files = (check for file in (*source.modules, *source.dependencies) for check in _file(file, host, source))
    return (*files, _modprobe(source), *_pinned(source))


def _pinned(source: DriverSource) -> tuple[Check, ...]:
    if not source.is_pinned_out:
        return ()
    what = f"LoadPin is on: the kernel loads modules from the file system of its own ones only, not from {source.root}"
    remedy = "Use a driver that the host's image ships (DRIVER_LOAD=none), or boot with loadpin.enforce=0."
    return (Check("LoadPin", False, what, remedy),)


def _slot(slots: StagedSlots | None) -> tuple[Check, ...]:
    """The staged driver that is to be loaded, and whether the driver root can lead to it; nothing where none is."""
    slot = slots.named(slots.wanted) if slots is not None else None
    if slots is None or slot is None:
        return ()
    what = slots.obstacle or f"{slots.root} can be exchanged with it"
    root = Check("driver root", not slots.obstacle, what, slots.remedy)
    return (Check("staged slot", True, f"staged slot {slot.text}"), root)


def _firmware(missing: MissingFirmware) -> Check:
    """Not known, rather than a refusal: MODULE_FIRMWARE names what a module may ask for (include/linux/module.h,
    "Optional firmware file (or files) needed by the module"), of all devices that it serves, and some are not here.
    """
    searched = ", ".join(missing.searched)
    what = f"{missing.module} names firmware that this kernel would not find: {several(missing.names)}. It looks in "
    what += f"{searched}; a module may name more than this machine's devices need"
    here, remedy = missing.kept_in, "install its firmware on the host"
    if here:
        remedy = f"copy the firmware from {here} to /lib/firmware on the host, or set firmware_class.path to {here}"
    return Check(f"firmware of {missing.module}", None, what, f"If the driver does not load: {remedy}.")


def _modprobe(source: DriverSource) -> Check:
    names = ", ".join(file.name for file in source.modules)
    return Check(
        "modprobe",
        not source.refusal,
        source.refusal or f"{names} can be loaded from {source.root}",
        "Run depmod for that tree, or remove the install line from modprobe.d on the host.",
    )


def _options(source: DriverSource) -> tuple[Check, ...]:
    places = (("the host's modprobe.d", source.options), (f"the modprobe.d of {source.root}", source.given))
    texts = ((place, "; ".join(f"{name} {text}" for name, text in options.items())) for place, options in places)
    return tuple(Check("module options", True, f"set by {place}, and kept: {text}") for place, text in texts if text)


def _file(file: ModuleFile, host: Host, source: DriverSource) -> tuple[Check, ...]:
    missing, there = ", ".join(file.missing_dependencies), f"all dependencies of {file.name} are there"
    what = f"{file.name} needs {missing}, which is neither in {source.root} nor loaded" if missing else there
    return (
        _kernel(file, host.kernel_release),
        Check(f"dependencies of {file.name}", not missing, what, "Complete the driver tree."),
        _symbols(file),
        _signature(file, enforced=host.enforces_signatures),
    )


def _kernel(file: ModuleFile, kernel: str) -> Check:
    """The kernel compares vermagic, but leaves the release out where both sides have symbol checksums."""
    name, release = f"{file.name} for this kernel", file.vermagic.split(" ")[0]
    if file.unread:
        return Check(name, False, f"unknown whether {file.path} is built for {kernel}: {file.unread}", _LOOK_AT_IT)
    if file.layout_matches is False:
        what = f"was built for kernel {release or 'unknown'} and its checksums are not those of {kernel}"
    elif file.flags_match is False:
        what = f"is built with other options than this kernel: {file.vermagic}"
    elif release == kernel:
        return Check(name, True, f"{file.path} {file.version} is built for {kernel}")
    elif file.layout_matches:
        return Check(name, True, f"{file.path} is built for {release}, and its symbol checksums fit {kernel}")
    else:
        what = f"is built for kernel {release or 'unknown'}, this one is {kernel}"
    return Check(name, False, f"{file.path} {what}", _BUILD_IT)


def _symbols(file: ModuleFile) -> Check:
    name = f"symbols of {file.name}"
    if file.unknown_symbols is None:
        return Check(name, None, f"the symbols that {file.name} needs cannot be listed")
    if file.unknown_symbols:
        shown = ", ".join(file.unknown_symbols[:5])
        return Check(name, False, f"{file.name} needs symbols that no module exports: {shown}", _BUILD_IT)
    return Check(name, True, f"every symbol that {file.name} needs is exported")


def _signature(file: ModuleFile, *, enforced: bool) -> Check:
    name = f"signature of {file.name}"
    if not enforced:
        return Check(name, True, "this kernel does not enforce module signatures")
    state = {None: "perhaps not signed", False: "not signed", True: "signed"}[file.is_signed]
    what = f"this kernel enforces signatures and {file.name} is {state}"
    remedy = "Sign the module with a key the kernel trusts (a machine owner key), or use a signed driver."
    if file.is_signed and not file.has_known_key:
        return Check(name, None, f"{what}; whether the kernel trusts this key is unknown: /proc/keys lacks it", remedy)
    return Check(name, file.is_signed, what, remedy)


def _conflicts(situation: Situation) -> tuple[Check, ...]:
    found = []
    for name in situation.host.conflicting:
        what = f"module {name} is loaded and conflicts with the {situation.profile.name} driver"
        found.append(Check("conflicts", False, what, f"Blacklist {name} on the host and reboot, or unload it by hand."))
    if not found and situation.profile.modules.conflicting:
        found.append(Check("conflicts", True, "no conflicting module is loaded"))
    return tuple(found)


def _removable(situation: Situation) -> tuple[Check, ...]:
    """The check of modules that have to be unloaded for the driver: can they be, by what the kernel shows now?"""
    found, driver = [], f"the {situation.profile.name} driver"
    for name, module in situation.host.removable.items():
        what, remedy = f"module {name} conflicts with {driver}, and is unloaded for it", ""
        if name not in situation.profile.modules.conflicting_removable:
            what = f"module {name} uses one that conflicts with {driver}"
            remedy = f"Unload {name} by hand first, and prevent the host from loading it."
        elif count := users(module):
            what = f"module {name} conflicts with {driver}, and is in use ({count} user(s))"
            remedy = f"Stop what uses {name}; or blacklist it on the host and reboot."
        found.append(Check("conflicts", not remedy, what, remedy))
    return tuple(found)


def _firmware_path(situation: Situation) -> tuple[Check, ...]:
    """The check of the kernel's firmware path: it has one such folder, for all drivers."""
    wanted, there = situation.profile.paths.firmware, situation.host.firmware_path
    if not wanted:
        return ()
    if there is None:
        what = f"this kernel has no firmware_class.path, and the driver's firmware is in {wanted}"
        return (Check("firmware path", False, what, "Mount the host's /sys read-write, or use a kernel that has it."),)
    if there not in ("", wanted):
        what = f"firmware_class.path is {there}, and this driver needs {wanted}"
        remedy = f"Put the firmware of both in one folder, or clear firmware_class.path if nothing needs {there}."
        return (Check("firmware path", False, what, remedy),)
    return (Check("firmware path", True, f"the kernel looks for firmware in {wanted}, or is set to before the load"),)


def versions(situation: Situation) -> tuple[Check, ...]:
    """Whether the profile lets the loaded driver become the wanted one."""
    found = transition(situation.host, situation.profile, situation.policy)
    if found is None:
        return ()
    old, new = driver_version(situation.host.modules) or "an unknown version", "the wanted driver"
    if situation.policy.mode is Mode.VFIO:
        new = "those of virtual machines"
    elif situation.policy.loader is Loader.MANAGER and situation.host.source is not None:
        new = situation.host.source.version or "an unknown version"
    change = f"the change of the {situation.profile.name} driver from {old} to {new}"
    because = f": {found.why}" if found.why else ""
    if found.strategy is ChangeBy.REFUSE:
        remedy = (
            "Upgrade by a version in between, or as the vendor describes; `transitions` of the profile has the rules."
        )
        return (Check("versions", False, f"{change} is refused by the profile{because}", remedy),)
    way = "takes a reboot" if found.strategy is ChangeBy.REBOOT else "is made in the running kernel"
    return (Check("versions", True, f"{change} {way}{because}"),)


def _users(situation: Situation) -> Check:
    """Modules above the driver that are not part of it: no run would load them again."""
    foreign = [name for name in situation.host.modules if not is_own(name, situation.profile.modules)]
    if not foreign:
        return Check("modules above", True, "no foreign module uses the driver")
    what = f"foreign module {', '.join(foreign)} uses the driver and would not be loaded again"
    remedy = "Unload it by hand first, or add it to modules.own of the profile if it is part of the driver."
    return Check("modules above", False, what, remedy)


def _frozen(situation: Situation) -> tuple[Check, ...]:
    """Whether the kernel may change its modules; where the next boot brings the driver, it need not."""
    name = "modules of the kernel"
    if situation.profile.strategy is Strategy.REBOOT and is_loaded(situation.host, situation.profile):
        return ()
    if not situation.host.are_modules_frozen:
        return (Check(name, True, "this kernel loads and unloads modules"),)
    what = "kernel.modules_disabled is 1: this kernel loads and unloads no module until its next boot"
    remedy = "Reboot the node, and remove what sets kernel.modules_disabled (sysctl) before the driver is loaded."
    return (Check(name, False, what, remedy),)


def _permanent(situation: Situation) -> tuple[Check, ...]:
    """Modules that would have to go first and cannot; where only a reboot changes a driver, none has to."""
    if situation.profile.strategy is Strategy.REBOOT:
        return ()
    host = situation.host
    remedy = "Only a reboot removes it: make sure that the host does not load it at boot, then reboot the node."
    return tuple(
        Check(f"unloading {name}", False, f"module {name} cannot be unloaded: {why}", remedy)
        for name, why in host.permanent.items()
        if name in host.modules
    )


def written_files(situation: Situation) -> tuple[str, ...]:
    """The host's files that the run writes, removes or locks after its first effect, and cannot do without."""
    paths, policy = situation.profile.paths, situation.policy
    found = [*situation.host.artifacts, paths.owner_note, paths.failure_note, paths.work_lock, paths.effect_lock]
    found += _reboot_files(situation)
    if situation.obs.journal is not None and situation.obs.journal.record:
        found.append(paths.run_record(situation.obs.journal.record))
    if policy.mode is Mode.VFIO or situation.host.bindings:
        found.append(paths.bindings)
    if policy.mode is Mode.CONTAINER and policy.loader is Loader.MANAGER:
        found = [paths.state_file, paths.load_record, *found, paths.client_record, paths.client_lock]
    if policy.mode is Mode.CONTAINER:
        found.append(paths.baseline)
    return tuple(dict.fromkeys(found))


def _reboot_files(situation: Situation) -> list[str]:
    """What an earlier boot or an earlier wish asked for by: it is removed after the driver was changed."""
    paths, marker = situation.profile.paths, situation.host.marker
    is_ours = marker is not None and (marker.reason == UPGRADE_REASON or marker.is_stale(situation.host.boot_id))
    return [*([paths.reboot_marker] if is_ours else []), *([paths.reboot_wish] if situation.host.reboot_wish else [])]


def host_files(situation: Situation, unwritable: Mapping[str, str]) -> Check:
    """The check of the run's files; `unwritable` has the reason for each path that cannot be written."""
    folder = situation.profile.paths.state_file.rpartition("/")[0]
    found = dict.fromkeys(unwritable[path] for path in written_files(situation) if path in unwritable)
    return Check(
        "host files",
        not found,
        several(found, "; ") or f"the files in {folder} can be written and there is room for them",
        f"Mount the vendor's folder of the host ({folder}) read-write, free some space, remove what is in the place of "
        "each file.",
    )


def _evidence(situation: Situation) -> tuple[Check, ...]:
    """What a run does without: it unloads the driver with no evidence kept."""
    folder = situation.profile.paths.evidence
    found = (why for path, why in situation.host.unwritable.items() if folder and path.rpartition("/")[0] == folder)
    return tuple(Check("evidence", None, f"no evidence would be kept: {why}") for why in found)
