"""Mutants of what is promised for a rollout's short-lived pods: whose they are, what they keep, whose result counts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PATH = "domain/fleet/"
PREFLIGHT = "unit/fleet/test_fleet_preflight.py::"
PODS = "unit/fleet/test_task_pods.py::"
RUNS = "unit/fleet/test_controller.py::"
OBJECTS = "unit/adapters/test_fleet_objects.py::"

FLEET_PODS_MUTANTS = (
    Mutant(
        "preflight-of-one-node",
        "a wave is looked at before any of its nodes begins",
        PATH + "preflight.py",
        "        elif one.wave in waves:\n",
        "        elif one.wave in waves and not waves:\n",
        (PREFLIGHT + "test_a_wave_is_looked_at_before_any_of_its_nodes_begins",),
    ),
    Mutant(
        "preflight-ignored",
        "a node that would fail keeps its driver where that is required",
        PATH + "places.py",
        "    _not_passed,\n    _waiting,\n",
        "    _waiting,\n",
        (PREFLIGHT + "test_a_node_that_would_fail_keeps_its_driver_and_the_others_go",),
    ),
    Mutant(
        "passes-before-pulled",
        "a node's preflight passes once all images are there",
        "adapters/kube/fleet_objects.py",
        '    if code == 0 and (not all(others) or (others and text_of(status, "reason"))):\n',
        '    if code == 0 and others and text_of(status, "reason"):\n',
        (OBJECTS + "test_a_short_lived_pod_has_ended_well_once_it_has_pulled_what_it_was_to_pull",),
    ),
    Mutant(
        "stranded-is-done",
        "a node that a run has left taken is not done, though its driver serves",
        PATH + "judge.py",
        "    if member.node.is_taken_by_run:\n        return Shut",
        "    if member.node.is_taken_by_run and not member.pod:\n        return Shut",
        ("unit/fleet/test_clearing.py::test_what_a_run_has_left_taken_is_not_done_because_its_driver_serves",),
    ),
    Mutant(
        "preflight-for-ever",
        "a preflight that never ends holds nobody up for ever",
        PATH + "preflight.py",
        "    if not is_at_work(pod, now_s):\n        why",
        "    if pod.has_ended:\n        why",
        (PREFLIGHT + "test_a_pod_that_never_runs_holds_nobody_up_for_ever",),
    ),
    Mutant(
        "preflight-of-another-revision",
        "a result is for one revision",
        PATH + "preflight.py",
        "pod.revision == target and not pod.is_deleting\n",
        "not pod.is_deleting\n",
        (PREFLIGHT + "test_a_result_is_for_one_revision",),
    ),
    Mutant(
        "preflight-without-bounds",
        "only so many preflight pods are at work at a time",
        PATH + "preflight.py",
        "missing[: max(0, room)]",
        "missing",
        (PREFLIGHT + "test_so_many_pods_at_a_time",),
    ),
    Mutant(
        "preflight-thrown-away",
        "the result stays until its node has begun, so that the next controller asks nobody twice",
        PATH + "preflight.py",
        "        if is_off or pod.revision",
        "        if pod.has_ended or is_off or pod.revision",
        (RUNS + "test_the_next_controller_reads_the_results_of_the_one_before",),
    ),
    Mutant(
        "wish-before-the-pod",
        "whoever dies between the pod and the wish leaves the wish",
        PATH + "preflight.py",
        "        DeletePod(pod.namespace, pod.name, pod.uid, pod.node),\n        MarkNode(",
        "        MarkNode(",
        (PREFLIGHT + "test_one_more_attempt_looks_again",),
    ),
    Mutant(
        "preflight-evicts",
        "nobody has to leave for a pod that only looks",
        PATH + "task_pods.py",
        '_PRIORITY = frozenset({"priority", "priorityClassName", "preemptionPolicy"})',
        '_PRIORITY = frozenset({"priority", "preemptionPolicy"})',
        (PODS + "test_nobody_has_to_leave_for_it",),
    ),
    Mutant(
        "refused-for-each-node",
        "a refused pod is asked for seldom, however many nodes wait for one",
        "core/fleet/acting.py",
        'return f"short-lived pods of rollout {rollout.key}"',
        'return f"short-lived pod {act.name} of rollout {rollout.key}"',
        (RUNS + "test_a_refused_pod_is_asked_for_seldom_and_said_to_everybody",),
    ),
)
