"""Every key of a profile file, for the reference and for editors: its meaning from here, the rest from the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from driver_manager import schemas
from driver_manager.domain.health.parsers import PARSERS
from driver_manager.domain.profile import MAX_TIMEOUT_S, Profile
from driver_manager.domain.schema import FieldType, fields_of
from driver_manager.profiles import builtin
from tests.support.docs.markdown import code, table

MEANINGS = {
    "name": "name of the profile, for `DRIVER_PROFILE`",
    "strategy": "`in-place`: swapped in the running kernel; `reboot`: never unloaded, it asks for a reboot",
    "pci_vendor": "PCI vendor id of the devices, four lower-case hexadecimal digits",
    "pci_classes": "PCI classes (first four digits) that count as devices; empty: any",
    "pci_devices": "PCI device ids that count; empty: any of the vendor and the classes",
    "present_labels": "Node labels that mark a node of this vendor, for `auto` where there is no deploy prefix",
    "resource_prefixes": "beginnings of the resource names by which a pod asks for a device",
    "device_classes": "DRA device classes whose claims use the driver (`NPU_POD_EVICTION_DEVICE_CLASS` overrides them)",
    "dra_driver": "names of the DRA drivers: for claims through a class of the user's own, and for the plugin's folder",
    "serving_classes": "device classes of DaemonSets that a DRA driver makes for users' claims: they leave after them",
    "clients": "label selectors of pods that open the driver; they are restarted once a new driver is ready",
    "idle_states": "values of `keys.upgrade_state` at which the operator does nothing",
    "namespace": "where the vendor's operator and driver pods are, unless `OPERATOR_NAMESPACE` is set",
    "container_unloads": "the driver container unloads when its pod is deleted, so a rollout clears the node first",
    "host_services": "systemd services of the host that hold the device; stopped with `STOP_HOST_SERVICES` only",
    "transitions[].old": "shell pattern of the loaded version; the first table whose patterns both match counts",
    "transitions[].new": "pattern of the version to load; if a container loads it, that is unknown: only `*` matches",
    "transitions[].strategy": "strategy for this change instead of the profile's; `refuse`: preflight refuses it",
    "transitions[].why": "reason that is shown when it is refused or waits for the reboot",
    "commands.reconcile": "names that the vendor's own manager has for `reconcile-driver-state`; they work here too",
    "commands.preflight": "names that the vendor's own manager has for `preflight`",
    "commands.unheeded": "its environment variables that have no effect here; a run warns if one is set",
    "keys.journal": "annotation: what a run took, to be released",
    "keys.cordon": "annotation: marks a cordon as set by driver-manager; only such a cordon is lifted",
    "keys.upgrade_enabled": "annotation: `true` means that an operator manages this node's upgrades",
    "keys.upgrade_state": "label: state of this node's upgrade, written by the operator or by a rollout",
    "keys.upgrade_requested": "annotation: asks the operator for one upgrade, or a rollout for one more attempt",
    "keys.skip": "label: `true` leaves the node out of rollouts, of upgrades by hand and of reboots",
    "keys.safe_load": "annotation: asks the operator for a safe load; the operator removes it when that is safe",
    "keys.reboot_required": "label: `true` means that a reboot is required",
    "keys.approve_reboot": "annotation: `true` approves one reboot; it is consumed",
    "keys.pre_reboot_boot_id": "annotation: the boot that a granted reboot ends",
    "keys.reboot_in_progress": "annotation: a reboot was granted, with its reason, until the node is back",
    "keys.reboot_slots": "annotation on the Lease: who holds a slot",
    "keys.state": "label: the driver's state, in one word; default: as the journal, ending in `.state`",
    "keys.last_outcome": "annotation: how the last run ended; default: as the journal, ending in `.last-outcome`",
    "keys.mute_until": "annotation: mutes health-watch until this time; default: as the journal, with `.mute-until`",
    "keys.rollout": "annotation: what a rollout has done on the node; default: as the journal, ending in `.rollout`",
    "keys.generation": "annotation: the driver generation; default: as the journal, ending in `.generation`",
    "keys.version": "label: the version of the loaded driver; default: as the journal, ending in `.version`",
    "upgrade_metrics.enabled": "metric of the vendor's operator that `rollout controller` serves too: upgrades are on",
    "upgrade_metrics.in_progress": "the same, of nodes that are being upgraded",
    "upgrade_metrics.done": "the same, of nodes that were upgraded",
    "upgrade_metrics.failed": "the same, of nodes whose upgrade failed",
    "upgrade_metrics.available": "the same, of nodes whose upgrade can start now",
    "upgrade_metrics.pending": "the same, of nodes that wait",
    "upgrade_metrics.by_state": "the same, of nodes by the word of their `keys.upgrade_state`, as the label `state`",
    "deploy.prefix": "beginning of the deploy labels that switch operands; empty: the vendor has none",
    "deploy.driver_component": "the component behind the prefix that is the driver itself; never paused",
    "deploy.paused_value": "value of a paused deploy label",
    "deploy.preinstalled_value": "value of the driver's deploy label where the host has its own driver",
    "deploy.leave_last": "components, or whole label keys, paused only after the last claim holder has left",
    "deploy.never_paused": "components whose deploy labels place no operand, and are left as they are",
    "deploy.on_unless_false": "keys of labels whose operands run without them: paused with `false`, then removed",
    "passthrough.mode_key": "label that gives a node's devices to containers or virtual machines; empty: there is none",
    "passthrough.mode_value": "its value for virtual machines; with any other, `reconcile-vfio-state` stands down",
    "passthrough.resources": "patterns of resource names for passed-through devices; their pods do not use the driver",
    "passthrough.component": "deploy component of the pods that bind devices to vfio: a run in one returns none",
    "passthrough.auxiliary": "PCI classes (first four digits) of functions in a device's slot that go where it goes",
    "modules.roots": "kernel modules that show that the driver is loaded; the others are found from them",
    "modules.roots_needed": "whether a driver root has `all` roots, or `any` of them, each for another device",
    "modules.order": "modules in the order in which they are loaded, if the driver has them; unloaded in reverse",
    "modules.parameters": "`module.parameter=value`, for loads by the manager; the host's modprobe.d takes precedence",
    "modules.keep_parameters": "patterns of `module.parameter` that keep their values over a swap by the manager",
    "modules.own": "patterns of modules below the roots that are the driver's, and may be unloaded with it",
    "modules.conflicting": "modules that must not be loaded beside the driver; preflight refuses",
    "modules.conflicting_removable": "modules that are unloaded before the load, and loaded again where it fails",
    "modules.load": "`roots`: load these and what they need; `tree`: every module in the driver root",
    "paths.driver_root": "where a driver container mounts its tree; a folder of the driver's own",
    "paths.state_file": "one line: the digest of the installed driver; on tmpfs, gone with the boot",
    "paths.load_record": "file that records which root a driver came from; lock and health record are beside it",
    "paths.ready_marker": "file that shows operands that the driver is ready",
    "paths.artifacts": "files of an installed driver that are removed with it",
    "paths.device_nodes": "patterns of the device nodes below `/dev`",
    "paths.device_nodes_made_by": "`module`: its load does, and one is waited for; `user-space`: a tool or udev, later",
    "paths.reboot_marker": "file that requests a reboot; on a disk, so that it outlives the reboot",
    "paths.rebooter_record": "what the rebooter remembers over a reboot",
    "paths.reboot_evidence": "folder for what was seen before a reboot",
    "paths.firmware": "folder of the host with the driver's firmware: `firmware_class.path` is set to it before a load",
    "paths.evidence": "folder for what was seen before an unload and at a wedge; on a disk that outlives the boot",
    "probe.tool": "the vendor's tool, looked for inside the driver root",
    "probe.args": "its arguments",
    "probe.search": "folders below the driver root to look for it in",
    "probe.preload": "library for `LD_PRELOAD`, looked for in `probe.library_dirs`",
    "probe.library_dirs": "folders below the driver root for `LD_LIBRARY_PATH`",
    "probe.timeout_s": "seconds after which a probe has failed",
    "probe.settle_s": "seconds for which a device may be slow after a load; slow is not a failure before",
    "probe.answers[].means": "what this answer means: `remark` (the device works), `sick`, `lost`, `slow` or `unknown`",
    "probe.answers[].status": "exit status of the tool; it counts if the output has no message of any answer",
    "probe.answers[].message": "text of a line that it prints; `{address}` stands for the device's PCI address",
    "probe.answers[].text": "reason to show for it; the tool's own line if empty",
    "probe.stays_ready_with": "paths in the driver root or on the host; while none exists, every probe may be slow",
    "probe.excluded_in": "file of the driver below `/proc` about the device with PCI address `{address}`",
    "probe.excluded_line": "its line for a device that the driver leaves out on purpose: it is not missing",
    "probe.parser": f"how its output is read: {', '.join(f'`{name}`' for name in sorted(PARSERS))}",
    "probe.tells_idle": "whether it reports which devices are at work; a driver is then unloaded only when none is",
    "probe.lists_virtual": "whether it lists SR-IOV virtual functions; where not, none counts as missing",
}


@dataclass(frozen=True)
class Key:
    """One key of the file, by its dotted path. `default` is "" where the key is required."""

    path: str
    kind: str
    default: str
    is_required: bool


def every_key() -> tuple[Key, ...]:
    return tuple(_keys(Profile, ""))


def rows() -> str:
    """The table of all keys. Raises KeyError for one without a meaning here."""
    shipped = sorted(builtin().values(), key=lambda profile: profile.name != "rebellions")
    lines = []
    for key in every_key():
        found = (_written(one, key.path) for one in shipped)
        example = next((text for text in found if text not in ("", key.default)), "")
        default = "required" if key.is_required else code(key.default) or "none"
        lines.append((code(key.path), key.kind, default, _short(example), MEANINGS[key.path]))
    return table(("key", "type", "default", "for example", "meaning"), lines)


def _keys(record: type, at: str) -> Iterator[Key]:
    nested = []
    for name, one in fields_of(record).items():
        if one.is_record:
            nested.append((one.kind, f"{at}{name}."))
        elif one.item is not None and one.item.is_record:
            nested.append((one.item.kind, f"{at}{name}[]."))
        else:
            yield Key(at + name, _kind(one), "" if one.is_required else _toml(one.default), one.is_required)
    for inner, prefix in nested:
        yield from _keys(inner, prefix)


def _kind(one: FieldType) -> str:
    if one.item is not None:
        return "list of texts"
    if issubclass(one.kind, Enum):
        return " or ".join(code(str(member.value)) for member in one.kind)
    return {str: "text", float: "number", int: "whole number", bool: "true or false"}[one.kind]


def _toml(value: Any) -> str:
    """`value` as a profile file writes it, "" for nothing."""
    match value:
        case Enum():
            return f'"{value.value}"'
        case tuple():
            return "[" + ", ".join(f'"{item}"' for item in value) + "]" if value else ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return f'"{value}"' if value else ""


def _written(profile: Profile, path: str) -> str:
    value: Any = profile
    if "[]" in path:
        return ""
    for name in path.split("."):
        value = getattr(value, name) if value is not None else None  # a table that the profile does not have
    return _toml(value)


def _short(example: str) -> str:
    """A long list is shown by its first text."""
    first, comma, _ = example.partition(",")
    return code(f"{first}, …]" if comma and example.startswith("[") and len(example) > 50 else example)


SCHEMA = Path(schemas.__file__).parent / "profile.schema.json"


def schema_text() -> str:
    form = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A driver-manager profile (TOML)",
        **_form(Profile, ""),
    }
    return json.dumps(form, indent=2, ensure_ascii=False) + "\n"


def _form(record: type, at: str) -> dict[str, Any]:
    fields = fields_of(record)
    required = [key for key, one in fields.items() if one.is_required]
    return {
        "type": "object",
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {key: _value(one, at + key) for key, one in fields.items()},
    }


def _value(one: FieldType, at: str) -> dict[str, Any]:
    if one.is_record:
        return _form(one.kind, f"{at}.")
    if one.item is not None and one.item.is_record:
        return {"type": "array", "items": _form(one.item.kind, f"{at}[].")}
    return {"description": MEANINGS[at].replace("`", ""), **_plain(one, at)}


def _plain(one: FieldType, at: str) -> dict[str, Any]:
    if one.item is not None:
        least = {"minItems": one.rule.least} if one.rule.least else {}
        return {"type": "array", "items": _plain(one.item, at), **least}
    if one.kind is bool:
        return {"type": "boolean"}
    if one.kind is float:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S}
    if one.kind is int:
        return {"type": "integer", "minimum": one.rule.least, "maximum": one.rule.most}
    if issubclass(one.kind, Enum):
        return {"enum": [member.value for member in one.kind]}
    if at == "probe.parser":
        return {"type": "string", "enum": sorted(PARSERS)}
    pattern = one.rule.pattern
    whole = pattern if pattern.endswith(")?") and pattern.startswith("(?:") else f"(?:{pattern})"
    return {"type": "string", **({"pattern": f"^{whole}$"} if pattern else {})}
