"""One patch takes a node, one gives it back or it is held on purpose; neither touches what belongs to others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.node import ATTEMPTS
from driver_manager.core.swap.node import HURRY_S, NodeLock
from driver_manager.domain.errors import ApiUnavailable, ConfigError, ExitCode, NodeMissing, OwnedElsewhere
from driver_manager.domain.journal import Journal, OldDriver, decode, encode
from driver_manager.domain.node import FIELD_MANAGER
from driver_manager.domain.observation import Observation, Policy, Situation
from driver_manager.domain.pci import Binding, PciFunction
from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT
from driver_manager.domain.swap import node_patches
from driver_manager.domain.swap.building import releasing
from tests.support.fakes import builders
from tests.support.fakes.builders import EXPORTER, LABELS, PAUSED, PLUGIN, PROFILE, journal, key, node, observation
from tests.support.fakes.world import Place

JOURNAL, CORDON = PROFILE.keys.journal, PROFILE.keys.cordon
SERVICE = "rbln_daemon.service"
PAUSED_LABELS = {**LABELS, PLUGIN: PAUSED, EXPORTER: PAUSED}
MINE = journal(cordoned=True, driver=OldDriver("1.0", "/opt/old", ("rebellions",)))
WITH_SERVICE = replace(MINE, services=(SERVICE,))
AWAY = ApiUnavailable("no answer", "")


class Scene(Place):
    """A node taken with `MINE`, its old driver still loaded."""

    def __init__(self, there: str | None = None, *, was_there: str | None = None, loaded: bool = True) -> None:
        annotations = {JOURNAL: encode(MINE) if there is None else there, CORDON: "true"}
        super().__init__(known=node(PAUSED_LABELS, annotations=annotations, unschedulable=True))
        if loaded:
            self.host.put_driver("1.0", "d")
        self.host.services = {SERVICE: False}
        before = {} if was_there is None else {JOURNAL: was_there}
        self.lock = self.lock_of(observation(node=node(annotations=before)))

    def lock_of(self, obs: Observation) -> NodeLock:
        return NodeLock(self.ports, PROFILE, obs)

    def settled(self, taken: Journal = MINE, **options: Any) -> str:
        """What a run that took the node with this journal says after a failure."""
        self.lock.acquired(taken)
        return self.lock.after_failure(**options)

    @property
    def is_given_back(self) -> bool:
        now = self.node
        return now.labels == LABELS and not now.annotations and not now.unschedulable

    @property
    def is_untouched(self) -> bool:
        return self.cluster.patches == []

    @property
    def runs(self) -> bool:
        """True if the host service that the run stopped runs again."""
        return self.host.services[SERVICE]


def test_what_this_run_took_or_an_earlier_one_left_is_given_back_after_a_failure_with_the_driver_loaded() -> None:
    scene = Scene()
    assert scene.settled() == "the node was released"
    assert (scene.is_given_back, scene.killer.calls) == (True, ["modules", "node", "patch"])
    scene = Scene()
    scene.lock = scene.lock_of(observation(node=node(annotations={JOURNAL: encode(MINE)}), journal=MINE))
    assert "released" in scene.lock.after_failure()
    assert scene.is_given_back
    scene = Scene()
    assert (scene.lock.after_failure(), scene.killer.calls) == ("", []), "nothing was taken"


def test_a_node_whose_old_driver_is_gone_is_held_with_its_journal() -> None:
    scene = Scene(loaded=False)
    output = scene.settled()
    assert "stays paused" in output
    assert "resumes from the journal" in output
    assert scene.is_untouched
    scene = Scene(loaded=False)
    assert "released" in scene.settled(journal(cordoned=True)), "it had none"
    assert scene.is_given_back


@pytest.mark.parametrize(("boot_id", "override"), [("boot-1", ""), ("boot-0", "vfio-pci")])
def test_devices_that_a_boot_made_again_are_not_restored_from_the_journal(boot_id: str, override: str) -> None:
    address, scene = "0000:c0:00.0", Scene()
    scene.host.pci.put(PciFunction(address, override="vfio-pci"))
    scene.settled(replace(MINE, boot_id=boot_id, devices=(Binding(address),)))
    assert scene.host.pci.at[address].override == override


def test_giving_back_after_a_failure_is_not_interrupted_by_sigterm_after_which_the_last_calls_are_bounded() -> None:
    scene = Scene()
    scene.clock.ask_to_end()
    scene.killer.at("node", scene.clock.check)
    assert "released" in scene.settled()
    for hurry, budgets in ((True, [HURRY_S]), (False, [])):
        scene = Scene()
        assert "released" in scene.settled(hurry=hurry)
        assert scene.cluster.retry_budgets == budgets
    assert HURRY_S * 4 < 5.0, "two patches, a read and the event within the shortest grace period"


def test_a_deleted_node_is_no_failure_of_giving_back_and_what_cannot_be_read_is_left_to_the_next_run() -> None:
    scene = Scene()
    scene.cluster.delete_node()
    assert scene.settled(WITH_SERVICE) == "the Node is gone, so there is nothing to release"
    assert (scene.runs, scene.reporter.warnings) == (True, [])
    scene = Scene()
    scene.killer.at("node", AWAY)
    assert "the next run releases it from the journal" in scene.settled()
    assert scene.reporter.warnings == ["not released: no answer"]
    scene = Scene()
    scene.host.modules_error = ConfigError("cannot read /sys/module", "")
    assert "the next run" in scene.settled()
    assert scene.is_untouched, "whether the driver is gone is not known: hold"


@pytest.mark.parametrize("conflicts", [1, ATTEMPTS - 1])
def test_after_a_conflict_the_patch_is_computed_again_and_services_are_started_once(conflicts: int) -> None:
    scene = Scene()
    scene.killer.at("patch", lambda: scene.cluster.edit({"other": "x"}), times=conflicts)
    scene.lock.release(WITH_SERVICE)
    assert (scene.node.labels, scene.killer.calls.count("patch")) == ({**LABELS, "other": "x"}, conflicts + 1)
    assert scene.killer.calls.count(f"start {SERVICE}") == 1


def test_a_node_that_keeps_changing_ends_with_api_unavailable() -> None:
    scene = Scene()
    for number in range(ATTEMPTS * 2):
        scene.killer.at_call(number, lambda: scene.cluster.edit({"other": "x"}))
    with pytest.raises(ApiUnavailable, match=f"{ATTEMPTS} patches conflicted") as caught:
        scene.lock.release(MINE)
    assert "The journal is still on the Node" in caught.value.remedy


def test_a_replaced_node_is_left_alone_and_a_deleted_one_has_nothing_to_give_back() -> None:
    scene = Scene()
    scene.cluster.replace_node({PLUGIN: PAUSED})
    scene.lock.release(MINE)
    assert scene.is_untouched
    assert "replaced meanwhile" in scene.reporter.warnings[0]
    scene = Scene()
    scene.cluster.delete_node()
    with pytest.raises(NodeMissing, match="does not exist") as caught:
        scene.lock.release(MINE)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.remedy == "No action needed: nothing is left to release."


@pytest.mark.parametrize("owner", [builders.ME, builders.SOMEBODY])
def test_a_node_created_again_is_given_back_only_if_the_journal_is_our_own(owner: Any) -> None:
    scene = Scene()
    carried = encode(replace(WITH_SERVICE, owner=owner))
    copy = scene.node
    scene.cluster.current = replace(copy, uid="uid-2", annotations={**copy.annotations, JOURNAL: carried})
    with contextlib.suppress(OwnedElsewhere):
        scene.lock.release(WITH_SERVICE)
    is_ours = owner == builders.ME
    assert (scene.is_given_back, scene.is_untouched, scene.runs) == (is_ours, not is_ours, is_ours)
    assert scene.reporter.warnings == []


def test_a_node_that_another_run_took_over_is_left_to_it() -> None:
    scene = Scene(encode(journal(owner=builders.SOMEBODY, services=(SERVICE,))))
    with pytest.raises(OwnedElsewhere, match="driver-b"):
        scene.lock.release(WITH_SERVICE)
    assert (scene.is_untouched, scene.runs) == (True, False)


OTHERS = encode(Journal(builders.SOMEBODY, "boot-1"))


@pytest.mark.parametrize(
    ("there", "was_there"),
    [(encode(journal(labels={})), None), (OTHERS, OTHERS), ("garbage", None), (None, None)],
    ids=["same-run", "as-observed", "unreadable", "missing"],
)
def test_any_other_journal_does_not_stop_the_giving_back(there: str | None, was_there: str | None) -> None:
    scene = Scene(was_there=was_there)
    scene.cluster.edit(annotations={JOURNAL: there})
    scene.lock.release(MINE)
    assert scene.is_given_back


def test_stopped_services_are_started_on_both_ways_out_once_and_keep_no_run_from_giving_back() -> None:
    for loaded in (True, False):
        scene = Scene(loaded=loaded)
        scene.settled(WITH_SERVICE)
        assert scene.runs, loaded
    scene = Scene()
    scene.lock.acquired(WITH_SERVICE)
    scene.killer.at("patch", AWAY)
    with pytest.raises(ApiUnavailable):
        scene.lock.release(WITH_SERVICE)
    assert "released" in scene.lock.after_failure()
    assert scene.killer.calls.count(f"start {SERVICE}") == 1
    scene = Scene()
    scene.host.broken_services = {SERVICE}
    scene.lock.release(WITH_SERVICE)
    assert scene.is_given_back
    assert SERVICE in scene.reporter.warnings[0]


# without a look

ALL_LABELS = journal(labels={PLUGIN: "true", EXPORTER: "true"}, cordoned=True, cordon_manager=FIELD_MANAGER)
NOT_CORDONED = replace(ALL_LABELS, cordoned=False, cordon_manager="")


def taken(found: Journal = ALL_LABELS, *, is_known: bool = True, **fields: Any) -> Scene:
    """A node that this run's own patch took. The answer of the patch is known: the cordon is on record for us."""
    scene = Scene(encode(found))
    if not found.cordoned:
        scene.cluster.edit(annotations={CORDON: None}, cordon=False)
    scene.cluster.current = replace(scene.node, cordon_manager=FIELD_MANAGER if found.cordoned else "", **fields)
    scene.lock.acquired(found, *([scene.cluster.current] if is_known else []))
    scene.killer.calls.clear()
    return scene


