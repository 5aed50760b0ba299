"""One reader for all documents: each names its version alike, refuses what is newer alike, and names a bad field."""

from __future__ import annotations

import contextlib
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
from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain import host, host_record, journal, node_state, pci, wire
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.health import watch as health_record
from driver_manager.domain.health.watch import History
from driver_manager.domain.pods import client_record
from driver_manager.domain.reboot import state as reboot
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form, Unreadable, decimal, seconds_of, written_time
from driver_manager.sandbox.apiserver import apply_merge_patch

GOLDEN = Path(__file__).parents[1] / "golden"
DOCUMENTS: dict[str, tuple[Form, Callable[[str], Any]]] = {
    "bindings": (pci.BINDINGS_FORM, pci.decode_bindings),
    "clients": (client_record.FORM, client_record.decode),
    "failure": (host.FAILURE_FORM, host.decode_failure),
    "generation": (node_state.GENERATION_FORM, node_state.decode_generation),
    "host-record": (host_record.FORM, host_record.decode),
    "journal": (journal.FORM, journal.decode),
    "last-outcome": (node_state.FORM, node_state.decode),
    "marker": (host.MARKER_FORM, host.decode_marker),
    "rebooter": (reboot.REBOOT_RECORD_FORM, reboot.decode_reboot_record),
    "recovery-note": (node_state.NOTE_FORM, lambda text: node_state.NOTE_FORM.read(text).record(node_state.Recovery)),
    "slot": (host.STAGED_FORM, host.decode_staged),
    "slots": (reboot.SLOTS_FORM, reboot.decode_slots),
    "wish": (host.REBOOT_WISH_FORM, host.decode_reboot_wish),
}
FORMS = {**{name: form for name, (form, _) in DOCUMENTS.items()}, "health": health_record.WATCH_RECORD_FORM}
FILES = sorted(path for name in FORMS for path in GOLDEN.glob(f"{name}-v*.json"))
HEALTH = [path for path in FILES if path.name.startswith("health")]
WRONG: tuple[Any, ...] = (None, {}, [], [[]], "x" * 500, True, -1.5, math.nan, math.inf, 10**400)


class UnreadableError(ConfigError):
    """What the form of these tests raises."""


Bindings = tuple[pci.Binding, ...]
FORM = Form("the test", UnreadableError, "Do better.")


def document_of(path: Path) -> str:
    return path.name.partition("-v")[0]


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
    """The problem if `text` cannot be read, "" if it can."""
    try:
        read(text)
    except ConfigError as error:
        return error.what
    return ""


def health_again(text: str) -> str:
    boot = json.loads(text)["bootId"]
    return health_record.encode_watch_record(health_record.decode_watch_record(text, boot), boot)


AGAIN: dict[str, Callable[[str], str]] = {
    "bindings": lambda text: pci.encode_bindings(*pci.decode_bindings(text)),
    "clients": lambda text: client_record.encode(client_record.decode(text)),
    "failure": lambda text: host.encode_failure(host.decode_failure(text)),
    "generation": lambda text: node_state.encode_generation(node_state.decode_generation(text)) + "\n",
    "health": health_again,
    "last-outcome": lambda text: node_state.encode(node_state.decode(text)) + "\n",
    "marker": lambda text: host.encode_marker(host.decode_marker(text)),
    "rebooter": lambda text: reboot.encode_reboot_record(reboot.decode_reboot_record(text)),
    "slots": lambda text: reboot.encode_slots(reboot.decode_slots(text)) + "\n",
    "wish": lambda text: host.encode_reboot_wish(host.decode_reboot_wish(text)),
}


@pytest.mark.parametrize("path", [path for path in FILES if document_of(path) in AGAIN], ids=lambda path: path.name)
def test_every_document_ever_written_is_read_and_written_again_the_same(path: Path) -> None:
    assert AGAIN[document_of(path)](path.read_text()) == path.read_text()


