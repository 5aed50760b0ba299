"""The scenarios of a fleet: what happens, and what must be so at the end.

`Limits` of the simulator holds in all of them, after each change. `golden/fleet` has the trace of each in the default
order: `python -m tests.support.fakes.fleet_scenarios` writes all of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from pathlib import Path

from msgspec.structs import replace

from driver_manager.domain.fleet.spec import APPROVED, RETRY
from driver_manager.domain.reboot.decision import APPROVED as REBOOT_APPROVED
from tests.support.fakes.fleet_sim import CORDON, KEYS, SKIP, UNCORDON, Order, Simulator

CANARY = [{"name": "canary", "count": 1}, {"name": "rest"}]
SOAKED = [{"name": "canary", "count": 1, "soak": "2h"}, {"name": "rest"}]


def racks(*names: str) -> dict[str, dict[str, str]]:
    """Two nodes of each rack, with its label."""
    return {f"{name}-{number}": {"rack": name} for name in names for number in (1, 2)}


def plain_rollout(sim: Simulator) -> None:
    """A new template reaches all nodes, at most two at a time, each by one restart."""
    sim.fleet(4, maxParallel=2)
    sim.upgrade(until="Complete")


def canary_soaks(sim: Simulator) -> None:
    """The other nodes wait until the canary has run the new driver for the soak time."""
    sim.fleet(4, maxParallel=0, waves=[{"name": "canary", "count": 1, "soak": "1h"}, {"name": "rest"}])
    sim.upgrade(until="Soaking")
    sim.check("Soaking", "node-0", after="50m")
    sim.until("Complete")


def failing_canary_halts(sim: Simulator) -> None:
    """The canary's driver does not get ready: the rollout halts, and all other nodes keep their driver."""
    sim.fleet(4, waves=CANARY, nodeTimeout="5m")
    sim.upgrade(on_all="broken")
    sim.check("Halted", "node-0", after="2h")


def approval(sim: Simulator) -> None:
    """The second wave waits for a person."""
    sim.fleet(3, waves=[{"name": "canary", "count": 1, "approval": True}, {"name": "rest"}])
    sim.upgrade(until="WaitingForApproval")
    sim.check("WaitingForApproval", "node-0", after="12h")
    sim.ask(APPROVED, "r2:2")
    sim.until("Complete")


def maintenance_window(sim: Simulator) -> None:
    """The template changes at 22:30: no node begins before 22:40, and what began by 22:41 ends after it."""
    sim.fleet(3, windows="22:40-22:41", nodeTimeout="5m")
    sim.upgrade(run="9m")
    assert "r2" not in sim.limits.taken
    sim.run("10m")
    assert 1 < len(sim.limits.taken["r2"]) <= 3
    assert not sim.limits.under_way


def threshold_of_two(sim: Simulator) -> None:
    """One failed node is not enough for failureThreshold 2; the second one halts the rollout."""
    sim.fleet(5, failureThreshold=2, nodeTimeout="5m")
    sim.upgrade(node_0="broken", node_2="broken")
    sim.check("Halted", "node-0", "node-1", "node-2", after="2h")


def halt_undoes(sim: Simulator) -> None:
    """After the halt the template goes back by itself, and every node runs r1 again."""
    sim.fleet(4, waves=CANARY, onHalt="undo", nodeTimeout="5m")
    sim.upgrade(on_all="broken", until="Halted")
    sim.until(lambda: sim.is_complete("r1"), "node-0")
    assert set(sim.serving().values()) == {"r1"}


def retry_of_a_node(sim: Simulator) -> None:
    """The failed node is repaired by hand and tried again; its success lets the others go."""
    sim.fleet(3, nodeTimeout="5m")
    sim.upgrade(node_0="broken", until="Halted")
    sim.kubelets.fates.clear()
    sim.note("node-0", {KEYS.upgrade_requested: "true"})
    sim.until("Complete", "node-0", "node-0", "node-1", "node-2")


def retry_of_a_revision(sim: Simulator) -> None:
    """A person asks for the revision once more that was undone."""
    sim.fleet(3, onHalt="undo", nodeTimeout="5m")
    sim.upgrade(on_all="broken", until="Halted")
    sim.until(lambda: sim.is_complete("r1"))
    sim.kubelets.fates.clear()
    sim.set_driver("driver:2")
    sim.until("Halted")
    sim.run("1h")
    assert set(sim.serving().values()) == {"r1"}
    sim.ask(RETRY, sim.newest())
    sim.until(lambda: sim.is_complete("r2"))


