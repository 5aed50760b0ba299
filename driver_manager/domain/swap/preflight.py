"""What would make a run fail, found before anything is changed. Pure; the facts are read by the adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from driver_manager.domain.errors import ManagerError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.host import DriverSource, Host, MissingFirmware, ModuleFile
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.listing import several
from driver_manager.domain.markers import UPGRADE
from driver_manager.domain.modules import driver_version, is_own, users
from driver_manager.domain.policy import Loader, Mode, Policy
from driver_manager.domain.profile import ChangeBy, Profile, Strategy
from driver_manager.domain.staged import StagedSlots
from driver_manager.domain.swap.driver_state import is_loaded, places_us
from driver_manager.domain.swap.shipped import verified
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.base import EVICT_PODS, PATCH_NODES, WATCH_NODES, WATCH_PODS, Right, Step
from driver_manager.domain.swap.transition import transition

_BUILD_IT = "Use a driver that was built for this kernel, or set DRIVER_ROOT to the tree that holds it."
_LOOK_AT_IT = "Run again. If it persists, run modinfo on that file by hand: the file may be damaged or truncated."


class Check(Frozen):
    """One thing looked at. `ok` is None where it could not be found out, which stops nothing."""

    name: str
    ok: bool | None
    what: str
    remedy: str = ""


def remedies(found: Iterable[Check]) -> str:
    """What to do about all of `found`, each remedy once."""
    return " ".join(dict.fromkeys(check.remedy for check in found))


def checks(now: Situation, *, keeps_driver: bool = False) -> tuple[Check, ...]:
    """Everything that decides whether the driver can be loaded or replaced, apart from access rights.

    `keeps_driver`: the run loads and unloads no module.
    """
    if now.policy.loader is Loader.NONE and now.policy.mode is Mode.CONTAINER:
        return (_shipped(now),)
    return (
        _deadline(now.policy),
        *(() if _brings_none(now) else (*_driver(now), *_conflicts(now), *_removable(now))),
        *versions(now),
        _users(now),
        *(() if keeps_driver else (*_frozen(now), *_permanent(now))),
        host_files(now, now.host.unwritable),
        *_evidence(now),
    )


def _shipped(now: Situation) -> Check:
    """Whether the host has loaded the wanted driver itself: a run does no more than look."""
    try:
        found = verified(now)
    except ManagerError as error:
        return Check("driver", False, error.what, error.remedy)
    return Check("driver", None if found.doubts else True, ". ".join((found.reason, *found.doubts)))


def _brings_none(now: Situation) -> bool:
    """Whether no driver follows: it is only unloaded, or virtual machines bring their own."""
    return bool(places_us(now)) or now.policy.mode is Mode.VFIO


def firmware_notes(source: DriverSource) -> tuple[str, ...]:
    """What is said before `source` is loaded of firmware that the kernel would not find."""
    return tuple(f"{check.what}. {check.remedy}" for check in firmware_checks(source))


def firmware_checks(source: DriverSource) -> tuple[Check, ...]:
    """The same as checks, of which none stops a run."""
    return tuple(map(_firmware, source.missing_firmware))


def problems(now: Situation, *, keeps_driver: bool = False) -> tuple[Check, ...]:
    """Those of `checks` that would stop the run."""
    return tuple(check for check in checks(now, keeps_driver=keeps_driver) if check.ok is False)


def rights(steps: Iterable[Step]) -> tuple[Right, ...]:
    """What `steps` need beyond the reads that made the plan, each right once."""
    return tuple(dict.fromkeys(right for step in steps for right in step.rights()))


def rights_to_replace(profile: Profile, policy: Policy) -> tuple[Right, ...]:
    """The rights of a run that replaces the driver, whatever is on the node now."""
    needed = [PATCH_NODES]
    if policy.loader is Loader.NONE:
        return tuple(needed)
    if profile.strategy is Strategy.IN_PLACE:
        needed.append(WATCH_PODS)
        if policy.eviction.is_enabled or policy.eviction.drains:
            needed.append(EVICT_PODS)
    if policy.safe_load or policy.kmm is not None:
        needed.append(WATCH_NODES)
    return tuple(needed)


def access(refused: Iterable[Right], needed: Iterable[Right]) -> tuple[Check, ...]:
    """One check per needed right. One to watch stops nothing: what may be read can be looked at again and again."""
    gone = set(refused)
    return tuple(_right(verb, resource, has=(verb, resource) not in gone) for verb, resource in needed)


def _right(verb: str, resource: str, *, has: bool) -> Check:
    what = f"this account may {'' if has else 'not '}{verb} {resource}"
    can_do_without = verb == "watch"
    if not has and can_do_without:
        what += ": a run polls every few seconds instead"
    ok = True if has else None if can_do_without else False
    return Check(f"may {verb} {resource}", ok, what, f"Give this service account the verb {verb} on {resource}.")


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


def _kmm(now: Situation, module: KmmModule) -> Check:
    what = f"KMM loads version {module.version} of {module} ({module.shown(now.obs.node.labels)})"
    return Check("driver", None, f"{what}; whether it can is not checked")


def _driver(now: Situation) -> tuple[Check, ...]:
    if now.policy.kmm is not None:
        return (_kmm(now, now.policy.kmm),)
    if now.policy.loader is Loader.CONTAINER:
        return (Check("driver", None, "the driver's container loads the driver and checks its own modules"),)
    source = now.host.source
    if source is None:
        return (Check("driver", False, "there is no driver root to load from", "Set DRIVER_ROOT to a driver tree."),)
    if source.problem:
        return source_checks(source, now.host)
    return (
        *_slot(now.host.slots),
        *source_checks(source, now.host),
        *_options(source),
        *firmware_checks(source),
        *_firmware_path(now),
    )


def source_checks(source: DriverSource, host: Host) -> tuple[Check, ...]:
    """What decides whether modules can be loaded from `source` on `host`, apart from what is loaded there now."""
    if source.problem:
        return (Check("driver", False, source.problem, source.remedy),)
    files = (check for file in (*source.modules, *source.dependencies) for check in _file(file, host, source))
    return (*files, _modprobe(source))


def _slot(slots: StagedSlots | None) -> tuple[Check, ...]:
    """The staged driver that is to be loaded, and whether the driver root can lead to it; nothing where none is."""
    slot = slots.named(slots.wanted) if slots is not None else None
    if slots is None or slot is None:
        return ()
    root = Check(
        "driver root", not slots.obstacle, slots.obstacle or f"{slots.root} can be pointed at it", slots.remedy
    )
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
    if not source.options:
        return ()
    text = "; ".join(f"{name} {options}" for name, options in source.options.items())
    return (Check("module options", True, f"set by the host's modprobe.d, and kept: {text}"),)


def _file(file: ModuleFile, host: Host, source: DriverSource) -> tuple[Check, ...]:
    return (
        _kernel(file, host.kernel_release),
        Check(
            f"dependencies of {file.name}",
            not file.missing_dependencies,
            f"{file.name} needs {', '.join(file.missing_dependencies)}, which is neither in {source.root} nor loaded"
            if file.missing_dependencies
            else f"all dependencies of {file.name} are there",
            "Complete the driver tree.",
        ),
        _symbols(file),
        _signature(file, enforced=host.enforces_signatures),
    )


def _kernel(file: ModuleFile, kernel: str) -> Check:
    """The kernel compares vermagic, but leaves the release out where both sides have symbol checksums."""
    name, release = f"{file.name} for this kernel", file.vermagic.split(" ")[0]
    if file.unread:
        return Check(name, False, f"unknown whether {file.path} is built for {kernel}: {file.unread}", _LOOK_AT_IT)
    if file.layout_matches is False:
        what = f"{file.path} was built for kernel {release or 'unknown'} and its checksums are not those of {kernel}"
        return Check(name, False, what, _BUILD_IT)
    if file.flags_match is False:
        return Check(
            name, False, f"{file.path} is built with other options than this kernel: {file.vermagic}", _BUILD_IT
        )
    if release == kernel:
        return Check(name, True, f"{file.path} {file.version} is built for {kernel}")
    if file.layout_matches:
        return Check(name, True, f"{file.path} is built for {release}, and its symbol checksums fit {kernel}")
    return Check(
        name, False, f"{file.path} is built for kernel {release or 'unknown'}, this one is {kernel}", _BUILD_IT
    )


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
    return Check(
        name,
        file.is_signed,
        f"this kernel enforces signatures and {file.name} is {'signed' if file.is_signed else 'not signed'}",
        "Sign the module with a key the kernel trusts (a machine owner key), or use a signed driver.",
    )


def _conflicts(now: Situation) -> tuple[Check, ...]:
    if not now.host.conflicting:
        return (Check("conflicts", True, "no conflicting module is loaded"),) if now.profile.modules.conflicting else ()
    return tuple(
        Check(
            "conflicts",
            False,
            f"module {name} is loaded and conflicts with the {now.profile.name} driver",
            f"Blacklist {name} on the host and reboot, or unload it by hand.",
        )
        for name in now.host.conflicting
    )


def _removable(now: Situation) -> tuple[Check, ...]:
    """What has to go for the driver: whether it can, as far as the kernel tells now."""
    found = []
    for name, module in now.host.removable.items():
        count = users(module)
        if name not in now.profile.modules.conflicting_removable:
            what = f"module {name} uses one that conflicts with the {now.profile.name} driver"
            remedy = f"Unload {name} by hand first, and prevent the host from loading it."
        elif count:
            what = f"module {name} conflicts with the {now.profile.name} driver, and is in use ({count} user(s))"
            remedy = f"Stop what uses {name}; or blacklist it on the host and reboot."
        else:
            what, remedy = f"module {name} conflicts with the {now.profile.name} driver, and is unloaded for it", ""
        found.append(Check("conflicts", not remedy, what, remedy))
    return tuple(found)


def _firmware_path(now: Situation) -> tuple[Check, ...]:
    """Whether the kernel can be told where the driver's firmware is: it has one such folder, for all drivers."""
    wanted, there = now.profile.paths.firmware, now.host.firmware_path
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


