"""Which pods are clients of the driver, and how those of a new one are restarted: each once, whatever kills whom."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core.clients import BUSY, NOT_LOADED, ClientRestarter, ClientTurn
from driver_manager.domain import selectors
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError
from driver_manager.domain.node import Claim, Pod
from driver_manager.domain.node_state import Generation, Sighting, decode_generation
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import Client, ClientRecord, ClientState
from driver_manager.domain.pods.workloads import LAG_S, ClientAge, ClientRules, is_client, standing
from driver_manager.domain.profile import Profile
from driver_manager.domain.wire import written_time
from tests.support.fakes.builders import DRIVER, NEW_DIGEST, PROFILE, PROFILES, pod, workload
from tests.support.fakes.cluster import FakeCluster, Tenant
from tests.support.fakes.killer import Killed
from tests.support.fakes.world import Place

READY_S = 1_700_000_100.5
CREATED = "2023-11-14T00:00:00Z"
GENERATION = Generation("boot-1", "17", "digest", READY_S)
RULES = ClientRules.of(PROFILE, selectors.parse("app in (exporter, toolkit)"), "around-us")
OWN_LABEL = {"rebellions.ai/npu-driver-manager.client": "true"}
OF_PROFILE = ClientRules.of(PROFILE, selectors.Selector())
OF_NVIDIA = ClientRules.of(PROFILES["nvidia"], selectors.Selector())
DRA_PATHS = ("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins", "/run/nvidia/driver")
UP_TO_25_12, FROM_0_4_1 = (
    {f"{name}-component": "kubelet-plugin"} for name in ("nvidia-dra-driver-gpu", "dra-driver-nvidia-gpu")
)
"""Labels of NVIDIA's DRA plugin, as its chart sets them; 0.4.0 sets both."""


def client(name: str = "exporter-x", **fields: Any) -> Pod:
    """A pod of a foreign DaemonSet that matches, started long before the driver."""
    known = {"namespace": "monitoring", "labels": {"app": "exporter"}, "started_s": READY_S - 100, "created": CREATED}
    return replace(pod(name), **{**known, "uid": name, **fields})


def test_a_client_matches_is_made_again_and_is_no_users_pod() -> None:
    dra: list[dict[str, Any]] = [
        {"labels": labels, "host_paths": DRA_PATHS}
        for labels in (UP_TO_25_12, UP_TO_25_12 | FROM_0_4_1, FROM_0_4_1, {"own-name-component": "kubelet-plugin"}, {})
    ]
    clients: list[tuple[dict[str, Any], ClientRules]] = [
        *(({}, RULES), ({"owner_kind": "ReplicaSet"}, RULES), ({"owner_kind": "StatefulSet"}, RULES)),
        *(({"labels": {"app": "toolkit"}}, RULES), ({"labels": OWN_LABEL}, RULES), ({"labels": OWN_LABEL}, OF_PROFILE)),
        *(({"resources": ("example.com/other",)}, RULES), ({"deleting": True}, RULES)),
        *((fields, OF_NVIDIA) for fields in dra),
        *(({"labels": {"app": app}}, OF_NVIDIA) for app in ("nvidia-dcgm", "nvidia-dcgm-exporter")),
        ({"labels": {"app.kubernetes.io/name": "dcgm-exporter"}}, OF_NVIDIA),
        ({"labels": {"nvidia.com/gpu-driver-manager.client": "true"}}, OF_NVIDIA),
    ]
    others: list[tuple[dict[str, Any], ClientRules]] = [
        *(
            *(({"owner_kind": "Job"}, RULES), ({"owner_kind": ""}, RULES)),
            ({"owner_kind": "Node", "is_mirror": True}, RULES),
        ),
        *(({"is_mirror": True}, RULES), ({"labels": {"app": "web"}}, RULES), ({"labels": {}}, RULES)),
        *(({"resources": ("rebellions.ai/ATOM",)}, RULES), ({"claims": ("claim",)}, RULES)),
        *(({"uid": "around-us"}, RULES), ({"config_digest": "digest"}, RULES), ({"phase": "Succeeded"}, RULES)),
        *(({"selector_keys": frozenset({DRIVER})}, RULES), ({}, OF_PROFILE)),
    ]
    assert [row for row in (*clients, *others) if is_client(client(**row[0]), row[1])] == clients
    assert not is_client(workload("web", labels={"app": "exporter"}), RULES), "whatever its labels"
    assert ClientRules.of(replace(PROFILE, clients=()), selectors.Selector()).selectors == ()


