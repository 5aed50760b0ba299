"""The conclusions of `status`: the first line, where present facts come before the last run, and what needs a hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import node_state
from driver_manager.domain.errors import ApiRefused, ConfigError, ManagerError, PreflightFailed
from driver_manager.domain.health.watch import HealthState
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Marker, Module
from driver_manager.domain.node_state import LastOutcome, NodeState, Recovery, RecoveryState
from driver_manager.domain.observation import Observation, ObservedPart
from driver_manager.domain.pci import PciBus
from driver_manager.domain.status import STALE_S, Attention, DeviceHealth, StatusFacts, attention, headline, overview
from driver_manager.domain.swap.steps import Decision, Plan
from tests.support.fakes.builders import ASCEND, DRIVER, PAUSED, PLUGIN, PROFILE, host, journal, node, observation, pod
from tests.support.fakes.pci import VFIO_DRIVER, function

SINCE, NOW_S = "2026-01-02T01:00:00Z", 1_767_322_800.0
CURRENT = Plan(Decision.CURRENT, "driver is current: digest ab12, version 1.0, loaded since this boot")
FORCED = Plan(Decision.REPLACE, "a reinstall was forced")
REFUSED = PreflightFailed("preflight: no module for this kernel", "Build one.")
TAKEN = journal(begin="2026-01-02T02:00:00Z", step="take node")
WATCHED = DeviceHealth("health-watch", HealthState.HEALTHY)
WEDGE = DeviceHealth("health-watch", HealthState.WEDGED, "rbln0 is gone", since_s=NOW_S - 60.0)
FORBIDDEN = ApiRefused("the API server refused to get nodes (403)", "Give this account the verb.")
NO_NODE = {"missing": {ObservedPart.NODE: FORBIDDEN}, "verdict": FORBIDDEN}
NO_JOURNAL = {ObservedPart.JOURNAL: ConfigError("the journal is garbage", "")}
BETWEEN: dict[str, Any] = {"modules": {}, "digest": None}
READY, UPGRADING = NodeState.READY, NodeState.UPGRADING
KEYS = PROFILE.keys
ASKS = f"waits for approval: annotate the Node with {KEYS.approve_recovery}=reset"
IS_BAD = "the driver does not serve its devices"
REBOOTS, DRIVER_A = f"{IS_BAD}, and only a reboot helps", "rbln-system/driver-a"


def shows(word: str, code: int = 0, what: str = "it was so", outcome: NodeState | None = None, **more: Any) -> Any:
    """A Node that shows this word, and this outcome of the last run."""
    keys = more.pop("profile", PROFILE).keys
    last = LastOutcome(outcome or NodeState(word), code, what, since=SINCE, ended=SINCE)
    notes = {keys.recovery: node_state.encode_note(more["recovery"])} if "recovery" in more else {}
    return node({keys.state: word}, annotations={keys.last_outcome: node_state.encode(last), **notes})


def recovery(state: RecoveryState, reason: str = "", step: str = "") -> Recovery:
    return Recovery(step, state, reason)


NO_STEP = recovery(RecoveryState.NEEDS_SERVICE, "reset did not help")
WAITS = recovery(RecoveryState.WAITING, ASKS, "reset")
UNDER_WAY = recovery(RecoveryState.UNDER_WAY, "1 of 3 healthy samples", "reset")


RAN = shows("ready")
TOOK = {"node": shows("upgrading", outcome=READY), "journal": TAKEN}


def facts(obs: Observation | None = None, **more: Any) -> StatusFacts:
    known: dict[str, Any] = {"obs": obs or observation(), "profile": PROFILE, "verdict": CURRENT, "now_s": NOW_S}
    return StatusFacts(**{**known, **more})


def items(obs: Any = None, **more: Any) -> tuple[Attention, ...]:
    found = facts(obs, **more)
    return attention(found, headline(found))


def kinds(obs: Any = None, **more: Any) -> list[str]:
    return [one.kind for one in items(obs, **more)]


def seen(more: dict[str, Any] | None = None, **fields: Any) -> StatusFacts:
    """On the node, with the driver loaded, unless `fields` of the observation or `more` facts say otherwise."""
    return facts(observation(**{"digest": "ab12", **fields}), **(more or {}))


def on_ascend(marker: Marker | None, node: Any = None, **more: Any) -> StatusFacts:
    modules = {"drv_pcie_host": Module("drv_pcie_host", "25.2.0")}
    shown = {"node": node} if node is not None else {}
    return seen({"profile": ASCEND, **more}, host=host(marker=marker, modules=modules), **shown)


def upgrade_marker(reason: str = UPGRADE_REASON, boot: str = "boot-1") -> Marker:
    return Marker(reason, boot, written_s=1_767_315_600)


TAKEN_OVER = replace(WEDGE, recovery=recovery(RecoveryState.WAITING, "the rebooter takes over", "reboot"))
GIVEN_UP = shows("reboot-required", 9, profile=ASCEND, recovery=NO_STEP)
ON_VFIO, BETWEEN_TWO = PciBus((function(driver=VFIO_DRIVER),)), PciBus((function(driver=VFIO_DRIVER), function(1)))

SEEN = {
    "nothing is wrong": seen(),
    "and the Node says so": seen(node=RAN),
    "another driver is wanted": seen({"verdict": FORCED}, node=RAN),
    "a run would be refused": seen({"verdict": REFUSED}, node=shows("ready", what="done: driver 1.0 loaded")),
    "a run is at work": seen(**TOOK, owner_alive=True),
    "a run of an older version": seen(journal=journal(), owner_alive=True),
    "a run was killed": seen(**TOOK, owner_alive=False),
    "its pod in a crash loop": seen(node=shows("held", 5, "it did not load"), journal=TAKEN, owner_alive=True),
    "a journal that is none": seen({"missing": NO_JOURNAL}, node=shows("held", 2)),
    "the last run failed": seen(node=shows("failed", 3, "pods would not leave")),
    "seen from a laptop": seen(host=None, node=shows("failed", 3)),
    "a wedge, by its record": seen({"health": WEDGE}, node=RAN),
    "a wedge that waits": seen({"health": replace(WEDGE, recovery=WAITS)}, node=RAN),
    "a recovery from a laptop": seen(host=None, node=shows("wedged", outcome=READY, recovery=UNDER_WAY)),
    "a wedge without a step": seen({"health": replace(WEDGE, recovery=NO_STEP)}, node=RAN),
    "a reboot was given up": on_ascend(upgrade_marker(RECOVERY), GIVEN_UP, health=TAKEN_OVER),
    "a recovery that is over": seen({"health": WATCHED}, node=shows("ready", recovery=NO_STEP)),
    "a marker is put aside": seen({"health": DeviceHealth(is_withdrawn=True)}),
    "a wedge from a laptop": seen(host=None, node=shows("wedged", outcome=READY)),
    "an old label of a wedge": seen({"health": WATCHED}, node=shows("wedged", outcome=READY)),
    "a reboot for an upgrade": on_ascend(upgrade_marker(), reboot_waits_for="waits for approval"),
    "a reboot for a recovery": on_ascend(upgrade_marker(RECOVERY), health=WEDGE),
    "a marker of another boot": on_ascend(upgrade_marker(boot="boot-0")),
    "a reboot from a laptop": seen({"profile": ASCEND}, host=None, node=shows("reboot-required", 9, profile=ASCEND)),
    "its driver pod is there": seen(host=host(modules={}), pods=(pod("driver-x", DRIVER),), own_pod=None),
    "our own pod is its pod": seen(host=host(modules={}), own_pod=pod("driver-a", DRIVER)),
    "no driver and no pod": seen(host=host(modules={}), own_pod=None),
    "no Node": seen(NO_NODE),
    "no Node, and a wedge": seen({**NO_NODE, "health": WEDGE}),
    "nothing is known": seen(host=None),
    "all devices are on vfio": seen(host=host(**BETWEEN, bus=ON_VFIO)),
    "a device has no driver": seen(host=host(**BETWEEN, bus=BETWEEN_TWO)),
}
HEADLINES = f"""
nothing is wrong          ready           -     driver is current: digest ab12
and the Node says so      ready           01:00 driver is current
another driver is wanted  ready           01:00 driver 1.0 is loaded; the next run replaces it: a reinstall was forced
a run would be refused    ready           01:00 done: driver 1.0 loaded
a run is at work          upgrading       02:00 pod {DRIVER_A} has taken the node; last step noted: take node
a run of an older version upgrading       -     pod {DRIVER_A} has taken the node
a run was killed          held            02:00 pod {DRIVER_A} took the node and ended without releasing it
its pod in a crash loop   held            01:00 exit 5: it did not load
a journal that is none    held            01:00 the journal is garbage
the last run failed       failed          01:00 exit 3: pods would not leave
seen from a laptop        failed          01:00 exit 3: it was so
a wedge, by its record    wedged          02:59 {IS_BAD}: rbln0 is gone
a wedge that waits        wedged          02:59 {IS_BAD}: rbln0 is gone; next step reset: {ASKS}
a recovery from a laptop  wedged          -     {IS_BAD}; reset under way: 1 of 3 healthy samples
a wedge without a step    wedged          02:59 {IS_BAD}: rbln0 is gone; needs service: reset did not help
a reboot was given up     reboot-required 01:00 {REBOOTS}: rbln0 is gone; needs service: reset did not help
a recovery that is over   ready           01:00 driver is current
a marker is put aside     wedged          -     {IS_BAD}
a wedge from a laptop     wedged          -     {IS_BAD}
an old label of a wedge   ready           01:00 driver is current
a reboot for an upgrade   reboot-required 01:00 only a reboot brings the wanted driver; waits for approval
a reboot for a recovery   reboot-required 01:00 {REBOOTS}: rbln0 is gone
a marker of another boot  ready           -     driver is current
a reboot from a laptop    reboot-required 01:00 only a reboot brings the wanted driver
its driver pod is there   upgrading       -     no driver is loaded yet; driver pod rbln-system/driver-x will load it
our own pod is its pod    upgrading       -     no driver is loaded yet; driver pod {DRIVER_A} will load it
no driver and no pod      failed          -     no driver is loaded, and no driver pod is on this node
no Node                   -               -     the Node cannot be read; the facts of the host are below
no Node, and a wedge      wedged          02:59 {IS_BAD}: rbln0 is gone
nothing is known          -               -     the node is not taken, and no run has reported its outcome on this Node
all devices are on vfio   ready           -     1 device(s) on vfio, for virtual machines
a device has no driver    upgrading       -     no driver is loaded yet
"""
"""What is seen, the state, since when on that day, and how the reason begins."""


@pytest.mark.parametrize(("name", "line"), [*zip(SEEN, HEADLINES.strip().split("\n"), strict=True)], ids=SEEN)
def test_the_headline(name: str, line: str) -> None:
    assert line[:25].strip() == name
    found, (word, time, why) = SEEN[name], line[25:].split(maxsplit=2)
    state, since = (None if word == "-" else NodeState(word)), ("" if time == "-" else f"2026-01-02T{time}:00Z")
    first = headline(found)
    assert (first.state, first.since) == (state, since)
    assert first.why.startswith(why), first.why
    listed = attention(found, first)
    assert len({one.what for one in listed}) == len(listed), "reported twice"
    if first.state not in (None, READY, UPGRADING):
        assert listed, "a state that needs a hand says what to do"
        assert listed[0].kind in ("held", "interrupted", "journal", "failed", "wedge", "reboot")
        assert listed[0].remedy or listed[0].kind in ("journal", "failed")
    if found.verdict is CURRENT and not found.missing and first.state in (READY, UPGRADING):
        assert listed == ()


@pytest.mark.parametrize("word", ["failed", "held"])
def test_the_remedy_of_a_run_is_that_of_a_pod_for_a_reader_elsewhere(word: str) -> None:
    last = LastOutcome(NodeState(word), 4, "it is in use", "Stop it, then run again.", since=SINCE, ended=SINCE)
    there = node({KEYS.state: word}, annotations={KEYS.last_outcome: node_state.encode(last)})
    found = seen(host=None, node=there, journal=TAKEN if word == "held" else None)
    assert attention(found, headline(found))[0].remedy.startswith("Stop it; the next run tries again.")


APPROVED = {KEYS.approve_recovery: "reset"}


@pytest.mark.parametrize(
    ("found", "notes", "remedy"),
    [
        (WAITS, {}, f"Approve the reset (kubectl annotate --overwrite node node-1 {KEYS.approve_recovery}=reset)."),
        (WAITS, {KEYS.approve_recovery: "reload"}, "Approve the reset"),
        (WAITS, APPROVED, "No action needed"),
        (replace(WAITS, reason="waits for users: ns/job"), {}, "No action needed"),
        (replace(WAITS, step="reboot"), {}, f"Approve the reboot (kubectl annotate node node-1 {KEYS.approve_reboot}="),
        (replace(WAITS, step="reboot"), {KEYS.approve_reboot: "true"}, "Reboot the node."),
        (replace(WAITS, step="reboot"), {KEYS.approve_recovery: "reboot"}, "Reboot the node."),
        (UNDER_WAY, {}, "No action needed"),
        (NO_STEP, {}, "Take the node out of service"),
        (Recovery(), {}, "Look at the kernel log"),
        (replace(WAITS, step="$(reboot)"), {}, "Look at the kernel log"),
    ],
)
def test_a_wedge_shows_what_its_recovery_waits_for(found: Recovery, notes: dict[str, str], remedy: str) -> None:
    shown = node({KEYS.state: "wedged"}, annotations={KEYS.recovery: node_state.encode_note(found), **notes})
    (one,) = (one for one in items(observation(host=None, node=shown)) if one.kind in ("wedge", "recovery"))
    assert one.remedy.startswith(remedy)
    assert one.what.endswith(found.reason) or remedy.startswith("Look")
    view = overview(shown, PROFILE, NOW_S)
    assert (view.state, view.remedy) == (NodeState.WEDGED, one.remedy)
    is_shown = not remedy.startswith("Look")
    assert (view.recovery, view.recovery_step) == ((found.state, found.step or None) if is_shown else (None, None))


def test_a_reboot_that_was_given_up_is_not_offered_again_and_a_step_without_a_result_is_noted() -> None:
    shown = shows("reboot-required", profile=ASCEND, recovery=NO_STEP)
    assert overview(shown, ASCEND, NOW_S).remedy.startswith("Take the node out of service")
    found = facts(health=replace(WATCHED, recovery=UNDER_WAY))
    assert headline(found).state is READY
    (one,) = attention(found, headline(found))
    assert (one.kind, one.what) == ("recovery", "reset under way: 1 of 3 healthy samples")


WORDS = st.none() | st.sampled_from([*(state.value for state in NodeState), "dancing"])
ERRORS: st.SearchStrategy[dict[ObservedPart, ManagerError]] = st.dictionaries(
    st.sampled_from(ObservedPart), st.just(ConfigError("it cannot be read", "Mount it."))
)


@given(
    word=WORDS,
    outcome=st.none() | st.sampled_from(NodeState),
    is_taken=st.booleans(),
    lives=st.none() | st.booleans(),
    is_here=st.booleans(),
    is_loaded=st.booleans(),
    marker=st.none() | st.sampled_from([upgrade_marker(), upgrade_marker(RECOVERY, "boot-0")]),
    health=st.builds(
        DeviceHealth,
        state=st.none() | st.sampled_from(HealthState),
        is_withdrawn=st.booleans(),
        recovery=st.builds(recovery, st.sampled_from(RecoveryState), step=st.sampled_from(["", "reset", "reboot"])),
    ),
    missing=ERRORS,
    profile=st.sampled_from([PROFILE, ASCEND]),
)
def test_whatever_is_seen_there_is_one_headline_and_one_list(**drawn: Any) -> None:
    keys = drawn["profile"].keys
    labels = {keys.state: drawn["word"]} if drawn["word"] else {}
    last = LastOutcome(drawn["outcome"] or READY, 5, "what", since=SINCE, ended=SINCE)
    notes = {keys.last_outcome: node_state.encode(last)} if drawn["outcome"] else {}
    there = host(modules={} if not drawn["is_loaded"] else host().modules, marker=drawn["marker"])
    obs = observation(
        node=node(labels, annotations=notes),
        host=there if drawn["is_here"] else None,
        journal=TAKEN if drawn["is_taken"] else None,
        owner_alive=drawn["lives"],
    )
    found = facts(obs, profile=drawn["profile"], health=drawn["health"], missing=drawn["missing"])
    first = headline(found)
    assert first.why
    assert all(one.kind and one.what for one in attention(found, first))
    assert not drawn["is_taken"] or first.state in (NodeState.HELD, UPGRADING)
    assert not drawn["health"].is_wedged or first.state is not READY


STUCK = {"deleting": True, "finalizers": ("vendor/hold",)}
LEAVING, LOST = {"deleting": True, "grace_period_s": 30}, {"deleting": True, "reason": "NodeLost"}
AT_WORK: dict[str, Any] = {"journal": journal(), "owner_alive": True}


@pytest.mark.parametrize(
    ("there", "run", "is_named"),
    [
        *((STUCK, {}, True), (STUCK, AT_WORK, True), (LOST, AT_WORK, True)),
        *((LEAVING, {}, True), (LEAVING, AT_WORK, False), ({}, {}, False)),
    ],
)
def test_an_operand_that_does_not_end_is_named_unless_a_run_waits_for_it(there: Any, run: Any, is_named: bool) -> None:
    found = items(observation(pods=(pod("plugin", PLUGIN, **there),), **run))
    assert [one.kind for one in found] == (["operand"] if is_named else [])
    assert all("rbln-system/plugin" in one.what and one.remedy for one in found)
    assert kinds(observation(pods=(pod("job", **there),))) == [], "a user's pod"


def test_each_missing_right_or_mount_is_named_once_and_errors_come_before_notes() -> None:
    unreadable = ConfigError("cannot read /host/proc/1/mountinfo", "Run as root with the host's /proc.")
    left = observation(host=None, node=node(labels={PLUGIN: PAUSED}))
    missing = {ObservedPart.PODS: FORBIDDEN, ObservedPart.HOST: unreadable}
    *errors, note = items(left, missing=missing, verdict=FORBIDDEN)
    named = [("access", one.what, one.remedy) for one in (FORBIDDEN, unreadable)]
    assert ([(one.kind, one.what, one.remedy) for one in errors], note.kind) == (named, "paused")


def test_a_digest_that_cannot_be_used_is_named_with_where_it_is() -> None:
    wanted = ConfigError("DRIVER_CONFIG_DIGEST in pod x is not one printable word", "Fix it in the driver DaemonSet.")
    there = host(digest_problem="/run/state does not contain exactly one digest")
    first, second = items(observation(host=there), missing={ObservedPart.DIGEST: wanted})
    assert (first.kind, second.kind, first.what) == ("digest", "digest", wanted.what)
    assert "/run/state does not contain exactly one digest" in second.what


def test_labels_and_a_cordon_without_a_journal_are_left_behind() -> None:
    assert kinds(observation(node=node({PLUGIN: PAUSED}))) == ["paused"]
    assert kinds(observation(node=node(annotations={KEYS.cordon: "true"}, unschedulable=True))) == ["cordon"]
    assert kinds(observation(node=node(unschedulable=True))) == [], "an administrator's"
    assert kinds(observation(node=node({PLUGIN: PAUSED}), **AT_WORK)) == []
    notes = {ASCEND.keys.cordon: "reboot", ASCEND.keys.reboot_in_progress: "upgrade"}
    assert "cordon" not in kinds(observation(node=node({}, annotations=notes, unschedulable=True)), profile=ASCEND)


def test_what_the_next_run_warns_of_and_what_would_refuse_it() -> None:
    assert kinds(verdict=Plan(Decision.REPLACE, "forced", warnings=("a budget allows nothing now",))) == ["warning"]
    (one,) = items(verdict=ConfigError("the wanted driver is not known", "Set DRIVER_CONFIG_DIGEST."))
    assert (one.kind, one.what) == ("refused", "a run now would end with exit 2: the wanted driver is not known")


def test_a_watch_that_takes_no_samples_and_a_probe_that_cannot_be_killed_are_named() -> None:
    for age_s, state, is_stuck, named in (
        (60.0, HealthState.HEALTHY, False, []),
        (STALE_S + 1, HealthState.HEALTHY, False, ["health-watch"]),
        (STALE_S + 1, HealthState.MUTED, False, []),
        (60.0, HealthState.SUSPECT, True, ["health-watch"]),
    ):
        health = DeviceHealth("health-watch", state, sampled_s=NOW_S - age_s, has_stuck_probe=is_stuck)
        assert kinds(health=health) == named, health


MUTE = f"the annotation {PROFILE.keys.mute_until}"
NO_TIME = "does not mute health-watch: 'soon' is not a time such as 2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2099-01-02T03:04:05Z", [(f"health-watch is muted until 2099-01-02T03:04:05Z by {MUTE}", "Remove")]),
        ("soon", [(f"{MUTE} {NO_TIME}", "Correct")]),
        ("2020-01-02T03:04:05Z", []),
    ],
)
def test_a_mute_is_shown_while_it_holds_and_one_that_is_no_time_is_named(text: str, found: list[Any]) -> None:
    shown = items(observation(node=node(annotations={KEYS.mute_until: text})))
    assert [(one.kind, one.what, one.remedy.split()[0]) for one in shown] == [("health-watch", *row) for row in found]
