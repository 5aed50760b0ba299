"""The clients of a new driver are restarted: each once, whatever kills whom, and nobody else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.core.clients import BUSY, NOT_LOADED, ClientTurn
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiRefused, ApiUnavailable
from driver_manager.domain.node import Claim
from driver_manager.domain.node_state import Sighting, decode_generation
from driver_manager.domain.pods.client_record import ClientState
from tests.support.fakes.builders import NEW_DIGEST, PROFILE, workload
from tests.support.fakes.client_world import START_S, ClientWorld

A, B = "monitoring/a", "monitoring/b"


def world_of(*names: str, blocked_s: float = 0.0) -> ClientWorld:
    """A world with these clients, whose driver got ready after them."""
    world = ClientWorld()
    for name in names:
        world.add(name, blocked_s=blocked_s)
    return world


def settle(world: ClientWorld) -> None:
    """Turns, each of another process, until nothing is left to be done."""
    for _ in range(20):
        turn = world.turn()
        world.clock.sleep(60.0)
        if turn is not None and turn.is_over:
            return
    raise AssertionError("it never ends")


def test_each_client_is_restarted_once_with_one_event_and_nobody_else() -> None:
    world = world_of("a", "b")
    world.add("web", labels={"app": "web"})
    world.cluster.add_tenant(workload("user", labels={"app": "exporter"}, started_s=5.0))
    world.add("young", started_s=world.clock.wall() + 1.0)
    settle(world)
    assert sorted(world.cluster.evicted) == [A, B]
    assert sorted(world.told) == [A, B]
    for _ in range(5):
        assert world.turn() is not None
    assert sorted(world.cluster.evicted) == [A, B]


def test_who_has_nothing_left_to_do_asks_nothing_of_the_api_server() -> None:
    world = world_of("a")
    settle(world)
    world.killer.revive()
    assert world.restarter.turn().is_over
    assert world.killer.calls == ["alone", "sighting", "recall"]


def test_a_client_is_noted_before_its_eviction_is_asked_for() -> None:
    world = world_of("a")
    seen: list[ClientState] = []

    def look() -> None:
        assert world.record is not None
        seen.extend(one.state for one in world.record.clients)

    world.killer.at("evict", look)
    settle(world)
    assert seen == [ClientState.ASKED]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(12))
def test_killed_at_any_effect_nobody_is_restarted_twice_and_nobody_is_forgotten(effect: int, after: bool) -> None:
    world = world_of("a", "b")
    world.killer.kill_at(effect, after=after)
    settle(world)
    assert sorted(world.cluster.evicted) == [A, B]
    assert sorted(world.told) == [A, B]
    assert world.record is not None
    assert world.record.is_settled(world.rules)


def test_the_kills_reach_every_effect() -> None:
    world = world_of("a", "b")
    world.restarter.turn()
    effects = world.killer.effects
    assert set(effects) == {"remember", "evict", "event", "patch"}
    assert len(effects) <= 12


def test_a_client_whose_budget_allows_nothing_is_asked_for_again() -> None:
    world = world_of("a", blocked_s=150.0)
    world.add("b")
    turn = world.turn()
    assert turn is not None
    assert turn.left == ("monitoring/a (DaemonSet): its eviction is refused: its budget allows no disruption",)
    assert turn.restarted == ("monitoring/b (DaemonSet)",)
    assert (world.cluster.evicted, world.told) == ([B], [B])
    settle(world)
    assert (world.cluster.evicted, world.told) == ([B, A], [B, A])


def test_a_run_goes_on_until_its_deadline() -> None:
    world = world_of("a", blocked_s=20.0)
    turn = world.restarter.until(Deadline.after(60.0, world.clock.monotonic))
    assert (turn.is_over, world.cluster.evicted) == (True, [A])
    world = world_of("a", blocked_s=100.0)
    turn = world.restarter.until(Deadline.after(60.0, world.clock.monotonic))
    assert (turn.is_over, world.cluster.evicted, world.clock.now) == (False, [], 1_060.0)


def after_run(world: ClientWorld, selector: str = "app=exporter") -> ClientTurn:
    """What the next run does at its end, which sees the pods that there are now; its calls are those of the world."""
    world.killer.revive()
    seen, world.selector = tuple(world.cluster.listed.values()), selector
    return world.restarter.after_run(seen, Deadline.after(60.0, world.clock.monotonic))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(12))
def test_a_run_finishes_what_was_cut_off_though_the_client_is_gone_and_has_no_successor(
    effect: int, after: bool
) -> None:
    world = world_of("a")
    world.killer.kill_at(effect, after=after)
    world.turn()
    world.clock.sleep(60.0)
    world.cluster.listed.clear()
    assert after_run(world).is_over
    record = world.record
    assert record is None or record.is_settled(world.rules)
    assert world.told == [A] or not world.cluster.evicted
    assert after_run(world).is_over
    assert world.killer.calls == ["recall"]


@pytest.mark.parametrize("selector", ["", "app=other"])
def test_a_run_does_not_wait_for_a_client_that_it_does_not_select(selector: str) -> None:
    world = world_of("a", blocked_s=30.0)
    world.turn()
    assert world.record is not None
    assert [client.state for client in world.record.left] == [ClientState.FOUND]
    world.clock.sleep(60.0)
    began_s = world.clock.now
    assert after_run(world, selector).is_over
    assert (world.clock.now, world.killer.calls, world.cluster.evicted) == (began_s, ["recall"], [])


def test_a_run_without_a_client_asks_nothing_for_a_driver_whose_clients_were_none() -> None:
    world = world_of()
    settle(world)
    world.load("18")
    before = world.text
    assert after_run(world).is_over
    assert after_run(world, "app=other").is_over
    assert (world.killer.calls, world.text) == (["recall"], before)


def test_a_run_with_a_client_takes_turns_until_it_is_restarted() -> None:
    world = world_of("a", blocked_s=8.0)
    assert after_run(world).is_over
    assert world.told == [A]


def test_a_client_that_somebody_else_rolls_at_the_same_moment_is_left_alone() -> None:
    world = world_of("a", "b", "c")
    world.cluster.stop(world.cluster.listed["b"], 5.0)
    world.killer.at("evict", lambda: world.cluster.remove_pod("a"))
    settle(world)
    assert (world.cluster.evicted, world.told) == (["monitoring/c"], ["monitoring/c"])
    assert world.record is not None
    assert [one.state for one in world.record.clients] == [ClientState.LEFT, ClientState.RESTARTED]


def test_a_right_that_lacks_in_one_namespace_keeps_no_client_elsewhere_and_what_leaves_then_is_not_ours() -> None:
    world = world_of("a", "b")

    def refused() -> None:
        raise ApiRefused("the API server refused to create pods/eviction", "Allow it.")

    world.killer.at("evict", refused)
    with pytest.raises(ApiRefused, match="create pods/eviction"):
        world.turn()
    assert (world.cluster.evicted, world.told) == ([B], [B])
    world.cluster.remove_pod("a")
    settle(world)
    assert (world.cluster.evicted, world.told) == ([B], [B])


def test_a_pod_that_waits_for_the_driver_is_looked_at_once_more_and_left_alone() -> None:
    world = world_of()
    world.add("waits", started_s=None)
    turn = world.turn()
    assert turn is not None
    assert (turn.is_over, turn.is_early) == (False, True)
    world.cluster.start("waits")
    world.add("a", blocked_s=100.0)
    settle(world)
    assert world.cluster.evicted == [], "neither it, nor who came after the look"
    both = world_of("a", blocked_s=100.0)
    both.add("waits", started_s=None)
    turn = both.turn()
    assert turn is not None
    assert not turn.is_early, "a budget is in the way"


def test_a_client_that_keeps_dying_is_not_hunted() -> None:
    world = world_of("a")
    settle(world)
    for _ in range(5):
        uid = next(iter(world.cluster.listed))
        world.cluster.remove_pod(uid)
        world.clock.sleep(2 * START_S)
        assert world.turn() is not None
    assert world.cluster.evicted == [A]


def test_a_successor_that_seems_to_run_since_before_the_driver_is_left_alone() -> None:
    world = world_of("a", blocked_s=400.0)
    world.turn()
    world.add("a+", started_s=world.clock.wall() - 5_000.0)
    settle(world)
    assert world.cluster.evicted == [A]


def test_a_watch_that_knows_of_more_clients_than_the_run_restarts_those_too_and_nobody_twice() -> None:
    world = world_of("a")
    world.add("tool", labels={"app": "toolkit"})
    settle(world)
    assert world.cluster.evicted == [A]
    world.selector = "app in (exporter, toolkit)"
    settle(world)
    assert world.cluster.evicted == [A, "monitoring/tool"]
    world.add("tool+++", labels={"app": "toolkit"}, started_s=world.clock.wall() - 5_000.0)
    for world.selector in ("app=exporter", "app in (exporter, toolkit)"):
        settle(world)
    assert len(world.cluster.evicted) == 2, "it is decided for the pods of both"


def test_a_client_that_two_selectors_select_is_restarted_once() -> None:
    world = world_of("a", blocked_s=100.0)
    world.turn()
    world.selector = "app"
    settle(world)
    assert (world.cluster.evicted, world.told) == ([A], [A])


def test_the_next_driver_restarts_them_again() -> None:
    world = world_of("a")
    settle(world)
    world.load("18")
    settle(world)
    assert world.cluster.evicted == [A, A + "+"]
    world.seen = replace(world.seen, digest="0" * 64)
    settle(world)
    assert world.cluster.evicted == [A, A + "+", A + "++"]


def test_the_same_driver_does_not_however_often_its_files_are_written() -> None:
    world = world_of("a")
    settle(world)
    for _ in range(3):
        world.seen = replace(world.seen, marked_s=(world.clock.wall(),))
        settle(world)
    assert world.cluster.evicted == [A]


def test_two_at_once_exclude_each_other() -> None:
    world = world_of("a")
    world.busy = True
    turn = world.turn()
    assert turn is not None
    assert (turn.problem, world.cluster.evicted, world.text) == (BUSY, [], "")
    world.busy = False
    settle(world)
    assert world.cluster.evicted == [A]


@pytest.mark.parametrize("asked", ["", "16"])
def test_without_the_driver_that_was_seen_to_serve_nothing_is_done(asked: str) -> None:
    world = world_of("a")
    world.seen = Sighting("boot-1", "17" if asked else "", NEW_DIGEST)
    turn = world.restarter.turn(asked)
    assert (turn.problem, world.cluster.evicted, world.text) == (NOT_LOADED, [], "")
    assert world.restarter.until(Deadline.after(60.0, world.clock.monotonic)).is_over is bool(asked)


def test_the_node_shows_the_generation_after_the_clients_were_asked_for() -> None:
    world = world_of("a")
    world.killer.at("patch", lambda: world.cluster.posted.append(("seen", str(world.cluster.evicted), False)))
    settle(world)
    assert ("seen", str([A]), False) in world.cluster.posted
    assert world.cluster.current is not None
    shown = decode_generation(world.cluster.current.annotations[PROFILE.keys.generation])
    assert (shown.boot_id, shown.load, shown.digest) == ("boot-1", "17", NEW_DIGEST)


def test_without_a_key_or_a_selector_there_is_nothing_to_ask_for() -> None:
    world = ClientWorld(selector="", profile=replace(PROFILE, clients=(), keys=replace(PROFILE.keys, generation="")))
    world.add("a")
    assert world.restarter.turn().is_over
    assert not {"pods", "patch", "evict"} & set(world.killer.calls)


def test_an_event_that_cannot_be_posted_now_is_posted_by_a_later_turn() -> None:
    world = world_of("a")

    def down() -> None:
        raise ApiUnavailable("no answer", "Wait.")

    world.killer.at("event", down)
    turn = world.turn()
    assert turn is not None
    assert (turn.left, world.told) == (("monitoring/a (DaemonSet): is being restarted",), [])
    world.clock.sleep(60.0)
    settle(world)
    assert (world.cluster.evicted, world.told) == ([A], [A])


def claiming(world: ClientWorld, name: str, *, device_class: str, started_s: float) -> None:
    """A user's pod that holds a claim since then."""
    world.cluster.add_tenant(workload(name, resources=(), claims=(name,), started_s=started_s))
    world.cluster.all_claims = (*world.cluster.all_claims, Claim("tenant", name, (device_class,)))


