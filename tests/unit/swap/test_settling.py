"""What was taken is given back, or held on purpose; the message says which, and no failure hides another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from driver_manager.core.node import ATTEMPTS
from driver_manager.core.ports import Ports
from driver_manager.core.swap.node import HURRY_S, NodeLock
from driver_manager.domain.errors import ApiUnavailable, ConfigError, ExitCode, NodeMissing, OwnedElsewhere
from driver_manager.domain.journal import Journal, OldDriver, encode
from driver_manager.domain.node import FIELD_MANAGER, Node
from driver_manager.domain.observation import Observation
from driver_manager.domain.pci import Binding, PciFunction
from driver_manager.domain.swap.steps import GiveBack
from tests.support.fakes.builders import (
    EXPORTER,
    LABELS,
    PAUSED,
    PLUGIN,
    PROFILE,
    SOMEBODY,
    journal,
    node,
    observation,
)
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.host import FakeHost
from tests.support.fakes.killer import Killer

JOURNAL, CORDON = PROFILE.keys.journal, PROFILE.keys.cordon
MINE = journal(cordoned=True, driver=OldDriver("1.0", "/opt/old", ("rebellions",)))


class Scene:
    """A node taken with `MINE`, its old driver still loaded."""

    def __init__(self, there: str | None = None, *, was_there: str | None = None, loaded: bool = True) -> None:
        self.killer = Killer()
        self.clock = FakeClock(self.killer)
        self.reporter = RecordingReporter()
        annotations = {JOURNAL: encode(MINE) if there is None else there, CORDON: "true"}
        taken = node({**LABELS, PLUGIN: PAUSED, EXPORTER: PAUSED}, annotations=annotations, unschedulable=True)
        self.cluster = FakeCluster(self.killer, self.clock, taken)
        self.host = FakeHost(self.killer, PROFILE)
        if loaded:
            self.host.put_driver("1.0", "d")
        before = {} if was_there is None else {JOURNAL: was_there}
        self.lock = self.lock_of(observation(node=node(annotations=before)))

    def lock_of(self, obs: Observation) -> NodeLock:
        return NodeLock(
            Ports(self.cluster, self.host, self.clock, self.reporter, self.host.slots, self.host.pci), PROFILE, obs
        )

    @property
    def is_given_back(self) -> bool:
        now = self.cluster.current
        return now is not None and now.labels == LABELS and not now.annotations and not now.unschedulable

    @property
    def is_untouched(self) -> bool:
        return self.cluster.patches == []


def test_a_taken_node_is_given_back_after_a_failure_with_the_driver_loaded() -> None:
    scene = Scene()
    scene.lock.acquired(MINE)
    assert scene.lock.after_failure() == "the node was released"
    assert scene.is_given_back
    assert scene.killer.calls == ["modules", "node", "patch"]


def test_what_an_earlier_run_left_is_given_back_too() -> None:
    scene = Scene()
    scene.lock = scene.lock_of(observation(node=node(annotations={JOURNAL: encode(MINE)}), journal=MINE))
    assert "released" in scene.lock.after_failure()
    assert scene.is_given_back


def test_nothing_taken_is_nothing_to_say_and_nothing_to_ask() -> None:
    scene = Scene()
    assert scene.lock.after_failure() == ""
    assert scene.killer.calls == []


def test_a_node_whose_old_driver_is_gone_is_held_with_its_journal() -> None:
    scene = Scene(loaded=False)
    scene.lock.acquired(MINE)
    said = scene.lock.after_failure()
    assert "stays paused" in said
    assert "resumes from the journal" in said
    assert scene.is_untouched


def test_a_node_that_had_no_driver_is_given_back_without_one() -> None:
    scene = Scene(loaded=False)
    scene.lock.acquired(journal(cordoned=True))
    assert "released" in scene.lock.after_failure()
    assert scene.is_given_back


@pytest.mark.parametrize(("boot_id", "override"), [("boot-1", ""), ("boot-0", "vfio-pci")])
def test_devices_that_a_boot_made_again_are_not_restored_from_the_journal(boot_id: str, override: str) -> None:
    address = "0000:c0:00.0"
    scene = Scene()
    scene.host.pci.put(PciFunction(address, override="vfio-pci"))
    scene.lock.acquired(replace(MINE, boot_id=boot_id, devices=(Binding(address),)))
    scene.lock.after_failure()
    assert scene.host.pci.at[address].override == override


def test_giving_back_after_a_failure_is_not_interrupted_by_sigterm() -> None:
    scene = Scene()
    scene.lock.acquired(MINE)
    scene.clock.ask_to_end()
    scene.killer.at("node", scene.clock.check)
    assert "released" in scene.lock.after_failure()


@pytest.mark.parametrize(("hurry", "budgets"), [(True, [HURRY_S]), (False, [])])
def test_only_after_sigterm_the_last_calls_are_bounded(hurry: bool, budgets: list[float]) -> None:
    scene = Scene()
    scene.lock.acquired(MINE)
    assert "released" in scene.lock.after_failure(hurry=hurry)
    assert scene.cluster.retry_budgets == budgets
    assert HURRY_S * 4 < 5.0, "two patches, a read and the event within the shortest grace period"


def test_a_deleted_node_is_no_failure_of_giving_back() -> None:
    scene = Scene()
    scene.lock.acquired(replace(MINE, services=(SERVICE,)))
    scene.host.services = {SERVICE: False}
    scene.cluster.delete_node()
    assert scene.lock.after_failure() == "the Node is gone, so there is nothing to release"
    assert scene.host.services == {SERVICE: True}
    assert scene.reporter.warnings == []


def test_an_api_server_that_is_away_leaves_it_to_the_next_run() -> None:
    scene = Scene()
    scene.lock.acquired(MINE)
    scene.killer.at("node", _unavailable)
    assert "the next run releases it from the journal" in scene.lock.after_failure()
    assert scene.reporter.warnings == ["not released: no answer"]


def test_a_host_that_cannot_be_read_does_not_hide_the_first_failure() -> None:
    scene = Scene()
    scene.lock.acquired(MINE)
    scene.host.modules_error = ConfigError("cannot read /sys/module", "")
    assert "the next run" in scene.lock.after_failure()
    assert scene.is_untouched, "whether the driver is gone is not known: hold"


@pytest.mark.parametrize("conflicts", [1, ATTEMPTS - 1])
def test_a_conflict_is_met_by_computing_the_patch_anew(conflicts: int) -> None:
    scene = Scene()
    for _ in range(conflicts):
        scene.killer.at("patch", lambda: scene.cluster.edit({"other": "x"}))
    scene.lock.release(MINE)
    assert scene.cluster.current is not None
    assert scene.cluster.current.labels == {**LABELS, "other": "x"}
    assert scene.killer.calls.count("patch") == conflicts + 1


def test_a_node_that_keeps_changing_ends_with_api_unavailable() -> None:
    scene = Scene()
    for number in range(ATTEMPTS * 2):
        scene.killer.at_call(number, lambda: scene.cluster.edit({"other": "x"}))
    with pytest.raises(ApiUnavailable, match=f"{ATTEMPTS} patches conflicted") as caught:
        scene.lock.release(MINE)
    assert "the journal is still on the Node" in caught.value.remedy


def test_a_replaced_node_is_left_alone() -> None:
    scene = Scene()
    scene.cluster.replace_node({PLUGIN: PAUSED})
    scene.lock.release(MINE)
    assert scene.is_untouched
    assert "replaced meanwhile" in scene.reporter.warnings[0]


def recreated(scene: Scene, carried: Journal) -> None:
    """Somebody deletes the Node and creates it again from a copy, journal and all."""
    copy = scene.cluster.current
    assert copy is not None
    scene.cluster.current = replace(copy, uid="uid-2", annotations={**copy.annotations, JOURNAL: encode(carried)})


def test_a_node_created_anew_with_our_own_journal_is_given_back() -> None:
    scene = Scene()
    recreated(scene, MINE)
    scene.lock.acquired(MINE)
    assert "released" in scene.lock.after_failure()
    assert scene.is_given_back
    assert scene.reporter.warnings == []


def test_a_node_created_anew_with_somebody_elses_journal_is_left_alone() -> None:
    scene = Scene()
    recreated(scene, replace(MINE, owner=SOMEBODY))
    with contextlib.suppress(OwnedElsewhere):
        scene.lock.release(MINE)
    assert scene.is_untouched


def test_services_stay_stopped_on_a_node_created_anew_that_another_run_owns() -> None:
    scene = Scene()
    recreated(scene, replace(MINE, owner=SOMEBODY, services=(SERVICE,)))
    scene.host.services = {SERVICE: False}
    with contextlib.suppress(OwnedElsewhere):
        scene.lock.release(replace(MINE, services=(SERVICE,)))
    assert scene.host.services == {SERVICE: False}


def test_a_deleted_node_has_nothing_to_give_back() -> None:
    scene = Scene()
    scene.cluster.delete_node()
    with pytest.raises(NodeMissing, match="does not exist") as caught:
        scene.lock.release(MINE)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.remedy == "No action needed: nothing is left to release."


def test_a_node_that_another_run_took_over_is_left_to_it() -> None:
    scene = Scene(encode(journal(owner=SOMEBODY)))
    with pytest.raises(OwnedElsewhere, match="driver-b"):
        scene.lock.release(MINE)
    assert scene.is_untouched


@pytest.mark.parametrize("owner", ["same-run", "as-observed", "unreadable", "missing"])
def test_any_other_journal_does_not_stop_the_giving_back(owner: str) -> None:
    other = encode(Journal(SOMEBODY, "boot-1"))
    there = {"same-run": encode(journal(labels={})), "as-observed": other, "unreadable": "garbage"}.get(owner)
    scene = Scene(there, was_there=other if owner == "as-observed" else None)
    if owner == "missing":
        scene.cluster.edit(annotations={JOURNAL: None})
    scene.lock.release(MINE)
    assert scene.is_given_back


SERVICE = "rbln_daemon.service"


def test_stopped_services_are_started_on_both_ways_out() -> None:
    for loaded in (True, False):
        scene = Scene(loaded=loaded)
        scene.host.services = {SERVICE: False}
        scene.lock.acquired(replace(MINE, services=(SERVICE,)))
        scene.lock.after_failure()
        assert scene.host.services == {SERVICE: True}


def test_services_are_started_once_however_often_the_patch_is_tried() -> None:
    scene = Scene()
    for _ in range(3):
        scene.killer.at("patch", lambda: scene.cluster.edit({"other": "x"}))
    scene.lock.release(replace(MINE, services=(SERVICE,)))
    assert scene.killer.calls.count(f"start {SERVICE}") == 1


def test_services_are_started_once_when_giving_back_fails_and_is_settled() -> None:
    scene = Scene()
    taken = replace(MINE, services=(SERVICE,))
    scene.lock.acquired(taken)
    scene.killer.at("patch", _unavailable)
    with pytest.raises(ApiUnavailable):
        scene.lock.release(taken)
    assert "released" in scene.lock.after_failure()
    assert scene.killer.calls.count(f"start {SERVICE}") == 1


def test_a_service_that_does_not_start_keeps_nobody_from_the_node() -> None:
    scene = Scene()
    scene.host.broken_services = {SERVICE}
    scene.lock.release(replace(MINE, services=(SERVICE,)))
    assert scene.is_given_back
    assert SERVICE in scene.reporter.warnings[0]


def test_services_that_another_run_stopped_are_left_to_it() -> None:
    scene = Scene(encode(journal(owner=SOMEBODY, services=(SERVICE,))))
    scene.host.services = {SERVICE: False}
    with pytest.raises(OwnedElsewhere):
        scene.lock.release(replace(MINE, services=(SERVICE,)))
    assert scene.host.services == {SERVICE: False}


# without a look


def seen(scene: Scene) -> Node:
    """The Node as the patch that took it left it: the cordon is on record for us."""
    assert scene.cluster.current is not None
    scene.cluster.current = replace(scene.cluster.current, cordon_manager=FIELD_MANAGER)
    return scene.cluster.current


ALL_LABELS = journal(labels={PLUGIN: "true", EXPORTER: "true"}, cordoned=True, cordon_manager=FIELD_MANAGER)


def taken(journal: Journal = ALL_LABELS) -> Scene:
    """A node that this run's own patch took; its answer is known."""
    scene = Scene(encode(journal))
    scene.lock.acquired(journal, seen(scene))
    return scene


