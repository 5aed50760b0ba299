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
    "strategy": "`in-place`: swapped in the running kernel; `reboot`: never unloaded, asks for a reboot",
    "pci_vendor": "PCI vendor id, four lower-case hexadecimal digits",
    "pci_classes": "PCI classes (first four digits) that count as devices; empty: any",
    "pci_devices": "PCI device ids that count; empty: any",
    "present_labels": "labels of this vendor's nodes, if there is no deploy prefix",
    "resource_prefixes": "beginnings of the resources that pods request",
    "device_classes": "DRA device classes whose claims use the driver",
    "dra_driver": "names of the DRA drivers",
    "serving_classes": "device classes of a DRA driver's own DaemonSets: they leave after users' claims",
    "clients": "label selectors of pods to restart once a new driver is ready",
    "idle_states": "values of `keys.upgrade_state` at which the operator does nothing",
    "namespace": "namespace of operator and driver pods, unless `OPERATOR_NAMESPACE` is set",
    "container_unloads": "the driver container unloads at its end, so a rollout clears the node first",
    "host_services": "services of the host that hold the device; stopped with `STOP_HOST_SERVICES`",
    "recovery": "steps that may end a wedge, in this order: `reset`, `reload`, `reboot`",
    "reset.args": "arguments that reset one device; `{address}`: its PCI address",
    "reset.tool": "the vendor's tool, if it is not the probe's",
    "reset.before": "arguments of a call before it, while a path of `probe.stays_ready_with` exists",
    "reset.after": "arguments of a call after it, in the same case",
    "reset.timeout_s": "seconds after which a reset has failed",
    "reset.minor_in": "file below `/proc` with the number of a node of the device that sysfs does not show",
    "reset.minor_line": "its line with that number",
    "transitions[].old": "shell pattern of the loaded version",
    "transitions[].new": "pattern of the version to load",
    "transitions[].strategy": "strategy for this pair instead of the profile's; `refuse`: no run begins",
    "transitions[].why": "reason to show",
    "commands.reconcile": "names that the vendor's manager has for `reconcile-driver-state`",
    "commands.preflight": "names that it has for a check before the run",
    "commands.unheeded": "its variables without effect here; a run warns of them",
    "keys.journal": "annotation: what a run took, to be released",
    "keys.cordon": "annotation: marks a cordon as set by driver-manager",
    "keys.upgrade_enabled": "annotation: `true` if an operator manages this node's upgrades",
    "keys.upgrade_state": "label: state of the upgrade, written by an operator or a rollout",
    "keys.upgrade_requested": "annotation: requests one upgrade, or one more attempt",
    "keys.skip": "label: `true` leaves the node out of rollouts, upgrades and reboots",
    "keys.safe_load": "annotation: asks the operator for a safe load",
    "keys.reboot_required": "label: `true` if a reboot is required",
    "keys.approve_reboot": "annotation: `true` approves one reboot; it is consumed",
    "keys.pre_reboot_boot_id": "annotation: the boot that a granted reboot ends",
    "keys.reboot_in_progress": "annotation: reason of a granted reboot, until the node is back",
    "keys.reboot_slots": "annotation on the Lease: who holds a slot",
    "keys.state": "label: the driver's state, in one word",
    "keys.last_outcome": "annotation: how the last run ended",
    "keys.mute_until": "annotation: mutes health-watch until this time",
    "keys.rollout": "annotation: what a rollout has done on the node",
    "keys.generation": "annotation: the driver generation",
    "keys.version": "label: version of the loaded driver",
    "keys.recovery": "annotation: the step of a recovery, its state and the reason",
    "keys.approve_recovery": "annotation: the step of a recovery that is approved; it is consumed",
    "keys.recovery_slots": "annotation on the Lease: who holds a slot; `.reset` or `.reload` is appended",
    "upgrade_metrics.enabled": "the operator's metric, also served by `rollout controller`: upgrades are on",
    "upgrade_metrics.in_progress": "nodes that are being upgraded",
    "upgrade_metrics.done": "nodes that were upgraded",
    "upgrade_metrics.failed": "nodes whose upgrade failed",
    "upgrade_metrics.available": "nodes whose upgrade can start now",
    "upgrade_metrics.pending": "nodes that wait",
    "upgrade_metrics.by_state": "nodes by `keys.upgrade_state`, as the label `state`",
    "deploy.prefix": "beginning of the deploy labels that switch operands",
    "deploy.driver_component": "the component that is the driver itself; never paused",
    "deploy.paused_value": "value of a paused deploy label",
    "deploy.preinstalled_value": "its value for the driver if the host has its own",
    "deploy.leave_last": "components, or whole keys, paused after the last claim holder has left",
    "deploy.never_paused": "components whose deploy labels place no operand",
    "deploy.on_unless_false": "labels whose operands run without them: paused with `false`, then removed",
    "passthrough.mode_key": "label: the node's devices are for containers or virtual machines",
    "passthrough.mode_value": "its value for virtual machines",
    "passthrough.resources": "patterns of resources for passed-through devices; their pods do not use the driver",
    "passthrough.component": "deploy component of the pods that bind devices to vfio",
    "passthrough.auxiliary": "PCI classes of functions in a device's slot that go with it",
    "modules.roots": "kernel modules that show that the driver is loaded",
    "modules.roots_needed": "`all` roots, or `any`: each is for another device",
    "modules.order": "order in which modules are loaded; unloaded in reverse",
    "modules.parameters": "`module.parameter=value`, for loads by the manager",
    "modules.keep_parameters": "patterns of `module.parameter` whose values are kept over a swap",
    "modules.own": "patterns of the driver's modules below the roots, unloaded with it",
    "modules.conflicting": "modules that must not be loaded beside the driver",
    "modules.conflicting_removable": "unloaded before the load, and loaded again if it fails",
    "modules.load": "`roots`: these and what they need; `tree`: every module in the driver root",
    "paths.driver_root": "where a driver container mounts its tree; the driver's own folder",
    "paths.state_file": "digest of the installed driver; on tmpfs, gone with the boot",
    "paths.load_record": "records where a driver came from; lock and health record are beside it",
    "paths.ready_marker": "shows operands that the driver is ready",
    "paths.artifacts": "files of an installed driver that are removed with it",
    "paths.device_nodes": "patterns of device nodes below `/dev`",
    "paths.device_nodes_made_by": "`module`: a load waits for one; `user-space`: made later by a tool or udev",
    "paths.reboot_marker": "requests a reboot; on a disk, so that it outlives the reboot",
    "paths.rebooter_record": "what the rebooter remembers over a reboot",
    "paths.reboot_evidence": "folder for what was seen before a reboot",
    "paths.firmware": "the host's folder with the firmware, for `firmware_class.path`",
    "paths.recovery_record": "attempts of recoveries, on a disk, so that their limits outlast a reboot",
    "paths.evidence": "folder for evidence of unloads and wedges, on a disk",
    "probe.tool": "the vendor's tool, in the driver root",
    "probe.args": "its arguments",
    "probe.search": "folders below the driver root to look for it in",
    "probe.preload": "library for `LD_PRELOAD`, in `probe.library_dirs`",
    "probe.library_dirs": "folders below the driver root for `LD_LIBRARY_PATH`",
    "probe.timeout_s": "seconds after which a probe has failed",
    "probe.settle_s": "seconds after a load in which slow is not a failure",
    "probe.answers[].means": "`remark`, `sick`, `lost`, `slow` or `unknown`",
    "probe.answers[].status": "exit status, if no message of any answer matches",
    "probe.answers[].message": "text of a line; `{address}`: the device's PCI address",
    "probe.answers[].text": "reason to show; empty: the tool's own line",
    "probe.stays_ready_with": "while none of these paths exists, every probe may be slow",
    "probe.excluded_in": "file below `/proc` about the device with PCI address `{address}`",
    "probe.excluded_line": "its line for a device that the driver leaves out on purpose",
    "probe.parser": f"reads its output: {', '.join(f'`{name}`' for name in sorted(PARSERS))}",
    "probe.tells_idle": "it reports which devices are at work; a driver is unloaded only when none is",
    "probe.lists_virtual": "it lists SR-IOV virtual functions",
}


