"""Waiting for pods is one LIST and one WATCH: nothing is polled, nothing missed, and nobody left unnamed."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from driver_manager.core.pods import POLL_S, WATCH_S, NodeWait, PodWait
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, PodsRemain, Terminated, WatchBroken, WatchExpired
from driver_manager.domain.node import Node, Pod, PodEvent
from driver_manager.domain.pods.workloads import is_placed_by
from tests.support.fakes.builders import PLUGIN, node, pod
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.killer import Killer


class Scene:
    """A node with pods, and a wait for those placed by the device plugin's label."""

    def __init__(self, *pods: Pod) -> None:
        self.killer = Killer()
        self.clock = FakeClock(self.killer)
        self.reporter = RecordingReporter()
        self.cluster = FakeCluster(self.killer, self.clock, node())
        for one in pods:
            self.cluster.add_pod(one)

    def wait(
        self,
        timeout_s: float = 300.0,
        after: str = "",
        concerns: Callable[[Pod], bool] = lambda one: PLUGIN in one.selector_keys,
    ) -> None:
        known = self.cluster.pods()
        PodWait(self.cluster, self.clock, self.reporter, concerns).until_gone(known, self.deadline(timeout_s), after)

    def deadline(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self.clock.monotonic)

    def gone_after(self, seconds: float, uid: str) -> None:
        self.clock.after(seconds, lambda: self.cluster.remove_pod(uid))


def test_nothing_to_wait_for_asks_for_nothing() -> None:
    scene = Scene(pod("other"))
    scene.wait()
    assert scene.killer.calls == ["pods"]


def test_the_wait_ends_with_the_last_pod_on_one_watch() -> None:
    scene = Scene(pod("a", PLUGIN), pod("b", PLUGIN), pod("other"))
    scene.gone_after(3.0, "a")
    scene.gone_after(7.0, "b")
    scene.wait()
    assert scene.clock.now == 1007.0
    assert scene.killer.calls == ["pods", "watch"]
    assert scene.reporter.infos == ["pod rbln-system/a is gone, 1 left", "pod rbln-system/b is gone, 0 left"]


@pytest.mark.parametrize(("after", "calls"), [("102", 2), ("103", 2), ("104", 3), ("", 2), ("of no number", 3)])
def test_a_wait_that_ended_before_the_version_it_is_to_reach_looks_once_more(after: str, calls: int) -> None:
    scene = Scene(pod("a", PLUGIN))
    assert scene.cluster.version == 101
    scene.gone_after(3.0, "a")
    scene.clock.after(2.0, lambda: scene.cluster.add_pod(pod("other")))
    scene.wait(after=after)
    assert scene.killer.calls == ["pods", "watch", "pods"][:calls]


def test_what_is_seen_at_that_look_is_waited_for_too() -> None:
    scene = Scene(pod("a", PLUGIN))

    def succeed() -> None:
        scene.cluster.remove_pod("a")
        scene.cluster.add_pod(pod("b", PLUGIN))

    scene.killer.at("watch", succeed)
    scene.gone_after(5.0, "b")
    scene.wait(after="103")
    assert scene.clock.now == 1005.0


def test_a_pod_that_left_between_list_and_watch_is_seen() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.killer.at("watch", lambda: scene.cluster.remove_pod("a"))
    scene.wait()
    assert scene.clock.now == 1000.0


def test_a_pod_that_ends_counts_as_gone() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.clock.after(2.0, lambda: scene.cluster.add_pod(pod("a", "moved", phase="Succeeded")))
    scene.wait()
    assert scene.clock.now == 1002.0


def test_a_pod_whose_containers_have_ended_has_left_before_its_object_is_removed() -> None:
    """A kubelet may take a minute from the one to the other."""
    scene = Scene(pod("a", PLUGIN))
    scene.clock.after(1.0, lambda: scene.cluster.add_pod(pod("a", PLUGIN, deleting=True, have_ended=False)))
    scene.clock.after(2.0, lambda: scene.cluster.add_pod(pod("a", PLUGIN, deleting=True, have_ended=True)))
    scene.gone_after(60.0, "a")
    scene.wait(concerns=lambda one: is_placed_by(one, {PLUGIN}, None))
    assert scene.clock.now == 1002.0
    assert scene.reporter.infos == ["pod rbln-system/a has ended, 0 left"]


