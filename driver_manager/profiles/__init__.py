"""Vendor profiles as TOML: the built-in ones, a user's file, and how one is picked for a node.

Owns reading and checking; the shape is `driver_manager.domain.profile`. A bad file names key, value and expectation.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health.probe_output import PARSERS
from driver_manager.domain.metrics import PREFIX
from driver_manager.domain.pods.labels import MAX_LABEL_VALUE_CHARS
from driver_manager.domain.profile import Profile, Strategy, is_safe_root

AUTO = "auto"
MAX_FILE_BYTES = 256 * 1024
MAX_TIMEOUT_S = 86_400
"""Of a probe: poll(2), which waits for it, knows no more than 24 days."""


def builtin() -> dict[str, Profile]:
    """The shipped profiles by name."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    found = (parse(entry.read_text(encoding="utf-8"), entry.name) for entry in files)
    return {profile.name: profile for profile in found}


def known(profile_file: str | None) -> dict[str, Profile]:
    """The shipped profiles, and the one in `profile_file`, which replaces one of the same name. Raises ConfigError."""
    profiles = builtin()
    if profile_file:
        try:
            text = _content(profile_file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"profile file {profile_file} cannot be read: {error}", "Give a TOML file (PROFILE_FILE)."
            ) from error
        own = parse(text, profile_file)
        profiles[own.name] = own
    return profiles


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
    raise ConfigError(f"the profile cannot be told from this node: {seen}", "Name it with --profile (DRIVER_PROFILE).")


def _is_labelled(profile: Profile, keys: list[str]) -> bool:
    prefix = profile.deploy.prefix
    return any((prefix and key.startswith(prefix)) or key in profile.present_labels for key in keys)


def parse(text: str, where: str) -> Profile:
    """The profile in `text`. Raises ConfigError naming `where`, the key, the value and what was expected."""
    try:
        body = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise ConfigError(f"profile {where} is not TOML: {error}", "Mend the file.") from error
    profile: Profile = _with_derived_keys(_build(Profile, body, where, ""))
    _check(profile, where)
    return profile


_DERIVED = ("state", "last_outcome", "mute_until", "rollout")
_JOURNAL_END = ".journal"
_OWN_NAME = "driver-manager"


def _with_derived_keys(profile: Profile) -> Profile:
    """`profile` with the keys that its file may leave out, made from that of the journal."""
    keys, (domain, _, name) = profile.keys, profile.keys.journal.rpartition("/")
    named = name.removesuffix(_JOURNAL_END) if name.endswith(_JOURNAL_END) else _OWN_NAME

    def derived(end: str) -> str:
        wanted = f"{domain}/{named}.{end}"
        return wanted if _PREFIXED_KEY.fullmatch(wanted) and wanted not in keys.names else f"{domain}/{_OWN_NAME}.{end}"

    found = {name: getattr(keys, name) or derived(name.replace("_", "-")) for name in _DERIVED}
    return dataclasses.replace(profile, keys=dataclasses.replace(keys, **found))


_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PREFIXED_KEY = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""Qualified names of labels and annotations (k8s.io/apimachinery validation.IsQualifiedName)."""


_DEVICE = re.compile(r"/dev/[A-Za-z0-9_][A-Za-z0-9_.*?\[\]!:-]*(/[A-Za-z0-9_.*?\[\]!:-]+)*")
_MODULE = re.compile(r"[A-Za-z0-9_]{3}")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
"""Names of metrics (prometheus.io, Data model)."""

_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]*\.service")


def _check(profile: Profile, where: str) -> None:
    """What types do not say. A bad key or value would else be found by the API server, in the middle of a run."""
    if not _NAME.fullmatch(profile.name) or profile.name == AUTO:
        raise _bad(where, "name", profile.name, f"letters, digits, dots and dashes, other than {AUTO}")
    if not re.fullmatch(r"[0-9a-f]{4}", profile.pci_vendor):
        raise _bad(where, "pci_vendor", profile.pci_vendor, "four lower-case hexadecimal digits, as 1eff")
    _check_keys(profile, where)
    _check_patterns(profile, where)
    _check_reboots(profile, where)
    for name in ("driver_root", "state_file", "load_record"):
        if not getattr(profile.paths, name):
            raise _bad(where, f"paths.{name}", "", "an absolute path")
    if not is_safe_root(profile.paths.driver_root):
        raise _bad(where, "paths.driver_root", profile.paths.driver_root, "a folder of the driver's own")
    if profile.probe is not None and profile.probe.timeout_s > MAX_TIMEOUT_S:
        raise _bad(where, "probe.timeout_s", profile.probe.timeout_s, "a number of seconds, a day at the most")
    if not profile.modules.roots:
        raise _bad(where, "modules.roots", (), "at least one module name")
    if profile.probe is not None and profile.probe.parser not in PARSERS:
        raise _bad(where, "probe.parser", profile.probe.parser, f"one of {', '.join(sorted(PARSERS))}")
    for field in dataclasses.fields(profile.paths):
        value = getattr(profile.paths, field.name)
        for path in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
            if path and (not path.startswith("/") or ".." in path.split("/")):
                raise _bad(where, f"paths.{field.name}", path, "an absolute path without ..")


_REBOOTER_KEYS = ("reboot_required", "approve_reboot", "pre_reboot_boot_id", "reboot_in_progress", "reboot_slots")
_REBOOTER_PATHS = ("reboot_marker", "reboot_evidence")


def _check_reboots(profile: Profile, where: str) -> None:
    """A driver that only a reboot changes needs a marker to ask by; one with a rebooter, all that that one writes."""
    if profile.strategy is Strategy.REBOOT and not profile.paths.reboot_marker:
        raise _lacking(where, "paths.reboot_marker", f'strategy = "{profile.strategy.value}"')
    if profile.paths.rebooter_record:
        for table, names in (("keys", _REBOOTER_KEYS), ("paths", _REBOOTER_PATHS)):
            for name in names:
                if not getattr(getattr(profile, table), name):
                    raise _lacking(where, f"{table}.{name}", "paths.rebooter_record")


def _lacking(where: str, key: str, needs_it: str) -> ConfigError:
    return ConfigError(
        f"profile {where}: {key} is missing, and {needs_it} needs it", "Add it; the shipped profile ascend shows it."
    )


def _check_patterns(profile: Profile, where: str) -> None:
    for pattern in profile.paths.device_nodes:
        if not _DEVICE.fullmatch(pattern) or "**" in pattern:
            raise _bad(where, "paths.device_nodes", pattern, "a pattern such as /dev/rbln[0-9]*")
    for pattern in (*profile.modules.own, *profile.modules.roots):
        if not _MODULE.match(pattern):
            raise _bad(where, "modules", pattern, "a module name, or a pattern that begins with three letters of it")
    for name in ("device_classes", "idle_states"):
        if "" in getattr(profile, name):
            raise _bad(where, name, "", "a name")
    _check_names(profile, where)


def _check_names(profile: Profile, where: str) -> None:
    for prefix in profile.resource_prefixes:
        if not _PREFIXED_KEY.fullmatch(f"{prefix}x"):
            raise _bad(where, "resource_prefixes", prefix, "the beginning of a resource's name, as example.com/npu")
    for key in profile.deploy.last_keys:
        if not may_pause(key):
            raise _bad(where, "deploy.leave_last", key, "components, or whole keys such as example.com/name")
    for name in profile.host_services:
        if not _SERVICE.fullmatch(name):
            raise _bad(where, "host_services", name, "the name of a systemd service")
    metrics = profile.upgrade_metrics.names
    for name in metrics:
        if not _METRIC.fullmatch(name) or name.startswith(PREFIX):
            raise _bad(where, "upgrade_metrics", name, "the name of a metric of somebody else's")
    if len(set(metrics)) != len(metrics):
        raise _bad(where, "upgrade_metrics", metrics, "a different name for each")


def may_pause(key: str) -> bool:
    """Whether `key` is a prefixed label key, and none of Kubernetes' own, which schedulers and kubelets live by."""
    domain = key.partition("/")[0]
    is_kubernetes = any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io"))
    return bool(_PREFIXED_KEY.fullmatch(key)) and not is_kubernetes


