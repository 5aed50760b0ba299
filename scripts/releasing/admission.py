"""The vendors' part of the admission policies: which account may change which keys of a Node.

As a program it writes `deploy/overlays/*/admission-policy` from the profiles; `--check` reports outdated files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

import yaml

from driver_manager.domain.profile import NodeKeys, Profile
from driver_manager.profiles import builtin
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, Json

LABELS = {
    "node": ("state", "version", "upgrade_state", "reboot_required"),
    "rebooter": ("state", "upgrade_state", "reboot_required"),
    "rollout": ("upgrade_state",),
}
ANNOTATIONS = {
    "node": (
        *("journal", "cordon", "last_outcome", "generation", "upgrade_requested", "safe_load"),
        *("recovery", "approve_recovery"),
    ),
    "rebooter": (
        *("cordon", "approve_reboot", "pre_reboot_boot_id", "reboot_in_progress"),
        *("recovery", "approve_recovery"),
    ),
    "rollout": ("rollout", "approve_reboot", "upgrade_requested"),
}
"""The keys that each role writes, by the fields of NodeKeys. Runs also write deploy labels."""

WRITTEN_BY_OTHERS = ("upgrade_enabled", "skip", "mute_until", "reboot_slots", "recovery_slots")
"""Operators and people write these; the last two are annotations of Leases."""

RESERVED = ("journal", "rollout", "pre_reboot_boot_id", "reboot_in_progress")
"""Journal, record of a rollout and grant.

Only the manager's accounts and people with the verb `write-journal` write them.
"""

ON_NODE = ("node", "rebooter")
"""The roles that cordon a node and write the condition of its driver."""

LAYOUT: Json = {"sort_keys": False, "width": 64}
_TEXT = "tag:yaml.org,2002:str"

HEADER = "# Made from the profile by scripts/chart: the accounts of the overlay, and the keys that they write.\n"
KUSTOMIZATION = """\
# Apply it beside the overlay, from Kubernetes 1.30 on, or name it as a resource of yours.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namePrefix: {vendor}-
components:
  - ../../../components/admission-policy
patches:
  - path: keys.yaml
"""


def files() -> dict[str, str]:
    """The content of each generated file, by its path below `deploy/overlays`."""
    made = {}
    for vendor in OVERLAYS:
        made[f"{vendor}/admission-policy/kustomization.yaml"] = KUSTOMIZATION.format(vendor=vendor)
        bodies = patches(vendor, builtin()[vendor])
        made[f"{vendor}/admission-policy/keys.yaml"] = HEADER + yaml.dump_all(bodies, Dumper=_Folded, **LAYOUT)
    return made


class _Folded(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Expressions have quotes of their own."""


_Folded.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, style=">" if "'" in text or len(text) > 80 else None)
)


def patches(vendor: str, profile: Profile) -> list[Json]:
    """The patches of the overlay for the component, for the accounts that begin with `vendor`."""
    accounts = [f"{vendor}-driver{role}" for role in ("", "-rollout", "-rebooter")]
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": profile.namespace} for name in accounts]
    # In any namespace, with any prefix: an account that only has such a name is restricted, and gains nothing.
    pattern = f"^system:serviceaccount:[^:]+:(.+-)?{vendor}-driver(-rebooter|-rollout)?$"
    is_bound = {"name": "account", "expression": f"request.userInfo.username.matches('{pattern}')"}
    return [
        _patch(
            "ValidatingAdmissionPolicy", "driver-node-keys", matchConditions=[is_bound], variables=_narrowed(profile)
        ),
        _patch("ValidatingAdmissionPolicy", "driver-journal", variables=_reserved(profile)),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "driver-write-journal"},
            "subjects": subjects,
        },
    ]