def test_claims_that_were_prepared_before_the_driver_was_ready_are_told() -> None:
    world = world_of("a")
    before, after = world.clock.wall() - 50.0, world.clock.wall() + 50.0
    claiming(world, "survivor", device_class="npu.rebellions.ai", started_s=before)
    claiming(world, "fresh", device_class="npu.rebellions.ai", started_s=after)
    claiming(world, "foreign", device_class="gpu.example.com", started_s=before)
    settle(world)
    assert world.record is not None
    assert world.record.claims == ("tenant/survivor",)
    assert any(
        text.endswith("; claims that were prepared for an earlier driver: tenant/survivor")
        for _, text, _ in events(world)
    )
    assert world.cluster.evicted == [A], "and nobody is evicted for them"


def test_where_claims_may_not_be_read_clients_are_restarted_all_the_same() -> None:
    world = world_of("a")
    claiming(world, "survivor", device_class="npu.rebellions.ai", started_s=world.clock.wall() - 50.0)

    def refused() -> None:
        raise ApiRefused("the API server refused to list resourceclaims", "Allow it.")

    world.killer.at("claims", refused)
    settle(world)
    assert world.cluster.evicted == [A]
    assert "cannot tell whether claims survived the new driver" in world.reporter.warnings[0]


def events(world: ClientWorld) -> list[tuple[str, str, bool]]:
    """The Events of restarts."""
    return [one for one in world.cluster.posted if one[0] == "DriverClientRestarted"]
