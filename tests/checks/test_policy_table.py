"""The admission policies compile, allow what honest accounts write, and deny everything else, for each vendor."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.profile import NodeKeys
from driver_manager.profiles import builtin
from driver_manager.sandbox.apiserver import apply_merge_patch
from scripts.releasing import admission
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, POLICIES, Json, only, render
from tests.support.deploy.apply import rights_of
from tests.support.deploy.vapcheck import Sender, compiled, reviewed, update, write

PROFILES = builtin()
NODE, OTHER = "n1", "n2"
BARE: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
ADMIN = Sender("kubernetes-admin")
PROBLEM_DETECTOR = Sender("system:serviceaccount:kube-system:node-problem-detector")
KUBELET, OTHER_KUBELET = Sender(f"system:node:{NODE}"), Sender(f"system:node:{OTHER}")
OBJECTS = [one for name in POLICIES for one in render(name)]
"""Those of all vendors at once: none may deny what is another one's."""

Change = dict[str, Any]


def account(vendor: str, name: str = "driver", node: str = NODE) -> Sender:
    """One of the overlay's accounts, by a token of a pod on `node`."""
    return Sender(f"system:serviceaccount:{PROFILES[vendor].namespace}:{vendor}-{name}", node)


def label(key: str, value: str | None = "x") -> Change:
    return {"metadata": {"labels": {key: value}}}


def note(key: str, value: str | None = "x") -> Change:
    return {"metadata": {"annotations": {key: value}}}


def cordon(value: bool | None = True) -> Change:
    return {"spec": {"unschedulable": value}}


READY = {"type": "Ready", "status": "True"}


def conditions(*them: Json) -> Change:
    return {"status": {"conditions": list(them)}}


