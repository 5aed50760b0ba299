"""What a profile means, in words for whoever wrote it: topic and sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from driver_manager.domain.host_paths import NodeMaker
from driver_manager.domain.profile import ChangeBy, LoadScope, Profile, RootsNeeded, Strategy


def meaning(profile: Profile) -> tuple[tuple[str, str], ...]:
    """One topic after the other, each with what a node with this profile may expect."""
    topics = {
        "devices": _devices(profile),
        "change": _change(profile),
        "modules": _modules(profile),
        "files": _files(profile),
        "operands": _operands(profile),
        "workloads": _workloads(profile),
        "virtual machines": _machines(profile),
        "operator": _operator(profile),
        "services": _services(profile),
        "health": _health(profile),
        "reboots": _reboots(profile),
    }
    return tuple((topic, "; ".join(sentences)) for topic, sentences in topics.items())


def _listed(names: Iterable[str], word: str = "and") -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def _devices(profile: Profile) -> Iterator[str]:
    classes = f" of class {_listed(profile.pci_classes, 'or')}" if profile.pci_classes else ""
    devices = f", device {_listed(profile.pci_devices, 'or')}" if profile.pci_devices else ""
    yield f"every PCI function of vendor {profile.pci_vendor}{classes}{devices}"
    nodes, maker = profile.paths.device_nodes, profile.paths.device_nodes_made_by
    if not nodes:
        yield "no device nodes are listed: a run neither waits for one after a load nor finds processes that hold one"
    elif maker is NodeMaker.MODULE:
        yield f"after a load a run waits for one of {_listed(nodes, 'or')}"
    else:
        yield f"{_listed(nodes, 'or')} are made by a program of user space, so a run does not wait for them"


def _change(profile: Profile) -> Iterator[str]:
    if profile.strategy is Strategy.IN_PLACE:
        yield "the driver is unloaded and loaded in the running kernel"
    else:
        never = "never" if profile.never_unloads else "usually not"
        yield f"the driver is {never} unloaded: another driver needs a reboot, which a marker requests"
    yield from _transitions(profile)


def _transitions(profile: Profile) -> Iterator[str]:
    ways = {ChangeBy.IN_PLACE: "in the running kernel", ChangeBy.REBOOT: "by a reboot", ChangeBy.REFUSE: "refused"}
    for one in profile.transitions:
        yield f"from {one.old} to {one.new} {ways[one.strategy]}{f' ({one.why})' if one.why else ''}"


def _modules(profile: Profile) -> Iterator[str]:
    modules = profile.modules
    yield f"the driver is loaded while {_listed(modules.roots, 'or')} is"
    if profile.strategy is Strategy.IN_PLACE:
        own = f", and {_listed(modules.own)} that no other module holds" if modules.own else ""
        yield f"unloaded with all modules that hold it{own}"
    if modules.load is LoadScope.TREE:
        yield "where the manager loads, every module in the driver root"
    else:
        which = "those that the driver root has of " if modules.roots_needed is RootsNeeded.ANY else ""
        yield f"where the manager loads, {which}{_listed(modules.roots)} and what these need"
    if modules.order:
        yield f"loaded in the order {_listed(modules.order, 'then')}, unloaded in the opposite one"
    if modules.parameters:
        yield f"given {_listed(modules.parameters)}; options in the host's modprobe.d take precedence"
    if modules.keep_parameters:
        yield f"{_listed(modules.keep_parameters)} keep their values over a swap, unless modprobe.d sets them"
    if modules.conflicting:
        yield f"refused while {_listed(modules.conflicting, 'or')} is loaded"
    if modules.conflicting_removable:
        removable = _listed(modules.conflicting_removable)
        yield f"{removable} unloaded before the load, and loaded again if the load fails"


def _files(profile: Profile) -> Iterator[str]:
    paths = profile.paths
    yield f"the driver root is {paths.driver_root}, the installed digest is in {paths.state_file}"
    if paths.ready_marker:
        yield f"{paths.ready_marker} shows operands that the driver is ready"
    if paths.firmware:
        yield f"where the manager loads, firmware_class.path is set to {paths.firmware}"
    if paths.artifacts:
        yield f"{_listed(paths.artifacts)} are removed with the driver"


def _operands(profile: Profile) -> Iterator[str]:
    deploy = profile.deploy
    if deploy.on_unless_false:
        switches = _listed(deploy.on_unless_false)
        yield f"operands run while {switches} is absent: a run pauses them with false, and removes that afterwards"
    if not deploy.prefix:
        yield "no deploy labels with a prefix" if deploy.on_unless_false else "no deploy labels: no operand is paused"
        return
    yield f"labels {deploy.prefix}* are paused with {deploy.paused_value}, all but {deploy.driver_key}"
    if deploy.leave_last:
        yield f"{_listed(sorted(deploy.last_keys))} once no claim is held any more"


def _workloads(profile: Profile) -> Iterator[str]:
    if profile.resource_prefixes:
        yield f"pods that ask for a resource {_listed([f'{one}*' for one in profile.resource_prefixes], 'or')}"
    if profile.device_classes or profile.dra_driver:
        names = [*profile.device_classes, *([f"driver {profile.dra_driver}"] if profile.dra_driver else [])]
        yield f"pods with a DRA claim of {_listed(names, 'or')}"
    if not (profile.resource_prefixes or profile.device_classes or profile.dra_driver):
        yield "no resource or claim shows which pods use the accelerator: none is evicted for it"
    if profile.clients:
        yield f"restarted once a new driver is ready: {_listed(profile.clients)}"


def _machines(profile: Profile) -> Iterator[str]:
    known = profile.passthrough
    if known is None:
        yield "the devices are never given to them"
        return
    unless = f", unless {known.mode_key} has a value other than {known.mode_value}" if known.mode_key else ""
    yield f"given the devices of a node where reconcile-vfio-state runs{unless}"
    if profile.deploy.prefix:
        yield f"reconcile-vfio-state runs in the pods that {profile.deploy.prefix}{known.component} places"
    if known.resources:
        yield f"pods that ask for {_listed(known.resources, 'or')} do not use the driver"
    if known.auxiliary:
        yield f"functions of class {_listed(known.auxiliary, 'or')} in a device's slot go with it"


def _operator(profile: Profile) -> Iterator[str]:
    keys = profile.keys
    if keys.upgrade_enabled:
        yield f"where {keys.upgrade_enabled} is true, the operator is asked to evict"
    else:
        yield "no operator is asked"
    if keys.skip:
        yield f"{keys.skip}=true leaves a node out"
    if profile.container_unloads:
        yield "the driver container unloads the driver when it terminates, so a rollout clears the node first"


def _services(profile: Profile) -> Iterator[str]:
    if profile.host_services:
        yield f"{_listed(profile.host_services)} may be stopped (STOP_HOST_SERVICES)"
    else:
        yield "no service of the host is stopped"


def _health(profile: Profile) -> Iterator[str]:
    probe = profile.probe
    if probe is None:
        yield "no probe: health-watch has nothing to run, and a loaded driver is not verified"
        return
    yield f"shown by `{' '.join((probe.tool, *probe.args))}`, at most {probe.timeout_s:g} s, read as {probe.parser}"
    if probe.tells_idle:
        yield "a driver is not unloaded before the probe reports that no device is at work"
    if probe.parser == "exit-status":
        yield "only its exit status counts, which shows nothing about single devices"


def _reboots(profile: Profile) -> Iterator[str]:
    if not profile.paths.reboot_marker:
        yield "none is ever requested"
        return
    yield f"requested by {profile.paths.reboot_marker}"
    yield (
        "made by the rebooter, once approved"
        if profile.paths.rebooter_record
        else "made by something else: this profile has no rebooter"
    )
