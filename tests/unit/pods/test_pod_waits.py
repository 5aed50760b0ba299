"""Waiting for pods is one LIST and one WATCH; evictions go out at once, and a refusal is tried until the deadline."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.pods import POLL_S, WATCH_S, Evictor, NodeWait, PodWait, allow_evictions
from driver_manager.domain import errors
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, PodsRemain, Terminated, WatchBroken, WatchExpired
from driver_manager.domain.node import Eviction, EvictionOutcome, Pod, PodEvent
from driver_manager.domain.pods.workloads import PodAction, Workload, is_placed_by
from tests.support.fakes.builders import PLUGIN, pod, workload
from tests.support.fakes.cluster import FakeCluster, Tenant
from tests.support.fakes.world import Place

A, B = pod("a", PLUGIN), pod("b", PLUGIN)
GONE_A, GONE_B = "pod rbln-system/a is gone, 1 left", "pod rbln-system/b is gone, 0 left"


def has_label(one: Pod) -> bool:
    return PLUGIN in one.selector_keys


class Waiting(Place):
    """A wait for the pods that are placed by the device plugin's label."""

    def wait(self, timeout_s: float = 300.0, after: str = "", concerns: Callable[[Pod], bool] = has_label) -> None:
        known, wait = self.cluster.pods(), PodWait(self.cluster, self.clock, self.reporter, concerns)
        wait.until_gone(known, self.deadline(timeout_s), after)

    def wait_for_answer(self, timeout_s: float) -> bool:
        """Wait until the Node has a label."""
        ports = self.cluster, self.clock, self.reporter
        wait = NodeWait(*ports, lambda now: now.labels.get("answer") == "yes", "the operator's answer")
        return wait.until_wanted(self.cluster.node(), self.deadline(timeout_s))

    def answer_after(self, seconds: float) -> None:
        self.clock.after(seconds, lambda: self.cluster.edit({"answer": "yes"}))

    def gone_after(self, seconds: float, *uids: str) -> None:
        for uid in uids:
            self.clock.after(seconds, lambda uid=uid: self.cluster.remove_pod(uid))  # type: ignore[misc]

    def seen_after(self, seconds: float, one: Pod) -> None:
        self.clock.after(seconds, lambda: self.cluster.add_pod(one))

    def ends_at(self, seconds: float, wait: Callable[[], object]) -> None:
        """SIGTERM comes after that number of seconds, and ends the wait at once."""
        self.clock.after(seconds, self.clock.ask_to_end)
        with pytest.raises(Terminated):
            wait()
        assert self.took_s == seconds

    def what_remains(self, timeout_s: float) -> str:
        """What the error at the end of the wait says."""
        with pytest.raises(PodsRemain) as caught:
            self.wait(timeout_s)
        return caught.value.what

    @property
    def took_s(self) -> float:
        return self.clock.now - 1_000.0


def test_the_wait_ends_with_the_last_pod_on_one_watch_and_nothing_to_wait_for_asks_for_nothing() -> None:
    scene = Waiting(pod("other"))
    scene.wait()
    assert scene.killer.calls == ["pods"]
    scene = Waiting(A, B, pod("other"))
    scene.gone_after(3.0, "a")
    scene.gone_after(7.0, "b")
    scene.wait()
    assert (scene.took_s, scene.killer.calls) == (7.0, ["pods", "watch"])
    assert scene.reporter.infos == [GONE_A, GONE_B]


def test_a_wait_that_ended_before_the_version_it_is_to_reach_looks_once_more() -> None:
    for after, calls in {"102": 2, "103": 2, "104": 3, "": 2, "of no number": 3}.items():
        scene = Waiting(A)
        assert scene.cluster.version == 101
        scene.gone_after(3.0, "a")
        scene.seen_after(2.0, pod("other"))
        scene.wait(after=after)
        assert scene.killer.calls == ["pods", "watch", "pods"][:calls]