@pytest.mark.parametrize(
    ("found", "fields", "calls"),
    [
        (ALL_LABELS, {}, ["patch"]),
        (ALL_LABELS, {"has_heartbeat": True}, ["node", "patch"]),
        (NOT_CORDONED, {"has_heartbeat": True}, ["patch"]),
        (replace(ALL_LABELS, labels={**ALL_LABELS.labels, key("absent"): "true"}), {}, ["node", "patch"]),
        (replace(ALL_LABELS, services=(SERVICE,)), {}, ["node", f"start {SERVICE}", "patch"]),
    ],
    ids=["as it was taken", "cordoned, with a kubelet", "not cordoned", "a label the patch did not pause", "services"],
)
def test_a_cordon_on_a_node_with_a_kubelet_is_lifted_after_a_look_and_by_one_patch(
    found: Journal, fields: dict[str, Any], calls: list[str]
) -> None:
    """The record of who set it has moved by then; no other part of the patch is found by its place."""
    scene = taken(found, **fields)
    scene.lock.release(found)
    assert (scene.is_given_back, scene.killer.calls) == (True, calls)


def lifted_and_set_again(scene: Scene) -> None:
    scene.cluster.edit(cordon=False)
    scene.cluster.edit(cordon=True)


CHANGES: dict[str, Callable[[Scene], None]] = {
    "a label": lambda scene: scene.cluster.edit({PLUGIN: "false"}),
    "a label is gone": lambda scene: scene.cluster.edit({PLUGIN: None}),
    "the journal is gone": lambda scene: scene.cluster.edit(annotations={JOURNAL: None}),
    "another run": lambda scene: scene.cluster.edit(annotations={JOURNAL: encode(journal(owner=builders.SOMEBODY))}),
    "the mark is gone": lambda scene: scene.cluster.edit(annotations={CORDON: None}),
    "uncordoned": lambda scene: scene.cluster.edit(cordon=False),
    "uncordoned and cordoned": lifted_and_set_again,
    "made again": lambda scene: scene.cluster.recreate_node(),
    "replaced": lambda scene: scene.cluster.replace_node({PLUGIN: PAUSED}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at_once", [False, True], ids=["before", "at-once"])
def test_what_changed_since_the_node_was_taken_is_met_with_a_look(change: str, at_once: bool) -> None:
    ends = []
    for is_known in (True, False):
        scene = taken(is_known=is_known)
        if at_once and is_known:
            scene.killer.at("patch", partial(CHANGES[change], scene))
        else:
            CHANGES[change](scene)
        with contextlib.suppress(OwnedElsewhere):
            scene.lock.release(ALL_LABELS)
        assert "node" in scene.killer.calls
        ends.append((scene.node.labels, scene.node.annotations, scene.node.unschedulable))
    assert ends[0] == ends[1], "as a run does that looks first"


def test_a_node_made_again_is_met_with_a_look_where_no_cordon_tells_and_other_changes_are_no_reason_for_one() -> None:
    scene = taken(NOT_CORDONED)
    scene.cluster.recreate_node()
    scene.lock.release(NOT_CORDONED)
    assert "node" in scene.killer.calls
    scene = taken()
    scene.cluster.edit({"other": "x"}, annotations={"theirs": "kept"})
    scene.lock.release(ALL_LABELS)
    assert scene.killer.calls == ["patch"]


def test_an_answer_that_is_lost_is_met_with_a_look_and_nothing_is_done_twice() -> None:
    scene = taken()
    scene.killer.at("patch", AWAY, after=True)
    with pytest.raises(ApiUnavailable):
        scene.lock.release(ALL_LABELS)
    assert scene.is_given_back
    scene.lock.release(ALL_LABELS)
    assert (scene.is_given_back, scene.killer.calls) == (True, ["patch", "patch", "node"])
    scene = Scene()  # nothing is left to change
    scene.cluster.edit({PLUGIN: "true", EXPORTER: "true"}, cordon=False, annotations={JOURNAL: None, CORDON: None})
    scene.lock.release(MINE)
    assert scene.is_untouched


def test_a_cordon_of_the_rebooter_or_a_person_is_not_ours_and_without_a_pause_there_is_nothing_to_give_back() -> None:
    rebooters = node(unschedulable=True, annotations={CORDON: CORDON_FOR_REBOOT})
    marked = [node(unschedulable=True, annotations={CORDON: "true"}, cordon_manager=by) for by in node_patches.BY_HAND]
    for now in (rebooters, *marked, node(), node(unschedulable=True), node(annotations={CORDON: "true"})):
        assert node_patches.decoded_journal(now, PROFILE, builders.ME) is None, now
        assert releasing(Situation.of(observation(node=now), PROFILE, Policy())) == (), now
    paused = node_patches.decoded_journal(replace(rebooters, labels=PAUSED_LABELS), PROFILE, builders.ME)
    assert paused == journal(boot_id=""), "what is ours is given back all the same"
    alone = node_patches.decoded_journal(node(unschedulable=True, annotations={CORDON: "true"}), PROFILE, builders.ME)
    assert alone == journal(boot_id="", labels={}, cordoned=True), "a cordon of ours alone is given back too"


def test_the_nodes_own_journal_goes_before_what_the_labels_tell() -> None:
    known = journal(labels={PLUGIN: "gold"})
    assert node_patches.found_journal(observation(node=node(PAUSED_LABELS), journal=known), PROFILE) == known


def test_the_drivers_own_label_and_foreign_labels_are_never_pausable() -> None:
    labels = {**LABELS, key("off"): "false", key("empty"): "", key("gold"): "gold"}
    by_hand = observation(node=node(labels), own_pod=None)  # a run's own pod would spare the label as well
    assert node_patches.pausable_keys(by_hand, PROFILE) == {PLUGIN, EXPORTER, key("gold")}
    alone = observation(node=node({builders.DRIVER: "true"}), own_pod=None)
    assert node_patches.pausable_keys(alone, PROFILE) == frozenset()


LAST = key("dra-kubelet-plugin")


@pytest.mark.parametrize(
    ("value", "known", "paused", "original"),
    [
        ("true", {}, PAUSED, "true"),
        ("gold", {}, f"gold_{PAUSED}", "gold"),
        ("x" * 60, {}, PAUSED, "x" * 60),
        ("silver", {LAST: "gold"}, f"silver_{PAUSED}", "silver"),
        (f"gold_{PAUSED}", {}, None, "gold"),
        (None, {}, None, None),
        ("", {}, None, None),
        ("false", {}, None, None),
    ],
    ids=["true", "custom", "long", "edited after the first patch", "paused by a user", "absent", "empty", "off"],
)
def test_what_leaves_last_is_paused_and_journaled_in_one_patch(
    value: str | None, known: dict[str, str], paused: str | None, original: str | None
) -> None:
    labels = {**LABELS, PLUGIN: PAUSED, **({} if value is None else {LAST: value})}
    held = journal(labels={PLUGIN: "true", **known})
    longer, change = node_patches.pause_more(node(labels), held, PROFILE, {LAST})
    assert change.unschedulable is None
    assert longer == replace(held, labels={PLUGIN: "true", **({LAST: original} if original else known)})
    assert dict(change.labels) == ({LAST: paused} if paused else {})
    journals = {name: decode(text or "").claims for name, text in change.annotations.items()}
    assert journals == ({JOURNAL: longer} if paused else {})
    now = node({**labels, **({LAST: paused} if paused else {})}, annotations={JOURNAL: "…"})
    back = {PLUGIN: "true", **({LAST: original} if original else {})}
    assert dict(node_patches.release(now, longer, PROFILE).labels) == back
    assert node_patches.pause_more(now, longer, PROFILE, {LAST})[1].is_empty, "the second time changes nothing"