def versions(now: Situation) -> tuple[Check, ...]:
    """Whether the profile lets the loaded driver become the wanted one."""
    found = transition(now.host, now.profile, now.policy)
    if found is None:
        return ()
    old, new = driver_version(now.host.modules) or "an unknown version", "the wanted driver"
    if now.policy.mode is Mode.VFIO:
        new = "those of virtual machines"
    elif now.policy.loader is Loader.MANAGER and now.host.source is not None:
        new = now.host.source.version or "an unknown version"
    change, because = (
        f"the change of the {now.profile.name} driver from {old} to {new}",
        f": {found.why}" * bool(found.why),
    )
    if found.strategy is ChangeBy.REFUSE:
        remedy = (
            "Upgrade by a version in between, or as the vendor describes; `transitions` of the profile has the rules."
        )
        return (Check("versions", False, f"{change} is refused by the profile{because}", remedy),)
    way = "takes a reboot" if found.strategy is ChangeBy.REBOOT else "is made in the running kernel"
    return (Check("versions", True, f"{change} {way}{because}"),)


def _users(now: Situation) -> Check:
    """Modules above the driver that are not part of it: nobody would load them again."""
    foreign = [name for name in now.host.modules if not is_own(name, now.profile.modules)]
    if not foreign:
        return Check("modules above", True, "no foreign module uses the driver")
    return Check(
        "modules above",
        False,
        f"foreign module {', '.join(foreign)} uses the driver and would not be loaded again",
        "Unload it by hand first, or add it to modules.own of the profile if it is part of the driver.",
    )