def test_what_is_seen_at_that_look_is_waited_for_too() -> None:
    scene = Waiting(A)

    def succeed() -> None:
        scene.cluster.remove_pod("a")
        scene.cluster.add_pod(B)

    scene.killer.at("watch", succeed)
    scene.gone_after(5.0, "b")
    scene.wait(after="103")
    assert scene.took_s == 5.0


def test_a_pod_that_left_between_list_and_watch_is_seen() -> None:
    scene = Waiting(A)
    scene.killer.at("watch", lambda: scene.cluster.remove_pod("a"))
    scene.wait()
    assert scene.took_s == 0.0


def test_a_pod_whose_containers_have_ended_has_left_before_its_object_is_removed() -> None:
    ends = (replace(A, deleting=True, have_ended=False), replace(A, deleting=True, have_ended=True))
    for seen, gone_s, took_s in (
        *(((pod("a", "moved", phase="Succeeded"),), 60.0, 1.0), (ends, 60.0, 2.0), ((pod("late", PLUGIN),), 9.0, 9.0)),
        ((replace(A, phase="Failed", have_ended=None),), 7.0, 7.0),  # refused by its kubelet
    ):
        scene = Waiting(A)
        for number, one in enumerate(seen, 1):
            scene.seen_after(float(number), one)
        scene.gone_after(gone_s, "a", "late")
        scene.wait(concerns=lambda one: is_placed_by(one, {PLUGIN}, None))
        assert scene.took_s == took_s
        assert gone_s != 60.0 or scene.reporter.infos == ["pod rbln-system/a has ended, 0 left"]


def test_on_timeout_every_pod_is_named_with_its_reason() -> None:
    scene = Waiting(
        pod("stuck", PLUGIN, deleting=True, finalizers=("vendor/hold",)),
        pod("slow", PLUGIN, deleting=True, grace_period_s=600),
        pod("kept", PLUGIN, owner_kind="ReplicaSet", namespace="tenant"),
        *(A, pod("other")),
    )
    scene.seen_after(1.0, replace(A, deleting=True, finalizers=("x/y",)))
    what = scene.what_remains(60.0)
    assert scene.took_s == 60.0
    for expected in (
        "4 pod(s) still on the node after 60 s",
        "rbln-system/stuck: terminating, held by finalizer vendor/hold",
        "rbln-system/slow: terminating, its grace period of 600 s",
        "tenant/kept: not deleted: owned by a ReplicaSet",
        "rbln-system/a: terminating, held by finalizer x/y",
    ):
        assert expected in what
    assert "other" not in what


def test_no_time_at_all_names_the_pods_without_a_watch() -> None:
    scene = Waiting(A)
    assert "rbln-system/a" in scene.what_remains(0.0)
    assert scene.killer.calls == ["pods", "pods"], "the details of them are looked up"
    scene.killer.at("pods", lambda: scene.cluster.remove_pod("a"), after=True)
    scene.wait(0.0)


def test_ten_pods_are_named_and_the_rest_counted() -> None:
    for count, expected in ((10, ""), (11, "; and 1 more"), (500, "; and 490 more")):
        what = Waiting(*(pod(f"p{number:03}", PLUGIN) for number in range(count))).what_remains(0.0)
        assert what.startswith(f"{count} pod(s) still")
        assert what.count("rbln-system/p") == 10
        assert ("more" in what, what.endswith(expected)) == (bool(expected), True)


def test_an_expired_watch_lists_again() -> None:
    scene = Waiting(A, B)

    def compacted() -> None:
        scene.cluster.remove_pod("a")
        scene.cluster.expire_watches()

    scene.killer.at("watch", compacted)
    scene.gone_after(5.0, "b")
    scene.wait()
    assert scene.killer.calls == ["pods", "watch", "pods", "watch"]
    assert scene.took_s == 5.0


def test_a_broken_watch_goes_on_from_the_last_version_seen() -> None:
    scene = Waiting(A, B)
    scene.killer.at("watch", WatchBroken("the watch was interrupted", ""), after=True)
    scene.gone_after(0.5, "a")
    scene.gone_after(6.0, "b")
    scene.wait()
    assert (scene.killer.calls, scene.took_s) == (["pods", "watch", "watch"], 6.0)
    assert scene.reporter.warnings == ["the watch was interrupted; watching again"]
    assert scene.clock.slept == [1.0]