def pause_and_resume(sim: Simulator) -> None:
    """What is under way ends while the rollout is paused, and nothing begins."""
    sim.fleet(3)
    sim.upgrade(until=lambda: "r2" in sim.serving().values())
    sim.edit_rollout(paused=True)
    sim.check("Paused", after="2h")
    assert sim.upgrades() == {"node-0": "upgrade-done"}
    sim.edit_rollout(paused=False)
    sim.until("Complete")


def cordoned_node_uses_the_budget(sim: Simulator) -> None:
    """A node that a person cordoned is one of the unavailable ones: no other node starts until it is back."""
    sim.fleet(3, maxParallel=2, maxUnavailable=1)
    sim.edit_node("node-1", CORDON)
    sim.upgrade(after="1m", run="1h")
    assert "r2" not in sim.limits.taken
    sim.edit_node("node-1", UNCORDON)
    sim.until("Complete")


def units_one_at_a_time(sim: Simulator) -> None:
    """Of a rack never two nodes are down, however many may be under way."""
    sim.fleet(racks("a", "b"), maxParallel=0, units={"topologyKey": "rack"})
    sim.upgrade(until="Complete")


def units_together(sim: Simulator) -> None:
    """The nodes of a rack begin together, and not more racks than maxParallel has room for."""
    sim.fleet(racks("a", "b"), maxParallel=3, units={"topologyKey": "rack", "mode": "Together"})
    sim.upgrade()
    sim.until("Complete", "a-1", "a-2", "b-1", "b-2")


def preflight_leaves_a_node_out(sim: Simulator) -> None:
    """The preflight of one node fails: it keeps its driver. The next controller reads the results that there are."""
    sim.preflights = {"node-1": (6, "no module for this kernel")}
    sim.fleet(3, preflight="require")
    sim.upgrade()
    sim.kill_controller(lambda: sum(bool(pod.get("status")) for pod in sim.task_pods()) == 3)
    sim.replace_controller()
    sim.until("WaitingForNodes")
    sim.run("1h")
    assert sim.serving() == {"node-0": "r2", "node-1": "r1", "node-2": "r2"}
    assert set(sim.looks.values()) == {1}
    sim.preflights.clear()
    sim.note("node-1", {KEYS.upgrade_requested: "true"})
    sim.until("Complete")


def person_deletes_a_pod(sim: Simulator) -> None:
    """A driver pod that a person deletes comes back with the new template; the rollout does not restart it again."""
    sim.fleet(3)
    sim.edit_rollout(paused=True)
    sim.upgrade(run="1m")
    sim.remove_pod(sim.pods_of("node-1")[0], None)
    sim.run("2m")
    sim.edit_rollout(paused=False)
    sim.until("Complete", "node-0", "node-2")


def controller_dies_after_each_write(sim: Simulator) -> None:
    """Controllers die after their writes, one after the other; the next one goes on, and no node is restarted twice."""
    sim.fleet(2)
    sim.upgrade()
    for _ in range(6):
        sim.kill_controller()
        sim.replace_controller()
    sim.until("Complete")


def two_controllers(sim: Simulator) -> None:
    """The leader hangs in the middle; the other one takes the Lease and goes on. The first one then stands by."""
    sim.fleet(3, by_lease=True)
    second = sim.start_controller("controller 2", by_lease=True)
    sim.upgrade(until=lambda: "node-0" in sim.limits.under_way)
    sim.processes[0].is_frozen = True
    sim.until(lambda: second.reports[-1].leads)
    sim.processes[0].is_frozen = False
    sim.until("Complete")
    assert not sim.processes[0].reports[-1].leads


def two_controllers_believe_to_lead(sim: Simulator) -> None:
    """Both lead at the same time, which the Lease excludes: even then no driver pod is restarted twice."""
    sim.fleet(4, maxParallel=0)
    sim.start_controller("controller 2")
    sim.upgrade(until="Complete")
    assert sorted(sim.limits.taken["r2"]) == ["node-0", "node-1", "node-2", "node-3"]


