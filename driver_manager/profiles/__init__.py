"""Vendor profiles as TOML: the shipped ones, a user's file, the choice for a node, and a profile's meaning in words."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health.parsers import PARSERS, SHOWS_USE
from driver_manager.domain.profile import (
    ADDRESS,
    PREFIXED_KEY,
    ChangeBy,
    LoadScope,
    Modules,
    NodeMaker,
    Passthrough,
    Probe,
    Profile,
    RecoveryStep,
    RootsNeeded,
    Strategy,
)
from driver_manager.domain.profile import AUTO as AUTO
from driver_manager.domain.profile import may_pause as may_pause
from driver_manager.domain.schema import TOML, Problem, Reader
from driver_manager.domain.text import one_line

# Keys on the Node that a profile file may leave out.

_DERIVED = (
    *("state", "last_outcome", "mute_until", "rollout", "generation", "version"),
    *("recovery", "approve_recovery", "recovery_slots"),
)
_JOURNAL_END = ".journal"
_OWN_NAME = "driver-manager"


# Relations between keys. Without this check a run would find a bad pair halfway through.

_REBOOTER_KEYS = ("reboot_required", "approve_reboot", "pre_reboot_boot_id", "reboot_in_progress", "reboot_slots")
_REBOOTER_PATHS = ("reboot_marker", "reboot_evidence")


def _needed(key: str, needs_it: str) -> Problem:
    """The problem that `key` is missing although `needs_it` is set."""
    return Problem(key, f"{key} is missing, and {needs_it} needs it", expected=f"a value, as {needs_it} needs it")


def broken_relations(profile: Profile) -> Iterator[Problem]:
    yield from _names_used_twice(profile)
    yield from _reboots(profile)
    yield from _recovery(profile)
    yield from _modules(profile.modules)
    deploy = profile.deploy
    if deploy.prefix and not re.fullmatch(PREFIXED_KEY, deploy.driver_key):
        yield Problem.of("deploy.driver_component", deploy.driver_component, f"the end of a key after {deploy.prefix}")
    probe = profile.probe
    if probe is not None and probe.parser not in PARSERS:
        yield Problem.of("probe.parser", probe.parser, f"one of {', '.join(sorted(PARSERS))}")
    elif probe is not None and probe.tells_idle and probe.parser not in SHOWS_USE:
        known = ", ".join(sorted(SHOWS_USE))
        yield Problem.of("probe.tells_idle", True, f"a parser that can determine it: {known}")
    yield from _answers(probe) if probe is not None else ()
    if profile.container_unloads and not deploy.prefix:
        yield _needed("deploy.prefix", "container_unloads")
    modes = profile.passthrough or Passthrough()
    if bool(modes.mode_key) != bool(modes.mode_value):
        yield Problem.of("passthrough.mode_value", modes.mode_value, "a value if mode_key is set, else none")
    others = {*deploy.last_keys, *profile.keys.names, modes.mode_key, *({deploy.driver_key} if deploy.prefix else ())}
    for key in deploy.on_unless_false:
        if key in others:
            yield Problem.of("deploy.on_unless_false", key, "a key that has no other meaning")
    for key in sorted(deploy.last_keys):
        if not may_pause(key):
            yield Problem.of("deploy.leave_last", key, "components, or whole keys such as example.com/name")


def _answers(probe: Probe) -> Iterator[Problem]:
    for number, answer in enumerate(probe.answers):
        if answer.status is None and not answer.message:
            yield Problem.missing(f"probe.answers[{number}].message", "a message or a status")
    if bool(probe.excluded_in) != bool(probe.excluded_line):
        yield Problem.of("probe.excluded_line", probe.excluded_line, "a line if probe.excluded_in is set, else none")


def _names_used_twice(profile: Profile) -> Iterator[Problem]:
    for table, values in (("keys", asdict(profile.keys)), ("upgrade_metrics", asdict(profile.upgrade_metrics))):
        first: dict[str, str] = {}
        for name, value in values.items():
            if value and (other := first.setdefault(value, name)) != name:
                word = "key" if table == "keys" else "name"
                yield Problem.of(f"{table}.{name}", value, f"a different {word} for each: {table}.{other} is the same")


def _modules(modules: Modules) -> Iterator[Problem]:
    if modules.order and modules.load is LoadScope.TREE:
        yield Problem.of(
            "modules.order", modules.order, 'nothing with load = "tree", which loads modules as they are needed'
        )
    if len(set(modules.order)) != len(modules.order):
        yield Problem.of("modules.order", modules.order, "each module once")
    ours = {*modules.roots, *modules.order, *modules.conflicting}
    for name in modules.conflicting_removable:
        if name in ours:
            yield Problem.of("modules.conflicting_removable", name, "a module that is in no other list of [modules]")
    for text in modules.parameters:
        name = text.partition("=")[0]
        if any(fnmatchcase(name, pattern) for pattern in modules.keep_parameters):
            yield Problem.of("modules.parameters", text, "a parameter that modules.keep_parameters does not keep")


def _reboots(profile: Profile) -> Iterator[Problem]:
    """A change by reboot needs a marker; a rebooter needs all keys and paths that it writes."""
    by_reboot = next((one for one in profile.transitions if one.strategy is ChangeBy.REBOOT), None)
    if (profile.strategy is Strategy.REBOOT or by_reboot) and not profile.paths.reboot_marker:
        needs_it = (
            'strategy = "reboot"' if by_reboot is None else f"the transition from {by_reboot.old} to {by_reboot.new}"
        )
        yield _needed("paths.reboot_marker", needs_it)
    if profile.paths.rebooter_record:
        for table, names in (("keys", _REBOOTER_KEYS), ("paths", _REBOOTER_PATHS)):
            for name in names:
                if not getattr(getattr(profile, table), name):
                    yield _needed(f"{table}.{name}", "paths.rebooter_record")


def _recovery(profile: Profile) -> Iterator[Problem]:
    """Each step once and in order, with what it needs."""
    steps, order = profile.recovery, tuple(RecoveryStep)
    if list(steps) != sorted(set(steps), key=order.index):
        words = ", ".join(step.value for step in order)
        yield Problem.of("recovery", [step.value for step in steps], f"steps in this order, each once: {words}")
    if RecoveryStep.RELOAD in steps and profile.strategy is not Strategy.IN_PLACE:
        yield Problem.of("recovery", "reload", 'no reload with strategy = "reboot", which never unloads the driver')
    if (RecoveryStep.RESET in steps) != (profile.reset is not None):
        yield Problem.of("recovery", [step.value for step in steps], "reset and the table [reset], or neither of them")
    if steps and profile.probe is None:
        yield _needed("probe", "recovery")
    if set(steps) - {RecoveryStep.REBOOT} and not profile.paths.recovery_record:
        yield _needed("paths.recovery_record", "recovery")
    if RecoveryStep.REBOOT in steps and not profile.paths.rebooter_record:
        yield _needed("paths.rebooter_record", "recovery")
    reset = profile.reset
    for name in ("args", "before", "after") if reset is not None else ():
        args: tuple[str, ...] = getattr(reset, name)
        if args and (ADDRESS not in " ".join(args) or re.search(r"[{}]", " ".join(args).replace(ADDRESS, ""))):
            yield Problem.of(f"reset.{name}", list(args), f"arguments with {ADDRESS}, and without other braces")
    if reset is not None and bool(reset.minor_in) != bool(reset.minor_line):
        yield Problem.of("reset.minor_line", reset.minor_line, "a line if reset.minor_in is set, else none")


_LINE = re.compile(r"\(at line ([0-9]{1,9}),")
"""Where tomllib names the place of a mistake."""


class ProfileReading(Struct, frozen=True):
    """A profile file: the profile, or its problems."""

    profile: Profile | None
    problems: tuple[Problem, ...] = ()


def read(text: str) -> ProfileReading:
    """The profile in `text`, or all its problems. Relations between keys are checked once each value is right."""
    try:
        body = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        place = _LINE.search(str(error))
        line = int(place[1]) if place else None
        return ProfileReading(None, (Problem("", f"the file is not TOML: {one_line(str(error))}", "", "TOML", line),))
    reader = Reader(TOML)
    profile = reader.record(Profile, body)
    if profile is None:
        return ProfileReading(None, _placed(reader.problems, text))
    keys, (domain, _, name) = profile.keys, profile.keys.journal.rpartition("/")
    named = name.removesuffix(_JOURNAL_END) if name.endswith(_JOURNAL_END) else _OWN_NAME

    def derived(end: str) -> str:
        wanted = f"{domain}/{named}.{end}"
        is_fit = re.fullmatch(PREFIXED_KEY, wanted) and wanted not in keys.names
        return wanted if is_fit else f"{domain}/{_OWN_NAME}.{end}"

    names = (*_DERIVED, *(_REBOOTER_KEYS if RecoveryStep.REBOOT in profile.recovery else ()))
    found = {name: getattr(keys, name) or derived(name.replace("_", "-")) for name in names}
    profile = replace(profile, keys=replace(keys, **found))
    problems = _placed(broken_relations(profile), text)
    return ProfileReading(None if problems else profile, problems)


_HEADER = re.compile(r"\s*\[+([\w.\s-]+)\]")
_KEY = re.compile(r"\s*(\w[\w.-]*)\s*=")


def _placed(problems: Iterable[Problem], text: str) -> tuple[Problem, ...]:
    """`problems` with the lines of their keys, or of the tables in which they are missing."""
    places, table, seen = {"": 1}, "", dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[1].strip()
            if line.lstrip().startswith("[["):
                seen[table] = seen.get(table, -1) + 1
                table += f"[{seen[table]}]"
            places.setdefault(table, number)
        elif key := _KEY.match(line):
            places.setdefault(f"{table}.{key[1]}".lstrip("."), number)

    def line_of(key: str) -> int:
        return places[key] if key in places else line_of(key.rpartition(".")[0])

    return tuple(replace(one, line=line_of(one.key)) for one in problems)


MAX_FILE_BYTES = 256 * 1024


def builtin() -> dict[str, Profile]:
    files = sorted(Path(__file__).parent.glob("*.toml"))
    found = (parse(entry.read_text(encoding="utf-8"), entry.name) for entry in files)
    return {profile.name: profile for profile in found}


def known(profile_file: str | None) -> dict[str, Profile]:
    """The shipped profiles, and that in `profile_file`, which replaces one of the same name. Raises ConfigError."""
    profiles = builtin()
    if profile_file:
        own = _profile(read_file(profile_file), profile_file)
        profiles[own.name] = own
    return profiles


def read_file(path: str) -> ProfileReading:
    """Read a user's file. Raises ConfigError if it is not a small text file."""
    try:
        return read(_content(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"profile file {path} cannot be read: {error}", "Give a TOML file (PROFILE_FILE).") from error


def _content(path: str) -> str:
    """The whole file, without blocking on a pipe. Raises OSError, and ValueError if it is not a small text file."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
    return content.decode()


def pick(
    wanted: str,
    profiles: Mapping[str, Profile],
    labels: Iterable[str] = (),
    has_device: Callable[[Profile], bool] = lambda _: False,
) -> Profile:
    """The profile `wanted`, or for `auto` the one whose devices are present, else the one whose labels the node has.

    Raises ConfigError for an unknown name, and if auto finds none or two.
    """
    if wanted != AUTO:
        if wanted in profiles:
            return profiles[wanted]
        raise ConfigError(
            f"there is no profile {wanted!r}", f"Use one of {', '.join(sorted(profiles))}, or auto (DRIVER_PROFILE)."
        )
    keys = list(labels)
    by_device = [profile for profile in profiles.values() if has_device(profile)]
    found = by_device or [profile for profile in profiles.values() if is_labelled(profile, keys)]
    if len(found) == 1:
        return found[0]
    seen = ", ".join(profile.name for profile in found) or "no known PCI device and no known node label"
    raise ConfigError(
        f"the profile cannot be determined from this node: {seen}", "Name it with --profile (DRIVER_PROFILE)."
    )


def is_labelled(profile: Profile, keys: Iterable[str]) -> bool:
    """True if one of these keys of labels is the profile's: a deploy label, or that of a present device."""
    prefix = profile.deploy.prefix
    return any((prefix and key.startswith(prefix)) or key in profile.present_labels for key in keys)


def parse(text: str, where: str) -> Profile:
    """The profile in `text`. Raises ConfigError naming `where`, the key, the value and what was expected."""
    return _profile(read(text), where)


def _profile(found: ProfileReading, where: str) -> Profile:
    if found.profile is None:
        more = len(found.problems) - 1
        and_more = f" (and {more} more)" if more else ""
        raise ConfigError(
            f"profile {where}: {found.problems[0].what}{and_more}",
            "Fix the file; `driver-manager profile check` lists every mistake in it.",
        )
    return found.profile


# The meaning of a profile in words, for its author.


def meaning(profile: Profile) -> tuple[tuple[str, str], ...]:
    """Topics, each with what happens on a node with this profile."""
    topics = {
        "devices": _devices(profile),
        "change": _change(profile),
        "modules": _module_words(profile),
        "files": _files(profile),
        "operands": _operands(profile),
        "workloads": _workloads(profile),
        "virtual machines": _machines(profile),
        "operator": _operator(profile),
        "services": _services(profile),
        "health": _health(profile),
        "recovery": _recovery_words(profile),
        "reboots": _reboot_words(profile),
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
    ways = {ChangeBy.IN_PLACE: "in the running kernel", ChangeBy.REBOOT: "by a reboot", ChangeBy.REFUSE: "refused"}
    for one in profile.transitions:
        yield f"from {one.old} to {one.new} {ways[one.strategy]}{f' ({one.why})' if one.why else ''}"


def _module_words(profile: Profile) -> Iterator[str]:
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
    if deploy.never_paused:
        yield f"{_listed([deploy.prefix + name for name in deploy.never_paused])} is left as it is"
    if deploy.leave_last:
        yield f"{_listed(sorted(deploy.last_keys))} once no claim is held any more"


def _workloads(profile: Profile) -> Iterator[str]:
    if profile.resource_prefixes:
        yield f"pods that ask for a resource {_listed([f'{one}*' for one in profile.resource_prefixes], 'or')}"
    if profile.device_classes or profile.dra_driver:
        names = [*profile.device_classes, *(f"driver {name}" for name in profile.dra_driver)]
        yield f"pods with a DRA claim of {_listed(names, 'or')}"
    if profile.serving_classes:
        yield f"DaemonSets with a claim of {_listed(profile.serving_classes, 'or')} leave after all others"
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
    yield f"slow for up to {probe.settle_s:g} s after a load is not a failure"
    if probe.stays_ready_with:
        yield f"every probe may be as slow unless {_listed(probe.stays_ready_with, 'or')} exists"
    for answer in probe.answers:
        line = f"a line with {answer.message!r}" if answer.message else ""
        status = f"exit status {answer.status}" if answer.status is not None else ""
        shown = f", shown as {answer.text!r}" if answer.text else ""
        yield f"{line}{' or ' if line and status else ''}{status} means {answer.means.value}{shown}"
    if probe.excluded_in:
        yield f"a device whose {probe.excluded_in} has {probe.excluded_line!r} is left out on purpose"
    if probe.tells_idle:
        yield "a driver is not unloaded before the probe reports that no device is at work"
    if probe.parser == "exit-status":
        yield "only its exit status counts, which shows nothing about single devices"


def _recovery_words(profile: Profile) -> Iterator[str]:
    reset = profile.reset
    if not profile.recovery:
        yield "none: a wedge is reported"
        return
    yield f"a wedge may be ended by {_listed((step.value for step in profile.recovery), 'or')}"
    if profile.paths.recovery_record:
        yield f"attempts are recorded in {profile.paths.recovery_record}"
    if reset is not None and profile.probe is not None:
        tool = reset.tool or profile.probe.tool
        yield f"a reset is `{' '.join((tool, *reset.args))}`, at most {reset.timeout_s:g} s"
        for when, args in (("before", reset.before), ("after", reset.after)):
            if args:
                yield f"{when} it `{' '.join((tool, *args))}` is run"
        if reset.minor_in:
            yield f"a device's node has the number in {reset.minor_in}, in the line {reset.minor_line!r}"


def _reboot_words(profile: Profile) -> Iterator[str]:
    if not profile.paths.reboot_marker:
        yield "none is ever requested"
        return
    yield f"requested by {profile.paths.reboot_marker}"
    yield (
        "made by the rebooter, once approved"
        if profile.paths.rebooter_record
        else "made by something else: this profile has no rebooter"
    )
