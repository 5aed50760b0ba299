"""`profile check` says all that is wrong with a file, a line for each value; the schema for editors agrees with it."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from driver_manager import profiles, schemas
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.profile import Profile
from driver_manager.profiles import meaning, read
from tests.support.docs.profile_keys import Key, every_key
from tests.support.fakes.builders import PROFILES
from tests.support.fakes.schemas import conforms as is_of_form
from tests.support.fakes.typed import Prompt
from tests.support.selection import examples

conforms = fastjsonschema.compile(schemas.schema("profile"), use_default=False)
SHIPPED = {path.stem: path.read_text() for path in sorted(Path(profiles.__file__).parent.glob("*.toml"))}
KEYS = tuple(every_key())

TEXTS = some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=300)
SPECIAL = ("", "auto", "true", "/", "/run/../etc", "a/b", "example.com/x", "in-place", "reboot", "\x00")
PLAIN = (some.integers(-(2**60), 2**60), some.floats(), some.booleans(), some.just(datetime.date(2026, 1, 2)))
VALUES = some.recursive(
    some.one_of(TEXTS, *PLAIN, some.sampled_from(SPECIAL)),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def toml(value: Any) -> str:
    """`value` as TOML writes it in one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{toml(str(key))} = {toml(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)
    return str(value)


ENTRIES = {
    "transitions[]": {"old": "1", "new": "2", "strategy": "refuse"},
    "answers[]": {"means": "sick", "message": "x"},
}
"""A right entry of each list of tables."""


def with_value(shipped: str, key: Key, value: Any) -> str:
    """A shipped profile in which `key` has `value`, whatever it had before."""
    body = tomllib.loads(SHIPPED[shipped])
    at = body
    *tables, name = key.path.split(".")
    for table in tables:
        if table.endswith("[]"):
            entry: dict[str, Any] = dict(ENTRIES[table])
            at[table.removesuffix("[]")] = [entry]
            at = entry
        else:
            at = at.setdefault(table, {"probe": {"tool": "t"}, "reset": {"args": ["-r"]}}.get(table, {}))
    at[name] = value
    return "\n".join(f"{one} = {toml(inner)}" for one, inner in body.items())


def is_conforming(text: str) -> bool:
    try:
        conforms(tomllib.loads(text))
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


@pytest.mark.submission
@pytest.mark.shares(3)
@settings(max_examples=examples(600), deadline=None)
@given(some.sampled_from(sorted(SHIPPED)), some.sampled_from(KEYS), VALUES)
def test_any_wrong_value_gives_one_line_with_key_value_and_expectation(shipped: str, key: Key, value: Any) -> None:
    text = with_value(shipped, key, value)
    found = read(text)
    if found.profile is not None:
        assert is_conforming(text), "an editor would refuse what the reader takes"
        return
    assert [one.what for one in found.problems if not one.what.isprintable()] == []
    if is_conforming(text):  # what one pattern cannot say: another key is in the way, or a function decides
        return
    (only,) = found.problems
    path = key.path.replace("[]", "[0]")
    assert re.match(r"\w[\w.]*", only.key)
    assert only.key.startswith(path)
    assert re.match(rf"{re.escape(path)} is .*, expected ", only.what, re.DOTALL)


def test_the_schema_is_printed_and_has_each_key_with_its_meaning_and_takes_shipped_profiles(prompt: Prompt) -> None:
    assert json.loads(prompt.output("profile schema")) == schemas.schema("profile")
    for key in KEYS:
        at = schemas.schema("profile")
        for name in key.path.split("."):
            at = at.get("items", at)["properties"][name.removesuffix("[]")]
        assert at["description"]
    assert [name for name, text in SHIPPED.items() if not is_conforming(text)] == []


WRONG = """
name = "o wn"
strategy = "live"
pci_vendor = 12
colour = "red"
"two\\nlines" = 1
[keys]
journal = "journal"
[modules]
roots = []
own = ["*", "own"]
[paths]
driver_root = "/run/own/driver"
state_file = "/run/../state"
load_record = "/run/own/record"
[probe]
timeout_s = -1
"""
LINES = """\
5: unknown key colour; known keys here: clients
1: unknown key two\\nlines; known keys here:
2: name is 'o wn', expected letters, digits, dots and dashes, other than auto
3: strategy is 'live', expected one of in-place, reboot
4: pci_vendor is 12, expected four lower-case hexadecimal digits, as 1eff
8: keys.journal is 'journal', expected a key such as example.com/name
7: keys.cordon is missing, expected a key such as example.com/name
10: modules.roots is [], expected at least one module name
11: modules.own is '*', expected a module name, or a pattern that begins with three letters of it
14: paths.state_file is '/run/../state', expected an absolute path without ..
16: probe.tool is missing, expected a text
17: probe.timeout_s is -1, expected a number above 0 and at most a day of seconds
"""


Checks = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def checks(tmp_path: Path, prompt: Prompt) -> Checks:
    """Checks a text in own.toml: exit code, lines of output without the folder, errors."""

    def checked(text: str, options: str = "") -> tuple[int, list[str], str]:
        (tmp_path / "own.toml").write_text(text)
        code, out, err = prompt(f"profile check {options}", f"{tmp_path}/own.toml")
        return code, out.replace(f"{tmp_path}/", "").splitlines(), err

    return checked


def test_all_mistakes_are_reported_at_once(checks: Checks) -> None:
    code, lines, err = checks(WRONG)
    wanted = [f"own.toml:{line}" for line in LINES.splitlines()]
    assert [line[: len(start)] for line, start in zip(lines, wanted, strict=True)] == wanted
    assert (code, "own.toml has 12 mistake(s)" in err) == (2, True)
    with pytest.raises(ConfigError, match=r"^profile own\.toml: unknown key colour.* \(and 11 more\)$"):
        profiles.parse(WRONG, "own.toml")
    code, (line,), _ = checks("name = own\n")
    assert (code, line.split(": ")[:2]) == (2, ["own.toml:1", "the file is not TOML"])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("strategy =", "stratgy =", "{0}: unknown key stratgy (did you mean strategy?); known keys"),
        ('tool = "', 'tol = "', "{0}: unknown key probe.tol (did you mean tool?); known keys"),
        ('parser = "', 'parser = "un', "{0}: probe.parser is 'un"),
    ],
)
def test_a_mistake_has_its_line_and_the_key_that_is_near(
    checks: Checks, before: str, after: str, expected: str
) -> None:
    text = SHIPPED["rebellions"].replace(before, after)
    number = 1 + text[: text.index(after)].count("\n")
    _, lines, _ = checks(text)
    assert any(line.startswith(f"own.toml:{expected.format(number)}") for line in lines), lines