def test_who_ran_before_the_second_in_which_the_driver_got_ready_is_stale() -> None:
    unknown, later = replace(GENERATION, ready_s=0.0), "2023-11-14T22:15:01Z"
    for started_s, created, now_s, how in (
        *((READY_S - before_s, CREATED, 10.0, ClientAge.STALE) for before_s in (100.0, 1.5)),
        *((READY_S + after_s, CREATED, 10.0, ClientAge.CURRENT) for after_s in (-0.5, 0.0, 100.0)),
        (None, CREATED, 1.0, ClientAge.UNKNOWN),  # a kubelet may be late to tell of a running container
        (None, CREATED, LAG_S, ClientAge.CURRENT),  # but not for long
        (None, CREATED, -3_600.0, ClientAge.CURRENT),  # a clock set back
        *((None, later, 1.0, ClientAge.CURRENT), (None, "", 1.0, ClientAge.CURRENT)),
    ):
        pod = client(started_s=started_s, created=created)
        assert standing(pod, GENERATION, READY_S + now_s) is how, (started_s, created, now_s)
    assert standing(client(started_s=5.0), unknown, READY_S) is ClientAge.CURRENT, "since when it is ready is not known"


NEW = ClientRecord(GENERATION)


def looked(record: ClientRecord, *pods: Pod, later_s: float = 1.0) -> ClientRecord:
    return record.looked(pods, RULES, READY_S + later_s)


def test_who_is_a_client_is_decided_at_the_first_look() -> None:
    record = looked(NEW, client("a"), client("b", started_s=READY_S + 50), client("c", deleting=True))
    assert [(one.pod, one.state) for one in record.clients] == [("monitoring/a", ClientState.FOUND)]
    assert looked(record, client("a"), client("later"), later_s=90.0) == record


def test_a_client_whose_start_is_not_known_yet_is_looked_at_again() -> None:
    record = looked(NEW, client("late", started_s=None), client("other", started_s=None))
    assert (record.clients, record.unknown) == ((), ("late", "other"))
    assert not replace(record, is_shown=True).is_settled(RULES)
    found = looked(record, client("late"), client("other", started_s=READY_S + 2), client("new"), later_s=2.0)
    assert ([one.uid for one in found.clients], found.unknown) == (["late"], ())


def test_it_is_settled_once_everybody_is_restarted_and_the_node_shows_it() -> None:
    record = replace(looked(NEW, client("a"), client("b")), is_shown=True)
    assert not replace(NEW, is_shown=True).is_settled(RULES), "no look yet"
    for state in ClientState:
        found = record.with_state("a", ClientState.LEFT).with_state("b", state)
        assert found.is_settled(RULES) is (state not in (ClientState.FOUND, ClientState.ASKED))
        assert not replace(found, is_shown=False).is_settled(RULES)


def test_the_next_generation_begins_with_no_client() -> None:
    record, following = looked(NEW, client("a")), replace(GENERATION, load="18")
    assert client_record.of(record, following) == ClientRecord(following)
    assert client_record.of(record, GENERATION) == record
    assert client_record.of(None, GENERATION) == NEW