def _check_keys(profile: Profile, where: str) -> None:
    keys = {field.name: getattr(profile.keys, field.name) for field in dataclasses.fields(profile.keys)}
    for name, key in keys.items():
        if (key or name in ("journal", "cordon")) and not _PREFIXED_KEY.fullmatch(key):
            raise _bad(where, f"keys.{name}", key, "a key such as example.com/name")
    used = [key for key in keys.values() if key]
    if len(set(used)) != len(used):
        raise _bad(where, "keys", used, "a different key for each")
    deploy = profile.deploy
    if deploy.prefix and not _PREFIXED_KEY.fullmatch(deploy.driver_key):
        raise _bad(where, "deploy.prefix", deploy.prefix, "the beginning of a key, as example.com/npu.deploy.")
    for name in ("paused_value", "preinstalled_value"):
        value = getattr(deploy, name)
        if not _NAME.fullmatch(value) or len(value) > MAX_LABEL_VALUE_CHARS or value in ("true", "false"):
            raise _bad(where, f"deploy.{name}", value, "a label value other than true and false")


def _build(kind: Any, body: Any, where: str, at: str) -> Any:
    """A dataclass `kind` from a TOML table; every key must be one of its fields, every value of its type."""
    if not isinstance(body, dict):
        raise _bad(where, at.rstrip(".") or "the file", body, "a table")
    hints = typing.get_type_hints(kind)
    for key in body:
        if key not in hints:
            raise ConfigError(
                f"profile {where}: unknown key {at}{key}", f"Known keys here: {', '.join(sorted(hints))}."
            )
    values = {key: _value(hints[key], value, where, f"{at}{key}") for key, value in body.items()}
    required = (field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING)
    missing = [
        field.name for field in required if field.default_factory is dataclasses.MISSING and field.name not in values
    ]
    if missing:
        raise ConfigError(
            f"profile {where}: {at}{missing[0]} is missing", "Add it; the shipped profiles show each key."
        )
    return kind(**values)


def _value(kind: Any, value: Any, where: str, at: str) -> Any:
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, where, f"{at}.")
    if isinstance(kind, type) and issubclass(kind, Enum):
        names = [member.value for member in kind]
        if value not in names:
            raise _bad(where, at, value, f"one of {', '.join(names)}")
        return kind(value)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _bad(where, at, value, "a list of texts")
        return tuple(_printable(item, where, at) for item in value)
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise _bad(where, at, value, "a number above 0")
        return float(min(value, MAX_TIMEOUT_S + 1))
    if not isinstance(value, kind):
        raise _bad(where, at, value, "true or false" if kind is bool else "a text")
    return _printable(value, where, at) if isinstance(value, str) else value


def _printable(text: str, where: str, at: str) -> str:
    """`text`. Raises ConfigError for what no path, key or argument may hold: NUL, line feeds, other control letters."""
    if not text.isprintable():
        raise _bad(where, at, text, "printable text")
    return text


def _bad(where: str, key: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"profile {where}: {key} is {value!r}, expected {expected}", "Mend the file.")
