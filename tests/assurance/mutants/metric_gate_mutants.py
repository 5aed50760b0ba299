"""Mutants of what is promised for gates that ask Prometheus: unknown is no pass, and it is asked late enough."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

PATH = "domain/fleet/"
GATES = "unit/fleet/test_metric_gates.py::"

METRIC_GATE_MUTANTS = (
    Mutant(
        "metric-unknown-passes",
        "a query whose answer is not exactly one number does not pass",
        PATH + "spec.py",
        "        return answer.problem if answer.value is None",
        '        return "" if answer.value is None',
        (GATES + "test_what_is_no_pass_waits_with_a_reason[unknown]",),
    ),
    Mutant(
        "metric-queried-too-early",
        "an answer from before the driver was ready does not pass",
        PATH + "spec.py",
        "found.asked_s < due_s or ",
        "",
        (GATES + "test_what_is_no_pass_waits_with_a_reason[asked-too-early]",),
    ),
    Mutant(
        "metric-first-of-many",
        "an answer with several series does not pass",
        PATH + "spec.py",
        "        if len(result) > 1:\n",
        "        if not result:\n",
        (GATES + "test_an_answer_is_one_number_or_a_reason[two]",),
    ),
    Mutant(
        "metric-next-wave-begins",
        "queries about the fleet have to pass again before the next wave",
        PATH + "waves.py",
        "    if not found.why:\n        return None, found\n",
        "    if True:\n        return None, found\n",
        (GATES + "test_the_next_wave_waits_for_queries_about_the_fleet_once_more",),
    ),
)
