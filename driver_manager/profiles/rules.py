"""What each value of a profile must be beyond its type, as data: the reader and the JSON Schema are made from it.

Owns the patterns and the words for what was expected. Patterns are of the part that Python and ECMA 262 share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from driver_manager.domain import selectors
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.health.probe_output import PARSERS
from driver_manager.domain.metrics import PREFIX
from driver_manager.domain.pods.labels import MAX_LABEL_VALUE_CHARS
from driver_manager.domain.safe_root import is_safe_root

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