def test_a_pod_that_its_kubelet_refuses_is_waited_for_until_it_is_gone() -> None:
    """Refused at the kubelet's restart: Failed, without a word of the containers, which may run on."""
    scene = Scene(pod("a", PLUGIN))
    scene.clock.after(2.0, lambda: scene.cluster.add_pod(pod("a", PLUGIN, phase="Failed", have_ended=None)))
    scene.gone_after(7.0, "a")
    scene.wait(concerns=lambda one: is_placed_by(one, {PLUGIN}, None))
    assert scene.clock.now == 1007.0


def test_a_pod_that_comes_meanwhile_is_waited_for_too() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.clock.after(1.0, lambda: scene.cluster.add_pod(pod("late", PLUGIN)))
    scene.gone_after(2.0, "a")
    scene.gone_after(9.0, "late")
    scene.wait()
    assert scene.clock.now == 1009.0


def test_on_timeout_every_pod_is_named_with_its_reason() -> None:
    scene = Scene(
        pod("stuck", PLUGIN, deleting=True, finalizers=("vendor/hold",)),
        pod("slow", PLUGIN, deleting=True, grace_period_s=600),
        pod("kept", PLUGIN, owner_kind="ReplicaSet", namespace="tenant"),
        pod("other"),
    )
    with pytest.raises(PodsRemain) as caught:
        scene.wait(60.0)
    assert scene.clock.now == 1060.0
    assert "3 pod(s) still on the node after 60 s" in caught.value.what
    assert "rbln-system/stuck: terminating, held by finalizer vendor/hold" in caught.value.what
    assert "rbln-system/slow: terminating, its grace period of 600 s" in caught.value.what
    assert "tenant/kept: not deleted: owned by a ReplicaSet" in caught.value.what
    assert "other" not in caught.value.what


def test_the_reason_is_the_last_one_seen() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.clock.after(1.0, lambda: scene.cluster.add_pod(pod("a", PLUGIN, deleting=True, finalizers=("x/y",))))
    with pytest.raises(PodsRemain, match="finalizer x/y"):
        scene.wait(5.0)


def test_no_time_at_all_names_the_pods_without_a_watch() -> None:
    scene = Scene(pod("a", PLUGIN))
    with pytest.raises(PodsRemain, match="rbln-system/a"):
        scene.wait(0.0)
    assert scene.killer.calls == ["pods", "pods"], "what is said of them is looked up"


def test_a_pod_that_left_after_the_list_is_not_named_when_there_is_no_time_left() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.killer.at("pods", lambda: scene.cluster.remove_pod("a"), after=True)
    scene.wait(0.0)


def test_an_expired_watch_lists_again() -> None:
    scene = Scene(pod("a", PLUGIN), pod("b", PLUGIN))

    def compacted() -> None:
        scene.cluster.remove_pod("a")
        scene.cluster.expire_watches()

    scene.killer.at("watch", compacted)
    scene.gone_after(5.0, "b")
    scene.wait()
    assert scene.killer.calls == ["pods", "watch", "pods", "watch"]
    assert scene.clock.now == 1005.0


def test_a_broken_watch_goes_on_from_the_last_version_seen() -> None:
    scene = Scene(pod("a", PLUGIN), pod("b", PLUGIN))
    broken = WatchBroken("the watch was interrupted", "")
    scene.killer.at("watch", lambda: _raise(broken), after=True)
    scene.gone_after(0.5, "a")
    scene.gone_after(6.0, "b")
    scene.wait()
    assert scene.killer.calls == ["pods", "watch", "watch"]
    assert scene.reporter.warnings == ["the watch was interrupted; watching again"]
    assert scene.clock.slept == [1.0]
    assert scene.clock.now == 1006.0


def test_a_broken_watch_is_not_retried_past_the_deadline() -> None:
    scene = Scene(pod("a", PLUGIN))
    for _ in range(100):
        scene.killer.at("watch", lambda: _raise(WatchBroken("broken", "")))
    with pytest.raises(PodsRemain):
        scene.wait(3.5)
    assert scene.clock.now == 1003.5
    assert scene.killer.calls.count("watch") == 4


def test_a_server_that_cannot_list_again_ends_the_wait() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.killer.at("watch", scene.cluster.expire_watches)
    scene.killer.at_call(2, lambda: _raise(ApiUnavailable("no answer", "")))
    with pytest.raises(ApiUnavailable):
        scene.wait()


def test_watches_are_renewed_before_servers_end_them() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.gone_after(WATCH_S * 2 + 1, "a")
    scene.wait(WATCH_S * 4)
    assert scene.killer.calls.count("watch") == 3