def test_a_broken_watch_is_not_retried_past_the_deadline() -> None:
    scene = Waiting(A)
    scene.killer.at("watch", WatchBroken("broken", ""), times=100)
    scene.what_remains(3.5)
    assert (scene.took_s, scene.killer.calls.count("watch")) == (3.5, 4)


def test_a_server_that_cannot_list_again_ends_the_wait() -> None:
    scene = Waiting(A)
    scene.killer.at("watch", scene.cluster.expire_watches)
    scene.killer.at_call(2, ApiUnavailable("no answer", ""))
    with pytest.raises(ApiUnavailable):
        scene.wait()


def test_watches_are_renewed_before_servers_end_them_and_not_all_at_once() -> None:
    asked = []
    for number in (0.0, 0.5, 0.999):
        scene = Waiting(A)
        scene.clock.drawn = number
        scene.gone_after(WATCH_S * 2 + 1, "a")
        scene.killer.at_call(2, lambda scene=scene: asked.append(scene.took_s))  # type: ignore[misc]
        scene.wait(WATCH_S * 4)
        assert number != 0.5 or scene.killer.calls.count("watch") == 3
    assert asked == pytest.approx([WATCH_S * 0.8, WATCH_S, WATCH_S * 1.2], abs=1.0)


class Ending(FakeCluster):
    """A server, or a proxy, that ends the first watch after `lasts_s`, or every one: in order, or by `why`."""

    why: Exception | None = None
    lasts_s = 60.0
    ends_all = False

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        if "watch" in self.killer.calls and not self.ends_all:
            yield from super().watch_pods(resource_version, timeout_s)
            return
        with self.killer.call("watch"):
            self.clock.sleep(self.lasts_s)
        if self.why is not None:
            raise self.why


@pytest.mark.parametrize("why", [None, WatchExpired("too old", ""), WatchBroken("cut", "")], ids=repr)
def test_a_server_that_ends_the_watches_of_all_nodes_is_not_met_by_all_at_once(
    monkeypatch: pytest.MonkeyPatch, why: Exception | None
) -> None:
    monkeypatch.setattr(Ending, "why", why)
    back_s = []
    for number in (0.0, 0.25, 0.999):
        scene = Waiting(A, cluster=Ending)
        scene.clock.drawn = number
        scene.gone_after(61.8, "a")
        scene.wait()
        assert scene.took_s == pytest.approx(61.8), "and nothing is missed"
        back_s.append(scene.clock.slept[-1])
    assert back_s == pytest.approx([0.5, 0.75, 1.5], abs=0.01)


@pytest.mark.parametrize("why", [None, WatchExpired("too old", "")], ids=["ended", "expired"])
def test_a_server_that_ends_every_watch_at_once_is_not_hammered_and_sigterm_ends_the_pause(
    monkeypatch: pytest.MonkeyPatch, why: Exception | None
) -> None:
    for name, value in (("why", why), ("lasts_s", 0.05), ("ends_all", True)):
        monkeypatch.setattr(Ending, name, value)
    scene = Waiting(A, cluster=Ending)
    scene.what_remains(60.0)
    assert scene.killer.calls.count("watch") <= 60
    assert scene.killer.calls.count("pods") <= 61
    scene = Waiting(A, cluster=Ending)
    scene.ends_at(5.25, scene.wait)


def test_sigterm_ends_each_wait_at_once() -> None:
    scene, polled, case = Waiting(A), unwatchable(A), Evicting(a=NEVER)
    scene.ends_at(12.0, scene.wait)
    polled.ends_at(3.0, polled.wait)
    case.ends_at(7.0, lambda: case.clear(timeout_s=600.0))


def unwatchable(*pods: Pod, what: str = "pods") -> Waiting:
    """A server that lets us read, and not watch."""
    scene = Waiting(*pods)
    scene.killer.at("watch", ApiRefused(f"refused to watch {what}", "Give it the verb."), times=9)
    return scene