def test_a_newer_document_is_refused_in_the_same_words_and_asks_for_a_newer_manager() -> None:
    assert {document_of(path) for path in FILES} == FORMS.keys(), "every form has golden files"
    for path in FILES:
        form = FORMS[document_of(path)]
        with pytest.raises(form.unreadable) as caught:
            form.read(json.dumps(json.loads(path.read_text()) | {form.key: form.version + 1}))
        newer = f"version {form.version + 1} is newer than this driver-manager, which knows up to {form.version}"
        assert caught.value.what.startswith(f"{form.name} cannot be read: {newer}"), path.name
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
    form, decode = DOCUMENTS[document_of(path)]
    body = json.loads(path.read_text())
    refused = 0
    for place in places(body):
        for value in WRONG:
            why = refusal(decode, json.dumps(changed(body, place, value)))
            if why:
                refused += 1
                assert why.startswith(f"{form.name} cannot be read: ")
                named = [*(str(key) for key in place if isinstance(key, str)), "version", "boot"]
                assert any(re.search(rf"\b{re.escape(key)}\b", why) for key in named), why
                assert len(why) < 300
    assert refused > 10


@pytest.mark.parametrize("path", HEALTH, ids=lambda path: path.name)
def test_a_wrong_value_in_a_health_record_is_a_fresh_start_or_read(path: Path) -> None:
    body = json.loads(path.read_text())
    texts = [json.dumps(changed(body, place, value)) for place in places(body) for value in WRONG]
    assert History() in [health_record.decode_watch_record(text, body["bootId"]) for text in texts]


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


class Texts(Struct, frozen=True):
    a: tuple[str, ...]


class Flags(Struct, frozen=True):
    a: tuple[bool, ...]


def opened(**body: Any) -> Fields:
    return FORM.opened({"schema": 1, **body})


@pytest.mark.parametrize(
    ("read", "value", "why"),
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
        *((lambda found: found.record(Texts), one, "a is not a list of texts") for one in ("text", ["x", 1], None)),
        (lambda found: found.record(Flags), [1], "a is not a list of true and false"),
        (lambda found: found.texts_by_name("a"), {"x": 1}, "a holds something other than texts"),
        (lambda found: found.fields("a"), [], "a is a list, expected an object"),
        (lambda found: found.each("a"), [1], "a is not a list of objects"),
        (lambda one: one.fields("a").fields("b").text("c"), {"b": {"c": {}}}, "a.b.c is an object, expected a text"),
        (lambda found: found.each("a")[1].text("c"), [{"c": ""}, {}], r"a\[1\].c is missing, expected a text"),
    ],
)
def test_a_field_that_is_not_what_was_expected_is_named(read: Callable[[Fields], Any], value: Any, why: str) -> None:
    with pytest.raises(UnreadableError, match=f"^the test cannot be read: {why}"):
        read(opened(a=value))


OF_ONE_NAME = (Fields.text, Fields.flag, Fields.whole, Fields.seconds, Fields.is_null, Fields.fields, Fields.each)
OF_RECORDS = (lambda found, _: found.record(Texts), lambda found, _: found.record(Flags))


@pytest.mark.parametrize("read", [*OF_ONE_NAME, *OF_RECORDS, lambda found, key: found.choice(key, ("x",))])
def test_a_field_that_is_missing_is_named(read: Callable[[Fields, str], Any]) -> None:
    with pytest.raises(UnreadableError, match=r"^the test cannot be read: a is missing, expected "):
        read(opened(), "a")


def test_what_is_there_is_read_as_its_type_and_what_is_not_as_its_default() -> None:
    found = opened(a="x", b=3, c=True, d=2, e=["x"], f={"g": "h"}, i=None)
    assert (found.text("a"), found.whole("b"), found.flag("c")) == ("x", 3, True)
    assert (found.seconds("d"), type(found.seconds("d"))) == (2.0, float)
    assert (found.texts_by_name("f"), found.fields("f").text("g"), found.is_null("i")) == ({"g": "h"}, "h", True)
    assert (found.text("z", ""), opened(a=["x"]).record(Texts)) == ("", Texts(("x",)))
    assert ("a" in found, "z" in found) == (True, False)


