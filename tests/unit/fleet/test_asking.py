"""What a verb asks for, and when it is refused because nothing would change: decided from facts alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet import requests, spec
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.state import DeletePod, MarkNode, Phase
from tests.support.fakes import fleet_builders as builders
from tests.support.fakes.fleet_builders import NEW, NOW_S, OLD, fleet, matching, new_pod, node, pod, policy, record

HISTORY = (spec.RevisionHistory(OLD, 1.0, 2.0, "complete"), spec.RevisionHistory(NEW, NOW_S - 600.0))
GOOD = spec.RolloutState(target=NEW, good=OLD, history=HISTORY)
BARE = spec.RolloutState(target=NEW)
NOTHING_WAITS = "nothing waits for an approval now"


def gated(*approvals: bool, done: str = "a", **fields: Any) -> spec.Fleet:
    """A wave for each node a, b, c ..., of which those that are True ask for an approval at their end.

    Those in `done` serve the new revision.
    """
    waves, nodes, pods = [], [], []
    for at, (name, needs_approval) in enumerate(zip("abcd", approvals, strict=False), 1):
        waves.append(spec.Wave(f"wave-{name}", matching(f"w={name}"), needs_approval=needs_approval))
        more: dict[str, Any] = {"state": spec.UpgradeState.DONE, "record": record(name, wave=at)}
        more = more if name in done else {}
        nodes.append(node(name, labels={"w": name}, **more))
        pods.append(new_pod(name) if name in done else pod(name))
    return fleet(nodes, pods, policy=policy(waves=tuple(waves)), memory=GOOD, **fields)


def begun(facts: spec.Fleet) -> list[str]:
    marks = [act for act in advance(facts, NOW_S).acts if isinstance(act, MarkNode)]
    restarts = [one for one in marks if one.state is spec.UpgradeState.RESTART]
    return [one.node for one in restarts if one.record is not None and one.record.began_s == NOW_S]


def failed(**fields: Any) -> spec.Fleet:
    """Node a has failed for the new revision, b is done, c waits."""
    nodes = [node("a", spec.UpgradeState.FAILED), node("b", spec.UpgradeState.DONE), node("c")]
    pods = [new_pod("a", is_ready=False), new_pod("b"), pod("c")]
    return fleet(nodes, pods, **{"memory": GOOD, **fields})


LOOKS = tuple(
    spec.TaskPod("npu", f"look-{of}", f"look-{of}", of, NEW, spec.Task.PREFLIGHT, NOW_S - 10.0, code, has_ended=True)
    for of, code in (("a", 6), ("b", 0))
)


def looked_at(**fields: Any) -> spec.Fleet:
    """The preflight of node a has failed, that of b has passed."""
    rules = policy(preflight=spec.PreflightMode.REQUIRE)
    return fleet([node("a", **fields), node("b")], policy=rules, task_pods=LOOKS)


def test_an_approval_is_for_the_next_wave_or_the_one_that_is_named_and_for_this_revision_alone() -> None:
    request = requests.approval(gated(True, False), NOW_S, None)
    assert (request.annotations, begun(request.after)) == ({spec.APPROVED: "new:2"}, ["b"])
    ahead = requests.approval(gated(True, True, False, done=""), NOW_S, 2)
    assert ahead.annotations == {spec.APPROVED: "new:2"}
    assert requests.approval(ahead.after, NOW_S, 3).annotations == {spec.APPROVED: "new:3"}
    of_old = gated(True, False, wishes=spec.Requests(OLD, 2))
    assert requests.approval(of_old, NOW_S, 2).annotations == {spec.APPROVED: "new:2"}


def test_a_failed_node_begins_again_and_the_answer_states_when() -> None:
    request = requests.retry_of_nodes(failed(), NOW_S, ["a", "a"])
    assert ([one.name for one in request.nodes], begun(request.after)) == (["a"], ["a"])
    assert request.did == ("node a is retried: starts now",)
    paused = requests.retry_of_nodes(failed(policy=policy(paused=True)), NOW_S, ["a"])
    assert paused.did[0].startswith("node a is retried: failureThreshold is 1")


def test_a_node_that_left_the_target_again_may_be_retried() -> None:
    facts = fleet([node("a", spec.UpgradeState.DONE)], [pod("a", builders.OTHER, "a-third")], memory=GOOD)
    assert begun(facts) == []
    assert begun(requests.retry_of_nodes(facts, NOW_S, ["a"]).after) == ["a"]


def test_a_failed_revision_may_be_tried_again_once_it_is_asked_for() -> None:
    assert requests.outlook_after(once_more(BEFORE), NOW_S).phase is Phase.PROGRESSING


def test_a_retry_checks_a_node_again_that_its_preflight_left_out() -> None:
    request = requests.retry_of_nodes(looked_at(), NOW_S, ["a"])
    assert request.did == ("node a is checked again",)
    assert [act.uid for act in advance(request.after, NOW_S).acts if isinstance(act, DeletePod)] == ["look-a"]


def test_undo_leads_to_the_last_good_revision_and_says_so() -> None:
    request = requests.undo(failed(), NOW_S, "", "wish-1")
    assert request.annotations == {spec.UNDO: "wish-1"}
    assert request.did == ("goes back from revision new to old by the same rules; 2 nodes run another revision now",)
    after = requests.outlook_after(request, NOW_S)
    assert (after.phase, after.reason) == (Phase.HALTED, "Undoing")
    paused = failed(policy=policy(paused=True))
    assert requests.undo(paused, NOW_S, "", "wish-1").did[0].endswith("now; paused: `rollout resume` starts it")


@pytest.mark.parametrize("to", [OLD, "1", "driver-old"])
def test_undo_knows_a_revision_by_hash_number_or_name(to: str) -> None:
    request = requests.undo(failed(memory=BARE), NOW_S, to, "w")
    assert request.annotations == {spec.UNDO: "w:old"}
    assert advance(request.after, NOW_S).memory.undo_to == OLD


def test_pause_and_resume_change_one_field() -> None:
    paused = requests.pause(WAITING)
    assert (paused.spec, begun(paused.after)) == ({"paused": True}, [])
    resumed = requests.resume(paused.after)
    assert (resumed.spec, begun(resumed.after)) == ({"paused": False}, ["a"])


WAITING = fleet([node("a")])
BEFORE = fleet([node("a")], memory=replace(GOOD, failed=(NEW,)))
GOING = replace(GOOD, undo_from=NEW, undo_to=OLD)
GOING_ON, ALL_FAILED = replace(GOING, failed=(NEW,)), replace(BARE, failed=(OLD,))
APPROVED_2 = spec.Requests(NEW, 2)
ASIDE = failed(daemon_set=replace(builders.DAEMON_SET, update_strategy="RollingUpdate"))
STANDS_ASIDE = "the rollout does nothing now: DaemonSet driver has updateStrategy RollingUpdate"
NOT_FAILED = "it has not failed, it is"


def approve(facts: spec.Fleet, wave: int | None = None) -> requests.Request:
    return requests.approval(facts, NOW_S, wave)


def retry(facts: spec.Fleet, *names: str) -> requests.Request:
    return requests.retry_of_nodes(facts, NOW_S, names)


def once_more(facts: spec.Fleet) -> requests.Request:
    return requests.retry_of_revision(facts, NOW_S, "w")


def undo(facts: spec.Fleet, to: str = "") -> requests.Request:
    return requests.undo(facts, NOW_S, to, "w")


def test_what_would_change_nothing_is_refused() -> None:
    rows: tuple[tuple[Callable[[], object], str, str], ...] = (
        (lambda: approve(gated(False, False)), NOTHING_WAITS, "No later wave needs one."),
        (lambda: approve(gated(True, False, done="")), NOTHING_WAITS, "To approve ahead of time, use --wave 2."),
        (lambda: approve(gated(True, False, done="ab")), NOTHING_WAITS, "No later wave needs one."),
        (lambda: approve(gated(False, True)), NOTHING_WAITS, "No later wave needs one."),
        (lambda: approve(gated(True, False), 3), "there is no wave 3", "The waves are: 1 (wave-a), 2 (wave-b)."),
        (lambda: approve(gated(True, False), 1), "wave 1 does not wait for an approval", ""),
        (lambda: approve(gated(False, True, False, done=""), 2), "wave 2 does not wait for an approval", ""),
        (lambda: approve(gated(True, False, wishes=APPROVED_2), 2), "wave 2 is approved already for revision new", ""),
        (lambda: approve(gated(True, False, wishes=APPROVED_2)), NOTHING_WAITS, "No later wave needs one."),
        (lambda: approve(gated(True, False, daemon_set=None)), "the rollout does nothing now: DaemonSet driver", ""),
        (lambda: retry(failed(), "a", "b"), f"b: {NOT_FAILED} done (serves the target revision)", ""),
        (lambda: retry(failed(), "a", "c"), f"c: {NOT_FAILED} waiting", ""),
        (lambda: retry(failed(), "a", "z"), "z: it is not in this rollout", ""),
        (lambda: retry(retry(failed(), "a").after, "a"), "a: a retry was already asked for", ""),
        (lambda: retry(looked_at(), "b"), "b: it has not failed", ""),
        (lambda: retry(looked_at(unschedulable=True), "a"), f"a: {NOT_FAILED} left out", ""),
        (lambda: once_more(once_more(BEFORE).after), "revision new may already be retried", ""),
        (lambda: once_more(fleet([node("a")], memory=GOING_ON)), "the rollout goes back from revision new now", ""),
        (lambda: undo(failed(memory=ALL_FAILED)), "no earlier revision is known to be good", "--to: 1 (old)"),
        (lambda: undo(failed(memory=BARE), "9"), "there is no revision 9", ""),
        (lambda: undo(failed(memory=BARE), "2"), "revision new is the target already", ""),
        (lambda: undo(failed(memory=GOING)), "already goes back from revision new to old", ""),
        (lambda: approve(ASIDE), STANDS_ASIDE, ""),
        (lambda: retry(ASIDE, "a"), STANDS_ASIDE, ""),
        (lambda: once_more(ASIDE), STANDS_ASIDE, ""),
        (lambda: undo(ASIDE), STANDS_ASIDE, ""),
        (lambda: requests.pause(requests.pause(WAITING).after), "the rollout is paused already", ""),
        (lambda: requests.resume(WAITING), "the rollout is not paused", ""),
    )
    for ask, what, remedy in rows:
        with pytest.raises(ConfigError) as refused:
            ask()
        assert what in refused.value.what
        assert remedy in refused.value.remedy
