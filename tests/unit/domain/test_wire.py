"""One reader for all documents: each names its version alike, refuses what is newer alike, and names a bad field."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain import journal
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.health import watch as health_record
from driver_manager.domain.health.watch import History
from driver_manager.domain.host import (
    FAILURE_FORM,
    MARKER_FORM,
    REBOOT_WISH_FORM,
    decode_failure,
    decode_marker,
    decode_reboot_wish,
)
from driver_manager.domain.node_state import GENERATION_FORM, decode_generation
from driver_manager.domain.pci import BINDINGS_FORM, decode_bindings
from driver_manager.domain.pods import client_record
from driver_manager.domain.reboot.state import REBOOT_RECORD_FORM, SLOTS_FORM, decode_reboot_record, decode_slots
from driver_manager.domain.wire import Fields, Form

GOLDEN = Path(__file__).parents[1] / "golden"
DOCUMENTS: dict[str, tuple[Form, Callable[[str], Any]]] = {
    "bindings": (BINDINGS_FORM, decode_bindings),
    "clients": (client_record.FORM, client_record.decode),
    "failure": (FAILURE_FORM, decode_failure),
    "generation": (GENERATION_FORM, decode_generation),
    "journal": (journal.FORM, journal.decode),
    "marker": (MARKER_FORM, decode_marker),
    "rebooter": (REBOOT_RECORD_FORM, decode_reboot_record),
    "slots": (SLOTS_FORM, decode_slots),
    "wish": (REBOOT_WISH_FORM, decode_reboot_wish),
}
FORMS = {**{name: form for name, (form, _) in DOCUMENTS.items()}, "health": health_record.WATCH_RECORD_FORM}
FILES = sorted(path for name in FORMS for path in GOLDEN.glob(f"{name}-v*.json"))
HEALTH = [path for path in FILES if path.name.startswith("health")]
WRONG: tuple[Any, ...] = (None, {}, [], [[]], "x" * 500, True, -1.5, math.nan, math.inf, 10**400)


class UnreadableError(ConfigError):
    """What the form of these tests raises."""


FORM = Form("the test", UnreadableError, "Do better.")


def places(body: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in `body`."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    """`body` with `value` at `place`."""
    whole = here = copy.deepcopy(body)
    for key in place[:-1]:
        here = here[key]
    here[place[-1]] = value
    return whole


def refusal(read: Callable[[str], Any], text: str) -> str:
    """What is said where `text` cannot be read, "" where it can."""
    try:
        read(text)
    except ConfigError as error:
        return error.what
    return ""


def test_every_form_has_golden_files() -> None:
    assert {path.name.partition("-")[0] for path in FILES} == set(FORMS)


@pytest.mark.parametrize("path", HEALTH, ids=lambda path: path.name)
def test_every_health_record_ever_written_is_read_and_written_again_the_same(path: Path) -> None:
    text = path.read_text()
    boot = json.loads(text)["bootId"]
    found = health_record.decode_watch_record(text, boot)
    assert found.failures > 0
    assert health_record.encode_watch_record(found, boot) == text


def test_a_newer_document_is_refused_in_the_same_words_and_asks_for_a_newer_manager() -> None:
    assert {path.name.partition("-")[0] for path in FILES} == FORMS.keys()
    for path in FILES:
        form = FORMS[path.name.partition("-")[0]]
        body = json.loads(path.read_text()) | {form.key: form.version + 1}
        with pytest.raises(form.unreadable) as caught:
            form.read(json.dumps(body))
        assert caught.value.what.startswith(
            f"{form.name} cannot be read: version {form.version + 1} is newer than this driver-manager, "
            f"which knows up to {form.version}"
        ), path.name
        assert "at least as new" in caught.value.remedy, path.name
        assert caught.value.exit_code is ExitCode.USAGE, path.name


@pytest.mark.parametrize("name", FORMS)
def test_what_is_no_version_is_refused_by_its_name(name: str) -> None:
    form = FORMS[name]
    versions: list[Any] = [None, "1", True, 0, -1, 1.0, [], {}]
    for body in (*({form.key: version} for version in versions), {}):
        with pytest.raises(form.unreadable, match=r"(version|schema) is .*, expected a whole number from 1") as caught:
            form.opened(body)
        assert caught.value.remedy == form.remedy


@pytest.mark.parametrize("path", [path for path in FILES if path not in HEALTH], ids=lambda path: path.name)
def test_a_wrong_value_anywhere_is_read_or_named_with_its_document(path: Path) -> None:
    form, decode = DOCUMENTS[path.name.partition("-")[0]]
    body = json.loads(path.read_text())
    refused = 0
    for place in places(body):
        for value in WRONG:
            said = refusal(decode, json.dumps(changed(body, place, value)))
            if said:
                refused += 1
                assert said.startswith(f"{form.name} cannot be read: ")
                named = [*(str(key) for key in place if isinstance(key, str)), "version", "boot"]
                assert any(re.search(rf"\b{re.escape(key)}\b", said) for key in named), said
                assert len(said) < 300
    assert refused > 10


@pytest.mark.parametrize("path", HEALTH, ids=lambda path: path.name)
def test_a_wrong_value_in_a_health_record_is_a_fresh_start_or_read(path: Path) -> None:
    body = json.loads(path.read_text())
    ends = [
        health_record.decode_watch_record(json.dumps(changed(body, place, value)), body["bootId"])
        for place in places(body)
        for value in WRONG
    ]
    assert History() in ends


def opened(**body: Any) -> Fields:
    return FORM.opened({"schema": 1, **body})


@pytest.mark.parametrize(
    ("read", "value", "said"),
    [
        (lambda found: found.text("a"), 1, "a is 1, expected a text"),
        (lambda found: found.text("a", "none"), None, "a is None, expected a text"),
        (lambda found: found.flag("a"), 1, "a is 1, expected true or false"),
        (lambda found: found.whole("a"), True, "a is True, expected a whole number"),
        (lambda found: found.whole("a"), 1.0, "a is 1.0, expected a whole number"),
        (lambda found: found.whole("a", least=1, most=5), 0, "a is 0, expected a whole number from 1 to 5"),
        (lambda found: found.whole("a", least=1, most=5), 6, "a is 6, expected a whole number from 1 to 5"),
        (lambda found: found.whole("a"), 2**64, "a is 18446744073709551616, expected a whole number"),
        (lambda found: found.whole("a"), -(2**63) - 1, "a is -9223372036854775809, expected a whole number"),
        (lambda found: found.whole("a"), 10**400, "a is 1000"),
        (lambda found: found.whole("a", least=0), 10**400, "a is 1000"),
        (lambda found: found.seconds("a"), True, "a is True, expected a number of seconds"),
        (lambda found: found.seconds("a"), math.inf, "a is inf, expected a number of seconds"),
        (lambda found: found.seconds("a"), 10**400, "a is 1000"),
        (lambda found: found.choice("a", ("x", "y")), "z", "a is 'z', expected one of x, y"),
        (lambda found: found.choice("a", ("x", "y")), ["x"], "a is a list, expected one of x, y"),
        (lambda found: found.texts("a"), "text", "a is not a list of texts"),
        (lambda found: found.texts("a"), ["x", 1], "a is not a list of texts"),
        (lambda found: found.texts("a", ()), None, "a is not a list of texts"),
        (lambda found: found.flags("a"), [1], "a is not a list of true and false"),
        (lambda found: found.texts_by_name("a"), {"x": 1}, "a holds something other than texts"),
        (lambda found: found.fields("a"), [], "a is a list, expected an object"),
        (lambda found: found.each("a"), [1], "a is not a list of objects"),
        (
            lambda found: found.fields("a").fields("b").text("c"),
            {"b": {"c": {}}},
            "a.b.c is an object, expected a text",
        ),
        (lambda found: found.each("a")[1].text("c"), [{"c": ""}, {}], r"a\[1\].c is missing, expected a text"),
    ],
)
def test_a_field_that_is_not_what_was_expected_is_named(read: Callable[[Fields], Any], value: Any, said: str) -> None:
    with pytest.raises(UnreadableError, match=f"^the test cannot be read: {said}"):
        read(opened(a=value))


@pytest.mark.parametrize(
    "read",
    [
        lambda found: found.text("a"),
        lambda found: found.flag("a"),
        lambda found: found.whole("a"),
        lambda found: found.seconds("a"),
        lambda found: found.choice("a", ("x",)),
        lambda found: found.texts("a"),
        lambda found: found.flags("a"),
        lambda found: found.fields("a"),
        lambda found: found.each("a"),
        lambda found: found.is_null("a"),
    ],
)
def test_a_field_that_is_missing_is_named(read: Callable[[Fields], Any]) -> None:
    with pytest.raises(UnreadableError, match=r"^the test cannot be read: a is missing, expected "):
        read(opened())


def test_what_is_there_is_read_as_its_type_and_what_is_not_as_its_default() -> None:
    found = opened(a="x", b=3, c=True, d=2, e=["x"], f={"g": "h"}, i=None)
    assert (found.text("a"), found.whole("b"), found.flag("c"), found.texts("e")) == ("x", 3, True, ("x",))
    assert (found.seconds("d"), type(found.seconds("d"))) == (2.0, float)
    assert (found.texts_by_name("f"), found.fields("f").text("g"), found.is_null("i")) == ({"g": "h"}, "h", True)
    assert (found.text("z", ""), found.whole("z", 0), found.texts("z", ())) == ("", 0, ())
    assert "a" in found
    assert "z" not in found


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=6,
    )
)
def test_any_value_is_a_document_or_refused_and_its_error_can_be_shown(value: Any) -> None:
    for form in FORMS.values():
        assert refusal(form.read, json.dumps(value)).encode().decode().isprintable()


@pytest.mark.parametrize("text", ["", "{", "[1]", "1", '"x"', "null", "[" * 100_000, "{" * 5_000, "9" * 5_000])
def test_what_is_no_object_is_refused(text: str) -> None:
    for form in FORMS.values():
        with pytest.raises(form.unreadable, match="cannot be read: not "):
            form.read(text)


@pytest.mark.parametrize(
    "read",
    [
        lambda found, key: found.text(key),
        lambda found, key: found.fields("b").fields(key).fields(key).text("c"),
        lambda found, key: found.texts(key),
        lambda found, key: found.texts_by_name(key),
        lambda found, key: found.text(key + "x"),
    ],
)
def test_a_long_name_of_a_field_is_cut_in_a_message(read: Callable[[Fields, str], object]) -> None:
    key = "k" * 100_000
    with pytest.raises(ConfigError) as caught:
        read(opened(**{key: {"x": 1}, "b": {key: {key: 5}}}), key)
    assert len(caught.value.what) < 400
    assert "k" * 70 in caught.value.what
