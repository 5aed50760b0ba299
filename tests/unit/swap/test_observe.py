"""Who we are, whose journal it is, which host this is, which driver is wanted, and who holds the device."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from driver_manager.cli.session import Observer, Session
from driver_manager.core.ports import Cluster
from driver_manager.core.swap import run
from driver_manager.core.swap.run import Identity, Outcome, is_alive, observe, reconcile
from driver_manager.domain import baseline as baselines
from driver_manager.domain import journal as journals
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError, ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.journal import Journal, JournalUnreadable, Owner, encode
from driver_manager.domain.node import Claim, Node, Pod, PodList, is_this_host
from driver_manager.domain.observation import EvictionRules, Observation, Policy, Situation
from tests.support.fakes import builders
from tests.support.fakes.builders import PROFILE, driver_pod, host, journal, modules, node, observation, pod
from tests.support.fakes.scenarios import TAKING, made, settle_in, undisturbed
from tests.support.fakes.world import Place, World

SURE = Identity("driver-a", True, "rbln-system")
PROCESS = Owner(pid=7, start_ticks=1, pid_namespace=2, boot_id="boot-1")
IN_POD = replace(PROCESS, pod="rbln-system/driver-a", pod_uid="driver-a")
GUESSED = Identity("driver-a", False, "rbln-system", Owner(pid=7))
KEY = PROFILE.keys.journal
ELSEWHERE = pod("driver-a", namespace="other")


def listed(*pods: Pod) -> PodList:
    return PodList(pods, "1")


def nobody(_: Owner) -> bool:
    return False


def observed(who: Identity = SURE, *pods: Pod, lives: Callable[[Owner], bool] = nobody, **fields: Any) -> Observation:
    return observe(
        fields.get("node", node()),
        listed(*pods),
        PROFILE,
        who,
        digest=fields.get("digest", "d"),
        read_host=lambda *_: fields.get("host", host()),
        process_lives=lives,
    )


@pytest.mark.parametrize(
    ("pods", "who", "own"),
    [
        ((ELSEWHERE, driver_pod()), SURE, driver_pod()),
        ((ELSEWHERE,), GUESSED, ELSEWHERE),
        ((), GUESSED, None),
        ((pod("x"),), GUESSED, None),
        ((pod("driver-a", namespace="a"), pod("driver-a", namespace="b")), GUESSED, None),
        ((pod(""),), Identity(), None),
    ],
    ids=["name and namespace", "a host name, anywhere", "nobody", "another", "two", "no name"],
)
def test_our_own_pod_is_found_by_name_or_we_run_by_hand(pods: tuple[Pod, ...], who: Identity, own: Pod | None) -> None:
    assert run.own_pod(listed(*pods), node(), who) == own


def test_we_are_the_pod_and_its_process_or_the_process_by_hand() -> None:
    assert observed(SURE, driver_pod()).me == Owner(pod="rbln-system/driver-a", pod_uid="driver-a")
    assert observed(replace(SURE, process=PROCESS), driver_pod()).me == IN_POD
    assert observed(GUESSED).me == Owner(pid=7)
    with pytest.raises(ConfigError, match="rbln-system/driver-a is not on node node-1") as caught:
        run.own_pod(listed(ELSEWHERE), node(), SURE)
    assert "a pod of that name is in other" in caught.value.what
    assert "POD_NAMESPACE" in caught.value.remedy


OWN = driver_pod(config_digest="own")
DEBUG = pod("debugger", main_container='["busybox"]')
WITH_ENV = replace(DEBUG, config_digest="own")
WANTED = pod("driver-x", builders.DRIVER, config_digest="wanted")
BY_AGE = (
    pod("old", builders.DRIVER, config_digest="old", created="2024-01-01T00:00:00Z"),
    pod("new", builders.DRIVER, config_digest="new", created="2024-01-02T00:00:00Z"),
    pod("leaving", builders.DRIVER, config_digest="leaving", created="2024-01-03T00:00:00Z", deleting=True),
    pod("over", builders.DRIVER, config_digest="over", created="2024-01-04T00:00:00Z", phase="Failed"),
    pod("other", config_digest="other", created="2024-01-05T00:00:00Z"),
)
CANONICAL = driver_pod(main_container='["image:1"]')


@pytest.mark.parametrize(
    ("given", "own", "pods", "digest", "source"),
    [
        ("given", OWN, (), "given", None),
        ("", OWN, (), "own", "own pod rbln-system/driver-a"),
        ("", CANONICAL, (), hashlib.sha256(b'["image:1"]').hexdigest(), None),
        ("", None, BY_AGE, "new", "driver pod rbln-system/new"),
        ("", DEBUG, (DEBUG, WANTED), "wanted", "driver pod rbln-system/driver-x"),
        ("", DEBUG, (DEBUG,), "", ""),
        ("", WITH_ENV, (WITH_ENV, WANTED), "own", None),
        ("", None, (pod("other"),), "", ""),
    ],
    ids=["given", "environment", "spec", "newest", "no driver pod", "no digest", "environment of any", "nothing"],
)
def test_the_digest_is_given_or_our_own_pods_or_the_newest_living_driver_pods(
    given: str, own: Pod | None, pods: tuple[Pod, ...], digest: str, source: str | None
) -> None:
    found = run.wanted_digest(given, own, listed(*pods), PROFILE)
    assert found[0] == digest
    assert source is None or found[1] == source


def test_a_digest_that_the_state_file_could_not_hold_is_refused_from_wherever_it_is() -> None:
    for given in ("two words", "two\nlines", "tab\there", "d" * 257, "\ufffd", "\x00", " "):
        with pytest.raises(ConfigError, match="DRIVER_CONFIG_DIGEST") as caught:
            run.wanted_digest(given, driver_pod(), listed(), PROFILE)
        assert "driver DaemonSet" in caught.value.remedy
    of_a_pod = driver_pod(config_digest="two words")
    for own in (of_a_pod, None):
        with pytest.raises(ConfigError):
            run.wanted_digest("", own, listed(of_a_pod), PROFILE)


def test_the_digest_that_the_driver_container_records_is_known_where_it_is_another() -> None:
    assert observed(SURE, driver_pod(main_digest="b"), digest="a").installed_digest == "b"
    for fields in ({"main_digest": "a"}, {}, {"main_digest": "b", "main_started": True}):
        assert observed(SURE, driver_pod(**fields), digest="a").installed_digest == "", fields
    by_hand = replace(SURE, pod_name="", pod_name_is_sure=False)
    assert observed(by_hand, digest="a").installed_digest == ""


@pytest.mark.parametrize(
    ("machine", "boot", "theirs", "ours", "answer"),
    [
        ("machine", "boot-1", "", "", True),
        ("machine", "boot-0", "", "", True),
        ("cloned", "boot-1", "", "", True),
        ("other", "boot-9", "", "", False),
        ("", "boot-9", "", "", False),
        ("other", "", "", "", False),
        ("", "", "", "", True),
        ("machine", "boot-2", "4C4C4544-0042", "4c4c4544-0042", True),
        ("machine", "boot-2", "4c4c4544-0042", "4c4c4544-0043", False),
        ("machine", "boot-2", "", "4c4c4544-0043", True),
        ("machine", "boot-2", "4c4c4544-0042", "", True),
        ("machine", "boot-1", "4c4c4544-0042", "4c4c4544-0043", True),
        ("machine", "", "4c4c4544-0042", "4c4c4544-0043", False),
    ],
)
def test_a_host_is_the_nodes_by_machine_id_or_boot_id_and_the_firmwares_id_tells_cloned_machines_apart(
    machine: str, boot: str, theirs: str, ours: str, answer: bool
) -> None:
    now = node(machine_id=machine, boot_id=boot, system_uuid=theirs)
    assert is_this_host(now, "machine", "boot-1", ours) is answer
    assert ours or (observed(SURE, driver_pod(), node=now).host is not None) is answer
    assert not is_this_host(node(machine_id="", boot_id="b"), "", "c", ""), "both are empty"
    assert not is_this_host(node(machine_id="m", boot_id=""), "n", "", ""), "both are empty"


def alive(
    owner: Owner, *pods: Pod, own: Pod | None = None, runs: bool | None = False, now: Node | None = None
) -> bool | None:
    """`runs`: what the process table says, None off the node."""
    process_lives = None if runs is None else lambda _: bool(runs)
    return is_alive(Journal(owner, "boot-1"), (now or node()).boot_id, listed(*pods), own, process_lives, PROFILE)


@pytest.mark.parametrize(
    ("pods", "answer"),
    [
        ((driver_pod(),), True),
        ((driver_pod(deleting=True),), True),
        ((driver_pod(phase="Failed"),), False),
        ((driver_pod(phase="Succeeded"),), False),
        ((driver_pod(phase="Failed", have_ended=None),), True),  # refused by its kubelet, and not ended yet
        ((driver_pod(deleting=True, have_ended=True),), False),
        ((pod("driver-a", uid="another"),), False),
        ((), False),
    ],
)
def test_the_run_of_another_pod_counts_while_that_very_pod_is_there(pods: tuple[Pod, ...], answer: bool) -> None:
    owners = [IN_POD, replace(IN_POD, pid=0), replace(IN_POD, boot_id="boot-0")]
    owns = [None, pod("driver-b", uid="driver-b")]
    states = list(itertools.product(owners, owns, [True, False, None]))
    assert [one for one in states if alive(one[0], *pods, own=one[1], runs=one[2]) is not answer] == []


@pytest.mark.parametrize("runs", [True, False, None])
def test_in_our_own_pod_and_by_hand_the_process_decides_and_off_the_node_it_is_unknown(runs: bool | None) -> None:
    for owner, own in ((IN_POD, driver_pod()), (PROCESS, None), (PROCESS, driver_pod())):
        assert alive(owner, driver_pod(), own=own, runs=runs) is runs, (owner, own)
    of_an_older_manager = Owner("rbln-system/driver-a", "driver-a")
    assert alive(of_an_older_manager, driver_pod(), own=driver_pod(), runs=True) is False


@pytest.mark.parametrize("runs", [True, None])
def test_a_process_of_an_earlier_boot_is_dead_wherever_we_look_from(runs: bool | None) -> None:
    assert alive(replace(PROCESS, boot_id="boot-0"), runs=runs) is False
    assert alive(replace(PROCESS, boot_id="boot-0"), runs=runs, now=node(boot_id="")) is runs


def test_the_nodes_journal_is_part_of_the_observation_and_stops_it_if_it_cannot_be_read() -> None:
    now = node(annotations={KEY: encode(journal(owner=IN_POD))})
    found = observed(SURE, driver_pod(), node=now, lives=lambda owner: owner == IN_POD)
    assert (found.journal, found.owner_alive) == (journal(owner=IN_POD), True)
    assert observed(SURE, driver_pod(), node=now).owner_alive is False
    bare = observed(SURE, driver_pod())
    assert (bare.journal, bare.owner_alive) == (None, False)
    for text in ("", "garbage", "null"):
        with pytest.raises(JournalUnreadable):
            observed(SURE, driver_pod(), node=node(annotations={KEY: text}))


def test_off_the_node_the_process_table_at_hand_is_not_asked() -> None:
    now = node(annotations={KEY: encode(journal(owner=PROCESS))})
    for there in (None, host(machine_id="laptop", boot_id="laptop")):
        assert observed(GUESSED, node=now, host=there, lives=lambda _: True).owner_alive is None
        assert observed(GUESSED, node=now, host=there).owner_alive is None


def test_the_host_is_read_with_the_journal_and_the_wanted_digest_in_hand() -> None:
    seen: list[tuple[Journal | None, str]] = []
    now = node(annotations={KEY: encode(journal())})
    read: Any = lambda *given: seen.append(given)  # noqa: E731  # it reads no host
    observe(now, listed(driver_pod()), PROFILE, SURE, digest="d", read_host=read, process_lives=nobody)
    assert seen == [(journal(), "d")]


@pytest.mark.parametrize(
    ("owner", "pods", "lives"),
    [
        ("rbln-system/driver-b", (pod("driver-b", builders.DRIVER),), True),
        ("rbln-system/driver-b", (), False),
        ("elsewhere/driver-b", (), None),
        ("rbln-system-2/driver-b", (), None),
    ],
)
def test_an_owner_in_a_namespace_that_could_not_be_listed_is_not_taken_for_dead(
    owner: str, pods: tuple[Pod, ...], lives: bool | None
) -> None:
    held = Journal(Owner(owner, "driver-b"), "boot-1")
    for namespace in ("rbln-system", ""):
        found = PodList(pods, "1", namespace)
        assert is_alive(held, "boot-1", found, None, nobody, PROFILE) is (lives if namespace else bool(pods))
    ours = PodList((pod("vfio-a"),), "1", "other")
    assert is_alive(Journal(builders.ME, "boot-1"), "boot-1", ours, driver_pod(), None, PROFILE) is False


# claims and holders of the device

CLAIM = Claim("tenant", "c", PROFILE.device_classes)
HOLDING, USER = builders.workload("h", resources=(), claims=("c",)), builders.workload("a")
IN_USE = host(modules=modules(users=1))
REFUSED = ApiRefused("no", "Give the right.")


class Look(Place):
    """A cluster with one claim, and a host on which one process has the device."""

    def __init__(self, pod_uid: str = "h") -> None:
        super().__init__()
        self.cluster.all_claims = (CLAIM,)
        self.host.known_holders = (Holder(7, "x", "/dev/rbln0", "open", pod_uid=pod_uid),)

    def at(self, obs: Observation, policy: Policy | None = None, **profile: Any) -> Observation:
        now = Situation.of(obs, replace(PROFILE, **profile), policy or Policy())
        return run.read_holders(now, self.ports).obs


def test_claims_and_named_holders_are_added_where_the_driver_is_to_be_replaced() -> None:
    look = Look()
    seen = look.at(observation(pods=(HOLDING,), host=IN_USE))
    assert seen.claims == (CLAIM,)
    assert [(holder.pod, holder.pod_uid) for holder in seen.holders] == [("tenant/h", "h")]
    assert look.killer.calls == ["claims", "holders"]
    mirror = pod("mirror-pod", is_mirror=True, static_uid="hash")  # of a static pod
    (holder,) = Look("hash").at(observation(pods=(mirror,), host=IN_USE)).holders
    assert (holder.pod, holder.pod_uid) == ("rbln-system/mirror-pod", "mirror-pod")


@pytest.mark.parametrize(
    ("user", "facts", "classes", "given", "asked"),
    [
        (HOLDING, host(), PROFILE.device_classes, (), ["claims"]),
        (USER, IN_USE, PROFILE.device_classes, (), ["holders"]),
        (USER, host(), PROFILE.device_classes, (), []),
        (replace(HOLDING, phase="Failed"), host(), PROFILE.device_classes, (), []),
        (HOLDING, host(digest=builders.NEW_DIGEST, modules=modules(users=1)), PROFILE.device_classes, (), []),
        (HOLDING, host(modules={}), PROFILE.device_classes, (), []),
        (HOLDING, host(), (), (), []),
        (HOLDING, host(), (), ("mine",), ["claims"]),
    ],
)
def test_nothing_is_asked_that_does_not_matter(
    user: Pod, facts: Any, classes: tuple[str, ...], given: tuple[str, ...], asked: list[str]
) -> None:
    look, policy = Look(), Policy(eviction=EvictionRules(device_classes=given))
    look.at(observation(pods=(user,), host=facts), policy, device_classes=classes)
    assert look.killer.calls == asked


def test_claims_that_may_not_be_read_end_the_run_or_are_not_taken_for_none_and_of_unseen_holders_it_warns() -> None:
    look, obs = Look(), observation(pods=(HOLDING,))
    look.killer.at("claims", REFUSED, times=3)
    for rules in (EvictionRules(is_enabled=True), EvictionRules(drains=True)):
        with pytest.raises(ApiRefused):
            look.at(obs, Policy(eviction=rules))
    seen = look.at(obs)
    assert (seen.claims, seen.has_unread_claims) == ((), True)
    look = Look()
    look.killer.at("holders", ConfigError("/proc shows no process", "Run as root."))
    assert look.at(observation(pods=(HOLDING,), host=IN_USE)).holders == ()
    assert look.reporter.warnings == ["unknown which processes have the device open: /proc shows no process"]


# a preflight that fails on what another run changes meanwhile: the run observes again

OTHER = Owner(pod="", pod_uid="", pid=7, start_ticks=7, pid_namespace=1)
PROBLEM = "modinfo failed: killed"


def take(world: World) -> None:
    """Another run takes the node, and lives."""
    owner = replace(OTHER, boot_id=world.host.boot_id)
    world.running.add(owner)
    world.cluster.edit(annotations={KEY: journals.encode(journal(owner=owner, boot_id=world.host.boot_id))})


def overtaken(world: World, meanwhile: Callable[[World], object], *, always: bool = False) -> tuple[Outcome, int]:
    """A run whose first look (or each) at the driver root fails, after which `meanwhile` happens; looks taken."""
    looks = 0

    def look() -> Observation:
        nonlocal looks
        looks += 1
        obs = world.observe()
        if looks == 1 or always:
            assert obs.host is not None
            assert obs.host.source is not None
            obs = replace(obs, host=replace(obs.host, source=replace(obs.host.source, problem=PROBLEM)))
            meanwhile(world)
        return obs

    world.running.add(world.process)
    return reconcile(world.ports, look, world.profile, world.policy), looks


def test_a_run_that_was_overtaken_ends_as_the_second_of_two() -> None:
    world = made("replace_by_manager")
    outcome, looks = overtaken(world, take)
    assert (outcome.exit_code, looks) == (ExitCode.OWNED_ELSEWHERE, 2)
    assert any(PROBLEM in line and "reading the facts again" in line for line in world.reporter.infos)
    world = made("replace_by_manager")
    path, other = PROFILE.paths.baseline, baselines.Baseline(world.host.boot_id, "of the other run")
    world.host.files[path] = baselines.encode(other)
    world.on("patch", take).ended(ExitCode.OWNED_ELSEWHERE)
    assert f"write {path}" in world.killer.effects
    assert world.host.files[path] == baselines.encode(other), "the baseline is that of the run that has the node"


def test_a_run_that_saw_another_ones_end_goes_on_and_does_not_observe_for_ever() -> None:
    world, pids = made("replace_by_manager"), itertools.count()
    take(world)
    world.running.clear()
    outcome, looks = overtaken(world, lambda one: one.cluster.edit(annotations={KEY: None}))
    assert (outcome.exit_code, looks, world.is_released) == (ExitCode.DONE, 2, True)

    def again_and_again(world: World) -> None:
        world.cluster.edit(annotations={KEY: journals.encode(journal(owner=replace(OTHER, pid=next(pids))))})

    outcome, looks = overtaken(made("replace_by_manager"), again_and_again, always=True)
    assert looks <= run.TAKE_ATTEMPTS
    assert outcome.exit_code is not ExitCode.DONE


def test_facts_that_no_run_changes_or_that_cannot_be_read_again_are_reported_at_once() -> None:
    edit, go_away = {"of-others": "own"}, ApiUnavailable("no answer", "")
    edited, gone = made("replace_by_manager"), made("replace_by_manager")
    ends = [overtaken(edited, lambda one: one.cluster.edit(edit)), overtaken(gone, lambda one: one.on("node", go_away))]
    for outcome, looks in ends:
        assert (outcome.exit_code, looks, PROBLEM in outcome.what) == (ExitCode.PREFLIGHT_FAILED, 1, True)


# a first list of pods that is a moment old: what it lacks is waited for all the same


@pytest.mark.parametrize("name", TAKING)
def test_a_run_whose_first_list_lacks_operands_ends_like_any_other(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    world = made(name)
    look, old = world.observe, [PodList((driver_pod(),), "0")]  # what an API server's memory may still hold
    monkeypatch.setattr(world, "observe", lambda: replace(look(), pods=old.pop()) if old else look())
    world.ended()
    assert (world.is_released, settle_in(world)) == (True, undisturbed(name)[1])


def test_a_pod_that_took_anothers_place_before_the_pause_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = made("replace_with_claims")
    unload, placed = world.host.unload, list[list[str]]()

    def operands() -> list[str]:
        return [uid for uid in world.cluster.listed if uid in world.cluster.owner_of]

    def restart(_: World) -> None:
        for uid in operands():
            world.cluster.remove_pod(uid)

    def unload_among(name: str, deadline: Deadline) -> None:
        placed.append(operands())
        unload(name, deadline)

    monkeypatch.setattr(world.host, "unload", unload_among)
    world.on("holders", restart, after=True).ended()
    assert placed == [[], []]


class Lists:
    """A cluster that notes how its pods are listed; the recent ones lack our own pod where it `lags`."""

    def __init__(self, *, lags: bool = False) -> None:
        self.lags = lags
        self.asked: list[bool] = []

    def pods(self, *, recent: bool = False) -> PodList:
        self.asked.append(recent)
        return PodList(() if recent and self.lags else (driver_pod(),), "7")


NONE: Any = None


@pytest.mark.parametrize(
    ("lags", "annotations", "recent", "asked"),
    [
        (False, {}, True, [True]),
        (True, {}, True, [True, False]),
        (False, {PROFILE.keys.journal: "{}"}, True, [False]),
        (False, {}, False, [False]),
    ],
    ids=["a run begins", "it lacks ourselves", "a journal's owner is looked for", "shown to people"],
)
def test_the_owner_of_a_journal_is_looked_for_among_the_pods_as_they_are_now(
    lags: bool, annotations: dict[str, str], recent: bool, asked: list[bool]
) -> None:
    cluster, now = Lists(lags=lags), node(annotations=annotations)
    session = Session(NONE, NONE, NONE, cast(Cluster, cluster), NONE, now, PROFILE)
    session._pods(now, Identity("driver-a", True, "rbln-system"), recent=recent)
    assert cluster.asked == asked


def test_only_the_first_look_of_a_run_may_be_a_moment_old(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Node | None, bool]] = []
    session = Session(NONE, NONE, NONE, NONE, NONE, node(), PROFILE)

    def noted(_: Session, one: Node | None = None, *, recent: bool = False) -> Observation:
        asked.append((one, recent))
        return observation()

    monkeypatch.setattr(Session, "observe", noted)
    look = Observer(session)
    for _ in range(3):
        look()
    assert asked == [(session.node, True), (None, False), (None, False)]