def _patch(kind: str, name: str, **spec: object) -> Json:
    version = "admissionregistration.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _narrowed(profile: Profile) -> list[Json]:
    """The variables of the accounts' policy: keys by role, and changed keys that the role may not write."""
    labels = {role: _names(profile.keys, fields) for role, fields in LABELS.items()}
    labels["node"] += [*profile.deploy.on_unless_false, *sorted(profile.deploy.last_keys)]
    prefixes = [profile.deploy.prefix] if profile.deploy.prefix else []
    notes = {role: _names(profile.keys, fields) for role, fields in ANNOTATIONS.items()}
    user = "request.userInfo.username"
    other = "variables.changedLabels.filter(key, !(key in variables.labels[variables.role]) && "
    by_prefix = "!(variables.role == 'node' && variables.labelPrefixes.exists(prefix, key.startsWith(prefix))))"
    return _variables(
        role=f"{user}.endsWith('-rebooter') ? 'rebooter' : {user}.endsWith('-rollout') ? 'rollout' : 'node'",
        # Absent if the token is not a pod's; `extra` is absent if the user has none.
        tokenNodes="request.userInfo.?extra['authentication.kubernetes.io/node-name'].orValue([])",
        labels=_cel(labels),
        labelPrefixes=_cel(prefixes),
        annotations=_cel(notes),
        newLabels="object.metadata.?labels.orValue({})",
        oldLabels="oldObject.metadata.?labels.orValue({})",
        changedLabels=_changed("variables.newLabels", "variables.oldLabels"),
        otherLabels=other + by_prefix,
        newAnnotations="object.metadata.?annotations.orValue({})",
        oldAnnotations="oldObject.metadata.?annotations.orValue({})",
        otherAnnotations=_changed("variables.newAnnotations", "variables.oldAnnotations")
        + ".filter(key, !(key in variables.annotations[variables.role]))",
        # Not by the schema's names, so that fields of later servers count too.
        newSpec="dyn(object.?spec.orValue({}))",
        oldSpec="dyn(oldObject.?spec.orValue({}))",
        otherSpec=_changed("variables.newSpec", "variables.oldSpec")
        + f".filter(key, !(key == 'unschedulable' && variables.role in {_cel(ON_NODE)}))",
        newStatus="dyn(object.?status.orValue({}))",
        oldStatus="dyn(oldObject.?status.orValue({}))",
        otherStatus=_changed("variables.newStatus", "variables.oldStatus")
        + f".filter(key, !(key == 'conditions' && variables.role in {_cel(ON_NODE)}))",
        newConditions=_other_conditions("variables.newStatus", profile.keys.condition),
        oldConditions=_other_conditions("variables.oldStatus", profile.keys.condition),
    )


def _reserved(profile: Profile) -> list[Json]:
    new, old = "variables.newAnnotations", "variables.oldAnnotations"
    return _variables(
        newAnnotations="object.metadata.?annotations.orValue({})",
        oldAnnotations="oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})",
        changed=f"{_cel(_names(profile.keys, RESERVED))}.filter(key, {new}[?key] != {old}[?key])",
    )


def _variables(**expressions: str) -> list[Json]:
    return [{"name": name, "expression": text} for name, text in expressions.items()]


def _changed(new: str, old: str) -> str:
    return f"({new}.filter(key, {new}[?key] != {old}[?key]) + {old}.filter(key, !(key in {new})))"


def _other_conditions(status: str, own: str) -> str:
    return f"{status}.?conditions.orValue([]).filter(one, one['type'] != '{own}')"


def _names(keys: NodeKeys, fields: Iterable[str]) -> list[str]:
    return [name for field in fields if (name := getattr(keys, field))]


def _cel(value: object) -> str:
    """Texts, lists and mappings of texts in CEL. Keys of a Node need no escaping."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_cel(key)}: {_cel(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_cel, value)) + "]"
    return f"'{value}'"


def main() -> int:
    """0, or 1 if --check finds outdated files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of date")
    check, status = parser.parse_args().check, 0
    for name, text in files().items():
        path = DEPLOY / "overlays" / name
        if path.is_file() and path.read_text() == text:
            continue
        if check:
            print(f"admission: {name} is out of date; run scripts/chart", file=sys.stderr)
            status = 1
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