def test_a_node_that_stayed_as_it_was_taken_is_given_back_by_one_request() -> None:
    scene = taken()
    scene.lock.release(ALL_LABELS)
    assert scene.is_given_back
    assert scene.killer.calls == ["patch"]


@pytest.mark.parametrize("cordons", [True, False], ids=["cordoned", "not-cordoned"])
def test_a_cordon_on_a_node_with_a_kubelet_is_lifted_after_a_look_and_by_one_patch(cordons: bool) -> None:
    """The record of who set it has moved by then; nothing else of the patch is told by its place."""
    held = ALL_LABELS if cordons else replace(ALL_LABELS, cordoned=False, cordon_manager="")
    scene = Scene(encode(held))
    if not cordons:
        scene.cluster.edit(annotations={CORDON: None}, cordon=False)
    scene.cluster.current = replace(seen(scene), has_heartbeat=True)
    scene.lock.acquired(held, scene.cluster.current)
    scene.killer.calls.clear()
    scene.lock.release(held)
    assert scene.is_given_back
    assert scene.killer.calls == (["node", "patch"] if cordons else ["patch"])


def lifted_and_set_again(scene: Scene) -> None:
    scene.cluster.edit(cordon=False)
    scene.cluster.edit(cordon=True)


def made_again(scene: Scene) -> None:
    scene.cluster.recreate_node()


