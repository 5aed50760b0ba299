"""Patches that take and release a node, computed from facts.

One patch for each. Pure; the rules for cordon and labels are a wire contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from msgspec.structs import replace

from driver_manager.domain.journal import Journal, OldDriver, Owner, encode
from driver_manager.domain.node import FIELD_MANAGER, Node, NodeChange
from driver_manager.domain.observation import Observation, Situation
from driver_manager.domain.pci import Binding, merged_bindings
from driver_manager.domain.pods import labels as label_rules
from driver_manager.domain.pods.workloads import gates
from driver_manager.domain.profile import Profile, driver_version, has_root, kept, unload_order
from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT
from driver_manager.domain.swap.steps import TakeNode
from driver_manager.domain.wire import Operation, expect, replaced

CORDON_MARK = "true"
"""Value of the annotation that marks a cordon as a driver manager's; operators look at the key only."""


BY_HAND = frozenset({"kubectl-cordon", "kubectl-drain", "kubectl-edit", "kubectl-patch"})
"""The field managers of kubectl's commands by which a person cordons (kubernetes/kubectl, pkg/cmd: fieldManager)."""


def has_managers_cordon(node: Node, profile: Profile) -> bool:
    """Whether the node is cordoned and the cordon is marked as that of a run; the rebooter's is none.

    A cordon that a person has set is never a run's: many accounts can write the mark, which is an annotation.
    """
    return node.unschedulable and _is_marked(node, profile) and node.cordon_manager not in BY_HAND


def has_rebooters_cordon(node: Node, profile: Profile) -> bool:
    """Whether the node is cordoned and the cordon is marked as the rebooter's, which alone lifts it."""
    return node.unschedulable and node.annotations.get(profile.keys.cordon) == CORDON_FOR_REBOOT


def _is_marked(node: Node, profile: Profile) -> bool:
    return node.annotations.get(profile.keys.cordon) not in (None, CORDON_FOR_REBOOT)


def paused_keys(node: Node, profile: Profile) -> frozenset[str]:
    """Deploy-label keys that hold a paused value now: the driver's own too, which is paused for virtual machines."""
    driver = {profile.deploy.driver_key} if profile.deploy.prefix else set[str]()
    keys = profile.deploy_keys(node.labels) - set(profile.deploy.on_unless_false) | (driver & node.labels.keys())
    return frozenset(key for key in keys if label_rules.is_paused(node.labels[key], profile.deploy.paused_value))


def paused_by_others(obs: Observation, profile: Profile) -> frozenset[str]:
    """Keys with a paused value that another manager wrote: the journal has every key that our runs paused."""
    if obs.journal is None:
        return frozenset()
    return paused_keys(obs.node, profile) - obs.journal.labels.keys()


def pausable_keys(obs: Observation, profile: Profile) -> frozenset[str]:
    """Deploy-label keys that are paused or can be, but for those that place our own pod."""
    off = obs.journal.gates.keys() & set(profile.deploy.on_unless_false) if obs.journal is not None else set[str]()
    return gates(obs.node.labels, obs.own_pod, profile) | off


def take(
    situation: Situation,
    pause: Set[str],
    *,
    cordon: bool,
    services: tuple[str, ...] = (),
    bindings: tuple[Binding, ...] = (),
) -> tuple[TakeNode, ...]:
    """The step that acquires the node with the labels in `pause` paused; () if this run already holds it in that way.

    Labels found paused are adopted, so that the release restores them too, except those that were paused by another
    writer while the node was held. `services` will be stopped, and devices change from `bindings` to others: both are
    added to the journal of an earlier run.
    """
    obs, host, profile = situation.obs, situation.host, situation.profile
    node, deploy, before = obs.node, profile.deploy, obs.journal or Journal(obs.me, "")
    adopted = (frozenset(pause) | paused_keys(node, profile)) - paused_by_others(obs, profile)
    # An older version may have paused a label that this one leaves alone.
    adopted |= {key for key in before.labels if label_rules.is_paused(node.labels.get(key), deploy.paused_value)}
    inverse = frozenset(deploy.on_unless_false)
    originals = label_rules.originals(node.labels, before.labels, adopted - inverse, deploy.paused_value)
    paused = {key: label_rules.paused_form(value, deploy.paused_value) for key, value in originals.items()}
    held = frozenset(key for key in before.gates if node.labels.get(key) == label_rules.OFF)
    gates_before = label_rules.gate_originals(node.labels, before.gates, (frozenset(pause) & inverse) | held)
    paused |= dict.fromkeys(gates_before, label_rules.OFF)
    sets_cordon = cordon and not node.unschedulable
    cordoned = sets_cordon or has_managers_cordon(node, profile)
    manager = before.cordon_manager if before.cordoned else node.cordon_manager
    journal = Journal(
        owner=obs.me,
        boot_id=host.boot_id,
        labels=originals,
        gates=gates_before,
        cordoned=cordoned,
        cordon_manager=(FIELD_MANAGER if sets_cordon else manager) if cordoned else "",
        node_uid=node.uid,
        driver=_old_driver(situation),
        services=tuple(sorted({*services, *before.services})),
        removed=tuple(sorted({*host.removable, *before.removed})),
        step=before.step,
        begin=before.begin,
        window=before.window,
        devices=original_bindings(situation, bindings),
        record=obs.me.process,
    )
    annotations: dict[str, str | None] = {profile.keys.journal: encode(journal)}
    if sets_cordon:
        annotations[profile.keys.cordon] = CORDON_MARK
    elif not node.unschedulable:
        # The mark of a cordon that was lifted would make the next cordon, of any author, look like ours.
        annotations[profile.keys.cordon] = None
    change = NodeChange(
        labels={key: value for key, value in paused.items() if node.labels.get(key) != value},
        annotations={key: value for key, value in annotations.items() if node.annotations.get(key) != value},
        unschedulable=True if sets_cordon else None,
    )
    return () if change.is_empty else (TakeNode(journal, change, node.resource_version),)