def test_a_long_name_of_a_field_is_cut_in_a_message() -> None:
    key = "k" * 100_000
    found = opened(**{key: {"x": 1}, "b": {key: {key: 5}}})
    reads: tuple[Callable[[], object], ...] = (
        lambda: found.text(key),
        lambda: found.fields("b").fields(key).fields(key).text("c"),
        lambda: found.each(key),
        lambda: found.texts_by_name(key),
        lambda: found.text(key + "x"),
    )
    for read in reads:
        with pytest.raises(ConfigError) as caught:
            read()
        assert len(caught.value.what) < 400
        assert "k" * 70 in caught.value.what


def test_a_text_is_a_number_of_64_bits_or_none() -> None:
    numbers = {"7": 7, "007": 7, str(2**64 - 1): 2**64 - 1}
    none = dict.fromkeys(("", "-1", "1_0", "\u00b2", "\u0663", "9" * 21, "9" * 5_000))
    assert {text: decimal(text) for text in (*numbers, *none)} == {**numbers, **none}


@given(st.integers(0, LAST_MOMENT_S))
def test_a_moment_that_is_written_is_read_again(wall_s: int) -> None:
    assert seconds_of(written_time(wall_s)) == wall_s


def test_what_is_outside_of_the_calendar_is_written_as_its_end() -> None:
    later, earlier = (LAST_MOMENT_S + 1, 1e18, 10**20, 1.7e308, math.inf), (-1, -1e12, -(10**20), -math.inf)
    assert [written_time(wall_s) for wall_s in later] == ["9999-12-31T23:59:59Z"] * len(later)
    assert [written_time(wall_s) for wall_s in earlier] == ["1970-01-01T00:00:00Z"] * len(earlier)