def rollout_is_deleted(sim: Simulator) -> None:
    """A person deletes the rollout while two nodes are marked: they are released."""
    sim.fleet(3, maxParallel=2)
    sim.once(lambda: len(sim.limits.under_way) == 2, "person", sim.delete_rollout)
    sim.upgrade(run="10m")
    assert sim.upgrades() == {}


def clear_first(sim: Simulator) -> None:
    """A driver that its container unloads: each node is cleared before its driver pod is deleted."""
    sim.profile = replace(sim.profile, container_unloads=True)
    sim.fleet(3)
    sim.upgrade(until="Complete")
    sim.run("1m")
    assert sim.task_pods() == []


# What an issue about rollouts found, by its points


def p01_failed_node_is_replaced(sim: Simulator) -> None:
    """Node repair replaces a node two minutes after its upgrade failed: the failure still counts."""
    sim.fleet(4, waves=CANARY, nodeTimeout="5m")
    sim.autoscaler.repairs_after_s = 120.0
    sim.upgrade(on_all="broken")
    sim.check("Halted", "node-0", after="3h")
    assert "node-0" not in sim.nodes


def p01_nodes_are_lost_under_way(sim: Simulator) -> None:
    """Nodes disappear before their new driver serves. One may be a scale-down; the second one halts the rollout."""
    sim.fleet(4, nodeTimeout="30m")
    sim.autoscaler.removes_after_s = 60.0
    sim.upgrade(on_all="broken")
    sim.check("Halted", "node-0", "node-1", after="3h")


def p01_scale_down_under_way(sim: Simulator) -> None:
    """The autoscaler removes one node in the middle of its upgrade: its slot is free, and the others go on."""
    sim.fleet(3)
    sim.upgrade(until=lambda: "node-0" in sim.limits.under_way and "node-0" not in sim.serving())
    sim.autoscaler.removes("node-0")
    sim.until("Complete")
    assert sim.serving() == {"node-1": "r2", "node-2": "r2"}


def p01_removed_node_was_broken(sim: Simulator) -> None:
    """The driver makes the Node NotReady, and the cloud deletes it: that is a failure, and the threshold is one."""
    sim.fleet(3, nodeTimeout="30m")
    sim.upgrade(on_all="broken", until=lambda: "r2" in sim.serving().values())
    sim.set_ready("node-0", "False")
    sim.run("1m")
    sim.autoscaler.removes("node-0")
    sim.check("Halted", "node-0", after="2h")


def p01_node_leaves_before_its_restart(sim: Simulator) -> None:
    """A marked node disappears before its pod was deleted, while no controller runs: that counts for nothing."""
    sim.fleet(3, failureThreshold=1)
    sim.upgrade()
    sim.kill_controller(lambda: "node-0" in sim.limits.under_way)
    sim.autoscaler.removes("node-0")
    sim.replace_controller(after="1m")
    sim.until("Complete", "node-0", "node-1", "node-2")


def p01_next_controller_knows_what_was_lost(sim: Simulator) -> None:
    """The failed node is deleted while no controller runs: the next one counts it by what the object shows."""
    sim.fleet(3, nodeTimeout="5m")
    sim.upgrade(on_all="broken", until="Halted")
    sim.kill_controller(lambda: True)
    sim.autoscaler.removes("node-0")
    sim.replace_controller(after="1m")
    sim.check("Halted", "node-0", after="2h")


def p01_replaced_object_finds_the_good_revision(sim: Simulator) -> None:
    """The object was replaced, and its memory with it: what serves shows where the way back leads."""
    sim.fleet(3, onHalt="undo", nodeTimeout="5m")
    sim.replace_rollout()
    sim.upgrade(on_all="broken", until="Halted")
    sim.until(lambda: sim.is_complete("r1"), "node-0")


def p01_object_created_again_goes_on_with_its_node(sim: Simulator) -> None:
    """The object is created again an hour after it was deleted: the node that it restarted is still under way."""
    sim.fleet(3, nodeTimeout="5m")
    spec = sim.rollout()["spec"]
    sim.once(lambda: "node-0" not in sim.serving(), "person", sim.delete_rollout)
    sim.upgrade(on_all="broken", run="1h")
    assert sim.upgrades() == {}
    sim.add_rollout(**spec)
    sim.until("Halted", "node-0")