class Restarted(FakeCluster):
    """A server that goes after a minute of the first watch: an end in order, an expired version, or a break."""

    why: Exception | None = None

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        if "watch" in self.killer.calls:
            yield from super().watch_pods(resource_version, timeout_s)
            return
        with self.killer.call("watch"):
            self.clock.sleep(60.0)
        if self.why is not None:
            raise self.why


@pytest.mark.parametrize("why", [None, WatchExpired("too old", ""), WatchBroken("cut", "")], ids=repr)
def test_a_server_that_ends_the_watches_of_all_nodes_is_not_met_by_all_at_once(why: Exception | None) -> None:
    back_s = []
    for number in (0.0, 0.25, 0.999):
        scene = Scene()
        scene.clock.drawn = number
        scene.cluster = Restarted(scene.killer, scene.clock, node())
        scene.cluster.why = why
        scene.cluster.add_pod(pod("a", PLUGIN))
        scene.gone_after(61.8, "a")
        scene.wait()
        assert scene.clock.now == 1_061.8, "and nothing is missed"
        back_s.append(scene.clock.slept[-1])
    assert back_s == pytest.approx([0.5, 0.75, 1.5], abs=0.01)


def test_watches_that_began_together_do_not_end_together() -> None:
    asked = []
    for number in (0.0, 0.999):
        scene = Scene(pod("a", PLUGIN))
        scene.clock.drawn = number
        scene.gone_after(WATCH_S * 2, "a")
        scene.killer.at_call(2, lambda scene=scene: asked.append(scene.clock.now - 1_000.0))  # type: ignore[misc]
        scene.wait(WATCH_S * 4)
    assert asked == pytest.approx([WATCH_S * 0.8, WATCH_S * 1.2], abs=1.0)


def test_sigterm_ends_the_wait_at_once() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.clock.after(12.0, scene.clock.ask_to_end)
    with pytest.raises(Terminated):
        scene.wait()
    assert scene.clock.now == 1012.0


class Hasty(FakeCluster):
    """A server, or a proxy before it, that ends every watch at once: in order, or as expired."""

    expires = False

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        with self.killer.call("watch"):
            self.clock.to_next(self.clock.now + 0.05)
        if self.expires:
            raise WatchExpired("too old", "")
        yield from ()


@pytest.mark.parametrize("expires", [False, True], ids=["ended", "expired"])
def test_a_server_that_ends_every_watch_at_once_is_not_hammered(expires: bool) -> None:
    scene = Scene()
    scene.cluster = Hasty(scene.killer, scene.clock, node())
    scene.cluster.expires = expires
    scene.cluster.add_pod(pod("a", PLUGIN))
    with pytest.raises(PodsRemain):
        scene.wait(60.0)
    assert scene.killer.calls.count("watch") <= 60
    assert scene.killer.calls.count("pods") <= 61


def test_sigterm_ends_the_pause_between_two_expired_watches() -> None:
    scene = Scene()
    scene.cluster = Hasty(scene.killer, scene.clock, node())
    scene.cluster.expires = True
    scene.cluster.add_pod(pod("a", PLUGIN))
    scene.clock.after(5.2, scene.clock.ask_to_end)
    with pytest.raises(Terminated):
        scene.wait(60.0)
    assert scene.clock.now == pytest.approx(1_005.2)


class Unwatchable(FakeCluster):
    """A server that lets us read, and not watch."""

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        with self.killer.call("watch"):
            raise ApiRefused("refused to watch pods", "Give it the verb.")
        yield

    def watch_node(self, resource_version: str, timeout_s: float) -> Generator[Node, None, None]:
        with self.killer.call("watch"):
            raise ApiRefused("refused to watch nodes", "Give it the verb.")
        yield


def unwatchable(*pods: Pod) -> Scene:
    """A scene on such a server."""
    scene = Scene()
    scene.cluster = Unwatchable(scene.killer, scene.clock, node())
    for one in pods:
        scene.cluster.add_pod(one)
    return scene


def test_where_pods_may_not_be_watched_they_are_looked_at_every_two_seconds_and_that_is_said_once() -> None:
    scene = unwatchable(pod("a", PLUGIN), pod("b", PLUGIN))
    scene.gone_after(3.0, "a")
    scene.gone_after(4.5, "b")
    scene.wait()
    assert scene.clock.now == 1000.0 + 3 * POLL_S
    assert scene.killer.calls == ["pods", "watch", "pods", "pods", "pods"]
    assert scene.reporter.warnings == ["refused to watch pods; polling every 2 s instead"]
    assert scene.reporter.infos == ["pod rbln-system/a is gone, 1 left", "pod rbln-system/b is gone, 0 left"]


