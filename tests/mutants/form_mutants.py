"""Mutants of what is promised for options, and for documents that later versions read."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FORM_MUTANTS = (
    Mutant(
        "setting-not-taken",
        "a setting that a command does not take is an error, never off",
        "domain/setting.py",
        "        if setting not in self._values:\n",
        "        if setting not in self._values:\n            return setting.unset\n        if setting.name == '':\n",
        ("unit/test_settings.py::test_a_setting_that_the_command_does_not_take_is_an_error_and_never_off",),
    ),
    Mutant(
        "setting-wired-twice",
        "each setting of the policy has an effect of its own",
        "cli/wiring.py",
        "        device_free_timeout_s=values[settings.DEVICE_FREE_TIMEOUT],\n",
        "        device_free_timeout_s=values[settings.POD_TERMINATION_TIMEOUT],\n",
        ("unit/test_policy.py::test_each_setting_changes_the_policy_in_a_way_of_its_own",),
    ),
)
