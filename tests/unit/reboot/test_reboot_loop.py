"""The rebooter on fakes: what a node goes through from its marker to the end of its reboot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.rebooter import NodeDrain, Rebooter
from driver_manager.domain import selectors
from driver_manager.domain.errors import ApiUnavailable, Conflict, PodsRemain, Terminated
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.node import Node, Pod
from driver_manager.domain.node_state import NO_RECOVERY, Recovery, RecoveryState, encode_note, recovery_on
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT, REBOOT_STATE, RebootAct
from driver_manager.domain.reboot.state import RebootPolicy, SlotsSeen
from tests.support.fakes import reboot_world
from tests.support.fakes.builders import ASCEND
from tests.support.fakes.builders import node as some_node
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.killer import Killer
from tests.support.fakes.reboot_world import APPROVE, KEYS, Fleet, Machine, check_clean, check_rebooted_once, grant_of

POLICY = RebootPolicy("", KEYS)
ASKED_FOR = {**APPROVE, KEYS.reboot_required: "true", KEYS.upgrade_state: REBOOT_STATE}
"""What is on a Node whose approved upgrade waits, and nothing else."""


def one(**rules: object) -> Machine:
    """A fleet of one node."""
    return Fleet(1, replace(POLICY, **rules)).machines[0]


@pytest.fixture
def machine() -> Machine:
    """A node with an approved upgrade."""
    return one().request()


def reason_to_wait(machine: Machine) -> str:
    """Why it waits."""
    decision = machine.round()
    assert decision is not None
    assert decision.act is RebootAct.WAIT, decision
    return decision.reason


def settled(machine: Machine) -> None:
    """In the end the request was done once, and nothing is left of it."""
    machine.fleet.settle()
    check_rebooted_once(machine)


def at(machine: Machine, call: str, action: Callable[[], object], *, after: bool = False) -> None:
    """One round in which this happens at the next call of that name."""
    machine.round_with(lambda killer: killer.at(call, action, after=after))


def approvals(machine: Machine) -> dict[str, str]:
    return {key: value for key, value in machine.notes.items() if "approve" in key}


def rounds(machine: Machine, number: int) -> str:
    """Why it waits after so many rounds, one each half a minute."""
    decision = None
    for _ in range(number):
        decision = machine.round()
        machine.fleet.clock.sleep(30)
    return decision.reason if decision is not None else ""


def test_an_approved_upgrade_reboots_once_and_leaves_nothing() -> None:
    machine = one().request(evidence=("npu-smi said nothing",))
    assert machine.round() is None
    assert machine.host.is_down
    grant = {KEYS.pre_reboot_boot_id: "node-0-boot-1", KEYS.upgrade_state: REBOOT_STATE, KEYS.approve_reboot: None}
    assert {key: machine.notes.get(key) for key in grant} == grant
    assert machine.fleet.holders == ["node-0"]
    ((name, lines),) = machine.host.evidence
    assert (name.endswith("-upgrade"), "npu-smi said nothing" in lines) == (True, True)
    settled(machine)
    assert machine.host.marker is None


def test_without_an_approval_it_waits_and_holds_nothing() -> None:
    machine = one().request(approved=False)
    assert "waits for approval" in reason_to_wait(machine)
    assert machine.notes[KEYS.reboot_required] == "true"
    assert machine.fleet.holders == []
    assert machine.host.remembered().reason.startswith("waits for approval")
    machine.cluster.edit(annotations=APPROVE)
    settled(machine)


def test_an_approval_set_in_advance_is_good_for_one_reboot() -> None:
    machine = one()
    machine.cluster.edit(annotations=APPROVE)
    assert machine.round() is not None
    assert machine.notes == APPROVE
    machine.request(approved=False)
    settled(machine)
    machine.fleet.clock.sleep(1_000.0)
    machine.request(approved=False)
    assert "waits for approval" in reason_to_wait(machine)


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
        assert "3 attempt(s) to reboot within 24 h did not help" in reason_to_wait(machine)
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
    for marker in (None, "garbage"):
        machine = one(cordon=True).request("recovery")
        at(machine, "evidence", partial(setattr, machine.host, "marker", marker))
        machine.fleet.settle()
        assert (machine.reboots, machine.fleet.holders, machine.notes) == ([], [], APPROVE)
        assert not machine.node.unschedulable


STEP, RELOAD = ({KEYS.approve_recovery: step} for step in ("reboot", "reload"))


def test_the_approval_of_the_step_reboot_approves_a_recovery_once() -> None:
    for reason, notes, reboots, left in (
        *(("recovery", STEP, 1, {}), ("recovery", {**STEP, **APPROVE}, 1, {}), ("recovery", RELOAD, 0, RELOAD)),
        *(("recovery", {**APPROVE, **RELOAD}, 1, RELOAD), ("upgrade", STEP, 0, STEP)),
        ("upgrade", {**APPROVE, **STEP}, 1, STEP),
    ):
        machine = one().request(reason, approved=False)
        machine.cluster.edit(annotations=notes)
        machine.fleet.settle()
        assert (len(machine.reboots), approvals(machine)) == (reboots, left), (reason, notes)


def test_a_release_gives_back_each_approval_and_a_recovered_chip_needs_none_of_a_step() -> None:
    both = {**STEP, **APPROVE}
    for notes, recovers, left in ((STEP, False, STEP), (both, False, both), (both, True, APPROVE)):
        machine = one(max_attempts=1).request("recovery", approved=False)
        machine.cluster.edit(annotations=notes)
        machine.host.refusal = "by an inhibitor"
        reason_to_wait(machine)
        assert approvals(machine) == {}
        if recovers:
            machine.host.marker = None
        else:
            machine.fleet.clock.sleep(machine.policy.grace_s)
        machine.round()
        assert approvals(machine) == left


# jobs, and pods that block


def job(name: str, **fields: Any) -> Pod:
    return Pod("tenant", name, f"uid-{name}", labels={"job": "yes"}, **fields)


def waits_for_jobs(**rules: Any) -> Machine:
    machine = one(completion=selectors.parse("job=yes"), completion_timeout_s=3600.0, **rules).request()
    machine.cluster.listed = {pod.name: pod for pod in (job("train"), job("done", phase="Succeeded"), *STAY.values())}
    return machine


def test_a_job_gets_its_time_once_for_each_request_also_from_a_rebooter_that_was_restarted() -> None:
    machine = waits_for_jobs()
    began_s = machine.fleet.clock.now
    assert reason_to_wait(machine).endswith("at most for pods to complete: tenant/train")
    assert machine.host.remembered().reason == reason_to_wait(machine)
    while machine.round() is not None:
        assert (machine.fleet.holders, machine.host.commands) == ([], [])
        machine.fleet.clock.sleep(300.0)
    assert machine.fleet.clock.now - began_s == 3600.0
    assert any("not completed in time: tenant/train" in text for text in machine.reporter.infos)
    settled(machine)
    machine.fleet.clock.sleep(1_000.0)
    machine.request()
    assert "for pods to complete" in reason_to_wait(machine), "another request begins again"


def test_a_job_that_completes_ends_the_wait_and_a_job_is_read_only_where_all_else_is_met() -> None:
    machine = waits_for_jobs()
    machine.cluster.edit(annotations={KEYS.approve_reboot: None})
    assert "waits for approval" in reason_to_wait(machine)
    assert "pods" not in machine.killer.calls
    machine.cluster.edit(annotations=APPROVE)
    reason_to_wait(machine)
    reason_to_wait(machine)
    assert machine.killer.calls.count("pods") == 1
    machine.cluster.listed["train"] = job("train", phase="Succeeded")
    settled(machine)


def test_a_pod_that_blocks_a_reboot_does_so_as_long_as_it_runs() -> None:
    machine = one(blocking=selectors.parse("job in (yes, maybe)")).request()
    machine.cluster.listed = {"train": job("train")}
    for _ in range(3):
        wanted = "is blocked: pods that match job in (yes, maybe) are on the node: tenant/train"
        assert (reason_to_wait(machine), machine.fleet.holders) == (wanted, [])
        assert machine.host.remembered().reason == wanted
        machine.fleet.clock.sleep(24 * 3600)
    machine.cluster.listed["train"] = job("train", phase="Failed", have_ended=True)
    settled(machine)


# the last step of a recovery


def without_reboots() -> Machine:
    """A wedged chip for which no reboot is left."""
    return one(max_attempts=0).request("recovery")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(9))
def test_a_recovery_for_which_no_reboot_is_left_needs_service_until_the_chip_recovers(effect: int, after: bool) -> None:
    machine = without_reboots()
    machine.round_with(lambda killer: killer.kill_at(effect, after=after))
    for _ in range(2):
        why = reason_to_wait(machine)
        assert recovery_on(machine.node, KEYS) == Recovery("reboot", RecoveryState.NEEDS_SERVICE, why)
    assert machine.events("NeedsService") == machine.events("RebootEscalated") == [why]
    machine.host.marker = None
    machine.round_with(lambda killer: killer.kill_at(effect, after=after))
    machine.round()
    machine.cluster.edit(annotations={KEYS.approve_reboot: None})
    check_clean(machine)


def test_a_boot_or_one_more_reboot_ends_the_need_for_service_and_another_writers_note_stays() -> None:
    machine = without_reboots()
    reason_to_wait(machine)
    machine.boot()
    machine.round()
    assert recovery_on(machine.node, KEYS) == NO_RECOVERY
    machine = without_reboots()
    reason_to_wait(machine)
    machine.policy = replace(machine.policy, max_attempts=1)
    machine.round()
    assert (machine.host.is_down, recovery_on(machine.node, KEYS)) == (True, NO_RECOVERY)
    machine = one().request("recovery", approved=False)
    theirs = encode_note(Recovery("reset", RecoveryState.NEEDS_SERVICE, "x"))
    machine.cluster.edit(annotations={KEYS.recovery: theirs})
    reason_to_wait(machine)
    machine.host.marker = None
    machine.round()
    assert machine.notes == {KEYS.recovery: theirs}
    upgrade = one(max_attempts=0).request()
    reason_to_wait(upgrade)
    assert (upgrade.events("NeedsService"), recovery_on(upgrade.node, KEYS)) == ([], NO_RECOVERY)


# cordons and what the Node shows


@pytest.mark.parametrize("when", ["never", "before", "meanwhile"])
def test_its_own_cordon_is_lifted_after_the_boot_and_an_administrators_is_not(when: str) -> None:
    machine = one(cordon=True).request()
    if when == "before":
        machine.cluster.edit(cordon=True)
    machine.round()
    assert machine.notes.get(KEYS.cordon) == (None if when == "before" else CORDON_FOR_REBOOT)
    if when == "meanwhile":
        machine.cluster.edit(cordon=False)
        machine.cluster.edit(cordon=True)
    machine.fleet.settle()
    assert machine.node.unschedulable is (when != "never")
    assert machine.notes == {}


def test_a_rebooted_node_is_ready_once_its_driver_serves_and_one_rebooted_by_hand_at_once(machine: Machine) -> None:
    machine.round()
    machine.come_back()
    machine.host.serves = False
    machine.host.marker = None
    machine.round()
    assert machine.node.labels[KEYS.state] == "reboot-required"
    machine.host.serves = True
    machine.round()
    assert machine.node.labels[KEYS.state] == "ready"
    check_rebooted_once(machine)
    by_hand = one().request(approved=False)
    by_hand.round()
    by_hand.boot()
    by_hand.tell(boot_id=by_hand.host.boot_id)
    by_hand.round()
    assert by_hand.node.labels[KEYS.state] == "ready"


def test_what_speaks_of_the_reboot_is_gone_before_the_slot_is(machine: Machine) -> None:
    machine.round()
    machine.boot()
    reason_to_wait(machine)
    assert not {KEYS.reboot_required, KEYS.pre_reboot_boot_id} & machine.notes.keys()
    assert (machine.host.marker, machine.fleet.holders) == (None, ["node-0"])


# hosts that do not reboot


def test_a_host_that_cannot_be_entered_keeps_its_approval_and_no_slot(machine: Machine) -> None:
    machine.host.no_way_in = "the host's namespaces cannot be entered: Invalid argument"
    assert "is blocked: the host's namespaces cannot be entered" in reason_to_wait(machine)
    assert (machine.fleet.holders, machine.host.commands) == ([], [])
    assert machine.notes[KEYS.approve_reboot] == "true"
    machine.host.no_way_in = ""
    settled(machine)


def test_a_command_that_is_refused_is_given_again_and_never_followed_by_sysrq() -> None:
    machine = one(cordon=True).request()
    machine.host.refusal = "blocked by an inhibitor"
    for _ in range(5):
        assert "refuses to reboot: blocked by an inhibitor" in reason_to_wait(machine)
        assert "blocked by an inhibitor" in machine.host.remembered().reason
        machine.fleet.clock.sleep(30)
    assert machine.host.commands == ["refused"] * 5
    assert len(machine.host.evidence) == 1
    machine.host.refusal = ""
    settled(machine)
    assert machine.host.commands == ["refused"] * 5 + ["command"]


@pytest.mark.parametrize(
    ("host", "stays", "commands", "event"),
    [
        ({"refusal": "by an inhibitor"}, False, ["refused"] * 10, "refused to reboot for 300 s: by an inhibitor"),
        ({"obeys": (), "no_sysrq": "no sysrq: denied"}, False, ["command"], "no sysrq: denied"),
        *(({"obeys": ()}, False, ["command", "sysrq"], "neither"), ({}, True, [], "pod a/b does not leave")),
    ],
    ids=["refuses", "without-sysrq", "obeys-nothing", "workloads-stay"],
)
def test_a_host_that_does_not_reboot_is_given_up_and_gets_everything_back(
    host: dict[str, Any], stays: bool, commands: list[str], event: str
) -> None:
    machine = one(cordon=True, max_attempts=1, clear_workloads=stays).request()
    machine.workloads.stay = stays
    for name, value in host.items():
        setattr(machine.host, name, value)
    rounds(machine, 20)
    (text,) = machine.events("RebootFailed")
    assert event in text
    assert "did not help" in reason_to_wait(machine)
    assert (machine.host.commands, machine.reboots, machine.fleet.holders) == (commands, [], [])
    assert machine.notes == ASKED_FOR


def test_what_is_no_marker_of_ours_reboots_nothing_and_is_left_alone() -> None:
    foreign = encode_marker(Marker("upgrade", "node-0-boot-1", node="other"))
    future = encode_marker(Marker("upgrade", "node-0-boot-1")).replace('"schema": 1', '"schema": 2')
    for text in ("garbage", "x" * 100_000, foreign, future):
        machine = one(auto_upgrade=True)
        machine.host.marker = text
        decision = machine.round()
        assert decision is not None
        assert decision.act is RebootAct.NOTHING
        assert (machine.host.marker, machine.notes) == (text, {})


def test_a_stale_marker_is_cleared_and_never_acted_on_and_a_request_written_meanwhile_is_not_lost() -> None:
    machine = one(auto_upgrade=True).request(boot_id="node-0-boot-0")
    machine.cluster.edit({KEYS.reboot_required: "true"})
    machine.fleet.settle()
    assert (machine.reboots, machine.host.marker, machine.notes) == ([], None, APPROVE)
    machine = one(auto_recover=True).request("recovery", boot_id="node-0-boot-0", approved=False)
    at(machine, "remove marker", lambda: machine.request("recovery", approved=False))
    assert (machine.host.is_down, machine.reboots) == (True, ["node-0-boot-1"])


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


def test_the_grant_of_a_process_that_was_faster_and_is_killed_is_not_taken_back(machine: Machine) -> None:

    def be_overtaken() -> None:
        machine.second_process(lambda second: second.at("patch", second.die, after=True))

    def race(killer: Killer) -> None:
        killer.at("patch", lambda: None)  # the labels of the request
        killer.at("patch", be_overtaken)

    machine.round_with(race)
    assert KEYS.approve_reboot not in machine.notes
    settled(machine)


@pytest.mark.parametrize("look", range(1, 6))
def test_a_grant_that_another_process_makes_during_a_look_is_kept(
    machine: Machine, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.host.obeys = ()
    read, reads = machine.cluster.node, list[int]()

    def node() -> Node:
        reads.append(1)
        if len(reads) == look:
            reads.extend([1] * look)
            machine.second_process()
        return read()

    monkeypatch.setattr(machine.cluster, "node", node)
    machine.round()
    assert KEYS.approve_reboot not in machine.notes
    assert machine.notes[KEYS.pre_reboot_boot_id] == machine.host.boot_id


@pytest.mark.parametrize("rules", [{}, {"auto_upgrade": True, "min_uptime_s": 20_000.0}, {"auto_recover": True}])
def test_a_grant_that_is_written_again_and_again_reboots_nothing(rules: dict[str, object]) -> None:
    machine = one(cordon=True, **rules).request(approved=False)
    for number in range(30):
        grant = {**grant_of(machine), KEYS.reboot_in_progress: "upgrade" if number % 2 else "recovery"}
        machine.round_with(
            lambda killer, call=number, notes=grant: killer.at_call(  # type: ignore[misc]  # bound now
                call, lambda: machine.cluster.edit(annotations=notes)
            )
        )
        assert "lease" not in machine.killer.effects
        assert machine.host.remembered().attempts == ()
    assert machine.host.commands == []


def test_a_grant_forged_before_the_driver_is_back_goes_and_the_slot_stays(machine: Machine) -> None:
    machine.round()
    machine.boot()
    machine.tell(is_ready=True, boot_id=machine.host.boot_id)
    machine.cluster.edit(annotations=grant_of(machine))
    assert "the driver is not loaded" in reason_to_wait(machine)
    assert KEYS.pre_reboot_boot_id not in machine.notes
    assert machine.notes[KEYS.reboot_in_progress] == "upgrade"
    assert machine.fleet.holders == ["node-0"]
    machine.host.serves = True
    settled(machine)


def test_a_grant_whose_answer_was_lost_is_not_taken_back() -> None:
    def lose_the_answer(killer: Killer) -> None:
        killer.at("patch", lambda: None, after=True)  # the request is announced
        killer.at("patch", Conflict("the patch was sent again and met its own change", ""), after=True)

    machine = one().request()
    machine.round_with(lose_the_answer)
    assert sum(KEYS.pre_reboot_boot_id in patch.annotations for patch in machine.cluster.patches) == 1
    settled(machine)


# slots and records


def test_a_deleted_node_loses_its_slot_and_one_of_the_same_name_does_not_inherit() -> None:
    machine, other = (fleet := Fleet(2, POLICY)).machines
    machine.request().round()
    machine.cluster.replace_node({})
    other.request().round()
    assert other.host.is_down
    assert fleet.holders == ["node-1"]


@pytest.mark.parametrize("times", [1, 7])
def test_a_lease_that_is_answered_as_absent_keeps_no_slot(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    absent, leave_slot, read = list[SlotsSeen](), Rebooter._leave_slot, reboot_world.FakeSlots.read
    lies = [SlotsSeen()] * times

    def leave(self: Rebooter, uids: set[str], **how: bool) -> None:
        absent.extend([lies.pop()] if lies else [])
        leave_slot(self, uids, **how)

    monkeypatch.setattr(Rebooter, "_leave_slot", leave)
    monkeypatch.setattr(
        reboot_world.FakeSlots, "read", lambda self, limit: absent.pop() if absent else read(self, limit)
    )
    machine = one().request()
    machine.round()
    assert machine.fleet.holders == ["node-0"]
    settled(machine)


def test_a_record_that_came_with_another_nodes_disk_frees_no_slot_of_that_node() -> None:
    first, copy = (fleet := Fleet(2, POLICY)).machines
    first.request().round()
    copy.host.text = first.host.text
    copy.round()
    assert fleet.holders == ["node-0"]
    assert copy.host.remembered().is_empty
    first.come_back()
    settled(first)


def test_a_node_that_was_created_again_between_slot_and_grant_leaves_no_slot_behind() -> None:
    machine = one(max_concurrent=2, auto_upgrade=True).request(approved=False)
    at(machine, "lease", machine.killer.die, after=True)
    assert machine.fleet.holders == ["node-0"]
    machine.tell(uid="uid-anew", labels={})
    at(machine, "lease", machine.killer.die, after=True)
    machine.host.marker = None
    machine.fleet.settle()
    assert machine.fleet.holders == []
    check_clean(machine)


def test_the_slot_is_given_back_though_reconcile_cleared_everything_else(machine: Machine) -> None:
    machine.round()
    machine.come_back()
    machine.host.marker = None
    machine.cluster.edit(dict.fromkeys(machine.notes, None), annotations=dict.fromkeys(machine.notes, None))
    machine.fleet.settle()
    assert (machine.fleet.holders, machine.host.remembered().is_empty) == ([], True)


def test_a_lost_record_is_made_up_for_by_what_the_node_tells() -> None:
    machine = one(cordon=True).request()
    machine.round()
    machine.host.text = None
    machine.fleet.settle()
    check_clean(machine)
    assert len(machine.reboots) == 1


def test_a_record_that_cannot_be_read_reboots_nothing_and_says_so() -> None:
    machine = one(auto_upgrade=True).request()
    machine.host.text = '{"schema": 9}'
    assert "record cannot be read: version 9 is newer" in reason_to_wait(machine)
    assert machine.reboots == []


def test_a_dry_run_says_what_it_would_do_and_does_nothing_nor_gives_back_what_a_run_before_it_took() -> None:
    machine = one(dry_run=True).request()
    assert "dry run: would take a slot" in reason_to_wait(machine)
    assert machine.killer.effects == []
    machine = one().request()
    at(machine, "evidence", machine.killer.die)
    machine.policy = replace(machine.policy, dry_run=True)
    machine.killer.revive()
    machine.clock.ask_to_end()
    with pytest.raises(Terminated):
        machine.rebooter.run()
    assert (machine.killer.effects, machine.fleet.holders) == ([], ["node-0"])


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


def test_blockers_are_looked_at_before_a_slot_is_taken() -> None:
    machine = one(clear_workloads=True).request()
    machine.workloads.blocking = ("pod a/b has no controller",)
    assert "pod a/b has no controller" in reason_to_wait(machine)
    machine.cluster.edit(annotations={KEYS.journal: "{}"})
    machine.workloads.blocking = ()
    assert "has taken the node" in reason_to_wait(machine)
    assert "lease" not in machine.killer.effects
    machine.cluster.edit(annotations={KEYS.journal: None})
    machine.round()
    assert (machine.host.is_down, machine.workloads.cleared) == (True, 1)


def pod(name: str, **fields: Any) -> Pod:
    known = {"owner_kind": "Job", "resources": ("huawei.com/Ascend910",), "termination_grace_s": 30}
    return Pod("tenant", name, name, **{**known, **fields})


STAY = {
    "web": pod("web", resources=("cpu",)),
    "over": pod("over", phase="Succeeded"),
    "agent": pod("agent", owner_kind="DaemonSet"),
    "static": pod("static", is_mirror=True, owner_kind="Node"),
}


def test_pods_that_use_the_accelerator_leave_unless_one_has_no_controller() -> None:
    job, lonely = pod("job"), pod("lonely", owner_kind="")
    both = [job, lonely]
    for users, forces, blocks in (([], False, False), ([job], False, False), (both, False, True), (both, True, False)):
        on = FakeCluster(Killer(), FakeClock(), some_node({}))
        for found in (*STAY.values(), *users):
            on.add_pod(found)
        rules = EvictionRules(is_enabled=True, timeout_s=60.0, forces=forces)
        drain = NodeDrain(on, on.clock, RecordingReporter(), ASCEND, rules)
        if blocks:
            (blocker,) = drain.blockers()
            assert "tenant/lonely" in blocker
            assert "NPU_POD_EVICTION_FORCE" in blocker
            with pytest.raises(PodsRemain, match="lonely"):
                drain.clear()
        else:
            assert drain.blockers() == ()
            drain.clear()
        assert set(on.listed) == {*STAY, *(("job", "lonely") if blocks else ())}


@pytest.mark.parametrize("has_one", [False, True])
def test_the_condition_follows_the_request_on_a_node_that_has_one(machine: Machine, has_one: bool) -> None:
    machine.cluster.has_conditions = True
    if has_one:
        machine.tell(conditions={KEYS.condition: ("True", "Ready")})
        machine.cluster.killer.at("condition", ApiUnavailable("no answer", ""))
    settled(machine)
    reasons = ["RebootRequired", "Ready"] if has_one else []
    assert [one.reason for one in machine.cluster.conditions] == reasons


def test_sysrq_waits_for_a_shutdown_that_a_kubelet_delays_longer_than_the_grace() -> None:
    machine = one(grace_s=100.0).request()
    machine.host.obeys, machine.host.delay_s = (), 600.0
    assert "logind may delay a shutdown so long" in rounds(machine, 21)
    assert machine.host.commands == ["command"]
    rounds(machine, 3)
    assert machine.host.commands == ["command", "sysrq"]