def test_without_the_right_to_watch_pods_they_are_listed_every_two_seconds_and_that_is_logged_once() -> None:
    scene = unwatchable(A, B)
    scene.gone_after(3.0, "a")
    scene.gone_after(4.5, "b")
    scene.wait()
    assert scene.took_s == 3 * POLL_S
    assert scene.killer.calls == ["pods", "watch", "pods", "pods", "pods"]
    assert scene.reporter.warnings == ["refused to watch pods; polling every 2 s instead"]
    assert scene.reporter.infos == [GONE_A, GONE_B]


def test_looking_again_and_again_ends_with_the_time_and_with_a_refusal() -> None:
    scene = unwatchable(A)
    scene.what_remains(5.0)
    assert scene.took_s == 5.0
    scene = unwatchable(A)
    scene.killer.at_call(2, ApiRefused("refused to list pods", ""))
    with pytest.raises(ApiRefused, match="list pods"):
        scene.wait()


def test_a_node_that_may_not_be_watched_is_looked_at_too() -> None:
    scene = unwatchable(what="nodes")
    scene.answer_after(3.0)
    assert scene.wait_for_answer(60.0)
    assert scene.took_s == 2 * POLL_S
    assert scene.reporter.warnings == ["refused to watch nodes; polling every 2 s instead"]


def test_every_half_minute_the_wait_says_who_is_left_why_and_how_long_yet() -> None:
    scene = Waiting(A, replace(B, deleting=True, finalizers=("example.com/held",)))
    scene.gone_after(45.0, "a")
    scene.gone_after(95.0, "b")
    scene.wait(timeout_s=300.0)
    assert (scene.took_s, scene.killer.calls) == (95.0, ["pods", "watch"]), "saying so costs no request"
    held = "rbln-system/b: terminating, held by finalizer example.com/held"
    first, left, second, third, _ = scene.reporter.infos
    assert first.startswith("still waiting, at most 4 min more: 2 pod(s) still on the node: rbln-system/a: not deleted")
    assert first.endswith(f"; {held}")
    assert left == GONE_A
    assert second == f"still waiting, at most 4 min more: 1 pod(s) still on the node: {held}"
    assert third == f"still waiting, at most 3 min more: 1 pod(s) still on the node: {held}"


def test_a_short_wait_and_the_time_after_a_wait_are_silent() -> None:
    scene = Waiting(A)
    scene.gone_after(29.0, "a")
    scene.wait()
    scene.clock.sleep(600.0)
    assert scene.reporter.infos == ["pod rbln-system/a is gone, 0 left"]


def test_a_wait_for_the_node_says_what_it_waits_for() -> None:
    for scene in (Waiting(), unwatchable()):
        scene.answer_after(61.0)
        assert scene.wait_for_answer(100.0)
        left = ("1 min", "40 s")
        assert scene.reporter.infos == [f"still waiting, at most {one} more: the operator's answer" for one in left]


# evictions

NEVER = Tenant(blocked_until=float("inf"))
STOPS = Tenant(stop_s=1.0)
NO_BUDGET = "its disruption budget allows none"
BLOCKED = Eviction(EvictionOutcome.BLOCKED, NO_BUDGET)


class Evicting(Waiting):
    """A node with users' pods, and what evicts them."""

    def __init__(self, *more: Pod, **tenants: Tenant) -> None:
        super().__init__()
        for name, tenant in tenants.items():
            self.cluster.add_tenant(workload(name), tenant)
        for one in more:
            self.cluster.add_tenant(one)

    @property
    def evictor(self) -> Evictor:
        return Evictor(self.cluster, self.clock, self.reporter)

    def clear(self, *actions: PodAction, timeout_s: float = 60.0) -> None:
        """Evict every pod there is, the first ones by `actions`."""
        known = self.cluster.pods()
        wanted = [*actions, *[PodAction.EVICT] * len(known.pods)]
        leaving = [Workload(pod, "", action, "") for pod, action in zip(known.pods, wanted, strict=False)]
        limit = self.deadline(1_000.0)
        self.evictor.clear(known, leaving, limit.within(timeout_s), limit)

    def remains(self, expected: str, timeout_s: float = 60.0) -> PodsRemain:
        with pytest.raises(PodsRemain, match=expected) as caught:
            self.clear(timeout_s=timeout_s)
        return caught.value

    def answer(self, monkeypatch: pytest.MonkeyPatch, answers: Callable[[], Eviction]) -> None:
        """Let each request for an eviction be answered so."""
        monkeypatch.setattr(self.cluster, "evict", lambda *_, **__: answers())

    def slowly(self) -> Eviction:
        self.clock.now += 1.0
        return BLOCKED