def p01_failures_survive_a_replaced_object(sim: Simulator) -> None:
    """Halted, then the object is replaced: the failed node is still failed, and no other one is taken."""
    sim.fleet(3, nodeTimeout="5m")
    sim.upgrade(on_all="broken", until="Halted")
    sim.replace_rollout()
    sim.check("Halted", "node-0", after="1h")


def p01_failed_node_is_drained_before_its_removal(sim: Simulator) -> None:
    """Karpenter taints the failed node, its driver pod leaves, and the Node is deleted: the failure still counts."""
    sim.rules = {"tolerations": []}
    sim.fleet(4, waves=CANARY, nodeTimeout="5m")
    sim.upgrade(on_all="broken", until="Halted")
    sim.autoscaler.taints("node-0", "karpenter.sh/disrupted")
    sim.remove_pod(sim.pods_of("node-0")[0], None)
    sim.run("1m")
    sim.autoscaler.removes("node-0")
    sim.check("Halted", "node-0", after="2h")


def p02_operator_writes_its_own_word(sim: Simulator) -> None:
    """An operator writes a word of its own to each state label. A failed node stays failed."""
    sim.fleet(4, waves=CANARY, nodeTimeout="5m")
    sim.operator.strips_after_s, sim.operator.word = 5.0, "cordon-required"
    sim.upgrade(on_all="broken")
    sim.check("Halted", "node-0", after="2h")


def p02_operator_strips_the_label(sim: Simulator) -> None:
    """An operator removes each state label after five seconds. A failed node stays failed."""
    sim.fleet(4, waves=CANARY, nodeTimeout="5m")
    sim.operator.strips_after_s = 5.0
    sim.upgrade(on_all="broken")
    sim.check("Halted", "node-0", after="2h")


def p02_strips_on_a_good_rollout(sim: Simulator) -> None:
    """The same operator on a driver that works: each node is upgraded once."""
    sim.fleet(3)
    sim.operator.strips_after_s = 5.0
    sim.upgrade()
    sim.until("Complete", "node-0", "node-1", "node-2")


def p03_reboots_queue_for_their_slot(sim: Simulator) -> None:
    """All nodes need a reboot of 12 minutes, one at a time: those in the queue have not failed after 30 minutes."""
    sim.fleet(4, maxParallel=0, approveReboots=True, nodeTimeout="30m")
    sim.upgrade(on_all="reboot-required", until="Complete")
    assert "Halted" not in sim.phases


def p03_reboot_waits_for_its_window(sim: Simulator) -> None:
    """The rebooter's window opens after three hours: until then the node waits, whatever nodeTimeout is."""
    sim.fleet(2, approveReboots=True, nodeTimeout="30m", onHalt="undo")
    sim.rebooter.opens_in("3h")
    sim.upgrade(node_0="reboot-required", run="2h")
    assert sim.upgrades()["node-0"] == "reboot-required"
    sim.until("Complete")
    assert sim.newest() == "r2"


def p03_reboot_waits_for_approval(sim: Simulator) -> None:
    """A person approves the reboot the next morning."""
    sim.fleet(2, nodeTimeout="30m")
    sim.upgrade(node_0="reboot-required", run="9h")
    assert sim.upgrades() == {"node-0": "reboot-required"}
    sim.note("node-0", {KEYS.approve_reboot: REBOOT_APPROVED})
    sim.until("Complete")


def p03_granted_reboot_that_hangs_fails(sim: Simulator) -> None:
    """Once the reboot is granted, the node's own time counts: a machine that does not come back has failed."""
    sim.fleet(2, approveReboots=True, nodeTimeout="30m")
    sim.rebooter.hangs = "node-0"
    sim.upgrade(node_0="reboot-required")
    sim.check("Halted", "node-0", after="2h")


def p04_taint_not_tolerated(sim: Simulator) -> None:
    """No pod is made on a node with this taint: its driver pod stays, and the node is left out."""
    sim.fleet(3, nodeTimeout="10m")
    sim.autoscaler.taints("node-0", "example.com/maintenance")
    sim.upgrade(after="1m", run="1h")
    assert sim.serving() == {"node-0": "r1", "node-1": "r2", "node-2": "r2"}
    assert sim.phase() == "WaitingForNodes"