uids = st.text("abc-0123", min_size=1, max_size=12)
records = st.builds(
    ClientRecord,
    st.builds(Generation, uids, uids, st.sampled_from(["", "digest"]), st.floats(0, 2e9)),
    st.lists(st.builds(Client, uids, uids, uids, st.sampled_from(ClientState)), max_size=4).map(tuple),
    st.lists(uids, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    selectors=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: ClientRecord) -> None:
    again = client_record.decode(client_record.encode(record))
    assert again == record
    assert again.generation.ready_s == record.generation.ready_s


def test_what_cannot_be_read_is_no_record() -> None:
    for text in ("", "{}", "nonsense", '{"schema": 2}', '{"schema": 1, "bootId": 7}'):
        assert client_record.recorded(text) is None
        with pytest.raises(ConfigError):
            client_record.decode(text)


pods = st.lists(
    st.builds(
        client,
        st.sampled_from("abcdef"),
        uid=st.uuids().map(str),
        started_s=st.none() | st.floats(READY_S - 50, READY_S + 50),
        deleting=st.booleans(),
        owner_kind=st.sampled_from(["DaemonSet", "ReplicaSet", ""]),
        resources=st.sampled_from([(), ("rebellions.ai/ATOM",)]),
    ),
    max_size=6,
)


@given(st.lists(pods, min_size=1, max_size=4))
def test_no_look_but_the_first_makes_a_client_of_a_pod_that_it_had_not_seen(looks: list[list[Pod]]) -> None:
    record = NEW
    for number, listed in enumerate(looks):
        record = record.looked(listed, RULES, READY_S + number)
    first = {one.uid for one in looks[0]}
    assert {one.uid for one in record.clients} | set(record.unknown) <= first
    assert len({one.uid for one in record.clients}) == len(record.clients)
    users = {one.uid for listed in looks for one in listed if one.resources or not one.owner_kind}
    assert not users & {one.uid for one in record.clients}


A, B = "monitoring/a", "monitoring/b"
START_S = 30.0
"""How long a new pod takes until its container runs."""


class ClientCluster(FakeCluster):
    """Whose pods are made again once they are gone, as `name+`; their containers run some time later."""

    def remove_pod(self, uid: str) -> None:
        gone = self.listed.get(uid)
        super().remove_pod(uid)
        if gone is not None and gone.owner_kind:
            created = written_time(self.clock.wall())
            successor = replace(gone, uid=uid + "+", name=gone.name + "+", deleting=False, created=created)
            self.add_tenant(replace(successor, started_s=None), self.tenants.get(uid))
            self.clock.after(START_S, lambda: self.start(successor.uid))

    def start(self, uid: str) -> None:
        """Its container runs from now on."""
        if uid in self.listed:
            self.add_pod(replace(self.listed[uid], started_s=float(int(self.clock.wall()))))


class Restarts(Place):
    """A node whose driver got ready after its clients. `seen` is what the host says of its driver.

    `is_busy`: another process restarts clients.
    """

    cluster: ClientCluster

    def __init__(self, *names: str, selector: str = "app=exporter", profile: Profile = PROFILE, **fields: Any) -> None:
        super().__init__(cluster=ClientCluster)
        self.selector, self.profile, self.text, self.is_busy = selector, profile, "", False
        self.load("17")
        for name in names:
            self.add(name, **fields)

    def load(self, name: str) -> None:
        """A driver gets ready now, another load than before."""
        self.seen = Sighting("boot-1", name, NEW_DIGEST, (self.clock.wall(),))

    def add(self, name: str, *, blocked_s: float = 0.0, **fields: Any) -> None:
        """A pod that has run for a while; its budget allows an eviction in `blocked_s` seconds."""
        now_s = self.clock.wall()
        known = {"created": written_time(now_s - 200.0), "started_s": now_s - 100.0, **fields}
        until = self.clock.now + blocked_s if blocked_s else 0.0
        self.cluster.add_tenant(client(name, **known), Tenant(blocked_until=until))

    @property
    def rules(self) -> ClientRules:
        return ClientRules.of(self.profile, selectors.parse(self.selector))

    @property
    def restarter(self) -> ClientRestarter:
        return ClientRestarter(self.cluster, self, self.clock, self.reporter, self.rules)

    def turn(self) -> ClientTurn:
        """One turn of one process."""
        self.killer.revive()
        return self.restarter.turn()

    def settle(self) -> None:
        """Turns, each of another process, until nothing is left to be done."""
        for _ in range(20):
            try:
                is_over = self.restarter.turn().is_over
            except Killed:
                is_over = False
            self.killer.revive()
            self.clock.sleep(60.0)
            if is_over:
                return
        raise AssertionError("it never ends")

    def after_run(self, selector: str = "app=exporter") -> ClientTurn:
        """What the next run does at its end, which sees the pods that there are now."""
        self.killer.revive()
        seen, self.selector = tuple(self.cluster.listed.values()), selector
        return self.restarter.after_run(seen, self.deadline(60.0))

    @property
    def record(self) -> ClientRecord:
        found = client_record.recorded(self.text)
        assert found is not None
        return found

    @property
    def events(self) -> list[str]:
        return [message for reason, message, _ in self.cluster.posted if reason == "DriverClientRestarted"]

    @property
    def named_in_events(self) -> list[str]:
        """The clients that Events say were restarted."""
        return [message.split()[1] for message in self.events]

    def check(self, *evicted: str) -> None:
        """Raises AssertionError unless these clients were evicted, in order, and an Event tells of each."""
        assert (self.cluster.evicted, self.named_in_events) == (list(evicted), list(evicted))

    # the ClientNotes port

    @contextmanager
    def alone(self) -> Generator[bool, None, None]:
        with self.killer.call("alone"):
            yield not self.is_busy

    def sighting(self) -> Sighting:
        with self.killer.call("sighting"):
            return self.seen

    def recall(self) -> str:
        with self.killer.call("recall"):
            return self.text

    def remember(self, text: str) -> None:
        with self.killer.call("remember", effect=True):
            self.text = text


def test_each_client_is_restarted_once_with_one_event_and_no_other_pod() -> None:
    world = Restarts("a", "b")
    world.add("web", labels={"app": "web"})
    world.cluster.add_tenant(workload("user", labels={"app": "exporter"}, started_s=5.0))
    world.add("young", started_s=world.clock.wall() + 1.0)
    world.settle()
    world.check(A, B)
    for _ in range(5):
        assert world.turn().is_over
        assert world.killer.calls == ["alone", "sighting", "recall"], "it asks nothing of the API server"
    world.check(A, B)


def test_a_client_is_noted_before_its_eviction_is_asked_for() -> None:
    world, seen = Restarts("a"), list[ClientState]()
    world.killer.at("evict", lambda: seen.extend(one.state for one in world.record.clients))
    world.settle()
    assert seen == [ClientState.ASKED]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(12))
