"""Vendor profiles as TOML: the built-in ones, a user's file, and the choice for a node.

The shape of a profile is `driver_manager.domain.profile`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from driver_manager.domain import selectors
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health.parsers import PARSERS, SHOWS_USE
from driver_manager.domain.metrics import PREFIX
from driver_manager.domain.pods.labels import MAX_LABEL_VALUE_CHARS
from driver_manager.domain.profile import (
    ChangeBy,
    LoadScope,
    Modules,
    NodeMaker,
    Passthrough,
    Profile,
    RootsNeeded,
    Strategy,
    is_safe_root,
)
from driver_manager.domain.records import Frozen
from driver_manager.domain.text import one_line, shortened

# What each value of a profile must be beyond its type, as data: the reader and the JSON Schema are made from it.
#
# Owns the patterns and the words for what was expected. Patterns are of the part that Python and ECMA 262 share.

AUTO = "auto"
MAX_TIMEOUT_S = 86_400
"""Of a probe: poll(2), which waits for it, knows no more than 24 days."""


class Rule(Frozen):
    """What every text of one key must be: one of `choices`, of the whole `pattern`, and as `holds` says.

    An empty text means "none" where the key is no list, and not `is_needed`.
    """

    expected: str
    pattern: str = ""
    choices: tuple[str, ...] = ()
    holds: Callable[[str], bool] | None = None
    is_needed: bool = False


_WORD = "[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_DOMAIN = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
PREFIXED_KEY = f"{_DOMAIN}/[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
"""Qualified names of labels and annotations (k8s.io/apimachinery validation.IsQualifiedName)."""

_BEGINNING = f"{_DOMAIN}/([A-Za-z0-9][A-Za-z0-9._-]{{0,61}})?"
_PATH = "/.*"
_MODULE = "[A-Za-z0-9_]+"
_METRIC = f"(?!{PREFIX})[a-zA-Z_:][a-zA-Z0-9_:]*"
"""Names of metrics (prometheus.io, Data model), other than our own."""


def _is_selector(text: str) -> bool:
    """Whether `text` is a label selector that does not select everything."""
    try:
        return bool(selectors.parse(text))
    except ValueError:
        return False


def _is_plain_path(path: str) -> bool:
    return ".." not in path.split("/")


def may_pause(key: str) -> bool:
    """Whether `key` is a prefixed label key, and none of Kubernetes' own, which schedulers and kubelets live by."""
    domain = key.partition("/")[0]
    is_kubernetes = any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io"))
    return bool(re.fullmatch(PREFIXED_KEY, key)) and not is_kubernetes


def _key(*, is_needed: bool = False) -> Rule:
    return Rule("a key such as example.com/name", PREFIXED_KEY, is_needed=is_needed)


def _path(*, is_needed: bool = False) -> Rule:
    return Rule("an absolute path without ..", _PATH, holds=_is_plain_path, is_needed=is_needed)