def p04_affinity_excludes_a_node(sim: Simulator) -> None:
    """The required affinity of the template excludes a node that still has a pod: the DaemonSet removes it, not we."""
    rule = {"key": "tier", "operator": "NotIn", "values": ["edge"]}
    sim.fleet({"node-0": {"tier": "edge"}, "node-1": {}, "node-2": {}}, nodeTimeout="10m")
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    sim.rules = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    sim.upgrade(until="Complete")
    assert sim.serving() == {"node-1": "r2", "node-2": "r2"}
    assert not any(sim.limits.failed.values())


def p04_no_longer_placed_under_way(sim: Simulator) -> None:
    """A taint comes between the deletion of the pod and the next one: the node is released, and has not failed."""
    sim.fleet(3, nodeTimeout="10m")
    sim.upgrade(until=lambda: "node-0" in sim.limits.under_way)
    sim.autoscaler.taints("node-0", "example.com/maintenance")
    sim.run("1h")
    assert not any(sim.limits.failed.values())
    assert sim.serving() == {"node-1": "r2", "node-2": "r2"}


def p05_node_of_cluster_autoscaler_is_no_canary(sim: Simulator) -> None:
    """The first node is being scaled down: another one is the canary, and the rollout does not wait for it."""
    sim.rules = {"tolerations": [{"operator": "Exists"}]}
    sim.fleet(3, waves=CANARY)
    sim.autoscaler.taints("node-0")
    sim.upgrade(after="1m")
    sim.check("Complete", "node-1", "node-2", after="30m")


def p05_node_with_deletion_timestamp_is_not_taken(sim: Simulator) -> None:
    """Karpenter drains the first node for an hour: it keeps its driver until it is gone."""
    sim.rules = {"tolerations": [{"operator": "Exists"}]}
    sim.fleet(3, waves=CANARY)
    sim.autoscaler.disrupts("node-0", minutes=60)
    sim.upgrade(after="1m")
    sim.check("Complete", "node-1", "node-2", after="2h")


def p06_skip_frees_the_budget(sim: Simulator) -> None:
    """A node is NotReady and uses the whole maxUnavailable, until a person skips it as the alert advises."""
    sim.fleet(4, maxParallel=2, maxUnavailable=1)
    sim.set_ready("node-3", "False")
    sim.upgrade(after="1m", run="10m")
    assert "r2" not in sim.limits.taken
    sim.edit_node("node-3", SKIP)
    sim.until("Complete", "node-0", "node-1", "node-2")


def p06_skip_of_a_failed_node(sim: Simulator) -> None:
    """The failed node halts the rollout, until a person skips it: it counts for nothing then."""
    sim.fleet(3, nodeTimeout="5m")
    sim.upgrade(node_0="broken", until="Halted")
    sim.edit_node("node-0", SKIP)
    sim.until("Complete", "node-0", "node-1", "node-2")


def p07_wave_keeps_its_size(sim: Simulator) -> None:
    """Ten nodes join while a wave of ten percent soaks: it stays as large as it began."""
    sim.fleet(6, maxParallel=0, waves=[{"name": "tenth", "percent": 10, "soak": "2h"}, {"name": "rest"}])
    sim.upgrade(until="Soaking")
    sim.autoscaler.adds(*(f"zz-{number:02}" for number in range(10)))
    sim.check("Soaking", "node-0", after="30m")
    sim.until("Complete")


def p07_canary_disappears_while_it_soaks(sim: Simulator) -> None:
    """The canary is scaled down after an hour of two, and so is the next one: the third soaks for what is missing."""
    sim.fleet(5, waves=SOAKED)
    sim.upgrade()
    for number in range(2):
        sim.until(lambda number=number: sim.upgrades().get(f"node-{number}") == "upgrade-done")  # type: ignore[misc]
        sim.run("50m")
        sim.autoscaler.removes(f"node-{number}")
    sim.check("Complete", "node-0", "node-1", "node-2", "node-3", "node-4", after="30m")