def _frozen(now: Situation) -> tuple[Check, ...]:
    """Whether the kernel may change its modules; where the next boot brings the driver, it need not."""
    name = "modules of the kernel"
    if now.profile.strategy is Strategy.REBOOT and is_loaded(now.host, now.profile):
        return ()
    if not now.host.are_modules_frozen:
        return (Check(name, True, "this kernel loads and unloads modules"),)
    return (
        Check(
            name,
            False,
            "kernel.modules_disabled is 1: this kernel loads and unloads no module until its next boot",
            "Reboot the node, and remove what sets kernel.modules_disabled (sysctl) before the driver is loaded.",
        ),
    )


def _permanent(now: Situation) -> tuple[Check, ...]:
    """Modules that would have to go first and cannot; where only a reboot changes a driver, none has to."""
    if now.profile.strategy is Strategy.REBOOT:
        return ()
    return tuple(
        Check(
            f"unloading {name}",
            False,
            f"module {name} cannot be unloaded: {why}",
            "Only a reboot removes it: make sure that the host does not load it at boot, then reboot the node.",
        )
        for name, why in now.host.permanent.items()
        if name in now.host.modules
    )


def written_files(now: Situation) -> tuple[str, ...]:
    """The host's files that the run writes, removes or locks after its first effect, and cannot do without."""
    paths, policy = now.profile.paths, now.policy
    found = [*now.host.artifacts, paths.owner_note, paths.failure_note, paths.work_lock, paths.effect_lock]
    found += _reboot_files(now)
    if now.obs.journal is not None and now.obs.journal.record:
        found.append(paths.run_record(now.obs.journal.record))
    if policy.mode is Mode.VFIO or now.host.bindings:
        found.append(paths.bindings)
    if policy.mode is Mode.CONTAINER and policy.loader is Loader.MANAGER:
        found = [paths.state_file, paths.load_record, *found]
    if policy.mode is Mode.CONTAINER and policy.loader in (Loader.MANAGER, Loader.KMM):
        found += [paths.client_record, paths.client_lock]
    return tuple(dict.fromkeys(found))


def _reboot_files(now: Situation) -> list[str]:
    """What an earlier boot or an earlier wish asked for by: it is removed after the driver was changed."""
    paths, marker = now.profile.paths, now.host.marker
    is_ours = marker is not None and (marker.reason == UPGRADE or marker.is_stale(now.host.boot_id))
    return [*([paths.reboot_marker] if is_ours else []), *([paths.reboot_wish] if now.host.reboot_wish else [])]


def host_files(now: Situation, unwritable: Mapping[str, str]) -> Check:
    """Whether the run can write its files; `unwritable` says why it cannot, by path."""
    folder = now.profile.paths.state_file.rpartition("/")[0]
    found = dict.fromkeys(unwritable[path] for path in written_files(now) if path in unwritable)
    return Check(
        "host files",
        not found,
        several(found, "; ") or f"the files in {folder} can be written and there is room for them",
        f"Mount the vendor's folder of the host ({folder}) read-write, free some space, remove what is in the place of "
        "each file.",
    )


def _evidence(now: Situation) -> tuple[Check, ...]:
    """What a run does without: it unloads the driver with no evidence kept."""
    folder = now.profile.paths.evidence
    found = (why for path, why in now.host.unwritable.items() if folder and path.rpartition("/")[0] == folder)
    return tuple(Check("evidence", None, f"no evidence would be kept: {why}") for why in found)