def _each(names: Iterable[str], rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


_LABEL_VALUE = Rule(
    "a label value other than true and false",
    f"(?!(true|false)$){_WORD}",
    holds=lambda value: len(value) <= MAX_LABEL_VALUE_CHARS,
    is_needed=True,
)
_OWN_MODULE = Rule(
    "a module name, or a pattern that begins with three letters of it", r"[A-Za-z0-9_]{3}[A-Za-z0-9_*?\[\]!-]*"
)

RULES: dict[str, Rule] = {
    "name": Rule(f"letters, digits, dots and dashes, other than {AUTO}", f"(?!{AUTO}$){_WORD}", is_needed=True),
    "pci_vendor": Rule("four lower-case hexadecimal digits, as 1eff", "[0-9a-f]{4}", is_needed=True),
    "resource_prefixes": Rule("the beginning of a resource's name, as example.com/npu", _BEGINNING),
    "device_classes": Rule("a name", ".+"),
    "idle_states": Rule("a name", ".+"),
    "clients": Rule("a label selector such as app=exporter,tier!=test", ".+", holds=_is_selector),
    "host_services": Rule("the name of a systemd service", r"[A-Za-z0-9][A-Za-z0-9_.@:-]*\.service"),
    **_each(("keys.journal", "keys.cordon"), _key(is_needed=True)),
    **_each(
        (
            *("keys.upgrade_enabled", "keys.upgrade_state", "keys.upgrade_requested", "keys.skip", "keys.safe_load"),
            *("keys.reboot_required", "keys.approve_reboot", "keys.pre_reboot_boot_id", "keys.reboot_in_progress"),
            *("keys.reboot_slots", "keys.state", "keys.last_outcome", "keys.mute_until", "keys.rollout"),
            "keys.generation",
        ),
        _key(),
    ),
    **_each(("modules.roots", "modules.own"), _OWN_MODULE),
    **_each(
        ("modules.order", "modules.conflicting_removable"), Rule("the name of a module as /sys/module has it", _MODULE)
    ),
    "modules.parameters": Rule("module.parameter=value, without blanks", r"[A-Za-z0-9_]+\.[A-Za-z0-9_]+=[^\s\"'\\#]+"),
    "modules.keep_parameters": Rule(
        "module.parameter, or a pattern of it that begins with the module", rf"{_MODULE}\.[A-Za-z0-9_*?\[\]!-]+"
    ),
    "paths.driver_root": Rule("a folder of the driver's own", _PATH, holds=is_safe_root, is_needed=True),
    **_each(("paths.state_file", "paths.load_record"), _path(is_needed=True)),
    **_each(
        (
            *("paths.ready_marker", "paths.artifacts", "paths.reboot_marker", "paths.rebooter_record"),
            *("paths.reboot_evidence", "paths.evidence", "paths.firmware"),
        ),
        _path(),
    ),
    **_each(
        ("transitions.old", "transitions.new"),
        Rule("a version, or a pattern such as 6.2.*", r"[A-Za-z0-9._+:~*?\[\]!-]+", is_needed=True),
    ),
    "paths.device_nodes": Rule(
        "a pattern such as /dev/rbln[0-9]*",
        r"/dev/[A-Za-z0-9_][A-Za-z0-9_.*?\[\]!:-]*(/[A-Za-z0-9_.*?\[\]!:-]+)*",
        holds=lambda pattern: "**" not in pattern and _is_plain_path(pattern),
    ),
    "deploy.on_unless_false": Rule(
        "a label key such as example.com/deploy.name, and none of Kubernetes' own", PREFIXED_KEY, holds=may_pause
    ),
    "passthrough.mode_key": _key(),
    "passthrough.resources": Rule("a pattern such as example.com/*_VF", r"[^/]+/.*[^*?].*"),
    "passthrough.auxiliary": Rule("four lower-case hexadecimal digits, as 0403", "[0-9a-f]{4}"),
    "deploy.prefix": Rule("the beginning of a key, as example.com/npu.deploy.", _BEGINNING),
    **_each(("deploy.paused_value", "deploy.preinstalled_value"), _LABEL_VALUE),
    "probe.parser": Rule(f"one of {', '.join(sorted(PARSERS))}", choices=tuple(sorted(PARSERS)), is_needed=True),
    **_each(
        (f"upgrade_metrics.{name}" for name in ("enabled", "in_progress", "done", "failed", "available", "pending")),
        Rule("the name of a metric that is not driver-manager's own", _METRIC),
    ),
    "upgrade_metrics.by_state": Rule("the name of a metric that is not driver-manager's own", _METRIC),
}
"""By the key's path in the file."""

LEAST_ENTRIES = {"modules.roots": ("at least one module name", 1)}
"""Lists that must not be empty: what was expected, and how many entries."""


# Names of keys on the Node that a profile file may leave out: they follow from that of the journal.

_DERIVED = ("state", "last_outcome", "mute_until", "rollout", "generation")
_JOURNAL_END = ".journal"
_OWN_NAME = "driver-manager"


def with_derived_keys(profile: Profile) -> Profile:
    """`profile` with the keys that its file may leave out, made from that of the journal."""
    keys, (domain, _, name) = profile.keys, profile.keys.journal.rpartition("/")
    named = name.removesuffix(_JOURNAL_END) if name.endswith(_JOURNAL_END) else _OWN_NAME

    def derived(end: str) -> str:
        wanted = f"{domain}/{named}.{end}"
        is_fit = re.fullmatch(PREFIXED_KEY, wanted) and wanted not in keys.names
        return wanted if is_fit else f"{domain}/{_OWN_NAME}.{end}"

    found = {name: getattr(keys, name) or derived(name.replace("_", "-")) for name in _DERIVED}
    return dataclasses.replace(profile, keys=dataclasses.replace(keys, **found))


# One thing that is wrong with a profile file, as one line.

MAX_VALUE_CHARS = 120
"""A value is shown cut to this length."""


class Wrong(Frozen):
    """`key` is its path in the file, "" of the file itself; `what` names key, value and what was expected.

    `value` is as Python writes it and cut, "" where there is none; `expected` is "" where no value would be right.
    `line` is None where it is not known.
    """

    key: str
    what: str
    value: str = ""
    expected: str = ""
    line: int | None = None

    @classmethod
    def of(cls, key: str, value: Any, expected: str) -> Wrong:
        """A value that is not what was expected."""
        shown = shortened(repr(value), MAX_VALUE_CHARS)
        what = one_line(f"{key or 'the file'} is {shown}, expected {expected}")
        return cls(key, what, one_line(shown), expected)

    @classmethod
    def lacking(cls, key: str, needs_it: str) -> Wrong:
        """A key that another one of the file needs."""
        return cls(key, f"{key} is missing, and {needs_it} needs it", expected=f"a value, as {needs_it} needs it")


# What the values of two keys must be to each other: a bad pair would else be found in the middle of a run.

_REBOOTER_KEYS = ("reboot_required", "approve_reboot", "pre_reboot_boot_id", "reboot_in_progress", "reboot_slots")
_REBOOTER_PATHS = ("reboot_marker", "reboot_evidence")


def broken_relations(profile: Profile) -> Iterator[Wrong]:
    """One for each relation that does not hold."""
    yield from _names_used_twice(profile)
    yield from _reboots(profile)
    yield from _modules(profile.modules)
    deploy = profile.deploy
    if deploy.prefix and not re.fullmatch(PREFIXED_KEY, deploy.driver_key):
        yield Wrong.of("deploy.driver_component", deploy.driver_component, f"the end of a key after {deploy.prefix}")
    if profile.probe is not None and profile.probe.tells_idle and profile.probe.parser not in SHOWS_USE:
        known = ", ".join(sorted(SHOWS_USE))
        yield Wrong.of("probe.tells_idle", True, f"a parser that can determine it: {known}")
    if profile.container_unloads and not deploy.prefix:
        yield Wrong.lacking("deploy.prefix", "container_unloads")
    modes = profile.passthrough or Passthrough()
    if bool(modes.mode_key) != bool(modes.mode_value):
        yield Wrong.of("passthrough.mode_value", modes.mode_value, "a value if mode_key is set, else none")
    others = {*deploy.last_keys, *profile.keys.names, modes.mode_key, *({deploy.driver_key} if deploy.prefix else ())}
    for key in deploy.on_unless_false:
        if key in others:
            yield Wrong.of("deploy.on_unless_false", key, "a key that has no other meaning")
    for key in sorted(deploy.last_keys):
        if not may_pause(key):
            yield Wrong.of("deploy.leave_last", key, "components, or whole keys such as example.com/name")


def _names_used_twice(profile: Profile) -> Iterator[Wrong]:
    for table, values in (("keys", vars(profile.keys)), ("upgrade_metrics", vars(profile.upgrade_metrics))):
        first: dict[str, str] = {}
        for name, value in values.items():
            if value and (other := first.setdefault(value, name)) != name:
                word = "key" if table == "keys" else "name"
                yield Wrong.of(f"{table}.{name}", value, f"a different {word} for each: {table}.{other} is the same")


def _modules(modules: Modules) -> Iterator[Wrong]:
    if modules.order and modules.load is LoadScope.TREE:
        yield Wrong.of(
            "modules.order", modules.order, 'nothing with load = "tree", which loads modules as they are needed'
        )
    if len(set(modules.order)) != len(modules.order):
        yield Wrong.of("modules.order", modules.order, "each module once")
    ours = {*modules.roots, *modules.order, *modules.conflicting}
    for name in modules.conflicting_removable:
        if name in ours:
            yield Wrong.of("modules.conflicting_removable", name, "a module that is in no other list of [modules]")
    for text in modules.parameters:
        name = text.partition("=")[0]
        if any(fnmatchcase(name, pattern) for pattern in modules.keep_parameters):
            yield Wrong.of("modules.parameters", text, "a parameter that modules.keep_parameters does not keep")


def _reboots(profile: Profile) -> Iterator[Wrong]:
    """A driver that only a reboot changes needs a marker to ask by; one with a rebooter, all that that one writes."""
    by_reboot = next((one for one in profile.transitions if one.strategy is ChangeBy.REBOOT), None)
    if (profile.strategy is Strategy.REBOOT or by_reboot) and not profile.paths.reboot_marker:
        needs_it = (
            'strategy = "reboot"' if by_reboot is None else f"the transition from {by_reboot.old} to {by_reboot.new}"
        )
        yield Wrong.lacking("paths.reboot_marker", needs_it)
    if profile.paths.rebooter_record:
        for table, names in (("keys", _REBOOTER_KEYS), ("paths", _REBOOTER_PATHS)):
            for name in names:
                if not getattr(getattr(profile, table), name):
                    yield Wrong.lacking(f"{table}.{name}", "paths.rebooter_record")


# A profile file becomes a Profile, or a list of all that is wrong with it: one line for each wrong value.
#
# Owns types and unknown keys; what a value must be beyond its type is in `rules`, what two keys must be to each other
# in `relations`.

_LINE = re.compile(r"\(at line ([0-9]{1,9}),")
"""Where tomllib names the place of a mistake."""

_ANY_TEXT = "a text"
_SECONDS = "a number above 0 and at most a day of seconds"


class ProfileReading(Frozen):
    """What a file says: a profile, or what is wrong."""

    profile: Profile | None
    wrong: tuple[Wrong, ...] = ()


def read(text: str) -> ProfileReading:
    """The profile in `text`, or all that is wrong with it; what depends on two keys is looked at once each is right."""
    try:
        body = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        place = _LINE.search(str(error))
        line = int(place[1]) if place else None
        return ProfileReading(None, (Wrong("", f"the file is not TOML: {one_line(str(error))}", "", "TOML", line),))
    reader = _Reader()
    profile = reader.table(Profile, body, "")
    if reader.wrong or profile is None:
        return ProfileReading(None, tuple(reader.wrong))
    whole: Profile = with_derived_keys(profile)
    found = tuple(broken_relations(whole))
    return ProfileReading(None if found else whole, found)


class _Reader:
    """Collects what is wrong on its way."""

    def __init__(self) -> None:
        self.wrong: list[Wrong] = []

    def table(self, kind: Any, body: Any, at: str) -> Any:
        """A dataclass `kind` from a TOML table; None where a value of it is wrong."""
        if not isinstance(body, dict):
            self._bad(at.rstrip("."), body, "a table")
            return None
        before, hints = len(self.wrong), _hints(kind)
        for key in body:
            if key not in hints:
                known = f"known keys here: {', '.join(sorted(hints))}"
                self.wrong.append(Wrong(f"{at}{key}", f"unknown key {one_line(at + key)}; {known}", expected=known))
        values = {key: self._value(hints[key], value, f"{at}{key}") for key, value in body.items() if key in hints}
        for field in dataclasses.fields(kind):
            if field.name not in values and _is_required(field):
                expected = _expected(hints[field.name], f"{at}{field.name}")
                what = f"{at}{field.name} is missing, expected {expected}"
                self.wrong.append(Wrong(at + field.name, what, expected=expected))
        return kind(**values) if len(self.wrong) == before else None

    def _value(self, hint: Any, value: Any, at: str) -> Any:
        kind = inner(hint)
        if dataclasses.is_dataclass(kind):
            return self.table(kind, value, f"{at}.")
        if is_list(kind):
            return self._list(typing.get_args(kind)[0], value, at)
        if kind is str:
            return self._text(value, at)
        if kind is float:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return float(value) if is_number and 0 < value <= MAX_TIMEOUT_S else self._bad(at, value, _SECONDS)
        if kind is bool:
            return value if isinstance(value, bool) else self._bad(at, value, _expected(kind, at))
        known = {member.value: member for member in kind}
        is_known = isinstance(value, str) and value in known
        return known[value] if is_known else self._bad(at, value, _expected(kind, at))

    def _list(self, kind: Any, value: Any, at: str) -> Any:
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, list):
                return self._bad(at, value, "a list of tables")
            return tuple(self.table(kind, item, f"{at}[{number}].") for number, item in enumerate(value))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            return self._bad(at, value, "a list of texts")
        expected, least = LEAST_ENTRIES.get(at, ("", 0))
        if len(value) < least:
            return self._bad(at, value, expected)
        # One line for each key, though more than one of its texts may be wrong.
        wrong = next((item for item in value if not _is_right(item, at, in_list=True)), None)
        return tuple(value) if wrong is None else self._bad(at, wrong, _expected(str, at))

    def _text(self, value: Any, at: str) -> Any:
        is_right = isinstance(value, str) and _is_right(value, at)
        return value if is_right else self._bad(at, value, _expected(str, at))

    def _bad(self, at: str, value: Any, expected: str) -> None:
        self.wrong.append(Wrong.of(at, value, expected))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The fields of a table, and what each holds; found out once for all profiles, as that is most of their reading."""
    return typing.get_type_hints(kind)


def inner(hint: Any) -> Any:
    """The type behind `| None`."""
    if isinstance(hint, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not type(None))
    return hint


def is_list(kind: Any) -> bool:
    """Whether a field of this type is a list in the file."""
    return typing.get_origin(kind) is tuple


def rule_path(at: str) -> str:
    """The key by which `rules` knows the value at `at`: without the numbers of tables in a list."""
    return re.sub(r"\[\d*\]", "", at)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_right(text: str, at: str, *, in_list: bool = False) -> bool:
    """Whether `text` may stand there. No path, key or argument may hold NUL, line feeds or other control letters."""
    rule = RULES.get(rule_path(at))
    if not text.isprintable():
        return False
    if rule is None:
        return True
    if not text and not in_list:
        return not rule.is_needed
    if rule.choices and text not in rule.choices:
        return False
    if rule.pattern and not re.fullmatch(rule.pattern, text):
        return False
    return rule.holds is None or rule.holds(text)


def _expected(hint: Any, at: str) -> str:
    """What was expected, in words."""
    kind, rule = inner(hint), RULES.get(rule_path(at))
    if rule is not None:
        return rule.expected
    if dataclasses.is_dataclass(kind):
        return "a table"
    if is_list(kind):
        return LEAST_ENTRIES.get(at, ("a list of texts", 0))[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    return {bool: "true or false", float: _SECONDS}.get(kind, f"{_ANY_TEXT} of printable letters")


__all__ = ["AUTO", "MAX_FILE_BYTES", "MAX_TIMEOUT_S", "builtin", "known", "may_pause", "parse", "pick", "read_file"]

MAX_FILE_BYTES = 256 * 1024


def builtin() -> dict[str, Profile]:
    """The shipped profiles by name."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    found = (parse(entry.read_text(encoding="utf-8"), entry.name) for entry in files)
    return {profile.name: profile for profile in found}