def many(count: int, tenant: Tenant) -> Evicting:
    return Evicting(**{f"pod-{number}": tenant for number in range(count)})


def test_all_pods_are_asked_to_leave_before_the_first_one_is_waited_for() -> None:
    case = Evicting(a=Tenant(stop_s=30.0), b=Tenant(stop_s=20.0), c=Tenant(stop_s=25.0))
    case.clear()
    assert case.cluster.evicted == ["tenant/a", "tenant/b", "tenant/c"]
    assert (case.took_s, case.cluster.listed) == (30.0, {})


def test_one_request_a_pod_and_one_watch() -> None:
    case = many(60, Tenant())
    case.clear()
    assert sorted(case.killer.calls) == sorted(["pods", "watch", *["evict"] * 60])


def test_a_pod_that_terminates_already_gets_its_grace_and_is_not_evicted_again() -> None:
    for leaves_s in (9.0, 115.0):
        case = Evicting(workload("a", deleting=True, grace_period_s=120))
        case.gone_after(leaves_s, "a")
        case.clear(PodAction.WAIT)
        assert (case.cluster.evicted, case.took_s) == ([], leaves_s)


def test_a_refusal_does_not_keep_the_others_and_is_tried_again_until_its_budget_allows_it() -> None:
    case = Evicting(a=Tenant(blocked_until=1_070.0), b=STOPS)
    case.clear(timeout_s=120.0)
    assert case.cluster.evicted == ["tenant/b", "tenant/a"]
    refused = [text for text in case.reporter.infos if "is refused" in text]
    assert refused == [f"the eviction of tenant/a is refused: {NO_BUDGET}; trying again"]
    lines = [line for line in case.reporter.infos if line.startswith("still waiting")]
    why = f"still waiting, at most 1 min more: 1 pod(s) may not be evicted yet: tenant/a: {NO_BUDGET}"
    assert lines[:2] == [why, why], "every half minute"


def test_a_pod_that_is_never_allowed_to_leave_is_named_at_the_deadline_whatever_its_grace() -> None:
    for grace_s in (30, 600):
        case = Evicting(b=Tenant())
        case.cluster.add_tenant(workload("a", termination_grace_s=grace_s), NEVER)
        error = case.remains(".")
        assert error.exit_code is errors.ExitCode.PODS_REMAIN
        assert error.what == f"1 pod(s) could not be evicted within 60 s: tenant/a: {NO_BUDGET}"
        assert "PodDisruptionBudget" in error.remedy
        assert 60.0 <= case.took_s < 61.0


def test_only_a_refusal_by_a_budget_advises_to_make_room_in_it() -> None:
    budget = "Cannot evict pod as it would violate the pod's disruption budget."
    kind = 'no kind "Eviction" is registered for version "policy/v1"'
    for answer in (budget, kind, 'admission webhook "keep.example.com" denied the request'):
        advised = (
            "Make room in the PodDisruptionBudget"
            if answer == budget
            else "Find in the answer what refuses the eviction"
        )
        assert allow_evictions([answer]).startswith(advised)


def test_the_pauses_grow_and_are_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    case, numbers = Evicting(a=NEVER), iter([0.0, 0.999, 0.5, *[0.0] * 7])
    monkeypatch.setattr(case.clock, "random", lambda: next(numbers))
    case.remains(".", 50.0)
    assert [round(seconds, 1) for seconds in case.clock.slept[:6]] == [0.5, 3.0, 4.0, 4.0, 7.5, 7.5]