def test_looking_again_and_again_ends_with_the_time_and_with_sigterm() -> None:
    scene = unwatchable(pod("a", PLUGIN))
    with pytest.raises(PodsRemain, match="rbln-system/a"):
        scene.wait(5.0)
    assert scene.clock.now == 1005.0
    scene = unwatchable(pod("a", PLUGIN))
    scene.clock.after(3.0, scene.clock.ask_to_end)
    with pytest.raises(Terminated):
        scene.wait()
    assert scene.clock.now == 1003.0


def test_who_may_not_even_list_is_refused() -> None:
    scene = unwatchable(pod("a", PLUGIN))
    scene.killer.at_call(2, lambda: _raise(ApiRefused("refused to list pods", "")))
    with pytest.raises(ApiRefused, match="list pods"):
        scene.wait()


def answer_wait(scene: Scene) -> NodeWait:
    ports = scene.cluster, scene.clock, scene.reporter
    return NodeWait(*ports, lambda now: now.labels.get("answer") == "yes", "the operator's answer")


def test_a_node_that_may_not_be_watched_is_looked_at_too() -> None:
    scene = unwatchable()
    scene.clock.after(3.0, lambda: scene.cluster.edit({"answer": "yes"}))
    wait = answer_wait(scene)
    assert wait.until_wanted(scene.cluster.node(), scene.deadline(60.0))
    assert scene.clock.now == 1000.0 + 2 * POLL_S
    assert scene.reporter.warnings == ["refused to watch nodes; polling every 2 s instead"]


@pytest.mark.parametrize(("count", "said"), [(10, None), (11, "; and 1 more"), (500, "; and 490 more")])
def test_ten_pods_are_named_and_the_rest_counted(count: int, said: str | None) -> None:
    scene = Scene(*(pod(f"p{number:03}", PLUGIN) for number in range(count)))
    with pytest.raises(PodsRemain) as caught:
        scene.wait(0.0)
    assert caught.value.what.startswith(f"{count} pod(s) still")
    assert caught.value.what.count("rbln-system/p") == 10
    assert ("more" in caught.value.what) is (said is not None)
    assert said is None or caught.value.what.endswith(said)


def _raise(error: Exception) -> None:
    raise error


# what is said meanwhile


def test_every_half_minute_the_wait_says_who_is_left_why_and_how_long_yet() -> None:
    scene = Scene(pod("a", PLUGIN), pod("b", PLUGIN, deleting=True, finalizers=("example.com/held",)))
    scene.gone_after(45.0, "a")
    scene.gone_after(95.0, "b")
    scene.wait(timeout_s=300.0)
    assert scene.clock.now == 1095.0
    assert scene.killer.calls == ["pods", "watch"], "saying so costs no request"
    held = "rbln-system/b: terminating, held by finalizer example.com/held"
    first, left, second, third, _ = scene.reporter.infos
    assert first.startswith("still waiting, at most 4 min more: 2 pod(s) still on the node: rbln-system/a: not deleted")
    assert first.endswith(f"; {held}")
    assert left == "pod rbln-system/a is gone, 1 left"
    assert second == f"still waiting, at most 4 min more: 1 pod(s) still on the node: {held}"
    assert third == f"still waiting, at most 3 min more: 1 pod(s) still on the node: {held}"


def test_a_short_wait_and_the_time_after_a_wait_are_silent() -> None:
    scene = Scene(pod("a", PLUGIN))
    scene.gone_after(29.0, "a")
    scene.wait()
    scene.clock.sleep(600.0)
    assert scene.reporter.infos == ["pod rbln-system/a is gone, 0 left"]


@pytest.mark.parametrize("may_watch", [True, False])
def test_a_wait_for_the_node_says_what_it_waits_for(may_watch: bool) -> None:
    scene = Scene() if may_watch else unwatchable()
    scene.clock.after(61.0, lambda: scene.cluster.edit({"answer": "yes"}))
    assert answer_wait(scene).until_wanted(scene.cluster.node(), scene.deadline(100.0))
    assert scene.reporter.infos == [
        "still waiting, at most 1 min more: the operator's answer",
        "still waiting, at most 40 s more: the operator's answer",
    ]
