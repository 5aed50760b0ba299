"""Whatever foreign input holds, a reader takes it or refuses it as documented: no other error, no hang, no write."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.domain import wire
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.pods import journal_check, labels
from driver_manager.domain.reboot import state as slots
from tests.assurance.fuzz import host_trees
from tests.assurance.fuzz import target as targets_form
from tests.assurance.fuzz.guided import amplified, mutated
from tests.assurance.fuzz.target import Form, Target, TooSlowError, assert_conforms, check
from tests.assurance.fuzz.targets import TARGETS

pytestmark = [pytest.mark.submission, pytest.mark.shares(3)]

HANG_S = 100.0
HEAVY = {"host", "driver-tree", "processes", "marks", "command-line"}
"""Those that lay a host out for each input."""

EXAMPLES, HEAVY_EXAMPLES = 60, 12


class HangError(Exception):
    """A reader did not come back."""


@contextmanager
def bounded() -> Generator[None, None, None]:
    """Raises HangError in the reader that does not come back."""
    before = signal.signal(signal.SIGALRM, Mock(side_effect=HangError(f"timed out after {HANG_S:g} s")))
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def made(target: Target, number: int) -> bytes:
    """Input `number` of the target: a good one with a few changes, and now and then no good one. Always the same."""
    random = Random(f"{target.name} {number}")  # noqa: S311  # inputs, no secret
    if random.random() < 0.25:
        return random.randbytes(random.randrange(201))
    return mutated(target.form, random.choice(target.seeds), random)


def check_inputs(target: Target, count: int) -> None:
    """Give the target its first `count` inputs. What a finding raises has a note that tells how to repeat it."""
    for number in range(count):
        data = made(target, number)
        try:
            with bounded():
                check(target, data)
        except Exception as error:
            error.add_note(f"repeat it: check(TARGETS[{target.name!r}], made(TARGETS[{target.name!r}], {number}))")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_taken_so_that_the_reader_is_reached(name: str) -> None:
    target = TARGETS[name]
    is_taken = [check(target, seed) for seed in target.seeds]
    if target.form is not Form.PARTS:
        assert all(is_taken)
    assert any(is_taken)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_gets_more_out_of_a_reader_than_its_documented_errors(name: str) -> None:
    check_inputs(TARGETS[name], HEAVY_EXAMPLES if name in HEAVY else EXAMPLES)


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - HEAVY))
def test_no_reader_needs_more_time_than_the_length_of_its_input_explains(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds[:3]:
        for length in (1, 3, 9, len(seed)):
            with bounded():
                check(target, amplified(seed[:length]))


def ignores_absence(fields: wire.Fields) -> object:
    texts = (fields.text("node"), fields.text("uid"), fields.text("bootId"))
    return slots.SlotHolder(*texts, fields.whole("since") if fields.body["since"] is not None else 0)


def believes_a_type(fields: wire.Fields, key: str, *_: object, **__: object) -> object:
    return fields.body.get(key)


def allows_any(*_: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "where", "part", "broken", "error", "expected"),
    [
        ("slots", slots, "_holder", ignores_absence, KeyError, "since"),
        ("slots", wire.Fields, "whole", believes_a_type, AssertionError, "since_s"),
        ("labels", labels, "paused_form", "{}_{}".format, AssertionError, None),
        ("forged-journal", journal_check, "_with_commands", lambda claims, _: claims, AssertionError, None),
        ("forged-journal", journal_check, "_may_be_paused", allows_any, AssertionError, "no label of the profile"),
        ("forged-grant", slots.Pending, "is_granted", property(allows_any), AssertionError, "not approved"),
    ],
)
def test_a_broken_reader_or_run_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, where: Any, part: str, broken: Any, error: Any, expected: str | None
) -> None:
    monkeypatch.setattr(where, part, broken)
    with pytest.raises(error, match=expected):
        check_inputs(TARGETS[name], 20_000)


def test_a_slow_reader_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets_form, "CPU_S", 0.01)
    with pytest.raises(TooSlowError):
        check(Target("slow", lambda _: [sum(range(2_000_000))].clear(), (b"",)), b"")


@pytest.mark.parametrize(
    ("value", "hint"), [({"a"}, frozenset[str]), (["a"], tuple[str, ...]), (({"a"},), tuple[frozenset[str]])]
)
def test_a_value_of_another_type_is_caught(value: object, hint: object) -> None:
    with pytest.raises(AssertionError):
        assert_conforms(value, hint)


def test_a_reader_that_hangs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "HANG_S", 0.05)
    with pytest.raises(HangError), bounded():
        signal.pause()


def test_a_reader_that_writes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(roots: HostRoots, *_: object, **__: object) -> None:
        roots.files().write("/run/rbln/rbln-driver.state", "mine")

    monkeypatch.setattr(host_trees, "read_host", writes)
    with pytest.raises(AssertionError, match="changed: "):
        check(TARGETS["host"], b"")


def test_what_is_refused_as_documented_is_no_finding_and_anything_else_is() -> None:
    reader = Mock(side_effect=ConfigError("what", "remedy"))
    assert not check(Target("raises", reader, (b"",)), b"")
    for error in (KeyError, ValueError, RecursionError, MemoryError):
        with pytest.raises(error):
            check(Target("raises", Mock(side_effect=error), (b"",)), b"")
