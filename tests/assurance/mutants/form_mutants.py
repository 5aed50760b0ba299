"""Mutants of what is promised for options, and for documents that later versions read."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

FORM_MUTANTS = (
    Mutant(
        "suggests-its-own-names-only",
        "a mistyped command suggests the right one, also within a group",
        "cli/main.py",
        "possibilities=[*self.table, *inner]",
        "possibilities=self.table",
        ("unit/cli/test_cli.py::test_a_usage_error_is_two_lines_and_exit_code_two",),
    ),
    Mutant(
        "setting-ignored",
        "a setting that a command does not take is an error, and is not ignored",
        "domain/settings.py",
        "        if setting not in self._values:\n",
        "        if setting not in self._values:\n            return setting.unset\n        if setting.name == '':\n",
        ("unit/domain/test_settings.py::test_a_setting_that_the_command_does_not_take_is_an_error_and_never_off",),
    ),
    Mutant(
        "setting-wired-twice",
        "each setting of the policy has an effect of its own",
        "cli/session.py",
        "        device_free_timeout_s=values[settings.DEVICE_FREE_TIMEOUT],\n",
        "        device_free_timeout_s=values[settings.POD_TERMINATION_TIMEOUT],\n",
        ("unit/cli/test_policy.py::test_each_setting_changes_the_policy_in_a_way_of_its_own",),
    ),
    Mutant(
        "newer-document-read",
        "a document of a newer version is refused",
        "domain/wire.py",
        "        if version > self.version:\n",
        "        if version > self.version + 1:\n",
        ("unit/domain/test_wire.py::test_a_newer_document_is_refused_in_the_same_words_and_asks_for_a_newer_manager",),
    ),
    Mutant(
        "flag-for-a-number",
        "true does not count as a number in a document",
        "domain/wire.py",
        "        if type(value) is not int or not low <=",
        "        if not isinstance(value, int) or not low <=",
        ("unit/domain/test_wire.py::test_a_field_that_is_not_what_was_expected_is_named",),
    ),
    Mutant(
        "bad-field-unnamed",
        "the error for a bad field shows its place in the document",
        "domain/wire.py",
        'self._refused(f"{self._named(key)} is missing',
        'self._refused(f"{key} is missing',
        ("unit/domain/test_wire.py::test_a_field_that_is_not_what_was_expected_is_named",),
    ),
    Mutant(
        "half-a-file-left",
        "a write that runs out of space leaves only the old file",
        "adapters/host/files.py",
        "    except BaseException:\n        _unlink(where, temporary)\n        raise\n    return temporary\n",
        "    except KeyError:\n        raise\n    return temporary\n",
        ("unit/adapters/test_files.py::test_the_old_file_stays_whole_and_nothing_else_is_left",),
    ),
    Mutant(
        "loop-hoards-garbage",
        "a loop looks for garbage as often as Python does",
        "cli/start.py",
        "    if not _is_loop(words):\n        gc",
        "    if words:\n        gc",
        ("unit/cli/test_start.py::test_a_loop_looks_for_garbage_as_often_as_python_does",),
    ),
    Mutant(
        "child-looked-for-late",
        "a child that has answered is waited for at most a millisecond before it is looked for again",
        "adapters/process/forked.py",
        "time.monotonic() + REAP_S, FIRST_LOOK_S",
        "time.monotonic() + REAP_S, MOST_LOOK_S",
        ("unit/adapters/test_forked.py::test_who_has_answered_is_not_waited_for",),
    ),
)
