"""Mutants of what is promised of a node that is cleared before its driver pod is deleted."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

RUNS = "unit/swap/test_clear_only.py::"
DECISIONS = "unit/fleet/test_decisions.py::test_facts_lead_to_the_decision"
FLEET = "unit/fleet/test_fleet_properties.py::"
CONTROLLER = "unit/fleet/test_controller.py::"
CLEARING = "domain/fleet/nodes.py"

CLEAR_MUTANTS = (
    Mutant(
        "cleared-beside-users",
        "a node counts as cleared only if no other process than the driver pod has the device",
        "core/swap/driver.py",
        "all(one.how != UNREAD and one.pod_uid in uids for one in named_ones)",
        "any(one.pod_uid in uids for one in named_ones) or not uids - uids",
        (RUNS + "test_a_user_that_does_not_leave_keeps_the_driver_pod_and_gets_the_node_back",),
    ),
    Mutant(
        "released-under-way",
        "a node whose driver pod is being deleted is not released",
        "core/swap/pods.py",
        "        return all(pod.deleting or pod.has_left for pod in left)\n",
        "        return False\n",
        (RUNS + "test_told_to_end_while_the_driver_pod_is_going_nothing_is_given_back",),
    ),
    Mutant(
        "held-without-limit",
        "a cleared node whose driver pod is not deleted is released at the deadline",
        "core/swap/pods.py",
        "            if self._are_leaving(uids):\n                return\n",
        "            if not self._are_leaving(frozenset()) or uids:\n                return\n",
        (RUNS + "test_a_driver_pod_that_nobody_deletes_keeps_the_node_only_until_the_deadline",),
    ),
    Mutant(
        "cleared-node-given-up",
        "if the driver pod is being deleted, the node is left as it is for the next driver pod",
        "domain/swap/planner.py",
        "    if not drivers and (driver_pods(situation) or situation.obs.journal is not None):\n",
        "    if not drivers and not driver_pods(situation) and situation.obs.journal is not None:\n",
        (RUNS + "test_a_driver_pod_that_is_going_already_is_left_to_its_successor",),
    ),
    Mutant(
        "cleared-shown-ready",
        "a cleared node shows that a run has taken it",
        "core/swap/run.py",
        "    return decided.decision is Decision.CLEAR or isinstance(",
        "    return isinstance(",
        (RUNS + "test_the_node_is_cleared_and_left_to_the_next_pod_which_disturbs_nobody",),
    ),
    Mutant(
        "clear-by-digest",
        "a node is cleared whichever digest is wanted",
        "domain/swap/planner.py",
        "    if situation.policy.clear_for:\n        return _clear(situation)\n",
        "    if situation.policy.clear_for and why_replace(situation) != '':\n        return _clear(situation)\n",
        (RUNS + "test_a_driver_that_is_the_wanted_one_is_cleared_all_the_same",),
    ),
    Mutant(
        "restarted-uncleared",
        "no driver pod is deleted on a node that is not cleared",
        CLEARING,
        "    if pod.exit_code == ExitCode.DONE or (_is_alive(pod) and member.node.cleared_by == pod.uid):\n",
        "    if pod.exit_code == ExitCode.DONE or _is_alive(pod):\n",
        (FLEET + "test_whatever_happens_no_promise_is_broken_and_everybody_is_done_in_the_end",),
    ),
    Mutant(
        "mark-of-a-dead-run",
        "the cleared mark of a run that has died since then is ignored",
        CLEARING,
        "(_is_alive(pod) and member.node.cleared_by == pod.uid)",
        "(member.node.cleared_by == pod.uid)",
        (DECISIONS,),
    ),
    Mutant(
        "stranded-by-a-pause",
        "a node that a dead run had taken is cleared again, even while the rollout is paused",
        CLEARING,
        "has_begun=member.node.is_taken_by_run, ",
        "",
        (DECISIONS,),
    ),
    Mutant(
        "holder-terminated",
        "the pod that holds a node while its driver pod is deleted is not deleted",
        CLEARING,
        "    return member.is_taken and (member.is_untouched or not pod.has_ended)\n",
        "    return member.is_taken and member.is_untouched\n",
        (DECISIONS,),
    ),
    Mutant(
        "cleared-in-another-boot",
        "a node that was cleared before a reboot is cleared again",
        CLEARING,
        '    return f"{record.began_s:.3f}/{member.node.boot_id}"\n',
        '    return f"{record.began_s:.3f}/{record.boot_id}"\n',
        (DECISIONS,),
    ),
    Mutant(
        "clearing-through-a-pause",
        "a node that its clearing pod has not taken yet is released while the rollout is paused",
        CLEARING,
        "    held = Untouched(record, driver, clears=pod) if is_free else None\n",
        "    held = None\n",
        (DECISIONS,),
    ),
    Mutant(
        "restarted-for-what-it-has",
        "on a cleared node a driver pod that has the wanted revision again is not deleted",
        CLEARING,
        "    return driver.revision == terms.target != record.revision\n",
        "    return not driver.revision\n",
        (DECISIONS,),
    ),
    Mutant(
        "orphans-kept",
        "nodes of a deleted rollout are released",
        "core/fleet/controller.py",
        "        self._let_go()\n",
        "",
        (CONTROLLER + "test_nodes_that_a_deleted_rollout_has_left_behind_are_let_go",),
    ),
    Mutant(
        "orphans-of-an-unreadable-rollout",
        "a rollout that cannot be read keeps its nodes",
        "core/fleet/world.py",
        "{one.key for one in self.rollouts()})",
        "{one.key for one in self.rollouts() if one.policy is not None})",
        (CONTROLLER + "test_nodes_of_a_rollout_that_cannot_be_read_stay_and_those_of_one_that_is_gone_are_found",),
    ),
)