@dataclass(frozen=True)
class Key:
    """One key of the file, by its dotted path. `default` is "" if it is required; `form` is a value of its type."""

    path: str
    form: str
    default: str
    is_required: bool


def rows() -> str:
    """The table of all keys, as a file has them. Raises KeyError for one without a meaning here."""
    shipped = sorted(builtin().values(), key=lambda profile: profile.name != "rebellions")
    lines = []
    for key in every_key():
        found = (_written(one, key.path) for one in shipped)
        example = next((text for text in found if text not in ("", key.default)), key.default or key.form)
        before = "required: " if key.is_required else ""
        after = f"; default: {code(key.default)}" if key.default not in ("", "true", "false", example) else ""
        if example.startswith("[") and len(example) > 50 and "," in example:
            example = f"{example.partition(',')[0]}, …]"
        lines.append((code(f"{key.path} = {example}"), before + MEANINGS[key.path] + after))
    return table(("key, with an example", "meaning"), lines)


def every_key(record: type = Profile, at: str = "") -> Iterator[Key]:
    nested = []
    for name, one in fields_of(record).items():
        if one.is_record:
            nested.append((one.kind, f"{at}{name}."))
        elif one.item is not None and one.item.is_record:
            nested.append((one.item.kind, f"{at}{name}[]."))
        else:
            yield Key(at + name, _form_of(one), "" if one.is_required else _toml(one.default), one.is_required)
    for inner, prefix in nested:
        yield from every_key(inner, prefix)


def _form_of(one: FieldType) -> str:
    if one.item is not None:
        return '["…"]'
    if issubclass(one.kind, Enum):
        return _toml(next(iter(one.kind)))
    return {str: '"…"', float: "20", int: "1", bool: "true"}[one.kind]


def _toml(value: Any) -> str:
    """`value` as a profile file writes it, "" for nothing."""
    match value:
        case tuple():
            return f"[{', '.join(map(_toml, value))}]" if value else ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    text = value.value if isinstance(value, Enum) else value
    return f'"{text}"' if text else ""


def _written(profile: Profile, path: str) -> str:
    value: Any = profile
    if "[]" in path:
        return ""
    for name in path.split("."):
        value = getattr(value, name) if value is not None else None  # a table that the profile does not have
    return _toml(value)


SCHEMA = Path(schemas.__file__).parent / "profile.schema.json"


def schema_text() -> str:
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A driver-manager profile (TOML)"}
    return json.dumps({**head, **_form(Profile, "")}, indent=2, ensure_ascii=False) + "\n"


def _form(record: type, at: str) -> dict[str, Any]:
    fields = fields_of(record)
    required = [key for key, one in fields.items() if one.is_required]
    properties = {key: _value(one, at + key) for key, one in fields.items()}
    head = {"type": "object", "additionalProperties": False, **({"required": required} if required else {})}
    return {**head, "properties": properties}


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