def joined(*changes: Change) -> Change:
    """One patch of several. A null, which removes a key, stays."""
    found: Change = {}
    for change in changes:
        for key, value in change.items():
            found[key] = joined(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


def a_node(vendor: str) -> Json:
    """A Node that has every key of the vendor."""
    old = dict.fromkeys(sorted(PROFILES[vendor].keys.names), "old")
    notes = {"node.alpha.kubernetes.io/ttl": "0", **old}
    metadata = {"name": NODE, "uid": "u", "labels": {"kubernetes.io/hostname": NODE, **old}, "annotations": notes}
    spec = {"providerID": "cloud:///n1", "taints": [{"key": "a", "effect": "NoSchedule"}]}
    return {**BARE, "metadata": metadata, "spec": spec, "status": {"conditions": [READY]}}


def honest() -> Iterator[tuple[str, str, Sender, Change]]:
    """Vendor, what it is, who sends it, and the change."""
    for vendor in OVERLAYS:
        keys, deploy = PROFILES[vendor].keys, PROFILES[vendor].deploy
        run, unbound = account(vendor), account(vendor, "driver-rollout", "")
        switches = [f"{deploy.prefix}device-plugin", deploy.driver_key] if deploy.prefix else []
        pauses = [label(key, "paused") for key in (*switches, *deploy.on_unless_false, *sorted(deploy.last_keys))]
        taken = joined(*pauses, label(keys.state, "upgrading"), note(keys.journal), note(keys.cordon), cordon())
        shown = joined(label(keys.state, "ready"), label(keys.version, "1.2"), note(keys.last_outcome))
        released = joined(note(keys.journal, None), note(keys.cordon, None), shown, cordon(False))
        yield vendor, "acquire", run, taken
        yield vendor, "release", run, released
        yield vendor, "restore by an administrator", ADMIN, released
        yield vendor, "a wedge", run, shown
        yield vendor, "the first condition", run, conditions(READY, {"type": keys.condition, "status": "True"})
        yield vendor, "clients were restarted", run, note(keys.generation)
        begun = joined(note(keys.recovery), note(keys.approve_recovery, None))
        yield vendor, "a recovery begins", run, begun
        yield vendor, "a recovery is over", run, joined(note(keys.recovery, None), note(keys.approve_recovery, None))
        yield vendor, "a recovery is approved", ADMIN, note(keys.approve_recovery)
        if keys.upgrade_requested:
            yield vendor, "the operator is asked", run, note(keys.upgrade_requested)
            yield vendor, "a retry is consumed", unbound, note(keys.upgrade_requested, None)
        if keys.safe_load:
            yield vendor, "safe load", run, note(keys.safe_load)
        rollout = account(vendor, "driver-rollout", OTHER)
        yield vendor, "the rollout on another node", rollout, joined(label(keys.upgrade_state), note(keys.rollout))
        rebooter = account(vendor, "driver-rebooter")
        wish = joined(label(keys.reboot_required), label(keys.upgrade_state), label(keys.state))
        asked = joined(note(keys.pre_reboot_boot_id), note(keys.reboot_in_progress))
        approved = joined(note(keys.approve_reboot, None), note(keys.approve_recovery, None))
        grant = joined(asked, approved, note(keys.recovery))
        yield vendor, "a reboot is asked for", run, wish
        yield vendor, "the rebooter shows the request", rebooter, wish
        yield vendor, "its condition", rebooter, conditions({"type": keys.condition, "status": "False"}, READY)
        yield vendor, "the grant", rebooter, joined(grant, note(keys.cordon, "reboot"), cordon())
        ended = joined(note(keys.pre_reboot_boot_id, None), note(keys.reboot_in_progress, None), cordon(False))
        yield vendor, "the end of a reboot", rebooter, ended
        yield vendor, "no reboot of a recovery is left", rebooter, begun
        yield vendor, "the rollout approves", unbound, note(keys.approve_reboot)
        for other in (ADMIN, PROBLEM_DETECTOR, KUBELET, OTHER_KUBELET):
            change = joined(label("a.example/b"), note("a.example/b"), note(keys.mute_until), cordon())
            yield vendor, f"{other.name} and keys of others", other, change


FOREIGN = [
    ("a label of others", label("kubernetes.io/hostname", "h")),
    ("a new label", label("a.example/b")),
    ("a label is removed", label("kubernetes.io/hostname", None)),
    ("an annotation of others", note("node.alpha.kubernetes.io/ttl", "1")),
    ("an annotation is removed", note("node.alpha.kubernetes.io/ttl", None)),
    ("a taint is removed", {"spec": {"taints": None}}),
    ("the provider's id", {"spec": {"providerID": "x"}}),
    ("a field of a later server", {"spec": {"later": True}}),
    ("an owner", {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1"}]}}),
    ("a finalizer", {"metadata": {"finalizers": ["a.example/b"]}}),
    ("the status", conditions()),
    ("another condition", conditions({"type": "Ready", "status": "False"})),
    ("a new condition", conditions(READY, {"type": "example.com/DriverReady", "status": "True"})),
    ("another part of the status", {"status": {"capacity": {"example.com/npu": "9"}}}),
]


def forged() -> Iterator[tuple[str, str, Sender, Change, str]]:
    """The same with a part of the message."""
    for vendor in OVERLAYS:
        profile = PROFILES[vendor]
        keys = profile.keys
        run, rebooter = account(vendor), account(vendor, "driver-rebooter")
        rollout = account(vendor, "driver-rollout", "")
        for sender, (what, change) in itertools.product((run, rebooter, rollout), FOREIGN):
            yield vendor, f"{what}, by {sender.name}", sender, change, "this account cannot change"
        outcome = note(keys.cordon)
        by_kubectl = "kubectl create token --bound-object-kind=Pod"
        for name in ("driver", "driver-rebooter"):
            yield vendor, f"the token of another node, {name}", account(vendor, name, OTHER), outcome, "is for node n2"
            yield vendor, f"a token without a node, {name}", account(vendor, name, ""), outcome, by_kubectl
        moved = Sender(run.name.replace(f":{vendor}-", f":linux-6-1-{vendor}-"), OTHER)
        yield vendor, "an account with one more prefix", moved, outcome, "is for node n2"
        yield vendor, "the rollout and a cordon", rollout, cordon(), "these fields of spec: unschedulable"
        switch = label(f"{profile.deploy.prefix or 'example.com/npu.deploy.'}device-plugin")
        condition = conditions(READY, {"type": keys.condition, "status": "True"})
        yield vendor, "the rollout and a condition", rollout, condition, "the status of a Node"
        yield vendor, "the rollout and a switch", rollout, switch, "labels"
        yield vendor, "a run and KMM", run, label("kmm.node.kubernetes.io/version-module.a.b"), "labels"
        yield vendor, "the rebooter and a journal", rebooter, note(keys.journal), "annotations: "
        for key in (keys.recovery, keys.approve_recovery):
            yield vendor, f"the rollout and {key}", rollout, note(key), "annotations: "
        others = PROFILES[OVERLAYS[OVERLAYS.index(vendor) - 1]].keys.journal
        for key in filter(None, (keys.recovery_slots, keys.rollout, keys.mute_until, others, keys.reboot_in_progress)):
            yield vendor, f"a run and {key}", run, note(key), "annotations: "
        if keys.approve_reboot:
            yield vendor, "a run approves its reboot", run, note(keys.approve_reboot, "true"), "annotations: "
        # vapcheck asks the authorizer at most five times a second.
        namesake = Sender(f"system:serviceaccount:tenant:{vendor}-driver", NODE)
        senders = (PROBLEM_DETECTOR, KUBELET, OTHER_KUBELET, namesake, rollout)
        for sender in senders if vendor in ("ascend", "rebellions") else (PROBLEM_DETECTOR,):
            for key in filter(None, (keys.journal, keys.pre_reboot_boot_id, keys.reboot_in_progress)):
                yield vendor, f"{sender.name} and {key}", sender, note(key, "forged"), RESERVED
        for key in (keys.journal, keys.rollout):
            yield vendor, f"{key} is forged", PROBLEM_DETECTOR, note(key, "forged"), RESERVED
            yield vendor, f"{key} is removed", PROBLEM_DETECTOR, note(key, None), RESERVED


RESERVED = "annotations: "
HONEST, FORGED = list(honest()), list(forged())


def may(user: str, attributes: Json) -> bool:
    """As RBAC: an administrator everything, an account what the component binds it to."""
    if user == ADMIN.name:
        return True
    *_, namespace, name = user.split(":")
    rights = rights_of(OBJECTS, {"metadata": {"namespace": namespace, "name": name}})
    return ("", "", attributes["resource"], "", attributes["verb"]) in rights


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(OBJECTS, tmp_path_factory.mktemp("policies") / "policies.yaml")


def review(vendor: str, sender: Sender, change: Change, subresource: str = "") -> Json:
    old = a_node(vendor)
    return update(sender, old, apply_merge_patch(copy.deepcopy(old), change), subresource)


def test_the_keys_in_deploy_are_those_of_the_profiles() -> None:
    found = {name: (DEPLOY / "overlays" / name).read_text() for name in admission.files()}
    assert found == admission.files(), "run scripts/chart"


def test_every_key_of_a_profile_has_its_writers() -> None:
    tables = (*admission.LABELS.values(), *admission.ANNOTATIONS.values())
    written, others = {name for names in tables for name in names}, set(admission.WRITTEN_BY_OTHERS)
    assert written | others == set(NodeKeys.__struct_fields__)
    assert not written & others
    assert set(admission.RESERVED) <= written


@pytest.mark.submission
def test_every_policy_compiles_and_an_expression_that_does_not_is_found(policies: Path, tmp_path: Path) -> None:
    assert compiled(policies) == ""
    broken = copy.deepcopy(render("rebellions/admission-policy"))
    policy = only(broken, "ValidatingAdmissionPolicy", "rebellions-driver-journal")
    policy["spec"]["variables"][0]["expression"] += ")"
    assert "newAnnotations" in compiled(write(broken, tmp_path / "policies.yaml"))


@pytest.mark.submission
@pytest.mark.shares(3)
def test_no_honest_patch_is_denied(policies: Path) -> None:
    asked = [review(vendor, sender, change) for vendor, _, sender, change in HONEST]
    answers = reviewed(policies, asked, may)
    assert {(vendor, what): answer for (vendor, what, *_), answer in zip(HONEST, answers, strict=True) if answer} == {}


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(("subresource", "vendors"), [("", OVERLAYS), ("status", ("ascend",))])
def test_every_forged_patch_is_denied_with_its_reason(
    policies: Path, subresource: str, vendors: tuple[str, ...]
) -> None:
    cases = [case for case in FORGED if case[0] in vendors]
    asked = [review(vendor, sender, change, subresource) for vendor, _, sender, change, _ in cases]
    answers = reviewed(policies, asked, may)
    answered = zip(cases, answers, strict=True)
    assert [(vendor, what, text) for (vendor, what, *_, reason), text in answered if reason not in text] == []


@pytest.mark.submission
def test_a_key_that_does_not_change_is_never_denied(policies: Path) -> None:
    senders = (account("ascend"), account("ascend", "driver-rollout", ""), PROBLEM_DETECTOR, KUBELET, OTHER_KUBELET)
    asked = [review("ascend", sender, {}, subresource) for sender in senders for subresource in ("", "status")]
    asked += [update(sender, BARE, BARE) for sender in senders]
    assert set(reviewed(policies, asked, may)) == {""}


@pytest.mark.submission
def test_a_node_is_created_with_a_journal_only_by_who_may_write_one(policies: Path) -> None:
    fresh = a_node("rebellions")
    plain = {**fresh, "metadata": {"name": NODE}}
    asked = [update(KUBELET, None, plain), update(ADMIN, None, fresh), update(KUBELET, None, fresh)]
    answers = reviewed(policies, asked, may)
    assert answers[:2] == ["", ""]
    assert PROFILES["rebellions"].keys.journal in answers[2]
