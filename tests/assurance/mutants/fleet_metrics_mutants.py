"""Mutants of what is promised for the metrics and Events of a rollout: what alerts are built on."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

METRICS = "unit/fleet/test_fleet_metrics.py::"
DECISIONS = "unit/fleet/test_decisions.py::test_facts_lead_to_the_decision"

FLEET_METRICS_MUTANTS = (
    Mutant(
        "standby-under-the-operators-names",
        "only the controller that leads serves metrics under the operators' names",
        "domain/fleet/status.py",
        "    return tuple(_families(report, names)) if report.leads else ()",
        "    return tuple(_families(report, names))",
        (METRICS + "test_who_stands_by_says_nothing_under_these_names",),
    ),
    Mutant(
        "operated-node-counted-twice",
        "a node whose upgrades an operator manages is not counted under the operators' names",
        "domain/fleet/status.py",
        "        if node.name not in operated:\n            words",
        "        if True:\n            words",
        (METRICS + "test_a_node_is_counted_where_it_stands_and_by_the_operators_word_for_that",),
    ),
    Mutant(
        "room-while-paused",
        "no node counts as ready to start in a phase in which none may start",
        "domain/fleet/advance.py",
        "max(0, parallel - under_way) if is_starting else 0",
        "max(0, parallel - under_way)",
        ("unit/fleet/test_rollout_pace.py::test_there_is_no_end_where_no_node_may_start",),
    ),
    Mutant(
        "progress-is-the-beginning",
        "a rollout whose nodes make progress does not look stalled",
        "domain/fleet/status.py",
        "max([began_s, *(node.since_s or 0.0 for node in outlook.nodes)])",
        "began_s",
        (METRICS + "test_a_rollout_moves_when_a_node_comes_to_another_state_or_when_it_begins",),
    ),
    Mutant(
        "hung-loop-is-ready",
        "a controller whose loop hangs is not ready",
        "cli/rollout_controller.py",
        " if self._heartbeat.is_late else self._last\n",
        " if self._heartbeat.is_late and not self._last.leads else self._last\n",
        (METRICS + "test_a_loop_that_hangs_does_no_work_whatever_it_said_before",),
    ),
    Mutant(
        "end-estimated-once",
        "the expected end of a rollout moves as time passes, even if nothing happens",
        "domain/fleet/status.py",
        "else now_s + pace.left_s",
        "else pace.left_s",
        (METRICS + "test_a_pace_that_is_unknown_is_served_as_0",),
    ),
    Mutant(
        "wave-end-reported-again",
        "the end of a wave is reported once",
        "domain/fleet/advance.py",
        "wave.ended_s is not None and wave.number > last]",
        "wave.ended_s is not None]",
        (DECISIONS,),
    ),
    Mutant(
        "missing-approval-without-warning",
        "a missing approval is a Warning Event, a soak time is not",
        "domain/fleet/advance.py",
        "(events.ROLLOUT_APPROVAL_REQUIRED, True)",
        "(events.ROLLOUT_APPROVAL_REQUIRED, False)",
        (DECISIONS,),
    ),
)
