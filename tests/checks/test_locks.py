"""What is installed is what was locked: by hash, from the index alone, as pyproject.toml asks, under known licences."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import PackageMetadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
RUNTIME, DEVELOPMENT, HELM = (REPOSITORY / f"requirements/{name}.lock" for name in ("runtime", "dev", "helm"))
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
OURS = "driver-manager (pyproject.toml)"

ALLOWED = ("mit", "bsd", "apache", "isc", "psf", "python software foundation", "mozilla public license 2.0", "mpl-2.0")
"""Beginnings of licences under which a part may be in the image, or a tool be used."""

LEFT_OUT = Path(sys.prefix) / "left-out"
"""Where scripts/setup puts what is locked and never imported."""

APART = {
    "pyudev": "LGPL-2.1-or-later: used as a library, unchanged and replaceable",
    "atheris": "Apache-2.0, which only its licence file tells; a tool of the tests",
}

_ENTRY = re.compile(r"^(?P<requirement>[A-Za-z0-9][^\\\n]*?) ?\\\n(?P<rest>(?:^    .*\n?)*)", re.MULTILINE)
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$", re.MULTILINE)


@dataclass(frozen=True)
class Locked:
    requirement: Requirement
    has_hash: bool
    needed_by: frozenset[str]

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version


def entries(text: str) -> Iterator[Locked]:
    for entry in _ENTRY.finditer(text):
        why = " ".join(line.strip(" #") for line in entry["rest"].splitlines() if line.startswith("    #"))
        by = re.findall(re.escape(OURS) + r"|-r \S+|[A-Za-z0-9._-]+(?:\[[^]]*\])?", why.removeprefix("via "))
        yield Locked(Requirement(entry["requirement"]), bool(_HASH.search(entry["rest"])), frozenset(by))


def locked_in(path: Path) -> dict[str, Locked]:
    return {str(canonicalize_name(one.requirement.name)): one for one in entries(path.read_text())}


@pytest.mark.parametrize(("path", "at_least"), [(RUNTIME, 6), (DEVELOPMENT, 6), (HELM, 1)])
def test_every_requirement_is_one_version_with_its_hashes_and_nothing_else_is_there(path: Path, at_least: int) -> None:
    text = path.read_text()
    found = list(entries(text))
    assert len(found) >= at_least
    exact = re.compile(r"==[^,*]+")
    assert [one for one in found if not one.has_hash or not exact.fullmatch(str(one.requirement.specifier))] == []
    assert [line for line in _ENTRY.sub("", text).splitlines() if line.strip() and not line.startswith("#")] == []
    assert "://" not in text


@pytest.mark.parametrize("path", [RUNTIME, DEVELOPMENT], ids=["runtime", "dev"])
def test_a_lock_holds_what_the_project_asks_for_and_nothing_that_it_does_not(path: Path) -> None:
    found, further = locked_in(path), PROJECT["optional-dependencies"].values() if path == DEVELOPMENT else ()
    by = {name: one.needed_by for name, one in found.items()}
    inputs = {line.removeprefix("-r ") for lines in by.values() for line in lines if line.startswith("-r ")}
    lines = [*PROJECT["dependencies"], *(line for extra in further for line in extra)]
    lines += [line for name in inputs for line in (REPOSITORY / name).read_text().splitlines() if line[:1] not in "#"]
    for wanted in map(Requirement, lines):
        version = found[canonicalize_name(wanted.name)].version
        assert wanted.specifier.contains(version), f"{wanted} is locked at {version}: run scripts/lock"
    direct = {name for name, lines in by.items() if any(line == OURS or line[:3] == "-r " for line in lines)}
    assert direct == {canonicalize_name(Requirement(line).name) for line in lines}
    others = {canonicalize_name(line) for lines in by.values() for line in lines if line != OURS and line[:3] != "-r "}
    assert others <= found.keys(), "needed by something that is not locked"


def test_the_image_has_the_versions_that_were_tested() -> None:
    tested = locked_in(DEVELOPMENT)
    assert [name for name, one in locked_in(RUNTIME).items() if one.version != tested[name].version] == []


def metadata_of(name: str) -> PackageMetadata | None:
    """What a distribution says of itself; None where a marker keeps it off this machine."""
    aside = next(iter(metadata.distributions(name=name, path=[str(LEFT_OUT)])), None)
    try:
        return aside.metadata if aside else metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None


def test_every_part_is_for_the_oldest_python_that_the_project_is_for() -> None:
    oldest = f"{PROJECT['requires-python'].removeprefix('>=')}.0"
    known = {name: found for name in locked_in(DEVELOPMENT) if (found := metadata_of(name))}
    wanted = {name: ",".join(found.get_all("Requires-Python") or []) for name, found in known.items()}
    assert len(wanted) > 30
    assert {name: python for name, python in wanted.items() if oldest not in SpecifierSet(python)} == {}


def licence_of(found: PackageMetadata) -> str:
    """What a distribution says of its licence, "" where it says nothing."""
    fields = ("License-Expression", "Classifier", "License")
    expressions, classifiers, plain = ([str(text) for text in found.get_all(field) or []] for field in fields)
    named = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License")]
    return next((text for text in (*expressions, *named, *plain) if text), "")


def is_allowed(licence: str) -> bool:
    return all(part.strip("() ").lower().startswith(ALLOWED) for part in re.split(r"\s+(?:AND|OR)\s+", licence))


def test_every_part_has_a_licence_that_allows_its_use() -> None:
    parts = locked_in(DEVELOPMENT)
    assert APART.keys() <= parts.keys(), "no exception outlives its reason"
    known = {name: metadata_of(name) for name in parts}
    markers = {name: parts[name].requirement.marker for name, found in known.items() if found is None}
    assert [name for name, marker in markers.items() if marker is None or marker.evaluate()] == [], "not installed"
    licences = {name: licence_of(found) for name, found in known.items() if found is not None and name not in APART}
    assert {name: licence for name, licence in licences.items() if not is_allowed(licence)} == {}
    assert (is_allowed("MIT AND BSD-3-Clause"), is_allowed("MIT AND GPL-2.0-only")) == (True, False)
