"""Mutants of what is promised for a rollout's controller: who may act, on which facts, and what one error stops."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

CONTROLLER = "unit/fleet/test_controller.py::"
FAULTS = "unit/fleet/test_controller.py::"
WORLD = "unit/fleet/test_world.py::"
RETRIES = "unit/adapters/test_kube_api.py::"
LEASE = "unit/adapters/test_leadership.py::"
CLUSTER = "unit/adapters/test_kube_fleet.py::"

FLEET_CONTROL_MUTANTS = (
    Mutant(
        "lead-checked-once-a-pass",
        "a controller checks that it leads before every single action",
        "core/fleet/controller.py",
        "            if not self._may_act():\n                self._wake(UNSURE_S)\n                return\n"
        "            yield act",
        "            yield act",
        (CONTROLLER + "test_each_act_asks_whether_it_may_still_be_done",),
    ),
    Mutant(
        "lead-kept-at-the-end",
        "a controller that gets SIGTERM releases the Lease at once",
        "core/fleet/controller.py",
        "                self._ports.leadership.release()\n",
        "                pass\n",
        (CONTROLLER + "test_told_to_end_it_hands_over_at_once_even_in_the_middle",),
    ),
    Mutant(
        "decided-on-old-facts",
        "nothing is decided on facts that may be out of date",
        "core/fleet/controller.py",
        "            elif not self._world.why_blind(rollout.policy):\n",
        "            else:\n",
        (FAULTS + "test_what_cannot_be_seen_is_not_decided_on",),
    ),
    Mutant(
        "heartbeat-is-news",
        "nodes that only report that they are alive cause no decision",
        "core/fleet/world.py",
        "            return replace(known, resource_version=found.resource_version) == found\n",
        "            return False\n",
        (CONTROLLER + "test_nodes_that_report_that_they_live_cause_no_decision",),
    ),
    Mutant(
        "stale-event-trusted",
        "an event from before the controller's own write is ignored",
        "core/fleet/world.py",
        "        if known is not None and is_older(item.version, known.version):\n            return False\n",
        "",
        (WORLD + "test_a_change_from_before_our_own_write_is_not_believed",),
    ),
    Mutant(
        "own-write-forgotten",
        "a controller never decides on facts older than its own writes",
        "core/fleet/controller.py",
        "        self.world.learn(NODES, item)\n",
        "",
        (FAULTS + "test_after_its_own_write_it_goes_on_without_waiting_for_the_watch",),
    ),
    Mutant(
        "deleted-pod-still-there",
        "a deleted pod counts as leaving before the watch shows that",
        "core/fleet/controller.py",
        '                self.world.end_pod(act.uid)\n                self.reporter.info(f"node {act.node}: driver pod',
        '                self.reporter.info(f"node {act.node}: driver pod',
        (FAULTS + "test_a_deletion_that_the_watch_has_not_shown_is_not_sent_again",),
    ),
    Mutant(
        "act-behind-a-failed-one",
        "actions for a node are dropped after one of them failed",
        "core/fleet/controller.py",
        "        if self.rests.is_resting(key) or (isinstance(act, CreatePod) and"
        " self.rests.is_resting(_of_node(act.node))):\n            return\n        try:\n            self._do(",
        "        try:\n            self._do(",
        (FAULTS + "test_of_a_nodes_acts_none_is_done_after_one_that_failed",),
    ),
    Mutant(
        "one-error-ends-the-pass",
        "an error for one node does not delay other nodes",
        "core/fleet/controller.py",
        "            if isinstance(error, Conflict):\n                self.world.doubt(NODES, act.node)\n",
        "            raise\n",
        (FAULTS + "test_what_one_node_is_refused_keeps_nobody_else_back_and_is_said_once",),
    ),
    Mutant(
        "blocked-node-takes-a-place",
        "a node that cannot be marked does not use the place of another node",
        "domain/fleet/nodes.py",
        "    _requests_fail,\n    _preflight_missing,\n",
        "    _preflight_missing,\n",
        (FAULTS + "test_what_one_node_is_refused_keeps_nobody_else_back_and_is_said_once",),
    ),
    Mutant(
        "late-second-try",
        "an action that was refused for its credentials is retried at once or not at all",
        "adapters/kube/api.py",
        "return renewed() and (not only_once or self._clock.monotonic() < prompt_s)",
        "return renewed()",
        (RETRIES + "test_what_is_asked_once_is_sent_again_after_a_401_that_came_promptly_and_not_after_a_late_one",),
    ),
    Mutant(
        "no-rest-after-a-refusal",
        "a refused action is not retried at once",
        "domain/deadline.py",
        "max(REFUSED_S if isinstance(error, ApiRefused) else 0.0, ",
        "max(0.0, ",
        (FAULTS + "test_what_one_node_is_refused_keeps_nobody_else_back_and_is_said_once",),
    ),
    Mutant(
        "conflict-forgotten",
        "after a conflict the next version of the node is read, regardless of what changed",
        "core/fleet/world.py",
        "        return is_doubted or known.owner != item.owner or not _is_same(known.fact, item.fact)\n",
        "        return known.owner != item.owner or not _is_same(known.fact, item.fact)\n",
        (WORLD + "test_what_was_doubted_is_news_with_its_next_version",),
    ),
    Mutant(
        "lease-counted-from-the-answer",
        "a leader's term counts from before the request that renewed it",
        "adapters/kube/leases.py",
        "        self._ours, self._renewed_s = understood(_as_record, answer), before\n",
        "        self._ours = understood(_as_record, answer)\n"
        "        self._renewed_s = (self._clock.monotonic(), self._clock.wall())\n",
        (LEASE + "test_a_renewal_counts_from_when_it_was_asked_for_and_not_from_its_answer",),
    ),
    Mutant(
        "lead-too-long",
        "a leader that cannot renew its Lease stops before another one can take it",
        "adapters/kube/leases.py",
        "ACT_S = 9.0\n",
        "ACT_S = 20.0\n",
        (LEASE + "test_a_leader_that_cannot_renew_stops_before_anybody_can_follow",),
    ),
    Mutant(
        "lease-taken-early",
        "a Lease is taken only once its record has not changed for a whole term",
        "adapters/kube/leases.py",
        "        if seen is None or not seen.holder:\n            return True\n",
        "        if seen is None or not seen.holder or self._clock.wall() > 0:\n            return True\n",
        (LEASE + "test_never_two_may_act_at_once",),
    ),
    Mutant(
        "lead-after-a-sleep",
        "a leader whose machine was suspended does not act before it has renewed the Lease",
        "adapters/kube/leases.py",
        " and self._clock.wall() - wall_s < ACT_S",
        "",
        (LEASE + "test_a_machine_that_slept_may_not_act_though_its_monotonic_clock_stood_still",),
    ),
    Mutant(
        "pod-by-name",
        "exactly the pod that was decided on is deleted",
        "adapters/kube/fleet.py",
        '"preconditions": {"uid": uid}}',
        '"preconditions": {}}',
        (CLUSTER + "test_exactly_the_pod_that_was_meant_is_deleted",),
    ),
    Mutant(
        "retry-after-ignored",
        "a controller waits as long as the server's Retry-After",
        "domain/deadline.py",
        "    asked_s = error.asked_s if isinstance(error, ApiUnavailable) else 0.0\n",
        "    asked_s = 0.0\n",
        (FAULTS + "test_what_a_busy_server_is_asked_for_is_left_alone_for_as_long_as_it_says",),
    ),
    Mutant(
        "complete-reported-again",
        "a new controller does not report again that a rollout is complete",
        "domain/fleet/advance.py",
        'message, f"{target}/{before_s}"))',
        'message, f"{target}/{last.began_s:.0f}"))',
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    Mutant(
        "retry-after-lost",
        "the caller of a request that is not repeated gets the server's Retry-After",
        "adapters/kube/api.py",
        "raise ApiUnavailable(what, error.remedy, min(ASKED_MOST_S, error.retry_after_s)) from error",
        "raise ApiUnavailable(what, error.remedy) from error",
        ("unit/adapters/test_kube_api.py::test_whoever_asks_once_is_told_for_how_long_to_leave_it_alone",),
    ),
    Mutant(
        "first-page-only",
        "a list that comes in pages is read to its last page",
        "adapters/kube/api.py",
        "            if not token:\n",
        "            if body:\n",
        (CLUSTER + "test_a_list_comes_in_pages_and_is_told_as_one",),
    ),
)