def taken_over(scene: Scene) -> None:
    scene.cluster.edit(annotations={JOURNAL: encode(journal(owner=SOMEBODY))})


CHANGES: dict[str, Callable[[Scene], None]] = {
    "a label": lambda scene: scene.cluster.edit({PLUGIN: "false"}),
    "a label is gone": lambda scene: scene.cluster.edit({PLUGIN: None}),
    "the journal is gone": lambda scene: scene.cluster.edit(annotations={JOURNAL: None}),
    "another run": taken_over,
    "the mark is gone": lambda scene: scene.cluster.edit(annotations={CORDON: None}),
    "uncordoned": lambda scene: scene.cluster.edit(cordon=False),
    "uncordoned and cordoned": lifted_and_set_again,
    "made again": made_again,
    "replaced": lambda scene: scene.cluster.replace_node({PLUGIN: PAUSED}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at_once", [False, True], ids=["before", "at-once"])
def test_what_changed_since_the_node_was_taken_is_met_with_a_look(change: str, at_once: bool) -> None:
    ends = []
    for is_known in (True, False):
        scene = taken()
        if not is_known:
            scene.lock.acquired(ALL_LABELS)
        if at_once and is_known:
            scene.killer.at("patch", partial(CHANGES[change], scene))
        else:
            CHANGES[change](scene)
        with contextlib.suppress(OwnedElsewhere):
            scene.lock.release(ALL_LABELS)
        assert "node" in scene.killer.calls
        node_now = scene.cluster.current
        assert node_now is not None
        ends.append((node_now.labels, node_now.annotations, node_now.unschedulable))
    assert ends[0] == ends[1], "as a run does that looks first"


def test_a_node_that_was_made_again_is_met_with_a_look_where_no_cordon_tells() -> None:
    plain = replace(ALL_LABELS, cordoned=False, cordon_manager="")
    scene = Scene(encode(plain))
    scene.cluster.edit(annotations={CORDON: None}, cordon=False)
    scene.lock.acquired(plain, scene.cluster.current)
    made_again(scene)
    scene.killer.calls.clear()
    scene.lock.release(plain)
    assert "node" in scene.killer.calls


def test_what_nobody_asked_about_is_no_reason_to_look() -> None:
    scene = taken()
    scene.cluster.edit({"other": "x"}, annotations={"theirs": "kept"})
    scene.lock.release(ALL_LABELS)
    assert scene.killer.calls == ["patch"]


def test_an_answer_that_is_lost_is_met_with_a_look_and_nothing_is_done_twice() -> None:
    scene = taken()
    scene.killer.at("patch", _unavailable, after=True)
    with pytest.raises(ApiUnavailable):
        scene.lock.release(ALL_LABELS)
    assert scene.is_given_back
    scene.lock.release(ALL_LABELS)
    assert scene.is_given_back
    assert scene.killer.calls == ["patch", "patch", "node"]


def test_services_are_started_before_the_node_is_given_back() -> None:
    with_service = replace(ALL_LABELS, services=(SERVICE,))
    scene = taken(with_service)
    scene.host.services = {SERVICE: False}
    scene.lock.release(with_service)
    assert scene.is_given_back
    assert scene.killer.calls == ["node", f"start {SERVICE}", "patch"]


def test_a_label_of_the_journal_that_was_not_paused_by_the_patch_needs_a_look() -> None:
    wider = replace(ALL_LABELS, labels={**ALL_LABELS.labels, "rebellions.ai/npu.deploy.absent": "true"})
    scene = taken(wider)
    scene.lock.release(wider)
    assert scene.is_given_back
    assert scene.killer.calls == ["node", "patch"]


def test_an_unchanged_node_is_not_patched() -> None:
    scene = Scene()
    scene.cluster.edit({PLUGIN: "true", EXPORTER: "true"}, cordon=False, annotations={JOURNAL: None, CORDON: None})
    scene.lock.release(MINE)
    assert scene.is_untouched


def _unavailable() -> None:
    raise ApiUnavailable("no answer", "")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (journal(cordoned=True), "release the node: restore 2 label(s), lift the run's cordon, remove the journal"),
        (journal(labels={}, services=("rbln_daemon",)), "release the node: start rbln_daemon, remove the journal"),
        (journal(labels={}), "release the node: remove the journal"),
    ],
)
def test_a_release_names_what_there_is_to_undo_and_no_count_of_zero(found: Journal, said: str) -> None:
    assert GiveBack(found).describe() == said