def known(profile_file: str | None) -> dict[str, Profile]:
    """The shipped profiles, and the one in `profile_file`, which replaces one of the same name. Raises ConfigError."""
    profiles = builtin()
    if profile_file:
        own = _profile(read_file(profile_file), profile_file)
        profiles[own.name] = own
    return profiles


def read_file(path: str) -> ProfileReading:
    """What a user's file says. Raises ConfigError where it cannot be read at all."""
    try:
        return read(_content(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"profile file {path} cannot be read: {error}", "Give a TOML file (PROFILE_FILE).") from error


def _content(path: str) -> str:
    """The whole file. Raises OSError, and ValueError for what is no small text file; waits for nobody."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
    return content.decode()


def pick(
    wanted: str, profiles: Mapping[str, Profile], labels: Iterable[str], has_device: Callable[[Profile], bool]
) -> Profile:
    """The profile called `wanted`, or for `auto` the one whose devices are present, else whose labels the node carries.

    Raises ConfigError for an unknown name, and where auto finds none or two.
    """
    if wanted != AUTO:
        if wanted in profiles:
            return profiles[wanted]
        raise ConfigError(
            f"there is no profile {wanted!r}", f"Use one of {', '.join(sorted(profiles))}, or auto (DRIVER_PROFILE)."
        )
    keys = list(labels)
    by_device = [profile for profile in profiles.values() if has_device(profile)]
    found = by_device or [profile for profile in profiles.values() if _is_labelled(profile, keys)]
    if len(found) == 1:
        return found[0]
    seen = ", ".join(profile.name for profile in found) or "no known PCI device and no known node label"
    raise ConfigError(
        f"the profile cannot be determined from this node: {seen}", "Name it with --profile (DRIVER_PROFILE)."
    )


def _is_labelled(profile: Profile, keys: list[str]) -> bool:
    prefix = profile.deploy.prefix
    return any((prefix and key.startswith(prefix)) or key in profile.present_labels for key in keys)


def parse(text: str, where: str) -> Profile:
    """The profile in `text`. Raises ConfigError naming `where`, the key, the value and what was expected."""
    return _profile(read(text), where)


def _profile(found: ProfileReading, where: str) -> Profile:
    if found.profile is None:
        more = len(found.wrong) - 1
        and_more = f" (and {more} more)" if more else ""
        raise ConfigError(
            f"profile {where}: {found.wrong[0].what}{and_more}",
            "Fix the file; `driver-manager profile check` lists every mistake in it.",
        )
    return found.profile


# What a profile means, in words for whoever wrote it: topic and sentence.


def meaning(profile: Profile) -> tuple[tuple[str, str], ...]:
    """One topic after the other, each with what a node with this profile may expect."""
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
    yield from _transitions(profile)


def _transitions(profile: Profile) -> Iterator[str]:
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
