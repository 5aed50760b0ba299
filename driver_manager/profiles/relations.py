"""What the values of two keys must be to each other: a bad pair would else be found in the middle of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from driver_manager.domain.health.probe_output import TELL_IDLE
from driver_manager.domain.profile import ChangeBy, LoadScope, Modules, Passthrough, Profile, Strategy
from driver_manager.profiles.rules import PREFIXED_KEY, may_pause
from driver_manager.profiles.wrong import Wrong

_REBOOTER_KEYS = ("reboot_required", "approve_reboot", "pre_reboot_boot_id", "reboot_in_progress", "reboot_slots")
_REBOOTER_PATHS = ("reboot_marker", "reboot_evidence")


def broken(profile: Profile) -> Iterator[Wrong]:
    """One for each relation that does not hold."""
    yield from _names_used_twice(profile)
    yield from _reboots(profile)
    yield from _modules(profile.modules)
    deploy = profile.deploy
    if deploy.prefix and not re.fullmatch(PREFIXED_KEY, deploy.driver_key):
        yield Wrong.of("deploy.driver_component", deploy.driver_component, f"the end of a key after {deploy.prefix}")
    if profile.probe is not None and profile.probe.tells_idle and profile.probe.parser not in TELL_IDLE:
        known = ", ".join(sorted(TELL_IDLE))
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