def switched_on(node: Node, journal: Journal, obs: Observation, profile: Profile) -> frozenset[str]:
    """The keys that switch operands on since the run of `journal` has paused them; none if `node` has no journal.

    The run had paused them, or they were off or absent when it looked (`obs`). Its own pod's key stays.
    """
    if profile.keys.journal not in node.annotations:
        return frozenset()

    def is_on(labels: Mapping[str, str], key: str) -> bool:
        return label_rules.is_on(labels.get(key), profile.deploy.paused_value)

    gates = {key for key in journal.gates if node.labels.get(key) != label_rules.OFF}
    own = obs.own_pod.selector_keys if obs.own_pod is not None else frozenset[str]()
    switches = profile.deploy_keys(node.labels) - own - frozenset(profile.deploy.on_unless_false)
    new = {key for key in switches if is_on(node.labels, key) and not is_on(obs.node.labels, key)}
    return frozenset(gates | new | {key for key in journal.labels if is_on(node.labels, key)})


def pause_more(node: Node, journal: Journal, profile: Profile, keys: Set[str]) -> tuple[Journal, NodeChange]:
    """The journal with the labels in `keys` added as they are on `node` now, and the one patch that pauses them."""
    deploy, inverse = profile.deploy, frozenset(keys) & frozenset(profile.deploy.on_unless_false)
    there = frozenset(key for key in keys - inverse if label_rules.is_pausable(node.labels.get(key)))
    originals = label_rules.originals(node.labels, journal.labels, there, deploy.paused_value)
    paused = {key: label_rules.paused_form(value, deploy.paused_value) for key, value in originals.items()}
    off = label_rules.gate_originals(node.labels, journal.gates, inverse)
    longer = replace(journal, labels={**journal.labels, **originals}, gates={**journal.gates, **off})
    wanted = {**paused, **dict.fromkeys(off, label_rules.OFF)}
    labels = {key: value for key, value in wanted.items() if node.labels.get(key) != value}
    return longer, NodeChange(labels=labels, annotations={profile.keys.journal: encode(longer)} if labels else {})


def marked_cleared(journal: Journal, profile: Profile, revision: str) -> tuple[Journal, NodeChange]:
    """The journal of a node that is cleared for the driver pod of `revision`, and the patch that writes it."""
    longer = replace(journal, cleared=revision)
    return longer, NodeChange(annotations={profile.keys.journal: encode(longer)})


def found_journal(obs: Observation, profile: Profile) -> Journal | None:
    """The journal to release by: the node's own, or one decoded from labels that a dead manager left paused."""
    if obs.journal is not None:
        return obs.journal
    return decoded_journal(obs.node, profile, obs.me)


def decoded_journal(node: Node, profile: Profile, me: Owner) -> Journal | None:
    """What the labels and the cordon mark tell without a journal; None where nothing is paused or marked as ours."""
    keys = paused_keys(node, profile)
    marked = has_managers_cordon(node, profile)
    if not keys and not marked:
        return None
    saved = label_rules.originals(node.labels, {}, keys, profile.deploy.paused_value)
    return Journal(owner=me, boot_id="", labels=saved, cordoned=marked)