def test_killed_at_any_effect_no_client_is_restarted_twice_and_none_is_forgotten(effect: int, after: bool) -> None:
    world = Restarts("a", "b")
    world.killer.kill_at(effect, after=after)
    world.settle()
    assert (sorted(world.cluster.evicted), sorted(world.named_in_events)) == ([A, B], [A, B])
    assert world.record.is_settled(world.rules)


def test_the_kills_reach_every_effect() -> None:
    world = Restarts("a", "b")
    world.turn()
    assert set(world.killer.effects) == {"remember", "evict", "event", "patch"}
    assert len(world.killer.effects) <= 12


def test_a_client_whose_budget_allows_nothing_is_asked_for_again() -> None:
    world = Restarts("a", blocked_s=150.0)
    world.add("b")
    turn = world.turn()
    assert turn.left == ("monitoring/a (DaemonSet): its eviction is refused: its disruption budget allows none",)
    assert turn.restarted == ("monitoring/b (DaemonSet)",)
    world.check(B)
    world.settle()
    world.check(B, A)


def test_a_run_goes_on_until_its_deadline() -> None:
    for blocked_s, evicted in ((20.0, [A]), (100.0, [])):
        world = Restarts("a", blocked_s=blocked_s)
        assert world.restarter.until(world.deadline(60.0)).is_over is bool(evicted)
        assert world.cluster.evicted == evicted
        assert evicted or world.clock.now == 1_060.0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(12))
