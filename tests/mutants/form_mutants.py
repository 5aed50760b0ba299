"""Mutants of what is promised for options, and for documents that later versions read."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FORM_MUTANTS = (
    Mutant(
        "suggests-its-own-names-only",
        "a mistyped command suggests the right one, also within a group",
        "cli/lazy.py",
        "possibilities=[*self.table, *inner]",
        "possibilities=self.table",
        ("unit/cli/test_cli.py::test_a_usage_error_is_two_lines_and_exit_code_two",),
    ),
    Mutant(
        "setting-ignored",
        "a setting that a command does not take is an error, and is not ignored",
        "domain/setting.py",
        "        if setting not in self._values:\n",
        "        if setting not in self._values:\n            return setting.unset\n        if setting.name == '':\n",
        ("unit/domain/test_settings.py::test_a_setting_that_the_command_does_not_take_is_an_error_and_never_off",),
    ),
    Mutant(
        "setting-wired-twice",
        "each setting of the policy has an effect of its own",
        "cli/wiring.py",
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
        "        if type(value) is not int or (least is not None",
        "        if not isinstance(value, int) or (least is not None",
        ("unit/domain/test_wire.py::test_a_field_that_is_not_what_was_expected_is_named",),
    ),
    Mutant(
        "bad-field-unnamed",
        "the error for a bad field shows its place in the document",
        "domain/wire.py",
        'self._refused(f"{self.at}{key} is missing',
        'self._refused(f"{key} is missing',
        ("unit/domain/test_wire.py::test_a_field_that_is_not_what_was_expected_is_named",),
    ),
    Mutant(
        "half-a-file-left",
        "a write that runs out of space leaves only the old file",
        "adapters/host/files.py",
        "    except BaseException:\n        _unlink(where, temporary)\n        raise\n    return temporary\n",
        "    except KeyError:\n        raise\n    return temporary\n",
        ("unit/adapters/test_full_file_system.py",),
    ),
    Mutant(
        "record-changes",
        "a field of a record that has its value keeps it",
        "domain/frozen.py",
        "if name in self.__dict__ or name not in",
        "if name not in",
        ("unit/domain/test_frozen.py::test_it_cannot_be_changed",),
    ),
    Mutant(
        "record-of-another-class-equal",
        "records of two classes are never equal",
        "domain/frozen.py",
        "        if other.__class__ is not self.__class__:\n",
        "        if not isinstance(other, Frozen):\n",
        ("unit/domain/test_frozen.py::test_another_class_is_never_equal",),
    ),
    Mutant(
        "record-compares-all",
        "a field that is not compared is not compared",
        "domain/frozen.py",
        " for one in fields(cls) if one.compare)",
        " for one in fields(cls))",
        ("unit/domain/test_frozen.py::test_two_are_equal_where_two_dataclasses_are",),
    ),
    Mutant(
        "record-shows-all",
        "a field that is not shown is not shown",
        "domain/frozen.py",
        " for one in fields(self) if one.repr)",
        " for one in fields(self))",
        ("unit/domain/test_frozen.py::test_it_looks_like_a_dataclass",),
    ),
)