def release(node: Node, journal: Journal, profile: Profile) -> NodeChange:
    """The one patch that releases `node` by `journal`: a field that another writer changed meanwhile stays."""
    restored: dict[str, str | None] = {
        **label_rules.restored(node.labels, journal.labels, profile.deploy.paused_value),
        **label_rules.gates_restored(node.labels, journal.gates),
    }
    annotations: dict[str, str | None] = {}
    if profile.keys.journal in node.annotations:
        annotations[profile.keys.journal] = None
    unschedulable = None
    if journal.cordoned and _is_marked(node, profile):
        annotations[profile.keys.cordon] = None
        unschedulable = False if node.unschedulable and not _was_set_again(node, journal) else None
    return NodeChange(labels=restored, annotations=annotations, unschedulable=unschedulable)


def tested_release(node: Node, journal: Journal, profile: Profile) -> tuple[Operation, ...]:
    """`release` as a JSON patch that applies only if every field that it touches is still as on `node`, which is ours.

    If the Node has changed, the patch touches nothing, and `release` of the Node as it is now decides. Empty if a test
    cannot express that: `node` has no journal of this run, or a label of the journal is not paused on it and could be
    by the time the patch arrives, or the record of our cordon does not keep its position.
    """
    written, change = node.annotations.get(profile.keys.journal), release(node, journal, profile)
    if written != encode(journal) or change.labels.keys() != journal.paused:
        return ()
    if change.unschedulable is False and node.has_heartbeat:
        return ()
    operations = [expect(node.uid, "metadata", "uid")]
    for key, value in change.labels.items():
        operations += replaced(node.labels[key], value, "metadata", "labels", key)
    for key, value in change.annotations.items():
        operations += replaced(node.annotations[key], value, "metadata", "annotations", key)
    if change.unschedulable is False:
        operations += (*_cordon_is_as_on(node), *replaced(True, None, "spec", "unschedulable"))
    return tuple(operations)


def _cordon_is_as_on(node: Node) -> tuple[Operation, ...]:
    """Tests that the cordon was not lifted and set again: a new author has a new record, and the old record is gone.

    The resourceVersion would show it too, but changes with every write to the Node. The managed fields are ordered by
    the time of each manager's last write (kubernetes, apimachinery/pkg/util/managedfields), so the position of a record
    holds only if no manager before it writes. In a cluster with kubelets one does: the node lifecycle controller taints
    a cordoned Node at once (`node.kubernetes.io/unschedulable`), the kubelet sends its status.
    """
    if not node.cordon_manager:
        return ()
    record = ("metadata", "managedFields", node.cordon_record)
    return (
        expect(node.cordon_manager, *record, "manager"),
        expect({}, *record, "fieldsV1", "f:spec", "f:unschedulable"),
    )


def _was_set_again(node: Node, journal: Journal) -> bool:
    """True if an administrator lifted our cordon and set it again: it is no longer ours, even with our mark.

    A Node that was created again from a copy has a record of its creator. A cordon by a kubectl command is never ours,
    even if the journal has one: no run cordons by kubectl.
    """
    if node.cordon_manager in BY_HAND:
        return True
    are_known = bool(journal.cordon_manager and node.cordon_manager)
    is_same_node = journal.node_uid in ("", node.uid)
    return are_known and is_same_node and journal.cordon_manager != node.cordon_manager


def original_bindings(situation: Situation, bindings: tuple[Binding, ...] = ()) -> tuple[Binding, ...]:
    """The devices as the journal has them, else as in `bindings`: as they were before a run of this boot changed them.

    A boot resets them all.
    """
    journal, boot_id = situation.obs.journal, situation.host.boot_id
    return merged_bindings(journal.devices if journal is not None and journal.boot_id == boot_id else (), bindings)


def noted_driver(situation: Situation, *, of_this_boot: bool = False) -> OldDriver | None:
    """The driver to go back to as the journal has it."""
    journal = situation.obs.journal
    if journal is None or (of_this_boot and journal.boot_id != situation.host.boot_id):
        return None
    return journal.driver


def _old_driver(situation: Situation) -> OldDriver | None:
    """The driver to go back to. Of one boot the first record knows: what is loaded later may be a failed attempt."""
    host, profile = situation.host, situation.profile
    if not has_root(host.modules, profile.modules):
        return noted_driver(situation)
    known = noted_driver(situation, of_this_boot=True)
    if known is not None:
        return known
    root = host.previous_source.root if host.previous_source else ""
    version = driver_version(host.modules)
    order = unload_order(host.modules, profile.modules.order)
    parameters = kept(host.parameters, profile.modules.keep_parameters)
    return OldDriver(version=version, root=root, modules=order, digest=host.digest or "", parameters=parameters)