def p08_together_none_if_one_cannot(sim: Simulator) -> None:
    """One node of rack a is cordoned: the other one keeps its driver, too, and the unit shows the reason."""
    sim.fleet(racks("a", "b"), maxParallel=2, units={"topologyKey": "rack", "mode": "Together"})
    sim.edit_node("a-2", CORDON)
    sim.upgrade(after="1m", run="1h")
    assert sim.limits.taken["r2"] == ["b-1", "b-2"]
    sim.edit_node("a-2", UNCORDON)
    sim.until("Complete")


def p08_together_waits_for_every_preflight(sim: Simulator) -> None:
    """The preflight of one node of rack a fails: none of the rack begins."""
    sim.preflights = {"a-1": (6, "no module for this kernel")}
    sim.fleet(racks("a", "b"), maxParallel=2, units={"topologyKey": "rack", "mode": "Together"}, preflight="require")
    sim.upgrade(run="1h")
    assert sim.limits.taken["r2"] == ["b-1", "b-2"]


def p09_new_nodes_that_do_not_serve_count(sim: Simulator) -> None:
    """A node joins with the new driver and does not get ready: after nodeTimeout that is a failure, and a halt."""
    sim.fleet(3, maxParallel=1, waves=SOAKED, nodeTimeout="10m")
    sim.upgrade(new_1="broken", until="Soaking")
    sim.autoscaler.adds("new-1")
    sim.check("Soaking", after="5m")
    sim.check("Halted", says="new-1", after="10m")


def p09_new_node_reports_held(sim: Simulator) -> None:
    """A new node reports that its devices are held: the status shows its own reason."""
    sim.fleet(3, waves=SOAKED, nodeTimeout="10m")
    sim.upgrade(new_1="held", until="Soaking")
    sim.autoscaler.adds("new-1")
    sim.check("Halted", says="held", after="30m")


def p09_upgraded_node_is_unready_for_a_moment(sim: Simulator) -> None:
    """The canary's driver is not ready for some seconds while it soaks: that undoes nothing."""
    sim.fleet(3, waves=SOAKED, nodeTimeout="10m", onHalt="undo")
    sim.upgrade(until="Soaking")
    sim.run("40m")
    (pod,) = sim.pods_of("node-0")
    sim.kubelets.unready(pod)
    sim.run("5s")
    sim.kubelets.ready(pod)
    sim.until("Complete")
    assert sim.serving() == dict.fromkeys(("node-0", "node-1", "node-2"), "r2")


def p09_paused_rollout_names_the_way_back(sim: Simulator) -> None:
    """While a rollout is paused, new nodes get the new template all the same: status says so, and offers undo."""
    sim.fleet(3)
    sim.edit_rollout(paused=True)
    sim.upgrade(run="1m")
    sim.autoscaler.adds("new-1")
    sim.run("2h")
    assert sim.serving()["new-1"] == "r2"
    sim.check("Paused", says="undo")


def p10_pending_pod_shows_its_reason(sim: Simulator) -> None:
    """The new driver pod does not fit on the node: the failure says what the scheduler says."""
    sim.fleet(2, nodeTimeout="10m")
    sim.upgrade(node_0="unscheduled", until="Halted")
    sim.check("Halted", says="Insufficient cpu")


def p10_missing_pods_are_named(sim: Simulator) -> None:
    """The DaemonSet controller makes no pods for new nodes, as with a full quota: the status names these nodes."""
    sim.fleet(2)
    sim.daemon_set.makes_none_for = "new-1"
    sim.upgrade()
    sim.autoscaler.adds("new-1")
    sim.check("WaitingForNodes", says="new-1", after="30m")


def p11_template_of_another_profile(sim: Simulator) -> None:
    """The next template is that of another vendor: the controller touches no pod, and says whose it is."""
    manager = {"name": "manager", "image": "manager", "args": ["reconcile-driver-state", "--profile", "nvidia"]}
    sim.fleet(2)
    sim.rules = {"initContainers": [manager]}
    sim.edit_rollout(paused=True)
    sim.upgrade(after="1m", run="1m")
    sim.edit_rollout(paused=False)
    sim.check("Stalled", says="nvidia", after="1h")
    assert "r2" not in sim.limits.taken


