"""The rebooter on fakes: what a node goes through from its marker to the end of its reboot."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.core.rebooter import Rebooter
from driver_manager.domain.errors import Conflict, Terminated
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.node import Node
from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT, REBOOT_STATE, RebootAct
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import RebootPolicy, SlotsSeen
from tests.support.fakes.killer import Killer
from tests.support.fakes.reboot_checks import grant_of
from tests.support.fakes.reboot_world import APPROVE, KEYS, FakeSlots, Fleet, Machine, check_clean, check_rebooted_once

POLICY = RebootPolicy("", KEYS)


def one(**fields: object) -> Machine:
    """A fleet of one node."""
    (machine,) = Fleet(1, replace(POLICY, **fields)).machines
    return machine


def said(machine: Machine) -> str:
    """Why it waits."""
    decision = machine.round()
    assert decision is not None
    assert decision.act is RebootAct.WAIT, decision
    return decision.reason


def test_the_grant_of_a_process_that_was_faster_and_is_killed_is_not_taken_back() -> None:
    machine = one().request()

    def be_overtaken() -> None:
        machine.second_process(lambda second: second.at("patch", second.die, after=True))

    def race(killer: Killer) -> None:
        killer.at("patch", lambda: None)  # the labels of the request
        killer.at("patch", be_overtaken)

    machine.round_with(race)
    assert KEYS.approve_reboot not in machine.notes
    machine.fleet.settle()
    check_rebooted_once(machine)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_grant_that_another_process_makes_during_a_look_is_kept(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = one().request()
    machine.host.obeys = ()
    read, reads = machine.cluster.node, list[int]()

    def node() -> Node:
        reads.append(1)
        if len(reads) == at:
            reads.extend([1] * at)
            machine.second_process()
        return read()

    monkeypatch.setattr(machine.cluster, "node", node)
    machine.round()
    assert KEYS.approve_reboot not in machine.notes
    assert machine.notes[KEYS.pre_reboot_boot_id] == machine.host.boot_id


def test_an_approved_upgrade_reboots_once_and_leaves_nothing() -> None:
    machine = one().request()
    assert machine.round() is None
    assert machine.host.is_down
    assert KEYS.approve_reboot not in machine.notes
    assert machine.notes[KEYS.pre_reboot_boot_id] == "node-0-boot-1"
    assert machine.notes[KEYS.upgrade_state] == REBOOT_STATE
    assert machine.fleet.holders == ["node-0"]
    machine.fleet.settle()
    check_rebooted_once(machine)
    assert machine.host.marker is None


def test_without_an_approval_it_waits_and_holds_nothing() -> None:
    machine = one().request(approved=False)
    assert "waits for approval" in said(machine)
    assert machine.notes[KEYS.reboot_required] == "true"
    assert machine.fleet.holders == []
    assert machine.host.remembered().reason.startswith("waits for approval")
    machine.cluster.edit(annotations=APPROVE)
    machine.fleet.settle()
    check_rebooted_once(machine)


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
    machine = one(**auto).request(reason, approved=False)
    machine.round()
    assert machine.host.is_down is reboots


def test_an_approval_set_in_advance_is_good_for_one_reboot() -> None:
    machine = one()
    machine.cluster.edit(annotations=APPROVE)
    assert machine.round() is not None
    assert machine.notes == APPROVE
    machine.request(approved=False)
    machine.fleet.settle()
    check_rebooted_once(machine)
    machine.fleet.clock.sleep(1_000.0)
    machine.request(approved=False)
    assert "waits for approval" in said(machine)


def test_a_host_that_is_not_up_for_long_waits() -> None:
    machine = one().request()
    machine.host.booted_at = machine.fleet.clock.now - 100
    assert "500 s are left" in said(machine)
    machine.fleet.clock.sleep(501)
    machine.round()
    assert machine.host.is_down


def test_outside_its_window_it_waits() -> None:
    machine = one(schedule=parse_windows("00:00-00:01")).request()
    assert "maintenance window: 00:00-00:01" in said(machine)


def test_after_the_capped_attempts_it_escalates_once_and_reboots_no_more() -> None:
    machine = one(auto_upgrade=True)
    for _ in range(3):
        machine.request(approved=False)
        machine.round()
        machine.fleet.settle()
        machine.fleet.clock.sleep(1_000)
    assert len(machine.reboots) == 3
    machine.request(approved=False)
    for _ in range(3):
        assert "3 attempt(s) to reboot within 24 h did not help" in said(machine)
    assert len(machine.events("RebootEscalated")) == 1
    assert len(machine.reboots) == 3
    machine.fleet.clock.sleep(24 * 3600)
    machine.round()
    assert len(machine.reboots) == 4


def test_a_chip_that_recovers_before_the_reboot_withdraws_the_request_everywhere() -> None:
    machine = one().request("recovery", approved=False)
    machine.round()
    machine.host.marker = None
    machine.fleet.settle()
    check_clean(machine)
    assert machine.reboots == []
    assert machine.events("RebootWithdrawn") == ["no reboot is required"]


def test_an_approval_is_given_back_where_no_reboot_came_of_it() -> None:
    machine = one(cordon=True).request("recovery")
    machine.killer.revive()
    machine.round_with(lambda killer: killer.at("evidence", lambda: setattr(machine.host, "marker", None)))
    machine.fleet.settle()
    assert machine.reboots == []
    assert machine.notes == APPROVE
    assert machine.cluster.current is not None
    assert not machine.cluster.current.unschedulable
    assert machine.fleet.holders == []


def test_its_own_cordon_is_lifted_after_the_boot_and_an_administrators_is_not() -> None:
    machine = one(cordon=True).request()
    machine.round()
    assert machine.notes[KEYS.cordon] == CORDON_FOR_REBOOT
    machine.fleet.settle()
    check_rebooted_once(machine)
    machine = one(cordon=True).request()
    machine.cluster.edit(cordon=True)
    machine.round()
    assert KEYS.cordon not in machine.notes
    machine.fleet.settle()
    assert machine.cluster.current is not None
    assert machine.cluster.current.unschedulable


def test_a_cordon_that_an_administrator_set_again_meanwhile_stays() -> None:
    machine = one(cordon=True).request()
    machine.round()
    machine.cluster.edit(cordon=False)
    machine.cluster.edit(cordon=True)
    machine.fleet.settle()
    assert machine.cluster.current is not None
    assert machine.cluster.current.unschedulable
    assert machine.notes == {}


def test_a_node_keeps_its_slot_until_it_is_ready_and_its_driver_serves() -> None:
    machine, other = (fleet := Fleet(2, POLICY)).machines
    machine.request().round()
    other.request()
    assert "waits for a slot: 1 of 1 in use, by node-0" in said(other)
    machine.boot()
    assert "the Node is not Ready" in said(machine) or "has not reported this boot" in said(machine)
    assert "waits for a slot" in said(other)
    machine.tell(is_ready=True)  # what the API server still knows of the earlier boot
    assert "has not reported this boot" in said(machine)
    machine.tell(is_ready=True, boot_id=machine.host.boot_id)
    assert "the driver is not loaded" in said(machine)
    assert "waits for a slot" in said(other)
    machine.host.serves = True
    machine.round()
    assert fleet.holders == []
    other.round()
    assert other.host.is_down


def test_a_rebooted_node_is_ready_once_its_driver_serves_and_not_before() -> None:
    machine = one().request()
    machine.round()
    machine.come_back()
    machine.host.serves = False
    machine.host.marker = None
    machine.round()
    assert machine.cluster.current is not None
    assert machine.cluster.current.labels[KEYS.state] == "reboot-required"
    machine.host.serves = True
    machine.round()
    assert machine.cluster.current.labels[KEYS.state] == "ready"
    check_rebooted_once(machine)


def test_a_node_that_somebody_else_rebooted_is_ready_at_once() -> None:
    machine = one().request(approved=False)
    machine.round()
    machine.boot()
    machine.tell(boot_id=machine.host.boot_id)
    machine.round()
    assert machine.cluster.current is not None
    assert machine.cluster.current.labels[KEYS.state] == "ready"


def test_what_speaks_of_the_reboot_is_gone_before_the_slot_is() -> None:
    machine = one().request()
    machine.round()
    machine.boot()
    said(machine)
    assert KEYS.reboot_required not in machine.notes
    assert KEYS.pre_reboot_boot_id not in machine.notes
    assert machine.host.marker is None
    assert machine.fleet.holders == ["node-0"]


def test_a_deleted_node_loses_its_slot_and_one_of_the_same_name_does_not_inherit() -> None:
    machine, other = (fleet := Fleet(2, POLICY)).machines
    machine.request().round()
    machine.cluster.replace_node({})
    other.request().round()
    assert other.host.is_down
    assert fleet.holders == ["node-1"]


def test_a_reboot_command_that_does_nothing_is_followed_by_sysrq() -> None:
    machine = one().request()
    machine.host.obeys = ("sysrq",)
    assert "waiting up to 300 s" in said(machine)
    machine.fleet.clock.sleep(299)
    said(machine)
    assert machine.host.commands == ["command"]
    machine.fleet.clock.sleep(1)
    machine.round()
    assert machine.host.commands == ["command", "sysrq"]
    machine.fleet.settle()
    check_rebooted_once(machine)


def test_a_host_that_cannot_be_entered_keeps_its_approval_and_no_slot() -> None:
    machine = one().request()
    machine.host.no_way_in = "the host's namespaces cannot be entered: Invalid argument"
    assert "is blocked: the host's namespaces cannot be entered" in said(machine)
    assert machine.fleet.holders == []
    assert machine.notes[KEYS.approve_reboot] == "true"
    assert machine.host.commands == []
    machine.host.no_way_in = ""
    machine.fleet.settle()
    check_rebooted_once(machine)


def test_a_command_that_is_refused_is_given_again_and_never_followed_by_sysrq() -> None:
    machine = one(cordon=True).request()
    machine.host.refusal = "blocked by an inhibitor"
    for _ in range(5):
        assert "refuses to reboot: blocked by an inhibitor" in said(machine)
        assert "blocked by an inhibitor" in machine.host.remembered().reason
        machine.fleet.clock.sleep(30)
    assert machine.host.commands == ["refused"] * 5
    assert len(machine.host.evidence) == 1
    machine.host.refusal = ""
    machine.fleet.settle()
    check_rebooted_once(machine)
    assert machine.host.commands == ["refused"] * 5 + ["command"]


def test_a_host_that_refuses_for_long_is_given_up_and_gets_its_approval_back() -> None:
    machine = one(cordon=True, max_attempts=1).request()
    machine.host.refusal = "blocked by an inhibitor"
    for _ in range(12):
        machine.round()
        machine.fleet.clock.sleep(30)
    assert set(machine.host.commands) == {"refused"}
    (event,) = machine.events("RebootFailed")
    assert "refused to reboot for 300 s: blocked by an inhibitor" in event
    assert "did not help" in said(machine)
    assert machine.fleet.holders == []
    assert machine.notes == {**APPROVE, KEYS.reboot_required: "true", KEYS.upgrade_state: REBOOT_STATE}


def test_a_host_without_sysrq_gives_up_at_once_and_says_why() -> None:
    machine = one(max_attempts=1).request()
    machine.host.obeys = ()
    machine.host.no_sysrq = "cannot write /proc/sysrq-trigger: Permission denied"
    machine.round()
    machine.fleet.clock.sleep(300)
    machine.round()
    (event,) = machine.events("RebootFailed")
    assert "sysrq-trigger: Permission denied" in event
    assert machine.fleet.holders == []
    assert machine.host.commands == ["command"]


def test_a_host_that_nothing_reboots_gives_up_and_gives_everything_back() -> None:
    machine = one(cordon=True, max_attempts=1).request()
    machine.host.obeys = ()
    for _ in range(20):
        machine.round()
        machine.fleet.clock.sleep(30)
    assert len(machine.events("RebootFailed")) == 1
    assert "did not help" in said(machine)
    assert machine.fleet.holders == []
    assert machine.notes == {**APPROVE, KEYS.reboot_required: "true", KEYS.upgrade_state: REBOOT_STATE}
    assert machine.host.commands == ["command", "sysrq"]


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "x" * 100_000,
        encode_marker(Marker("upgrade", "node-0-boot-1", node="other")),
        encode_marker(Marker("upgrade", "node-0-boot-1")).replace('"schema": 1', '"schema": 2'),
    ],
    ids=["garbage", "large", "foreign", "future"],
)
def test_what_is_no_marker_of_ours_reboots_nothing_and_is_left_alone(text: str) -> None:
    machine = one(auto_upgrade=True)
    machine.host.marker = text
    decision = machine.round()
    assert decision is not None
    assert decision.act is RebootAct.NOTHING
    assert machine.host.marker == text
    assert machine.notes == {}


def test_a_marker_that_turns_to_garbage_gives_back_what_was_taken() -> None:
    machine = one().request()
    machine.round_with(lambda killer: killer.at("evidence", lambda: setattr(machine.host, "marker", "garbage")))
    machine.fleet.settle()
    assert machine.reboots == []
    assert machine.fleet.holders == []
    assert machine.notes == APPROVE


def test_a_stale_marker_is_cleared_and_never_acted_on() -> None:
    machine = one(auto_upgrade=True).request(boot_id="node-0-boot-0")
    machine.cluster.edit({KEYS.reboot_required: "true"})
    machine.fleet.settle()
    assert machine.reboots == []
    assert machine.host.marker is None
    assert machine.notes == APPROVE


def test_a_request_written_while_a_stale_one_is_cleared_is_not_lost() -> None:
    machine = one(auto_recover=True).request("recovery", boot_id="node-0-boot-0", approved=False)

    def wedged() -> None:
        machine.request("recovery", approved=False)

    machine.round_with(lambda killer: killer.at("remove marker", wedged))
    assert machine.host.is_down
    assert machine.reboots == ["node-0-boot-1"]


def test_an_older_operators_marker_is_good_for_one_reboot_though_it_names_no_boot() -> None:
    machine = one(auto_recover=True)
    machine.host.marker = "recovery\n"
    machine.round()
    assert machine.host.is_down
    machine.fleet.settle()
    machine.fleet.clock.sleep(1_000)
    machine.fleet.settle()
    assert len(machine.reboots) == 1
    check_clean(machine)


def test_a_reboot_by_hand_is_cleaned_up_after_too() -> None:
    machine = one().request(approved=False)
    said(machine)
    machine.host.marker = None  # reconcile was faster
    machine.come_back()
    machine.fleet.settle()
    check_clean(machine)


def test_the_slot_is_given_back_though_reconcile_cleared_everything_else() -> None:
    machine = one().request()
    machine.round()
    machine.come_back()
    machine.host.marker = None
    machine.cluster.edit(dict.fromkeys(machine.notes, None), annotations=dict.fromkeys(machine.notes, None))
    machine.fleet.settle()
    assert machine.fleet.holders == []
    assert machine.host.remembered().is_empty


def test_a_lost_record_is_made_up_for_by_what_the_node_tells() -> None:
    machine = one(cordon=True).request()
    machine.round()
    machine.host.text = None
    machine.fleet.settle()
    check_clean(machine)
    assert len(machine.reboots) == 1


def test_a_record_that_is_lost_before_the_reboot_leaves_the_node_to_the_guards() -> None:
    machine = one(cordon=True).request()
    machine.round_with(lambda killer: killer.at("evidence", killer.die))
    assert machine.fleet.holders == ["node-0"]
    machine.host.text = None
    assert "waits for approval" in said(machine)
    assert machine.fleet.holders == []
    assert machine.cluster.current is not None
    assert not machine.cluster.current.unschedulable
    assert KEYS.pre_reboot_boot_id not in machine.notes
    machine.cluster.edit(annotations=APPROVE)
    machine.fleet.settle()
    check_rebooted_once(machine)


@pytest.mark.parametrize("policy", [{}, {"auto_upgrade": True, "min_uptime_s": 20_000.0}, {"auto_recover": True}])
def test_a_grant_that_is_written_again_and_again_reboots_nothing(policy: dict[str, object]) -> None:
    machine = one(cordon=True, **policy).request(approved=False)
    for number in range(30):
        reason = "upgrade" if number % 2 else "recovery"
        machine.round_with(
            lambda killer, at=number, why=reason: killer.at_call(  # type: ignore[misc]  # bound now
                at, lambda: machine.cluster.edit(annotations={**grant_of(machine), KEYS.reboot_in_progress: why})
            )
        )
        assert "lease" not in machine.killer.effects
        assert machine.host.remembered().attempts == ()
    assert machine.host.commands == []


def test_a_grant_forged_before_the_driver_is_back_goes_and_the_slot_stays() -> None:
    machine = one().request()
    machine.round()
    machine.boot()
    machine.tell(is_ready=True, boot_id=machine.host.boot_id)
    machine.cluster.edit(annotations=grant_of(machine))
    assert "the driver is not loaded" in said(machine)
    assert KEYS.pre_reboot_boot_id not in machine.notes
    assert machine.notes[KEYS.reboot_in_progress] == "upgrade"
    assert machine.fleet.holders == ["node-0"]
    machine.host.serves = True
    machine.fleet.settle()
    check_rebooted_once(machine)


def test_a_grant_whose_answer_was_lost_is_not_taken_back() -> None:
    def conflict() -> None:
        raise Conflict("the patch was sent again and met its own change", "")

    def lose_the_answer(killer: Killer) -> None:
        killer.at("patch", lambda: None, after=True)  # the request is announced
        killer.at("patch", conflict, after=True)

    machine = one().request()
    machine.round_with(lose_the_answer)
    assert sum(KEYS.pre_reboot_boot_id in patch.annotations for patch in machine.cluster.patches) == 1
    machine.fleet.settle()
    check_rebooted_once(machine)


@pytest.mark.parametrize("times", [1, 7])
def test_a_lease_that_is_answered_as_absent_keeps_no_slot(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    absent, leave_slot, read = list[SlotsSeen](), Rebooter._leave_slot, FakeSlots.read
    lies = [SlotsSeen()] * times

    def leave(self: Rebooter, uids: set[str], **how: bool) -> None:
        absent.extend([lies.pop()] if lies else [])
        leave_slot(self, uids, **how)

    monkeypatch.setattr(Rebooter, "_leave_slot", leave)
    monkeypatch.setattr(FakeSlots, "read", lambda self, limit: absent.pop() if absent else read(self, limit))
    machine = one().request()
    machine.round()
    assert machine.fleet.holders == ["node-0"]
    machine.fleet.settle()
    check_rebooted_once(machine)


def test_a_record_that_came_with_another_nodes_disk_frees_no_slot_of_that_node() -> None:
    fleet = Fleet(2, POLICY)
    first, copy = fleet.machines
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
    machine = one(max_concurrent=2, auto_upgrade=True).request(approved=False)
    machine.round_with(lambda killer: killer.at("lease", killer.die, after=True))
    assert machine.fleet.holders == ["node-0"]
    machine.tell(uid="uid-anew", labels={})
    machine.round_with(lambda killer: killer.at("lease", killer.die, after=True))
    machine.host.marker = None
    machine.fleet.settle()
    assert machine.fleet.holders == []
    check_clean(machine)


def test_a_record_that_cannot_be_read_reboots_nothing_and_says_so() -> None:
    machine = one(auto_upgrade=True).request()
    machine.host.text = '{"schema": 9}'
    assert "record cannot be read: version 9 is newer" in said(machine)
    assert machine.reboots == []


def test_blockers_are_looked_at_before_a_slot_is_taken() -> None:
    machine = one(clear_workloads=True).request()
    machine.workloads.blocking = ("pod a/b has no controller",)
    assert "pod a/b has no controller" in said(machine)
    machine.cluster.edit(annotations={KEYS.journal: "{}"})
    machine.workloads.blocking = ()
    assert "has taken the node" in said(machine)
    assert "lease" not in machine.killer.effects
    machine.cluster.edit(annotations={KEYS.journal: None})
    machine.round()
    assert (machine.host.is_down, machine.workloads.cleared) == (True, 1)


def test_workloads_that_stay_give_everything_back() -> None:
    machine = one(clear_workloads=True, cordon=True, max_attempts=1).request()
    machine.workloads.stay = True
    assert "did not help" in said(machine)
    assert machine.reboots == []
    assert machine.fleet.holders == []
    assert machine.notes == {**APPROVE, KEYS.reboot_required: "true", KEYS.upgrade_state: REBOOT_STATE}
    assert machine.events("RebootFailed") == ["pod a/b does not leave"]


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    machine = one(dry_run=True).request()
    assert "dry run: would take a slot" in said(machine)
    assert machine.killer.effects == []


def test_a_dry_run_that_is_ended_gives_back_nothing_of_the_run_before_it() -> None:
    machine = one().request()
    machine.round_with(lambda killer: killer.at("evidence", killer.die))
    machine.policy = replace(machine.policy, dry_run=True)
    machine.killer.revive()
    machine.clock.ask_to_end()
    with pytest.raises(Terminated):
        machine.rebooter.run()
    assert machine.killer.effects == []
    assert machine.fleet.holders == ["node-0"]


def test_rebooters_that_were_started_together_do_not_ask_together() -> None:
    pauses_s = []
    for number in (0.0, 0.999):
        machine = one().request(approved=False)
        machine.clock.drawn = number
        machine.clock.after(100.0, machine.clock.ask_to_end)
        with pytest.raises(Terminated):
            machine.rebooter.run()
        pauses_s.append(machine.clock.slept[0])
    assert pauses_s == pytest.approx([27.0, 33.0], abs=0.1)


def test_evidence_is_saved_before_the_reboot() -> None:
    machine = one().request(evidence=("npu-smi said nothing",))
    machine.round()
    ((name, lines),) = machine.host.evidence
    assert name.endswith("-upgrade")
    assert "npu-smi said nothing" in lines
