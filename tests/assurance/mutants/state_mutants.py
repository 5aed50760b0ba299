"""Mutants of what is promised for the driver's state: what the Node shows of it, and what `status` says."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

WRITER = "unit/swap/test_state_writer.py::"
SCREENS = "unit/cli/test_commands_on_a_node.py::test_a_scenario_gives_its_output"

STATE_WRITER = "unit/swap/test_state_writer.py"
STATE_MUTANTS = (
    Mutant(
        "notes-before-errors",
        "`status` lists errors before notes",
        "domain/status.py",
        "key=lambda one: one.kind in NOTES",
        "key=lambda one: one.kind not in NOTES",
        ("unit/status/test_status.py::test_each_missing_right_or_mount_is_named_once_and_errors_come_before_notes",),
    ),
    Mutant(
        "unknown-pods-not-reported",
        "`holders` reports that the names of pods are unknown",
        "cli/by_hand.py",
        '        "podsUnknown": unread.what if unread is not None else None,\n',
        '        "podsUnknown": None,\n',
        (SCREENS,),
    ),
    Mutant(
        "end-in-a-patch-of-its-own",
        "the outcome of a run is written in the patch that releases the node",
        "core/swap/node.py",
        "patch_node_where((*operations, *self.state.operations(self.state.node)))",
        "patch_node_where(operations)",
        (WRITER + "test_a_replacement_takes_two_patches_which_say_upgrading_and_ready",),
    ),
    Mutant(
        "same-outcome-written-again",
        "the same failure of several runs is written once",
        "domain/node_state.py",
        "    return outcome.state, outcome.exit_code, step, writable(outcome.digest)",
        "    return outcome.state, outcome.exit_code, step, writable(outcome.digest), outcome.ended",
        (WRITER + "test_a_run_that_fails_before_its_first_change_shows_that_once_however_often_it_is_tried",),
    ),
    Mutant(
        "wedge-ended-by-a-run",
        "a run that had nothing to do does not end a wedge",
        "domain/node_state.py",
        "        case NodeState.UPGRADING | NodeState.HELD | NodeState.FAILED:",
        "        case NodeState.UPGRADING | NodeState.HELD | NodeState.FAILED | NodeState.WEDGED:",
        (WRITER + "test_a_run_without_a_plan_leaves_a_node_alone_that_shows_nothing_wrong",),
    ),
    Mutant(
        "failure-never-over",
        "a run that had nothing to do replaces the state of an earlier failure",
        "core/swap/node.py",
        "        if node_state.is_outdated(",
        "        if not self._keys.state and node_state.is_outdated(",
        (WRITER + "test_a_run_without_a_plan_corrects_what_is_over_in_one_patch",),
    ),
    Mutant(
        "held-shown-as-failed",
        "a node that is held is shown as held",
        "core/swap/node.py",
        "                self.state.holds()\n",
        "",
        (WRITER + "test_a_held_node_is_shown_as_held_by_one_patch_more",),
    ),
    Mutant(
        "patch-only-for-the-state",
        "a run that is asked to terminate sends no patch only for its state",
        "core/swap/run.py",
        "    if is_news and not is_ending:",
        "    if is_news:",
        (WRITER + "test_told_to_end_a_run_that_holds_the_node_sends_no_patch_of_its_own",),
    ),
    Mutant(
        "state-of-another-run-replaced",
        "a run does not write the state of a node that another run has taken",
        "core/swap/node.py",
        "        return self.ending(node, NodeChange()) if is_same else NodeChange()",
        "        return self.ending(node, NodeChange()) if is_same or node else NodeChange()",
        (WRITER + "test_a_node_that_another_run_took_meanwhile_is_left_alone",),
    ),
    Mutant(
        "state-taken-for-a-deploy-label",
        "the label of the driver's state is never paused",
        "domain/profile.py",
        "        return self.deploy.keys_in(dict(labels)) - self.keys.names",
        "        return self.deploy.keys_in(dict(labels))",
        ("unit/domain/test_profiles.py::test_no_key_of_ours_is_taken_for_a_deploy_label",),
    ),
    Mutant(
        "digest-cut",
        "two different digests never look the same in a message",
        "domain/text.py",
        "    if len(digest) <= MAX_WHOLE_CHARS:\n        return digest\n",
        "    return digest[:12]\n",
        ("unit/domain/test_text.py::test_two_that_differ_in_one_character_differ_in_words",),
    ),
    Mutant(
        "failure-ends-a-wedge",
        "a run that fails before it takes the node ends neither a wedge nor a request for a reboot",
        "domain/node_state.py",
        "    stays = outcome.state is NodeState.FAILED and there in lasting\n",
        "    stays = False\n",
        ("unit/swap/test_state_writer.py::test_a_run_that_fails_before_it_takes_the_node_ends_no_wedge",),
    ),
    Mutant(
        "hold-forgotten",
        "a node that is held for a driver that does not work stays held until a run succeeds",
        "core/swap/node.py",
        "        return found.boot_id == host.boot_id and bool(found.driver.digest) and not host.digest\n",
        "        return False\n",
        (f"{STATE_WRITER}::test_a_node_held_for_a_driver_that_does_not_work_stays_so_through_a_run_that_fails_early",),
    ),
    Mutant(
        "wedge-called-ready",
        "`status` shows a wedge that the host reports, regardless of the last run",
        "domain/status.py",
        "    _wedged,\n    _failed_headline,\n    _with_machines,\n    _not_loaded,\n    _ready,\n",
        "    _failed_headline,\n    _not_loaded,\n    _ready,\n    _wedged,\n",
        ("unit/status/test_status.py::test_the_headline",),
    ),
    Mutant(
        "one-right-hides-all",
        "a missing right hides only its own lines of `status`",
        "cli/session.py",
        "            self.errors[part] = error\n            return otherwise\n",
        "            self.errors[part] = error\n            raise\n",
        (SCREENS,),
    ),
    Mutant(
        "undocumented-field",
        "every field that `status` prints is in its JSON schema",
        "cli/status.py",
        '        "profile": profile.name,\n',
        '        "profile": profile.name,\n        "vendor": profile.pci_vendor,\n',
        (SCREENS,),
    ),
    Mutant(
        "reboot-done-at-the-boot",
        "a rebooted node is not shown as ready before its driver is loaded",
        "domain/reboot/decision.py",
        "    if state.pending is not None:\n        labels.pop(keys.state, None)\n",
        "",
        ("unit/reboot/test_reboot_loop.py::test_a_rebooted_node_is_ready_once_its_driver_serves_and_not_before",),
    ),
)