def test_a_run_finishes_what_was_cut_off_though_its_client_is_gone_for_good(effect: int, after: bool) -> None:
    world = Restarts("a")
    world.killer.kill_at(effect, after=after)
    with suppress(Killed):
        world.restarter.turn()
    world.killer.revive()
    world.clock.sleep(60.0)
    world.cluster.listed.clear()
    assert world.after_run().is_over
    assert not world.text or world.record.is_settled(world.rules)
    assert world.named_in_events == [A] or not world.cluster.evicted
    assert world.after_run().is_over
    assert world.killer.calls == ["recall"]


def test_a_run_does_not_wait_for_a_client_that_it_does_not_select_but_takes_turns_for_its_own() -> None:
    for selector in ("", "app=other"):
        world = Restarts("a", blocked_s=30.0)
        world.turn()
        assert [one.state for one in world.record.left] == [ClientState.FOUND]
        world.clock.sleep(60.0)
        began_s = world.clock.now
        assert world.after_run(selector).is_over
        assert (world.clock.now, world.killer.calls, world.cluster.evicted) == (began_s, ["recall"], [])
    own = Restarts("a", blocked_s=8.0)
    assert own.after_run().is_over
    assert own.named_in_events == [A]


def test_a_run_without_a_client_asks_nothing_for_a_driver_whose_clients_were_none() -> None:
    world = Restarts()
    world.settle()
    world.load("18")
    before = world.text
    assert world.after_run().is_over
    assert world.after_run("app=other").is_over
    assert (world.killer.calls, world.text) == (["recall"], before)


def test_a_client_that_a_user_restarts_at_the_same_moment_is_left_alone() -> None:
    world = Restarts("a", "b", "c")
    world.cluster.stop(world.cluster.listed["b"], 5.0)
    world.killer.at("evict", lambda: world.cluster.remove_pod("a"))
    world.settle()
    world.check("monitoring/c")
    assert [one.state for one in world.record.clients] == [ClientState.LEFT, ClientState.RESTARTED]


def test_a_right_that_lacks_in_one_namespace_keeps_no_client_elsewhere_and_what_leaves_then_is_not_ours() -> None:
    world = Restarts("a", "b")
    world.killer.at("evict", ApiRefused("the API server refused to create pods/eviction", "Allow it."))
    with pytest.raises(ApiRefused, match="create pods/eviction"):
        world.turn()
    world.check(B)
    world.cluster.remove_pod("a")
    world.settle()
    world.check(B)


def test_a_pod_that_waits_for_the_driver_is_looked_at_once_more_and_left_alone() -> None:
    world = Restarts()
    world.add("waits", started_s=None)
    turn = world.turn()
    assert (turn.is_over, turn.is_early) == (False, True)
    world.cluster.start("waits")
    world.add("a", blocked_s=100.0)
    world.settle()
    assert world.cluster.evicted == [], "neither it, nor who came after the look"
    both = Restarts("a", blocked_s=100.0)
    both.add("waits", started_s=None)
    assert not both.turn().is_early, "a budget is in the way"


def test_a_client_that_keeps_dying_is_not_hunted() -> None:
    world = Restarts("a")
    world.settle()
    for _ in range(5):
        world.cluster.remove_pod(next(iter(world.cluster.listed)))
        world.clock.sleep(2 * START_S)
        world.turn()
    world.check(A)


def test_a_successor_that_seems_to_run_since_before_the_driver_is_left_alone() -> None:
    world = Restarts("a", blocked_s=400.0)
    world.turn()
    world.add("a+", started_s=world.clock.wall() - 5_000.0)
    world.settle()
    world.check(A)