def test_a_text_is_a_moment_of_the_calendar_or_none() -> None:
    last = {"9999-12-31T23:59:59Z": LAST_MOMENT_S, "9999-12-31T23:59:59+01:00": LAST_MOMENT_S - 3600}
    outside = ("9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999-00:01", "0001-01-01T00:00:00+23:59")
    others = ("2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "2026-01-02", "yesterday", "")
    wanted = {**last, **dict.fromkeys((*outside, *others))}
    assert {text: seconds_of(text) for text in wanted} == wanted


LEAF = st.booleans() | st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=2) | st.sampled_from(["", "x"])
VALUE = st.recursive(LEAF, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
OBJECT = st.dictionaries(st.sampled_from("abc"), VALUE, max_size=3)


def test_a_merge_patch_changes_what_differs_and_nothing_else() -> None:
    rows: list[tuple[Any, Any, Any]] = [
        *(({}, {"b": {"d": 1}}, {"b": {"d": 1}}), ({"a": 1, "b": 2}, {"b": 2}, {"a": None}), ({"a": 1}, {"a": 1}, {})),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": None, "c": 3}}),
        *(({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}), ({"a": 1}, {"a": {"b": {}}}, {"a": {"b": {}}})),
    ]
    assert [(old, new, wire.merge_patch(old, new)) for old, new, _ in rows] == rows


@given(OBJECT, OBJECT)
def test_a_merge_patch_makes_the_one_of_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply_merge_patch(old, wire.merge_patch(old, new)) == new
    assert (wire.merge_patch(new, new), wire.merge_patch({}, new)) == ({}, new)


def test_blanks_are_left_out_wherever_they_are() -> None:
    body = {"a": "", "b": None, "c": [{"d": "", "e": 0}], "f": {"g": ""}, "h": False, "i": []}
    assert wire.without_blanks(body) == {"c": [{"e": 0}], "f": {}, "h": False, "i": []}


# the record of original bindings, what a reboot was asked for, the note of a failure

BOOT = "6f1b1c3e-0000-4000-8000-000000000001"
WAS = (pci.Binding("0000:c1:00.0", "rebellions", "", 2), pci.Binding("0000:c2:00.0", "", "vfio-pci"))
PAST = host.PastFailure(
    boot_id="0d6f9c1e-3b51-4a52-9f63-0c2d3a7b8e10",
    wish="f271582e8db73e45696f1c56cdf4e127",
    exit_code=4,
    what="the device is still in use after 60 s: rebellions (1 user(s))",
    failed_s=8123.5,
    attempts=3,
    pod_uid="5c1f0d2e-0000-4000-8000-000000000001",
    blockers=("process 4242 trainer",),
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
BINDINGS = st.builds(
    pci.Binding, address=TEXT, driver=TEXT, override=TEXT, virtual_count=st.integers(0, pci.MOST_VIRTUAL)
)
FAILURES = st.builds(
    host.PastFailure,
    boot_id=TEXT,
    wish=TEXT,
    exit_code=st.integers(0, 255),
    what=TEXT,
    failed_s=st.floats(0, 1e9),
    attempts=st.integers(1, host.MAX_ATTEMPTS),
    pod_uid=TEXT,
    blockers=st.lists(TEXT, max_size=3).map(tuple),
)


def test_the_golden_record_and_note_mean_what_they_did() -> None:
    assert pci.decode_bindings((GOLDEN / "bindings-v1.json").read_text()) == (BOOT, WAS)
    assert host.decode_failure((GOLDEN / "failure-v1.json").read_text()) == PAST


WISHES = st.builds(host.RebootWish, boot_id=TEXT, node=TEXT, to_driver=TEXT, is_forced=st.booleans())


@given(st.lists(BINDINGS, max_size=4).map(tuple), WISHES, FAILURES)
def test_what_is_encoded_is_decoded_again(were: Bindings, wish: host.RebootWish, past: host.PastFailure) -> None:
    boot = wish.boot_id
    assert pci.decode_bindings(pci.encode_bindings(boot, were)) == (boot, were)
    assert host.decode_reboot_wish(host.encode_reboot_wish(wish)) == wish
    assert host.decode_failure(host.encode_failure(past)) == past
    assert host.encode_failure(past).count("\n") == 1


@given(st.text(max_size=200))
def test_any_other_text_is_refused_with_one_exception(text: str) -> None:
    for _, decode in DOCUMENTS.values():
        with contextlib.suppress(ConfigError):
            decode(text)


def test_bindings_of_another_boot_and_garbage_are_none() -> None:
    garbage = ("", "garbage", '{"schema": 2}', '{"schema": 1, "bootId": 1}')
    assert [pci.noted_bindings(text, BOOT) for text in garbage] == [()] * len(garbage)
    assert pci.noted_bindings(pci.encode_bindings(BOOT, WAS), BOOT) == WAS
    assert pci.noted_bindings(pci.encode_bindings(BOOT, WAS), "another") == ()


def test_the_first_record_of_a_function_has_its_original_state() -> None:
    later = (pci.Binding("0000:c1:00.0"), pci.Binding("0000:c0:00.0", "rebellions"))
    assert pci.merged_bindings(WAS, later) == (later[1], *WAS)
    assert pci.merged_bindings((), later) == (later[1], later[0])


def test_a_long_reason_and_many_attempts_are_cut_to_what_is_read_again() -> None:
    past = replace(PAST, what="x" * 5_000, attempts=host.MAX_ATTEMPTS + 1)
    found = host.decode_failure(host.encode_failure(past))
    assert (len(found.what), found.attempts) == (host.MAX_WHAT_CHARS, host.MAX_ATTEMPTS)


def test_only_a_note_of_this_boot_that_can_be_read_counts() -> None:
    text = host.encode_failure(PAST)
    newer, bad = text.replace('"schema": 1', '"schema": 2'), text.replace('"attempts": 3', '"attempts": 0')
    rows = {(text, PAST.boot_id): PAST, (text, "another boot"): None}
    rows |= {(one, PAST.boot_id): None for one in ("", "{", newer, bad)}
    assert {row: host.noted_failure(*row) for row in rows} == rows
    with pytest.raises(Unreadable, match="the note of the last failure cannot be read") as caught:
        host.decode_failure("[]")
    assert caught.value.remedy.startswith("No action needed")


def test_processes_and_pods_that_stand_in_the_way_are_distinguished() -> None:
    assert (host.is_process(host.process_blocker(7, "x")), host.is_process(host.pod_blocker("7 x"))) == (True, False)
    assert host.process_blocker(7, "x") != host.process_blocker(7, "y"), "numbers of processes come again"
