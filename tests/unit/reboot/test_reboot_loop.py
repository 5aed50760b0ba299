"""The rebooter on fakes: what a node goes through from its marker to the end of its reboot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver_manager.domain.errors import Terminated
from driver_manager.domain.markers import Marker, encode
from driver_manager.domain.reboot.decision import RebootAct
from driver_manager.domain.reboot.patches import CORDON_FOR_REBOOT, REBOOT_STATE
from driver_manager.domain.reboot.state import RebootPolicy
from driver_manager.domain.reboot.windows import parse
from tests.fakes.reboot_world import APPROVE, KEYS, Fleet, Site, check_clean, check_rebooted_once

POLICY = RebootPolicy("", KEYS)


def one(**fields: object) -> Site:
    """A fleet of one node."""
    (site,) = Fleet(1, replace(POLICY, **fields)).sites  # type: ignore[arg-type]  # fields of the policy
    return site


def said(site: Site) -> str:
    """Why it waits."""
    decision = site.round()
    assert decision is not None
    assert decision.act is RebootAct.WAIT, decision
    return decision.reason


def test_an_approved_upgrade_reboots_once_and_leaves_nothing() -> None:
    site = one().request()
    assert site.round() is None
    assert site.host.is_down
    assert KEYS.approve_reboot not in site.notes
    assert site.notes[KEYS.pre_reboot_boot_id] == "node-0-boot-1"
    assert site.notes[KEYS.upgrade_state] == REBOOT_STATE
    assert site.fleet.holders == ["node-0"]
    site.fleet.settle()
    check_rebooted_once(site)
    assert site.host.marker is None


def test_without_an_approval_it_waits_and_holds_nothing() -> None:
    site = one().request(approved=False)
    assert "waits for approval" in said(site)
    assert site.notes[KEYS.reboot_required] == "true"
    assert site.fleet.holders == []
    assert site.host.remembered().reason.startswith("waits for approval")
    site.cluster.edit(annotations=APPROVE)
    site.fleet.settle()
    check_rebooted_once(site)


@pytest.mark.parametrize(
    ("auto", "reason", "reboots"),
    [
        ({"auto_upgrade": True}, "upgrade", True),
        ({"auto_upgrade": True}, "recovery", False),
        ({"auto_recover": True}, "recovery", True),
        ({"auto_recover": True}, "upgrade", False),
    ],
)
def test_each_automatic_covers_only_its_reason(auto: dict[str, bool], reason: str, reboots: bool) -> None:
    site = one(**auto).request(reason, approved=False)
    site.round()
    assert site.host.is_down is reboots


def test_an_approval_set_in_advance_is_good_for_one_reboot() -> None:
    site = one()
    site.cluster.edit(annotations=APPROVE)
    assert site.round() is not None
    assert site.notes == APPROVE
    site.request(approved=False)
    site.fleet.settle()
    check_rebooted_once(site)
    site.fleet.clock.sleep(1_000.0)
    site.request(approved=False)
    assert "waits for approval" in said(site)


def test_a_host_that_is_not_up_for_long_waits() -> None:
    site = one().request()
    site.host.booted_at = site.fleet.clock.now - 100
    assert "500 s are left" in said(site)
    site.fleet.clock.sleep(501)
    site.round()
    assert site.host.is_down


def test_outside_its_window_it_waits() -> None:
    site = one(schedule=parse("00:00-00:01")).request()
    assert "maintenance window: 00:00-00:01" in said(site)


def test_after_the_capped_attempts_it_escalates_once_and_reboots_no_more() -> None:
    site = one(auto_upgrade=True)
    for _ in range(3):
        site.request(approved=False)
        site.round()
        site.fleet.settle()
        site.fleet.clock.sleep(1_000)
    assert len(site.reboots) == 3
    site.request(approved=False)
    for _ in range(3):
        assert "3 attempt(s) to reboot within 24 h did not help" in said(site)
    assert len(site.events("RebootEscalated")) == 1
    assert len(site.reboots) == 3
    site.fleet.clock.sleep(24 * 3600)
    site.round()
    assert len(site.reboots) == 4


def test_a_chip_that_recovers_before_the_reboot_withdraws_the_request_everywhere() -> None:
    site = one().request("recovery", approved=False)
    site.round()
    site.host.marker = None
    site.fleet.settle()
    check_clean(site)
    assert site.reboots == []
    assert site.events("RebootWithdrawn") == ["no reboot is required"]


def test_an_approval_is_given_back_where_no_reboot_came_of_it() -> None:
    site = one(cordon=True).request("recovery")
    site.killer.revive()
    site.round_with(lambda killer: killer.at("evidence", lambda: setattr(site.host, "marker", None)))
    site.fleet.settle()
    assert site.reboots == []
    assert site.notes == APPROVE
    assert site.cluster.current is not None
    assert not site.cluster.current.unschedulable
    assert site.fleet.holders == []


def test_its_own_cordon_is_lifted_after_the_boot_and_an_administrators_is_not() -> None:
    site = one(cordon=True).request()
    site.round()
    assert site.notes[KEYS.cordon] == CORDON_FOR_REBOOT
    site.fleet.settle()
    check_rebooted_once(site)
    site = one(cordon=True).request()
    site.cluster.edit(cordon=True)
    site.round()
    assert KEYS.cordon not in site.notes
    site.fleet.settle()
    assert site.cluster.current is not None
    assert site.cluster.current.unschedulable


def test_a_cordon_that_an_administrator_set_again_meanwhile_stays() -> None:
    site = one(cordon=True).request()
    site.round()
    site.cluster.edit(cordon=False)
    site.cluster.edit(cordon=True)
    site.fleet.settle()
    assert site.cluster.current is not None
    assert site.cluster.current.unschedulable
    assert site.notes == {}


def test_a_node_keeps_its_slot_until_it_is_ready_and_its_driver_serves() -> None:
    site, other = (fleet := Fleet(2, POLICY)).sites
    site.request().round()
    other.request()
    assert "waits for a slot: 1 of 1 in use, by node-0" in said(other)
    site.boot()
    assert "the Node is not Ready" in said(site) or "has not told of this boot" in said(site)
    assert "waits for a slot" in said(other)
    site.tell(is_ready=True)  # what the API server still knows of the earlier boot
    assert "has not told of this boot" in said(site)
    site.tell(is_ready=True, boot_id=site.host.boot_id)
    assert "the driver is not loaded" in said(site)
    assert "waits for a slot" in said(other)
    site.host.serves = True
    site.round()
    assert fleet.holders == []
    other.round()
    assert other.host.is_down


def test_what_speaks_of_the_reboot_is_gone_before_the_slot_is() -> None:
    site = one().request()
    site.round()
    site.boot()
    said(site)
    assert KEYS.reboot_required not in site.notes
    assert KEYS.pre_reboot_boot_id not in site.notes
    assert site.host.marker is None
    assert site.fleet.holders == ["node-0"]


def test_a_deleted_node_loses_its_slot_and_one_of_the_same_name_does_not_inherit() -> None:
    site, other = (fleet := Fleet(2, POLICY)).sites
    site.request().round()
    site.cluster.replace_node({})
    other.request().round()
    assert other.host.is_down
    assert fleet.holders == ["node-1"]


def test_a_reboot_command_that_does_nothing_is_followed_by_sysrq() -> None:
    site = one().request()
    site.host.obeys = ("sysrq",)
    assert "waiting up to 300 s" in said(site)
    site.fleet.clock.sleep(299)
    said(site)
    assert site.host.commands == ["command"]
    site.fleet.clock.sleep(1)
    site.round()
    assert site.host.commands == ["command", "sysrq"]
    site.fleet.settle()
    check_rebooted_once(site)


def test_a_host_that_cannot_be_entered_keeps_its_approval_and_no_slot() -> None:
    site = one().request()
    site.host.no_way_in = "the host's namespaces cannot be entered: Invalid argument"
    assert "is blocked: the host's namespaces cannot be entered" in said(site)
    assert site.fleet.holders == []
    assert site.notes[KEYS.approve_reboot] == "true"
    assert site.host.commands == []
    site.host.no_way_in = ""
    site.fleet.settle()
    check_rebooted_once(site)


def test_a_command_that_is_refused_is_given_again_and_never_followed_by_sysrq() -> None:
    site = one(cordon=True).request()
    site.host.refusal = "blocked by an inhibitor"
    for _ in range(5):
        assert "refuses to reboot: blocked by an inhibitor" in said(site)
        assert "blocked by an inhibitor" in site.host.remembered().reason
        site.fleet.clock.sleep(30)
    assert site.host.commands == ["refused"] * 5
    assert len(site.host.evidence) == 1
    site.host.refusal = ""
    site.fleet.settle()
    check_rebooted_once(site)
    assert site.host.commands == ["refused"] * 5 + ["command"]


def test_a_host_that_refuses_for_long_is_given_up_and_gets_its_approval_back() -> None:
    site = one(cordon=True, max_attempts=1).request()
    site.host.refusal = "blocked by an inhibitor"
    for _ in range(12):
        site.round()
        site.fleet.clock.sleep(30)
    assert set(site.host.commands) == {"refused"}
    (event,) = site.events("RebootFailed")
    assert "refused to reboot for 300 s: blocked by an inhibitor" in event
    assert "did not help" in said(site)
    assert site.fleet.holders == []
    assert site.notes == {**APPROVE, KEYS.reboot_required: "true", KEYS.upgrade_state: REBOOT_STATE}


def test_a_host_without_sysrq_gives_up_at_once_and_says_why() -> None:
    site = one(max_attempts=1).request()
    site.host.obeys = ()
    site.host.no_sysrq = "cannot write /proc/sysrq-trigger: Permission denied"
    site.round()
    site.fleet.clock.sleep(300)
    site.round()
    (event,) = site.events("RebootFailed")
    assert "sysrq-trigger: Permission denied" in event
    assert site.fleet.holders == []
    assert site.host.commands == ["command"]


def test_a_host_that_nothing_reboots_gives_up_and_gives_everything_back() -> None:
    site = one(cordon=True, max_attempts=1).request()
    site.host.obeys = ()
    for _ in range(20):
        site.round()
        site.fleet.clock.sleep(30)
    assert len(site.events("RebootFailed")) == 1
    assert "did not help" in said(site)
    assert site.fleet.holders == []
    assert site.notes == {**APPROVE, KEYS.reboot_required: "true", KEYS.upgrade_state: REBOOT_STATE}
    assert site.host.commands == ["command", "sysrq"]


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "x" * 100_000,
        encode(Marker("upgrade", "node-0-boot-1", node="other")),
        encode(Marker("upgrade", "node-0-boot-1")).replace('"schema": 1', '"schema": 2'),
    ],
    ids=["garbage", "large", "foreign", "future"],
)
def test_what_is_no_marker_of_ours_reboots_nothing_and_is_left_alone(text: str) -> None:
    site = one(auto_upgrade=True)
    site.host.marker = text
    decision = site.round()
    assert decision is not None
    assert decision.act is RebootAct.NOTHING
    assert site.host.marker == text
    assert site.notes == {}


def test_a_marker_that_turns_to_garbage_gives_back_what_was_taken() -> None:
    site = one().request()
    site.round_with(lambda killer: killer.at("evidence", lambda: setattr(site.host, "marker", "garbage")))
    site.fleet.settle()
    assert site.reboots == []
    assert site.fleet.holders == []
    assert site.notes == APPROVE


def test_a_stale_marker_is_cleared_and_never_acted_on() -> None:
    site = one(auto_upgrade=True).request(boot_id="node-0-boot-0")
    site.cluster.edit({KEYS.reboot_required: "true"})
    site.fleet.settle()
    assert site.reboots == []
    assert site.host.marker is None
    assert site.notes == APPROVE


def test_a_request_written_while_a_stale_one_is_cleared_is_not_lost() -> None:
    site = one(auto_recover=True).request("recovery", boot_id="node-0-boot-0", approved=False)

    def wedged() -> None:
        site.request("recovery", approved=False)

    site.round_with(lambda killer: killer.at("remove marker", wedged))
    assert site.host.is_down
    assert site.reboots == ["node-0-boot-1"]


def test_an_older_operators_marker_is_good_for_one_reboot_though_it_names_no_boot() -> None:
    site = one(auto_recover=True)
    site.host.marker = "recovery\n"
    site.round()
    assert site.host.is_down
    site.fleet.settle()
    site.fleet.clock.sleep(1_000)
    site.fleet.settle()
    assert len(site.reboots) == 1
    check_clean(site)


def test_a_reboot_by_hand_is_cleaned_up_after_too() -> None:
    site = one().request(approved=False)
    said(site)
    site.host.marker = None  # reconcile was faster
    site.come_back()
    site.fleet.settle()
    check_clean(site)


def test_the_slot_is_given_back_though_reconcile_cleared_everything_else() -> None:
    site = one().request()
    site.round()
    site.come_back()
    site.host.marker = None
    site.cluster.edit(dict.fromkeys(site.notes, None), annotations=dict.fromkeys(site.notes, None))
    site.fleet.settle()
    assert site.fleet.holders == []
    assert site.host.remembered().is_empty


def test_a_lost_record_is_made_up_for_by_what_the_node_tells() -> None:
    site = one(cordon=True).request()
    site.round()
    site.host.text = None
    site.fleet.settle()
    check_clean(site)
    assert len(site.reboots) == 1


def test_a_record_that_came_with_another_nodes_disk_frees_no_slot_of_that_node() -> None:
    fleet = Fleet(2, POLICY)
    first, copy = fleet.sites
    first.request()
    first.round()
    assert fleet.holders == ["node-0"]
    copy.host.text = first.host.text
    copy.round()
    assert fleet.holders == ["node-0"]
    assert copy.host.remembered().is_empty
    first.come_back()
    fleet.settle()
    check_rebooted_once(first)


def test_a_node_made_anew_between_slot_and_grant_leaves_no_slot_behind() -> None:
    site = one(max_concurrent=2, auto_upgrade=True).request(approved=False)
    site.round_with(lambda killer: killer.at("lease", killer.die, after=True))
    assert site.fleet.holders == ["node-0"]
    site.tell(uid="uid-anew", labels={})
    site.round_with(lambda killer: killer.at("lease", killer.die, after=True))
    site.host.marker = None
    site.fleet.settle()
    assert site.fleet.holders == []
    check_clean(site)


def test_a_record_that_cannot_be_read_reboots_nothing_and_says_so() -> None:
    site = one(auto_upgrade=True).request()
    site.host.text = '{"schema": 9}'
    assert "record cannot be read: its schema is 9" in said(site)
    assert site.reboots == []


def test_blockers_are_looked_at_before_a_slot_is_taken() -> None:
    site = one(clear_workloads=True).request()
    site.workloads.blocking = ("pod a/b has no controller",)
    assert "pod a/b has no controller" in said(site)
    site.cluster.edit(annotations={KEYS.journal: "{}"})
    site.workloads.blocking = ()
    assert "has taken the node" in said(site)
    assert "lease" not in site.killer.effects
    site.cluster.edit(annotations={KEYS.journal: None})
    site.round()
    assert (site.host.is_down, site.workloads.cleared) == (True, 1)


def test_workloads_that_stay_give_everything_back() -> None:
    site = one(clear_workloads=True, cordon=True, max_attempts=1).request()
    site.workloads.stay = True
    assert "did not help" in said(site)
    assert site.reboots == []
    assert site.fleet.holders == []
    assert site.notes == {**APPROVE, KEYS.reboot_required: "true", KEYS.upgrade_state: REBOOT_STATE}
    assert site.events("RebootFailed") == ["pod a/b does not leave"]


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    site = one(dry_run=True).request()
    assert "dry run: would take a slot" in said(site)
    assert site.killer.effects == []


def test_a_dry_run_that_is_ended_gives_back_nothing_of_the_run_before_it() -> None:
    site = one().request()
    site.round_with(lambda killer: killer.at("evidence", killer.die))
    site.policy = replace(site.policy, dry_run=True)
    site.killer.revive()
    site.clock.ask_to_end()
    with pytest.raises(Terminated):
        site.rebooter.run()
    assert site.killer.effects == []
    assert site.fleet.holders == ["node-0"]


def test_rebooters_that_were_started_together_do_not_ask_together() -> None:
    pauses_s = []
    for number in (0.0, 0.999):
        site = one().request(approved=False)
        site.clock.drawn = number
        site.clock.after(100.0, site.clock.ask_to_end)
        with pytest.raises(Terminated):
            site.rebooter.run()
        pauses_s.append(site.clock.slept[0])
    assert pauses_s == pytest.approx([27.0, 33.0], abs=0.1)


def test_evidence_is_saved_before_the_reboot() -> None:
    site = one().request(evidence=("npu-smi said nothing",))
    site.round()
    ((name, lines),) = site.host.evidence
    assert name.endswith("-upgrade")
    assert "npu-smi said nothing" in lines