def test_a_watch_that_knows_of_more_clients_than_the_run_restarts_those_too_and_none_twice() -> None:
    world = Restarts("a")
    world.add("tool", labels={"app": "toolkit"})
    world.settle()
    world.check(A)
    world.selector = "app in (exporter, toolkit)"
    world.settle()
    world.check(A, "monitoring/tool")
    world.add("tool+++", labels={"app": "toolkit"}, started_s=world.clock.wall() - 5_000.0)
    for world.selector in ("app=exporter", "app in (exporter, toolkit)"):
        world.settle()
    assert len(world.cluster.evicted) == 2, "it is decided for the pods of both"
    both = Restarts("a", blocked_s=100.0)
    both.turn()
    both.selector = "app"
    both.settle()
    both.check(A)


def test_the_next_driver_restarts_them_again_and_the_same_one_does_not_however_often_its_files_are_written() -> None:
    world = Restarts("a")
    world.settle()
    for _ in range(3):
        world.seen = replace(world.seen, marked_s=(world.clock.wall(),))
        world.settle()
    world.check(A)
    world.load("18")
    world.settle()
    world.check(A, A + "+")
    world.seen = replace(world.seen, digest="0" * 64)
    world.settle()
    world.check(A, A + "+", A + "++")


def test_two_at_once_exclude_each_other() -> None:
    world = Restarts("a")
    world.is_busy = True
    assert (world.turn().problem, world.cluster.evicted, world.text) == (BUSY, [], "")
    world.is_busy = False
    world.settle()
    world.check(A)


def test_without_the_driver_that_was_seen_to_serve_nothing_is_done() -> None:
    for asked in ("", "16"):
        world = Restarts("a")
        world.seen = Sighting("boot-1", "17" if asked else "", NEW_DIGEST)
        assert (world.restarter.turn(asked).problem, world.cluster.evicted, world.text) == (NOT_LOADED, [], "")
        assert world.restarter.until(world.deadline(60.0)).is_over is bool(asked)


def test_the_node_shows_the_generation_after_the_clients_were_asked_for() -> None:
    world, evicted = Restarts("a"), list[list[str]]()
    world.killer.at("patch", lambda: evicted.append(list(world.cluster.evicted)))
    world.settle()
    assert evicted == [[A]]
    shown = decode_generation(world.node.annotations[PROFILE.keys.generation])
    assert (shown.boot_id, shown.load, shown.digest) == ("boot-1", "17", NEW_DIGEST)


def test_without_a_key_or_a_selector_there_is_nothing_to_ask_for() -> None:
    silent = replace(PROFILE, clients=(), keys=replace(PROFILE.keys, generation=""))
    world = Restarts("a", selector="", profile=silent)
    assert world.turn().is_over
    assert world.calls("pods", "patch", "evict") == []


def test_an_event_that_cannot_be_posted_now_is_posted_by_a_later_turn() -> None:
    world = Restarts("a")
    world.killer.at("event", ApiUnavailable("no answer", "Wait."))
    assert (world.turn().left, world.named_in_events) == (("monitoring/a (DaemonSet): is being restarted",), [])
    world.clock.sleep(60.0)
    world.settle()
    world.check(A)


def test_claims_that_were_prepared_before_the_driver_was_ready_are_reported() -> None:
    world, ours, other = Restarts("a"), "npu.rebellions.ai", "gpu.example.com"
    for name, kind, after_s in (("survivor", ours, -50.0), ("fresh", ours, 50.0), ("foreign", other, -50.0)):
        started_s = world.clock.wall() + after_s
        world.cluster.add_tenant(workload(name, resources=(), claims=(name,), started_s=started_s))
        world.cluster.all_claims += (Claim("tenant", name, (kind,)),)
    world.settle()
    assert world.record.claims == ("tenant/survivor",)
    (event,) = world.events
    assert event.endswith("; claims that were prepared for an earlier driver: tenant/survivor")
    world.check(A)


def test_where_claims_may_not_be_read_clients_are_restarted_all_the_same() -> None:
    world = Restarts("a")
    world.cluster.add_tenant(workload("survivor", resources=(), claims=("survivor",), started_s=5.0))
    world.killer.at("claims", ApiRefused("the API server refused to list resourceclaims", "Allow it."))
    world.settle()
    world.check(A)
    assert "cannot tell whether claims survived the new driver" in world.reporter.warnings[0]
