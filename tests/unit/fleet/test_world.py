"""What a controller knows: nothing older ever replaces what is newer, and only what may change a decision is news."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core.fleet.world import NODES, FleetCache, is_older
from driver_manager.core.fleet_ports import Change, FactKind, Found, Gone, Item, Listed, Lost, Seen, Subject
from driver_manager.domain import selectors
from driver_manager.domain.fleet import spec
from driver_manager.domain.fleet.state import tasks_of

HERE = "npu"
ROLLOUTS, SETS = Subject(FactKind.ROLLOUTS, HERE), Subject(FactKind.DAEMON_SETS, HERE)
REVISIONS, PODS = Subject(FactKind.REVISIONS, HERE), Subject(FactKind.DRIVER_PODS, HERE, "app=driver")
TASKS_HERE = Subject(FactKind.TASK_PODS, HERE, tasks_of(""))
POLICY = spec.RolloutPolicy("driver")


def rollout(name: str = "r", version: int = 1, **fields: Any) -> Item:
    known = {"generation": 1, "created_s": 1.0, "policy": POLICY, **fields}
    return Item(name, f"uid-{name}", str(version), spec.RolloutObject(HERE, name, f"uid-{name}", str(version), **known))


def node(name: str = "n", version: int = 1, **fields: Any) -> Item:
    uid = fields.pop("uid", f"uid-{name}")
    return Item(name, uid, str(version), spec.FleetNode(name, uid, str(version), **fields))


def daemon_set(version: int = 1, **fields: Any) -> Item:
    facts = spec.DaemonSetFacts(HERE, "driver", "uid-ds", str(version), "OnDelete", pods="app=driver", **fields)
    return Item("driver", "uid-ds", str(version), facts)


def pod(name: str = "p", version: int = 1, owner: str = "uid-ds", **fields: Any) -> Item:
    return Item(
        name, f"uid-{name}", str(version), spec.DriverPod(HERE, name, f"uid-{name}", "n", "r1", **fields), owner
    )


def revision(name: str, number: int, owner: str = "uid-ds") -> Item:
    return Item(name, f"uid-{name}", "1", spec.Revision(name, f"hash-{name}", number, f'{{"of":"{name}"}}'), owner)


def world(*changes: Change) -> FleetCache:
    """Everything listed: one rollout of a DaemonSet with one revision, one node, one pod."""
    known = FleetCache(HERE)
    lists = {ROLLOUTS: rollout(), SETS: daemon_set(), REVISIONS: revision("a", 1), NODES: node(), PODS: pod()}
    for subject, item in lists.items():
        known.apply(Listed(subject, (item,), "1"))
    known.apply(Listed(TASKS_HERE, (), "1"))
    for change in changes:
        known.apply(change)
    return known


@pytest.fixture
def known() -> FleetCache:
    return world()


def seen(known: FleetCache) -> spec.Fleet:
    (found,) = known.rollouts()
    return known.fleet(found, found.policy or POLICY)


def test_a_decision_gets_what_belongs_to_its_daemonset_and_nothing_else() -> None:
    known = world(
        Seen(PODS, pod("orphan", owner="uid-old")),
        Seen(REVISIONS, revision("b", 2)),
        Seen(REVISIONS, revision("foreign", 9, owner="uid-other")),
    )
    fleet = seen(known)
    assert [one.name for one in fleet.pods] == ["p"]
    assert [one.name for one in fleet.revisions] == ["a", "b"]
    assert fleet.rollout == "npu/r"
    assert fleet.daemon_set is not None
    assert known.template(POLICY, "hash-b") == '{"of":"b"}'
    assert known.template(POLICY, "hash-foreign") == ""


def test_a_version_alone_is_no_news_but_is_known_for_the_next_patch(known: FleetCache) -> None:
    assert not known.apply(Seen(NODES, node(version=7)))
    assert seen(known).nodes[0].resource_version == "7"
    assert not known.apply(Seen(SETS, daemon_set(version=8)))
    assert known.apply(Seen(NODES, node(version=9, unschedulable=True)))
    assert known.apply(Seen(NODES, node(version=10, unschedulable=True, uid="another-of-this-name")))


def test_an_orphan_that_finds_a_new_owner_is_news() -> None:
    known = world(Gone(PODS, "p", "2"), Seen(PODS, pod("o", 3, owner="")))
    assert seen(known).pods == ()
    assert known.apply(Seen(PODS, pod("o", 4)))
    assert [one.name for one in seen(known).pods] == ["o"]


def test_a_change_from_before_our_own_write_is_not_believed(known: FleetCache) -> None:
    known.learn(NODES, node(version=7, upgrade="pod-restart-required"))
    assert not known.apply(Seen(NODES, node(version=6, upgrade="stale")))
    assert not known.apply(Gone(NODES, "n", "6"))
    assert not known.apply(Listed(NODES, (node(version=6, upgrade="stale"),), "6"))
    assert seen(known).nodes[0].upgrade == "pod-restart-required"
    assert not known.apply(Listed(NODES, (), "6")), "it came after that list"
    assert len(seen(known).nodes) == 1
    assert known.apply(Listed(NODES, (), "8"))
    assert seen(known).nodes == ()


def test_a_pod_that_we_deleted_counts_as_leaving_before_the_watch_says_so(known: FleetCache) -> None:
    known.end_pod("uid-p")
    assert seen(known).pods[0].is_deleting
    assert not known.apply(Seen(PODS, pod(version=4))), "an event that was under way"
    assert seen(known).pods[0].is_deleting
    known.apply(Gone(PODS, "p", "5"))
    assert seen(known).pods == ()
    known.apply(Seen(PODS, replace(pod(version=6), uid="uid-next")))
    assert not seen(known).pods[0].is_deleting


def test_what_was_doubted_is_news_with_its_next_version(known: FleetCache) -> None:
    known.doubt(NODES, "n")
    known.doubt(NODES, "no-such-node")
    assert known.apply(Seen(NODES, node(version=2)))
    assert not known.apply(Seen(NODES, node(version=3)))


def test_each_subject_has_to_be_listed_and_seen() -> None:
    known = FleetCache(HERE)
    assert known.why_unread() == "rollouts in namespace npu are not listed yet"
    known.apply(Listed(ROLLOUTS, (rollout(),), "1"))
    assert known.why_blind(POLICY) == "DaemonSets in namespace npu are not listed yet"
    known = world(Lost(NODES, "no answer"))
    assert known.why_blind(POLICY) == "no answer"
    assert known.why_unread() == "no answer"
    assert known.apply(Found(NODES))
    assert not known.apply(Found(NODES))
    assert known.why_blind(POLICY) == known.why_unread() == ""
    known.apply(Lost(TASKS_HERE, "no answer"))
    assert known.why_blind(POLICY) == "no answer", "a result may have come meanwhile"


def test_a_rollout_has_the_short_lived_pods_that_it_owns(known: FleetCache) -> None:
    for owner in ("uid-r", "uid-other"):
        fact = spec.TaskPod(HERE, f"of-{owner}", f"uid-of-{owner}", "n", "r1", spec.Task.PREFLIGHT, 1.0)
        known.learn(known.tasks, Item(fact.name, fact.uid, "5", fact, owner))
    (found,) = seen(known).task_pods
    assert (found.name, found.is_deleting) == ("of-uid-r", False)
    known.end_pod(found.uid)
    assert seen(known).task_pods[0].is_deleting
    assert (seen(known).rollout_uid, seen(known).unmade) == ("uid-r", "")


def test_gates_are_followed_and_waited_for() -> None:
    gate = spec.PodGate(namespace="monitoring", selector=selectors.parse("app=validator"))
    policy = replace(POLICY, gates=spec.Gates((gate, gate)))
    known = world(Listed(ROLLOUTS, (rollout(version=2, policy=policy),), "2"))
    subject = Subject(FactKind.GATE_PODS, "monitoring", "app=validator")
    assert subject in known.subjects()
    assert "pods of a gate" in known.why_blind(policy)
    item = Item("v", "uid-v", "3", spec.GatePod("monitoring", "n", {"app": "validator"}, is_ready=True))
    known.apply(Listed(subject, (item,), "3"))
    assert [one.node for one in seen(known).gate_pods] == ["n"]


def test_a_subject_that_is_no_longer_needed_is_not_watched(known: FleetCache) -> None:
    assert known.subjects() == {ROLLOUTS, SETS, REVISIONS, NODES, TASKS_HERE, PODS}
    known.apply(Gone(ROLLOUTS, "r", "2"))
    assert known.subjects() == {ROLLOUTS}
    known.keep_only(known.subjects())
    known.apply(Seen(ROLLOUTS, rollout(version=3)))
    assert known.why_blind(POLICY) == "DaemonSets in namespace npu are not listed yet"


LEFT = node(upgrade="pod-restart-required", record=spec.NodeRecord("npu/gone", "r1", 1, "uid-p", "boot", 1.0, 1.0))
"""A node that is under way for a rollout that is gone."""


def test_nodes_are_listed_once_without_a_rollout_and_followed_while_one_is_left() -> None:
    known = FleetCache(HERE)
    known.apply(Listed(ROLLOUTS, (), "1"))
    assert known.subjects() == {ROLLOUTS, NODES}
    assert known.why_unread() == "Nodes are not listed yet"
    known.apply(Listed(NODES, (LEFT,), "1"))
    known.apply(Lost(NODES, "no answer"))
    assert known.subjects() == {ROLLOUTS, NODES}
    known.apply(Found(NODES))
    assert [act.node for act in known.orphans()] == ["n"]
    known.learn(NODES, node(version=2))
    assert known.subjects() == {ROLLOUTS}
    known.keep_only(known.subjects())
    assert known.subjects() == {ROLLOUTS}
    assert known.why_unread() == ""


def test_nodes_are_listed_again_after_a_rollout_that_could_not_be_read_is_gone() -> None:
    known = FleetCache(HERE)
    known.apply(Listed(ROLLOUTS, (rollout("gone", policy=None),), "1"))
    known.apply(Listed(NODES, (LEFT,), "1"))
    assert known.subjects() == {ROLLOUTS}
    known.keep_only(known.subjects())
    known.apply(Gone(ROLLOUTS, "gone", "2"))
    assert known.subjects() == {ROLLOUTS, NODES}


def test_a_pod_that_was_never_deleted_is_known_until_the_controller_tries_or_it_is_gone(known: FleetCache) -> None:
    for end in (lambda: known.try_pod("uid-p"), lambda: known.apply(Gone(PODS, "p", "5"))):
        known.keep_pod("uid-p")
        assert seen(known).kept == {"uid-p"}
        end()
        assert seen(known).kept == frozenset()


def test_the_oldest_rollout_has_the_daemonset() -> None:
    known = world(
        Seen(ROLLOUTS, rollout("z-older", created_s=0.5)),
        Seen(ROLLOUTS, rollout("other", created_s=0.1, policy=spec.RolloutPolicy("another"))),
        Seen(ROLLOUTS, rollout("leaving", created_s=0.2, is_deleting=True)),
    )
    by_name = {one.name: one for one in known.rollouts()}
    assert by_name.keys() == {"r", "z-older", "other"}
    assert known.rivals(by_name["r"], POLICY) == ("z-older",)
    assert known.rivals(by_name["z-older"], POLICY) == ()


def test_without_the_daemonset_there_is_nothing_of_it() -> None:
    known = world(Gone(SETS, "driver", "4"))
    fleet = seen(known)
    assert (fleet.daemon_set, fleet.pods, fleet.revisions) == (None, (), ())
    assert known.why_blind(POLICY) == ""


@given(st.permutations(range(1, 9)), st.integers(1, 8))
def test_in_whatever_order_changes_arrive_the_newest_is_known(order: list[int], written: int) -> None:
    known = world()
    for number in order:
        if number == written:
            known.learn(NODES, node(version=number, boot_id=str(number)))
        else:
            known.apply(Seen(NODES, node(version=number, boot_id=str(number))))
    assert seen(known).nodes[0].boot_id == "8"


def test_only_numbers_are_older_and_any_other_version_is_believed() -> None:
    assert is_older("9", "10")
    believed = [("10", "9"), ("9", "9"), ("\u00b2", "9"), ("9", "\u00b2"), ("9", "1" * 5_000), ("", "9")]
    assert not [pair for pair in believed if is_older(*pair)]