def p11_two_vendors_in_one_namespace(sim: Simulator) -> None:
    """The controller of another vendor leads as well: it neither acts on this rollout nor writes its status."""
    manager = {"name": "manager", "image": "manager", "args": ["reconcile-driver-state", "--profile", "rebellions"]}
    sim.rules = {"initContainers": [manager]}
    sim.fleet(2)
    other = sim.start_controller("controller of nvidia", vendor="nvidia")
    sim.upgrade(until="Complete")
    sim.run("1h")
    assert other.cluster.writes == []


def p12_clear_pod_ends_after_its_successor_starts(sim: Simulator) -> None:
    """The next driver pod starts while the clear pod is Running in the API: the rollout disturbs neither of them."""
    sim.profile = replace(sim.profile, container_unloads=True)
    sim.fleet(2)
    sim.upgrade(until=lambda: sim.serving().get("node-0") == "r2")
    assert [pod["metadata"].get("deletionTimestamp") for pod in sim.task_pods()] == [None]
    sim.until("Complete")
    assert not any(sim.limits.failed.values())


def p13_clock_is_set_forward(sim: Simulator) -> None:
    """The clock of the controller is set forward by two hours: no node under way fails for that."""
    sim.fleet(3, onHalt="undo")
    sim.upgrade(until=lambda: "node-0" not in sim.serving())
    sim.clock.ahead_s = 7200.0
    sim.until("Complete")
    assert sim.newest() == "r2"
    assert not any(sim.limits.failed.values())


def p13_next_leader_has_a_clock_ahead(sim: Simulator) -> None:
    """The next controller's clock is two hours ahead of the Lease: it fails no node that is under way."""
    sim.fleet(3, by_lease=True, onHalt="undo")
    sim.upgrade()
    sim.kill_controller(lambda: "node-0" not in sim.serving())
    sim.clock.ahead_s = 7200.0
    sim.replace_controller()
    sim.until("Complete")
    assert sim.newest() == "r2"
    assert not any(sim.limits.failed.values())


def p14_template_changes_midway(sim: Simulator) -> None:
    """Nodes are marked for r2 when r3 comes, before their pods are deleted: they are released at once, for r3."""
    sim.fleet(3, maxParallel=3)
    sim.once(lambda: len(sim.limits.under_way) == 3, "person", sim.upgrade)
    sim.upgrade(until=lambda: sim.newest() == "r3")
    sim.until(lambda: "r2" not in sim.limits.under_way.values(), limit="50s")
    sim.until("Complete")


def p15_deleted_while_the_leader_changes(sim: Simulator) -> None:
    """The leader dies with marked nodes, and the rollout is deleted before the next one leads: it releases them."""
    sim.fleet(3, maxParallel=2)
    sim.upgrade()
    sim.kill_controller(lambda: len(sim.limits.under_way) == 2)
    sim.delete_rollout()
    sim.replace_controller(after="1m")
    sim.until(lambda: "pod-restart-required" not in sim.upgrades().values(), limit="5m")
    sim.run("1h")
    assert sim.serving() == {"node-0": "r1", "node-1": "r1", "node-2": "r1"}


def p13_small_correction_after_a_large_one(sim: Simulator) -> None:
    """The clock was set forward an hour ago. Now it goes back by five seconds, after a restart: that fails nothing."""
    sim.fleet(2, nodeTimeout="10m")
    sim.clock.ahead_s = 7200.0
    sim.run("1h")
    sim.upgrade(until=lambda: "node-0" not in sim.serving())
    sim.clock.ahead_s = 7195.0
    sim.until("Complete")
    assert "Halted" not in sim.phases


GOLDEN = Path(__file__).parents[2] / "unit" / "golden" / "fleet"
SCENARIOS: dict[str, Callable[[Simulator], None]] = {
    name: found
    for name, found in globals().items()
    if isfunction(found) and "sim" in found.__annotations__ and found.__module__ == __name__
}


def play(name: str, order: Order) -> str:
    """The trace of a scenario. Raises AssertionError where a limit or an expectation does not hold."""
    sim = Simulator(order)
    try:
        SCENARIOS[name](sim)
    except AssertionError:
        print("\n".join(sim.trace[-100:]))
        raise
    return "\n".join([SCENARIOS[name].__doc__ or "", "", *sim.trace, ""])


if __name__ == "__main__":  # write the traces of all scenarios again
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for named in SCENARIOS:
        (GOLDEN / f"{named}.txt").write_text(play(named, Order()), encoding="utf-8")
