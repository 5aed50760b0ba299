"""Mutants of what is promised for DriverRollouts: how they are read, and what their status says and keeps."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

READING = "unit/fleet/test_object_reading.py::"
STATUS = "unit/fleet/test_object_status.py::"

BAD_VALUE = READING + "test_a_bad_value_is_one_line_with_field_value_and_expectation"

FLEET_OBJECT_MUTANTS = (
    Mutant(
        "rollout-typo-dropped",
        "an unknown field of a rollout is refused, not dropped",
        "domain/schema.py",
        "        for key in sorted(body.keys() - fields.keys()):\n",
        "        for key in sorted(body.keys() & set()):\n",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-removed-gate-ignored",
        "a rollout with gates.metrics, which were removed, does not run without them",
        "domain/schema.py",
        '            self.problems.append(Problem(at, f"{at} {one.rule.removed}"))\n',
        "",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-flag-for-a-number",
        "true does not count as a number in a rollout",
        "domain/schema.py",
        "    if type(value) is not int and",
        "    if not isinstance(value, int) and",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-wave-of-two-sizes",
        "a wave has either a count or a percent",
        "domain/fleet/spec.py",
        'if wave.get("count") is not None and',
        'if wave.get("count") is None and',
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-no-time-at-all",
        "a duration outside its limits is refused",
        "domain/schema.py",
        "is_fit = found is not None and (one.kind is not float or rule.fits(found))",
        "is_fit = found is not None",
        (BAD_VALUE,),
    ),
    Mutant(
        "rollout-request-ignored",
        "a request that cannot be read stops the rollout, and is not ignored",
        "domain/fleet/spec.py",
        '        reader.problems.append(Problem.of(f"the annotation {key}", value, _WISH[key]))\n',
        "        return None\n",
        (READING + "test_a_wish_that_cannot_be_read_is_a_problem_and_not_no_wish",),
    ),
    Mutant(
        "rollout-windows-in-utc",
        "windows are in the time zone that the rollout names",
        "domain/fleet/spec.py",
        "replace(policy.schedule, zone=policy.timezone)",
        "policy.schedule",
        (READING + "test_everything_that_can_be_said_is_understood",),
    ),
    Mutant(
        "rollout-gate-nowhere",
        "a gate without a namespace uses the rollout's own",
        "domain/fleet/spec.py",
        "namespace=one.namespace or namespace",
        "namespace=one.namespace",
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
        "list(decision.memory.failed[-MAX_KEPT:])",
        "list(decision.memory.failed[:MAX_KEPT])",
        (STATUS + "test_the_newest_is_remembered_of_what_is_bounded",),
    ),
)
