"""Mutants of what is promised for gates that ask Prometheus: unknown is no pass, and it is asked late enough."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PATH = "domain/fleet/"
GATES = "unit/fleet/test_metric_gates.py::"

METRIC_GATE_MUTANTS = (
    Mutant(
        "metric-unknown-passes",
        "a query without an answer that is one number is no pass",
        PATH + "metric_gates.py",
        "        return answer.problem if answer.value is None",
        '        return "" if answer.value is None',
        (GATES + "test_what_is_no_pass_waits_with_a_reason[unknown]",),
    ),
    Mutant(
        "metric-asked-too-early",
        "what a server showed before the driver was ready is no pass",
        PATH + "metric_gates.py",
        "found.asked_s < due_s or ",
        "",
        (GATES + "test_what_is_no_pass_waits_with_a_reason[asked-too-early]",),
    ),
    Mutant(
        "metric-first-of-many",
        "several series are no answer",
        PATH + "metric_gates.py",
        "        if len(result) > 1:\n",
        "        if not result:\n",
        (GATES + "test_an_answer_is_one_number_or_a_reason[two]",),
    ),
    Mutant(
        "metric-next-wave-begins",
        "queries about the fleet have to pass once more before the next wave",
        PATH + "turns.py",
        "    if not found.why:\n        return None, found.questions\n",
        "    if True:\n        return None, found.questions\n",
        (GATES + "test_the_next_wave_waits_for_queries_about_the_fleet_once_more",),
    ),
)
