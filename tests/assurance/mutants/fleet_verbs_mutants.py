"""Mutants of what is promised for the verbs of a rollout: what they ask for, what they refuse, what they show."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

ASKING = "unit/fleet/test_asking.py::"
VERBS = "unit/cli/test_rollout_verbs.py::"
STATUS = "unit/cli/test_rollout_verbs.py::"
SCREENS = "unit/cli/test_rollout_screens.py::"
DESK = "unit/adapters/test_kube_fleet.py::"

FLEET_VERBS_MUTANTS = (
    Mutant(
        "approval-of-any-revision",
        "an approval counts only for the revision that is rolled out now",
        "domain/fleet/requests.py",
        'annotations={APPROVED: f"{target}:{wave}"}',
        'annotations={APPROVED: f"{fleet.memory.good}:{wave}"}',
        (ASKING + "test_an_approval_is_for_the_next_wave_and_this_revision_alone",),
    ),
    Mutant(
        "approved-while-unfinished",
        "without --wave, a wave is approved only if a wave waits for its approval",
        "domain/fleet/requests.py",
        "gate.kind is GateKind.APPROVAL and is_waiting",
        "is_waiting",
        (ASKING + "test_where_nothing_waits_nothing_is_approved",),
    ),
    Mutant(
        "retry-of-a-good-node",
        "a node that has not failed is not retried",
        "domain/fleet/requests.py",
        "(asked.place, asked.reason, asked.wants_turn) != (verdict.place, verdict.reason, verdict.wants_turn)",
        "asked is not None",
        (ASKING + "test_a_node_that_has_not_failed_is_not_retried",),
    ),
    Mutant(
        "retry-of-some",
        "of several nodes, all are retried or none",
        "domain/fleet/requests.py",
        "    if refused:\n",
        "    if len(refused) == len(wanted):\n",
        (VERBS + "test_of_several_nodes_all_are_retried_or_none",),
    ),
    Mutant(
        "request-to-an-idle-rollout",
        "a rollout that does nothing now accepts no requests",
        "domain/fleet/requests.py",
        "    if hold is not None and hold.stands_aside:\n        raise",
        "    if hold is not None and hold.stands_aside and hold.allows_retries:\n        raise",
        (ASKING + "test_a_rollout_that_stands_aside_heeds_no_wish",),
    ),
    Mutant(
        "undo-counts-once-for-all",
        "each request for an undo counts",
        "cli/rollout_verbs.py",
        'wish = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"',
        'wish = "undo"',
        (VERBS + "test_each_undo_is_a_wish_of_its_own",),
    ),
    Mutant(
        "dry-run-that-changes",
        "a dry run changes nothing",
        "adapters/kube/fleet.py",
        '**({"dryRun": "All"} if dry_run else {})',
        "**({} if dry_run else {})",
        (VERBS + "test_a_dry_run_is_checked_by_the_server_and_changes_nothing",),
    ),
    Mutant(
        "request-to-a-namesake",
        "a request changes only the object that was read, not a later one of the same name",
        "adapters/kube/fleet.py",
        'metadata: dict[str, Any] = {"uid": uid, **(',
        "metadata: dict[str, Any] = {**(",
        (DESK + "test_a_wish_is_for_the_object_that_was_seen",),
    ),
    Mutant(
        "halt-exits-with-0",
        "a script sees from the exit code that a rollout is halted",
        "cli/rollout_verbs.py",
        "return ExitCode.ROLLOUT_STUCK if outlook.phase in STANDING else ExitCode.DONE",
        "return ExitCode.DONE",
        (STATUS + "test_one_on_its_way_ends_with_0_and_a_halted_one_does_not",),
    ),
    Mutant(
        "leader-without-end",
        "the holder of an expired Lease is not shown as leading",
        "cli/rollout_screen.py",
        "found.renewed_s is not None and shown.now_s < over_s",
        "found.renewed_s is not None",
        (SCREENS + "test_a_lease_that_ran_out_is_nobodys_though_clocks_may_differ_by_less_than_a_minute",),
    ),
    Mutant(
        "escapes-on-the-screen",
        "text from other programs does not control the terminal",
        "cli/options.py",
        "text(words_on_one_line(body))",
        "text(body)",
        (SCREENS + "test_text_from_elsewhere_moves_no_cursor_and_begins_no_line",),
    ),
    Mutant(
        "other-claims-counted",
        "a plan counts only pods that use the accelerator",
        "cli/rollout_verbs.py",
        "sum(one.has_asked for one in workloads(NodePods(pods, claims, (), None), session.profile, rules))",
        "len(pods)",
        (STATUS + "test_the_plan_names_who_goes_when_and_counts_whom_that_disturbs",),
    ),
)
