"""Mutants of what is promised for a rollout's short-lived pods: whose they are, what they keep, whose result counts."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

PATH = "domain/fleet/"
DECISIONS = "unit/fleet/test_decisions.py::test_facts_lead_to_the_decision"
PODS = "unit/fleet/test_task_pods.py::"
RUNS = "unit/fleet/test_controller.py::"
OBJECTS = "unit/adapters/test_kube_fleet.py::"

FLEET_PODS_MUTANTS = (
    Mutant(
        "preflight-of-one-node",
        "all nodes of a wave are checked before any of them starts",
        PATH + "waves.py",
        "        elif one.wave in waves:\n",
        "        elif one.wave in waves and not waves:\n",
        (DECISIONS,),
    ),
    Mutant(
        "preflight-ignored",
        "with `preflight: require`, a node whose preflight does not pass is not upgraded",
        PATH + "nodes.py",
        "    _not_passed,\n    _waiting,\n",
        "    _waiting,\n",
        (DECISIONS,),
    ),
    Mutant(
        "passes-before-pulled",
        "a node's preflight passes only once all images are pulled",
        "adapters/kube/fleet.py",
        '    if code == 0 and (not all(others) or (others and text_of(status, "reason"))):\n',
        '    if code == 0 and others and text_of(status, "reason"):\n',
        (OBJECTS + "test_a_short_lived_pod_has_ended_well_once_it_has_pulled_what_it_was_to_pull",),
    ),
    Mutant(
        "stranded-is-done",
        "a failed node that a run has left taken does not count as done, even if its driver is ready",
        PATH + "nodes.py",
        "    if member.node.is_taken_by_run:\n        return TAKEN",
        "    if member.node.is_taken_by_run and not member.pod:\n        return TAKEN",
        (DECISIONS,),
    ),
    Mutant(
        "preflight-without-end",
        "a preflight that never ends does not delay the rollout without limit",
        PATH + "waves.py",
        "    if not is_at_work(pod, now_s):\n        why",
        "    if pod.has_ended:\n        why",
        (DECISIONS,),
    ),
    Mutant(
        "preflight-of-another-revision",
        "a result of a preflight counts for one revision",
        PATH + "waves.py",
        "pod.revision == target and not pod.is_deleting\n",
        "not pod.is_deleting\n",
        (DECISIONS,),
    ),
    Mutant(
        "preflight-without-bounds",
        "the number of preflight pods at the same time is limited",
        PATH + "waves.py",
        "missing[: max(0, room)]",
        "missing",
        ("unit/fleet/test_decisions.py::test_a_limited_number_of_preflights_run_at_a_time",),
    ),
    Mutant(
        "preflight-thrown-away",
        "a result is kept until its node has started, so that the next controller does not repeat it",
        PATH + "waves.py",
        "        if is_off or pod.revision",
        "        if pod.has_ended or is_off or pod.revision",
        (RUNS + "test_the_next_controller_reads_the_results_of_the_one_before",),
    ),
    Mutant(
        "retry-consumed-too-early",
        "the old pod is deleted before the request for a retry is consumed, so that no request is lost",
        PATH + "waves.py",
        "        DeletePod(pod.namespace, pod.name, pod.uid, pod.node),\n        MarkNode(",
        "        MarkNode(",
        (DECISIONS,),
    ),
    Mutant(
        "preflight-evicts",
        "no pod is evicted for a preflight pod",
        PATH + "state.py",
        '_PRIORITY = frozenset({"priority", "priorityClassName", "preemptionPolicy"})',
        '_PRIORITY = frozenset({"priority", "preemptionPolicy"})',
        (PODS + "test_it_is_none_of_the_daemonsets_pods_goes_with_the_rollout_and_nobody_has_to_leave_for_it",),
    ),
    Mutant(
        "refused-for-each-node",
        "a refused pod is retried rarely, however many nodes wait for one",
        "core/fleet/controller.py",
        'return f"short-lived pods of rollout {rollout.key}"',
        'return f"short-lived pod {act.name} of rollout {rollout.key}"',
        (RUNS + "test_a_refused_pod_is_asked_for_seldom_and_said_to_everybody",),
    ),
)
