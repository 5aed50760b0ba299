"""What `status` says needs a hand: the most serious first, each with what to do, and nothing that goes by itself."""

from __future__ import annotations

from typing import Any

import pytest

from driver_manager.domain.errors import ApiRefused, ConfigError
from driver_manager.domain.health.watch import HealthState
from driver_manager.domain.observation import ObservedPart
from driver_manager.domain.status import STALE_S, Attention, DeviceHealth, StatusFacts, attention, headline
from driver_manager.domain.swap.steps import Decision, Plan
from tests.support.fakes.builders import ASCEND, PAUSED, PLUGIN, PROFILE, host, journal, node, observation, pod

NOW_S = 1_767_322_800.0
CURRENT = Plan(Decision.CURRENT, "driver is current")


def items(obs: Any = None, **more: Any) -> tuple[Attention, ...]:
    known = {"obs": obs or observation(), "profile": PROFILE, "verdict": CURRENT, "now_s": NOW_S}
    found = StatusFacts(**{**known, **more})
    return attention(found, headline(found))


def kinds(obs: Any = None, **more: Any) -> list[str]:
    return [one.kind for one in items(obs, **more)]


STUCK = pod("plugin", PLUGIN, deleting=True, finalizers=("vendor/hold",))
LEAVING = pod("plugin", PLUGIN, deleting=True, grace_period_s=30)
LOST = pod("plugin", PLUGIN, deleting=True, reason="NodeLost")


@pytest.mark.parametrize(
    ("there", "is_at_work", "is_named"),
    [
        (STUCK, False, True),
        (STUCK, True, True),
        (LOST, True, True),
        (LEAVING, False, True),
        (LEAVING, True, False),
        (pod("plugin", PLUGIN), False, False),
    ],
)
def test_an_operand_that_does_not_end_is_named_unless_a_run_waits_for_its_grace(
    there: Any, is_at_work: bool, is_named: bool
) -> None:
    taken = {"journal": journal(), "owner_alive": True} if is_at_work else {}
    found = items(observation(pods=(there,), **taken))
    assert [one.kind for one in found] == (["operand"] if is_named else [])
    assert all("rbln-system/plugin" in one.what and one.remedy for one in found)


def test_a_users_pod_that_ends_is_nobodys_business() -> None:
    assert kinds(observation(pods=(pod("job", deleting=True, finalizers=("x/y",)),))) == []


def test_each_right_or_mount_that_is_missing_is_named_once() -> None:
    refused = ApiRefused("the API server refused to list pods (403)", "Give this account the verb.")
    unreadable = ConfigError("cannot read /host/proc/1/mountinfo", "Run as root with the host's /proc.")
    found = items(
        observation(host=None), missing={ObservedPart.PODS: refused, ObservedPart.HOST: unreadable}, verdict=refused
    )
    assert [(one.kind, one.what, one.remedy) for one in found] == [
        ("access", refused.what, refused.remedy),
        ("access", unreadable.what, unreadable.remedy),
    ]


def test_errors_come_before_notes() -> None:
    refused = ApiRefused("the API server refused to list pods (403)", "Give this account the verb.")
    left = observation(node=node(labels={PLUGIN: PAUSED}))
    assert kinds(left, missing={ObservedPart.PODS: refused}, verdict=refused) == ["access", "paused"]


def test_a_digest_that_cannot_be_used_is_named_with_where_it_is() -> None:
    wanted = ConfigError("DRIVER_CONFIG_DIGEST in pod x is not one printable word", "Fix it in the driver DaemonSet.")
    found = items(
        observation(host=host(digest_problem="/run/state does not contain exactly one digest")),
        missing={ObservedPart.DIGEST: wanted},
    )
    assert [one.kind for one in found] == ["digest", "digest"]
    assert found[0].what == wanted.what
    assert "/run/state does not contain exactly one digest" in found[1].what


def test_labels_and_a_cordon_without_a_journal_are_left_behind() -> None:
    assert kinds(observation(node=node({PLUGIN: PAUSED}))) == ["paused"]
    marked = {PROFILE.keys.cordon: "true"}
    assert kinds(observation(node=node(annotations=marked, unschedulable=True))) == ["cordon"]
    assert kinds(observation(node=node(unschedulable=True))) == [], "an administrator's"
    own = {"journal": journal(), "owner_alive": True}
    assert kinds(observation(node=node({PLUGIN: PAUSED}), **own)) == []


def test_a_rebooters_cordon_is_the_rebooters() -> None:
    keys = ASCEND.keys
    notes = {keys.cordon: "reboot", keys.reboot_in_progress: "upgrade"}
    assert "cordon" not in kinds(observation(node=node({}, annotations=notes, unschedulable=True)), profile=ASCEND)


def test_what_the_next_run_warns_of_and_what_would_refuse_it() -> None:
    assert kinds(verdict=Plan(Decision.REPLACE, "forced", warnings=("a budget allows nothing now",))) == ["warning"]
    (one,) = items(verdict=ConfigError("the wanted driver is not known", "Set DRIVER_CONFIG_DIGEST."))
    assert (one.kind, one.what) == ("refused", "a run now would end with exit 2: the wanted driver is not known")


@pytest.mark.parametrize(
    ("age_s", "state", "is_named"),
    [
        (60.0, HealthState.HEALTHY, False),
        (STALE_S + 1, HealthState.HEALTHY, True),
        (STALE_S + 1, HealthState.MUTED, False),
    ],
)
def test_a_watch_that_takes_no_samples_any_more_is_named(age_s: float, state: HealthState, is_named: bool) -> None:
    health = DeviceHealth("health-watch", state, sampled_s=NOW_S - age_s)
    assert ("health-watch" in kinds(health=health)) is is_named


def test_a_probe_that_cannot_be_killed_is_named() -> None:
    health = DeviceHealth("health-watch", HealthState.SUSPECT, has_stuck_probe=True)
    assert kinds(health=health) == ["health-watch"]


MUTE = PROFILE.keys.mute_until


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        (
            "2099-01-02T03:04:05Z",
            f"health-watch is muted until 2099-01-02T03:04:05Z by the annotation {MUTE}",
            "Remove",
        ),
        (
            "soon",
            f"the annotation {MUTE} does not mute health-watch: 'soon' is not a time such as 2026-01-02T03:04:05Z",
            "Correct the time",
        ),
        ("2020-01-02T03:04:05Z", "", ""),
    ],
)
def test_a_mute_is_shown_while_it_holds_and_one_that_is_no_time_is_named(text: str, what: str, remedy: str) -> None:
    found = items(observation(node=node(annotations={MUTE: text})))
    assert [one.what for one in found] == ([what] if what else [])
    for one in found:
        assert one.kind == "health-watch"
        assert one.remedy.startswith(remedy)