def test_the_servers_wish_to_wait_longer_is_honoured_but_not_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    for wish_s, waits_s in ((12.0, 12.0), (3_600.0, 15.0)):
        case = Evicting(a=Tenant())
        answers = iter([replace(BLOCKED, retry_after_s=wish_s), Eviction(EvictionOutcome.ACCEPTED)])
        case.answer(monkeypatch, answers.__next__)
        case.gone_after(20.0, "a")
        case.clear()
        assert case.clock.slept == [waits_s * 1.5], "and jitter above it, for those who got the same answer"


def test_a_pod_that_is_let_go_late_still_gets_its_grace() -> None:
    case = Evicting(a=Tenant(blocked_until=1_058.0, stop_s=20.0))
    case.clear(timeout_s=60.0)
    assert case.cluster.listed == {}


def test_slow_answers_overrun_neither_the_deadline_nor_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    case = many(30, NEVER)
    case.answer(monkeypatch, case.slowly)
    case.remains("not attempted in time", 5.0)
    assert case.took_s <= 7.0
    case = many(60, NEVER)
    case.answer(monkeypatch, case.slowly)
    warnings = case.evictor.rehearse(case.cluster.pods().pods).warnings
    assert warnings[-1] == "not every eviction was checked within 15 s"
    assert case.took_s <= 16.0


def test_a_pod_that_is_gone_already_counts_as_gone() -> None:
    case = Evicting(a=Tenant())
    case.killer.at("pods", lambda: case.cluster.remove_pod("a"), after=True)
    case.clear(timeout_s=10.0)
    assert case.reporter.infos[0] == "tenant/a was gone already"


@pytest.mark.parametrize("at_once", [True, False])
def test_another_pod_of_the_same_name_is_neither_evicted_nor_waited_for(at_once: bool) -> None:
    case = Evicting(a=Tenant(blocked_until=0.0 if at_once else 1_010.0))

    def replaced() -> None:
        case.cluster.remove_pod("a")
        case.cluster.add_tenant(replace(workload("a"), uid="a-again"))

    if at_once:
        case.killer.at("pods", replaced, after=True)
    else:
        case.clock.after(5.0, replaced)
    case.clear()
    assert (case.cluster.evicted, list(case.cluster.listed)) == ([], ["a-again"])


def test_a_pod_that_left_by_itself_is_not_asked_for_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namesake's budget would be asked before the uid."""
    case, asked = Evicting(a=Tenant()), list[float]()

    def always_refused() -> Eviction:
        asked.append(case.took_s)
        return BLOCKED

    case.answer(monkeypatch, always_refused)
    case.gone_after(10.0, "a")
    case.clear(timeout_s=600.0)
    assert max(asked) < 10.0
    assert case.took_s < 30.0


def test_a_pod_that_does_not_stop_is_named_with_its_reason_unless_its_containers_ended() -> None:
    held: dict[str, Any] = {"finalizers": ("example.com/hold",)}
    Evicting(workload("a", **held)).remains(r"tenant/a: terminating, held by finalizer example\.com/hold", 10.0)
    ended = Evicting(workload("a", phase="Succeeded", **held))
    ended.clear(timeout_s=10.0)
    assert ended.took_s == 0.0


def test_a_rehearsal_evicts_nothing_and_names_who_would_be_refused() -> None:
    case = Evicting(a=NEVER, b=Tenant())
    found = case.evictor.rehearse(case.cluster.pods().pods).warnings
    assert found == (f"the eviction of tenant/a would be refused now: {NO_BUDGET}",)
    assert case.cluster.evicted == []
    assert all(not pod.deleting for pod in case.cluster.listed.values())


def test_a_missing_right_ends_it_at_once() -> None:
    case = Evicting(a=Tenant(), b=Tenant())
    case.killer.at("evict", ApiRefused("the API server refused to create pods/eviction (403)", "Give it."), times=2)
    with pytest.raises(ApiRefused):
        case.clear()
    assert case.clock.slept == []
