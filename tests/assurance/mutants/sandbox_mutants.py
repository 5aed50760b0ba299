"""Mutants of what the sandbox promises: a cluster that behaves like a real one, and scenarios whose end is checked."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

CONTRACT = "unit/sandbox/test_contract_on_sandbox.py::TestFleetObjectsOnSandbox::"
FLEET = "unit/sandbox/test_sandbox_scenarios.py::"
SCREEN = "unit/cli/test_screens.py::"
FOREGROUND = "unit/sandbox/test_foreground.py::"
PODS = "unit/sandbox/test_sandbox_apiserver.py::"
VENDORS = "unit/sandbox/test_sandbox_scenarios.py::"

SANDBOX_MUTANTS = (
    Mutant(
        "template-back-is-not-the-newest",
        "in the sandbox a template that is restored is its old revision with the highest number",
        "sandbox/apiserver.py",
        '    elif known[wanted]["revision"] < newest:\n',
        "    elif False:\n",
        (CONTRACT + "test_a_template_that_comes_back_is_its_old_revision_with_the_highest_number",),
    ),
    Mutant(
        "pods-name-no-revision",
        "in the sandbox pods carry the hash of the template that they were made from",
        "sandbox/apiserver.py",
        "REVISION_LABEL: hash_of(template)}",
        "REVISION_LABEL: metadata['name']}",
        (CONTRACT + "test_a_template_is_a_revision_that_its_pods_name",),
    ),
    Mutant(
        "status-at-creation",
        "in the sandbox a custom resource is created without its status",
        "sandbox/apiserver.py",
        '            body.pop("status", None)\n',
        "            pass\n",
        (CONTRACT + "test_a_new_rollout_has_no_status_and_its_generation_counts_changes_of_its_spec",),
    ),
    Mutant(
        "story-without-waves",
        "the scenario of a fleet is judged by all its promises",
        "sandbox/fleet.py",
        "    return [*found, *_wave_problems(scenario, [one for one in course.taken if one.version == good])]\n",
        "    return found\n",
        (FLEET + "test_a_wrong_course_is_found",),
    ),
    Mutant(
        "story-waits-without-a-controller",
        "a controller that ends by itself ends the scenario at once, with an error that names it",
        "sandbox/fleet.py",
        "        if not holds():\n            raise",
        "        if False:\n            raise",
        (FLEET + "test_a_controller_that_ends_by_itself_ends_the_scenario",),
    ),
    Mutant(
        "affinity-ignored",
        "in the sandbox a DaemonSet obeys its required node affinity",
        "sandbox/apiserver.py",
        "    return is_allowed and bool(",
        "    return bool(",
        (PODS + "test_a_daemonset_keeps_to_what_its_affinity_requires_of_a_nodes_labels",),
    ),
    Mutant(
        "story-without-the-kernels-order",
        "a vendor's scenario checks the order in which the kernel unloads and loads modules",
        "sandbox/scenarios.py",
        "        if scenario.kernel and seen != list(scenario.kernel):\n",
        "        if False:\n",
        (VENDORS + "test_the_modules_go_and_come_in_the_vendors_order",),
    ),
    Mutant(
        "terminal-of-another-kind",
        "on a terminal the output of a scenario's command is passed on unchanged",
        "sandbox/cluster.py",
        "    attributes[OUTPUT_FLAGS] &= ~termios.OPOST\n",
        "",
        (FOREGROUND + "test_what_it_draws_comes_as_it_is",),
    ),
    Mutant(
        "table-is-left-behind",
        "on a terminal the fleet is one table that is redrawn",
        "cli/sandbox.py",
        '            click.echo(f"\\x1b[{self._drawn}A\\r\\x1b[J", nl=False, file=self._stream)\n',
        "            pass\n",
        (SCREEN + "test_on_a_terminal_the_last_picture_is_all_that_is_left_of_them",),
    ),
)
