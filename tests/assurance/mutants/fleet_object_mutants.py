"""Mutants of what is promised for DriverRollouts: how they are read, and what their status says and keeps."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

READING = "unit/fleet/test_object_reading.py::"
STATUS = "unit/fleet/test_object_status.py::"
DEFINITION = "unit/fleet/test_object_definition.py::"

BAD_VALUE = READING + "test_a_bad_value_is_one_line_with_field_value_and_expectation"

FLEET_OBJECT_MUTANTS = (
    Mutant(
        "rollout-typo-dropped",
        "an unknown field of a rollout is refused, not dropped",
        "domain/fleet/spec.py",
        "        for name in sorted(body.keys() - {one.name for one in fields}):\n",
        "        for name in sorted(body.keys() & set()):\n",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-removed-gate-ignored",
        "a rollout with gates.metrics, which were removed, does not run without them",
        "domain/fleet/spec.py",
        '                self.problems.append(f"{at} {one.meaning}")\n',
        "",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-flag-for-a-number",
        "true does not count as a number in a rollout",
        "domain/fleet/spec.py",
        "int()) if type(value) is int and _fits(one, value):",
        "int()) if _fits(one, value):",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-wave-of-two-sizes",
        "a wave has either a count or a percent",
        "domain/fleet/spec.py",
        "            if len(both) > 1:\n",
        "            if len(both) > 2:\n",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-no-time-at-all",
        "a duration outside its limits is refused",
        "domain/fleet/spec.py",
        "                return seconds if _fits(one, seconds) else None\n",
        "                return seconds\n",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-default-of-its-own",
        "the API server's defaults are those of the policy",
        "domain/fleet/spec.py",
        '        default="10m",\n',
        '        default="10s",\n',
        (DEFINITION + "test_the_defaults_are_those_of_the_policy",),
    ),
    Mutant(
        "rollout-request-ignored",
        "a request that cannot be read stops the rollout, and is not ignored",
        "domain/fleet/spec.py",
        '        values.bad(f"the annotation {key}", value, _WISH[key])\n',
        "        return None\n",
        (READING + "test_a_wish_that_cannot_be_read_is_a_problem_and_not_no_wish",),
    ),
    Mutant(
        "rollout-windows-in-utc",
        "windows are in the time zone that the rollout names",
        "domain/fleet/spec.py",
        'replace(values["windows"] or Schedule(), zone=values["timezone"])',
        'values["windows"] or replace(Schedule(), zone=values["timezone"])',
        (READING + "test_everything_that_can_be_said_is_understood",),
    ),
    Mutant(
        "rollout-gate-nowhere",
        "a gate without a namespace uses the rollout's own",
        "domain/fleet/spec.py",
        'PodGate(one["namespace"] or namespace, one["selector"])',
        'PodGate(one["namespace"] or "", one["selector"])',
        (READING + "test_everything_that_can_be_said_is_understood",),
    ),
    Mutant(
        "rollout-condition-always-new",
        "a condition keeps the time at which its status changed",
        "domain/fleet/status.py",
        "_since(before.get(kind, {}), str(held)) or written_time(now_s)",
        "written_time(now_s)",
        (STATUS + "test_a_condition_keeps_its_time_while_its_status_stays_whatever_else_changes",),
    ),
    Mutant(
        "rollout-paused-on-its-way",
        "a paused rollout does not show that it is progressing",
        "domain/fleet/status.py",
        "RECONCILING: phase not in IDLE,",
        "RECONCILING: phase not in STANDING and phase is not Phase.COMPLETE,",
        (STATUS + "test_conditions_follow_the_phase",),
    ),
    Mutant(
        "rollout-typo-forgets-all",
        "an object that cannot be read keeps the nodes in its status",
        "domain/fleet/status.py",
        "    return {**stays, **kept}\n",
        "    return stays\n",
        (STATUS + "test_what_cannot_be_read_says_why_and_keeps_the_rest",),
    ),
    Mutant(
        "rollout-failure-shown-late",
        "a failure is in the status at once",
        "domain/fleet/status.py",
        '_SLOW = _SHOWN - {"wave", "failures"}',
        '_SLOW = _SHOWN - {"wave"}',
        (STATUS + "test_what_people_and_the_next_controller_must_know_is_written_at_once",),
    ),
    Mutant(
        "rollout-a-write-for-each-node",
        "changed counts of the status are written together",
        "domain/fleet/status.py",
        'for key in one if key != "message"}',
        "for key in one}",
        (STATUS + "test_what_only_counts_can_wait",),
    ),
    Mutant(
        "rollout-rare-reasons-uncounted",
        "every waiting node is counted, however many reasons there are",
        "domain/fleet/status.py",
        "        groups = [*groups[: MAX_GROUPS - 1], (OTHERS, rest)]\n",
        "        groups = groups[:MAX_GROUPS]\n",
        (STATUS + "test_no_node_that_waits_is_uncounted_however_many_reasons_there_are",),
    ),
    Mutant(
        "rollout-oldest-failures-kept",
        "the status keeps the revisions that failed last",
        "domain/fleet/status.py",
        "list(memory.failed[-MAX_KEPT:])",
        "list(memory.failed[:MAX_KEPT])",
        (STATUS + "test_the_newest_is_remembered_of_what_is_bounded",),
    ),
)