def test_the_meaning_of_a_right_file_is_printed(checks: Checks) -> None:
    code, (first, *more), err = checks(SHIPPED["ascend"])
    assert (code, err, "is valid: profile ascend, which replaces the shipped one" in first) == (0, "", True)
    needs, modules = "another driver needs a reboot", "every module in the driver root"
    text = "\n".join(more)
    assert [one for one in (needs, modules, "made by the rebooter, once approved") if one not in text] == []
    code, lines, _ = checks(SHIPPED["rebellions"], "-o json")
    found = is_of_form("profile-check", "\n".join(lines))
    assert (code, found["profile"], found["findings"]) == (0, "rebellions", [])


def test_the_meaning_names_what_goes_to_virtual_machines() -> None:
    sentence = dict(meaning(PROFILES["nvidia"]))["virtual machines"]
    assert "unless nvidia.com/gpu.workload.config has a value other than vm-passthrough" in sentence
    assert "0403, 0c03 or 0c80" in sentence
    assert dict(meaning(PROFILES["ascend"]))["virtual machines"] == "the devices are never given to them"


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_profiles_meaning_names_what_it_holds(profile: Profile) -> None:
    sentences = " ".join(sentence for _, sentence in meaning(profile))
    named = (profile.pci_vendor, *profile.modules.roots, profile.paths.driver_root, *profile.resource_prefixes)
    assert [text for text in named if text not in sentences] == []


TELLING: tuple[Any, ...] = (
    *(True, 7, ["example.com/xyz"], "example.com/xyz", ["/dev/xyz*"], ["xyz_new"], ["xyz.service"], "/run/xyz/abc"),
    *("exit-status", "user-space", "any", ["xyz_new.depth"], ["xyz_new.depth=7"], "6.2.*", "in-place", ["0c0f"]),
    *("lost", ["/run/xyz"], ["reboot"], ["-r", "{address}"]),
)
"""For each key of a profile, one of these is another value that is right."""

SILENT = re.compile(
    r"keys\.|upgrade_metrics\.|commands\.|probe\.(search|preload|library_dirs|lists)|deploy\.(driver|pre)|probe\.excluded|"
    r"paths\.(load_record|rebooter|reboot_e|evidence)|name$|present_labels|idle_states|namespace|"
    r"pci_vendor|strategy|modules\.load"
)
"""Names of keys, files and metrics that only a run's own business depends on."""


@pytest.mark.parametrize("key", [key for key in KEYS if not SILENT.match(key.path)], ids=lambda key: key.path)
def test_two_profiles_that_differ_in_one_key_do_not_mean_the_same(key: Key) -> None:
    vendor = "nvidia" if key.path.startswith("reset.") else "rebellions"
    before = profiles.parse(SHIPPED[vendor], "x")
    read_again = (read(with_value(vendor, key, value)).profile for value in TELLING)
    assert meaning(next(found for found in read_again if found is not None and found != before)) != meaning(before)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (("strategy = ", "strategy = 7 # "), ("strategy", "7")),
        (("strategy = ", "strateg = "), ("strateg", "")),
        (("strategy = ", "strategy "), ("", "")),
    ],
)
def test_findings_are_printed_as_json(change: tuple[str, str], finding: tuple[str, str], checks: Checks) -> None:
    text = SHIPPED["rebellions"].replace(*change)
    code, lines, _ = checks(text, "-o json")
    found = is_of_form("profile-check", "\n".join(lines))
    first = found["findings"][0]
    assert (code, found["profile"], (first["key"], first["value"])) == (2, None, finding)
    assert (bool(first["expectation"]), first["line"]) == (True, 1 + text[: text.index(change[1])].count("\n"))
