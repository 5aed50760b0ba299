"""What is installed is what was locked: by hash, from the index alone, as pyproject.toml asks, under allowed licences.

Known vulnerabilities need a network to be known; these checks do not.
"""

from __future__ import annotations

import contextlib
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
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


@dataclass(frozen=True)
class Locked:
    """One entry of a lock."""

    requirement: Requirement
    hashes: int
    needed_by: frozenset[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version


def entries(text: str) -> Iterator[Locked]:
    """The entries of a lock. Raises ValueError for a line that belongs to none."""
    left = text
    for found in _ENTRY.finditer(text):
        left = left.replace(found.group(0), "", 1)
        lines = found["rest"].splitlines()
        why = " ".join(line.strip(" #") for line in lines if line.startswith("    #")).removeprefix("via ")
        needed_by = frozenset(re.findall(re.escape(OURS) + r"|-r \S+|[A-Za-z0-9._-]+(?:\[[^]]*\])?", why))
        yield Locked(Requirement(found["requirement"]), sum(bool(_HASH.match(line)) for line in lines), needed_by)
    strays = [line for line in left.splitlines() if line.strip() and not line.startswith("#")]
    if strays:
        raise ValueError(f"lines that are no locked requirement: {strays}")


def faults(text: str) -> list[str]:
    """Why a lock does not pin everything."""
    try:
        found = list(entries(text))
    except ValueError as error:
        return [str(error)]
    wrong = [
        f"{one.requirement} is not one version"
        for one in found
        if not re.fullmatch(r"==[^,*]+", str(one.requirement.specifier))
    ]
    wrong += [f"{one.requirement} comes from an address" for one in found if one.requirement.url]
    wrong += [f"{one.requirement} has no hash" for one in found if not one.hashes]
    return wrong


def locked(path: Path) -> dict[str, Locked]:
    return {one.name: one for one in entries(path.read_text())}


def asked(*extras: str) -> list[Requirement]:
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(text) for one in lists for text in one]


@pytest.mark.parametrize(("path", "at_least"), [(RUNTIME, 6), (DEVELOPMENT, 6), (HELM, 1)])
def test_every_requirement_is_one_version_with_its_hashes(path: Path, at_least: int) -> None:
    assert faults(path.read_text()) == []
    assert len(locked(path)) >= at_least
    assert "://" not in path.read_text()


GOOD = f"click==8.1 \\\n    --hash=sha256:{'a' * 64}\n    # via x\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "requests==2.0\n", "no locked requirement"),
        (GOOD.replace("==", ">="), "is not one version"),
        (GOOD.replace("==8.1", "==8.*"), "is not one version"),
        (GOOD.replace("==8.1", " @ git+ssh://a/b"), "comes from an address"),
        (GOOD.replace(f"    --hash=sha256:{'a' * 64}\n", "    --hash=md5:abc\n"), "has no hash"),
        ("--extra-index-url a\n" + GOOD, "no locked requirement"),
        ("-e .\n" + GOOD, "no locked requirement"),
    ],
)
def test_a_lock_that_lets_something_else_in_is_refused(text: str, said: str) -> None:
    assert faults(GOOD) == []
    assert said in " ".join(faults(text))


@pytest.mark.parametrize(
    ("path", "extras"), [(RUNTIME, ()), (DEVELOPMENT, tuple(PROJECT["optional-dependencies"]))], ids=["runtime", "dev"]
)
def test_a_lock_holds_what_the_project_asks_for_and_nothing_that_it_does_not(
    path: Path, extras: tuple[str, ...]
) -> None:
    found, wanted = locked(path), asked(*extras)
    inputs = {line.removeprefix("-r ") for one in found.values() for line in one.needed_by if line.startswith("-r ")}
    wanted += [
        Requirement(line)
        for name in inputs
        for line in (REPOSITORY / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    for requirement in wanted:
        one = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(one.version), (
            f"{requirement} is locked at {one.version}: run scripts/lock"
        )
    direct = {name for name, one in found.items() if any(by == OURS or by.startswith("-r ") for by in one.needed_by)}
    assert direct == {canonicalize_name(requirement.name) for requirement in wanted}
    others = {canonicalize_name(by) for one in found.values() for by in one.needed_by if by != OURS and by[:3] != "-r "}
    assert others <= found.keys(), "needed by something that is not locked"


def test_the_image_has_the_versions_that_were_tested() -> None:
    tested = locked(DEVELOPMENT)
    assert {name: one.version for name, one in locked(RUNTIME).items()} == {
        name: tested[name].version for name in locked(RUNTIME)
    }


def metadata_of(name: str) -> PackageMetadata:
    """What a distribution says of itself. Raises PackageNotFoundError where a marker keeps it off this machine."""
    aside = metadata.distributions(name=name, path=[str(LEFT_OUT)])
    return next((found.metadata for found in aside), None) or metadata.metadata(name)


def refusing(python: str, told: dict[str, str]) -> list[str]:
    """Which of the distributions in `told`, with what each requires of Python, are not for that release of it."""
    return [f"{name} needs Python {wanted}" for name, wanted in told.items() if python not in SpecifierSet(wanted)]


def test_every_part_is_for_the_oldest_python_that_the_project_is_for() -> None:
    told = dict[str, str]()
    for name in locked(DEVELOPMENT):
        with contextlib.suppress(metadata.PackageNotFoundError):
            told[name] = ",".join(metadata_of(name).get_all("Requires-Python") or [])
    assert len(told) > 30
    oldest = f"{PROJECT['requires-python'].removeprefix('>=')}.0"
    assert refusing(oldest, told) == []
    assert refusing("3.11.2", {"a": ">=3.11.5", "b": ">=3.9,<4"}) == ["a needs Python >=3.11.5"]


def licence_of(name: str) -> str:
    """What a distribution says of its licence, "" where it says nothing."""
    told = metadata_of(name)

    def said(field: str) -> list[str]:
        return [str(text) for text in told.get_all(field) or []]

    classifiers = [text.rpartition(" :: ")[2] for text in said("Classifier") if text.startswith("License")]
    return next((text for text in (*said("License-Expression"), *classifiers, *said("License")) if text), "")


def is_allowed(licence: str) -> bool:
    """Whether every part of an expression is."""
    parts = re.split(r"\s+(?:AND|OR)\s+", licence)
    return all(part.strip("() ").lower().startswith(ALLOWED) for part in parts)


def test_every_part_has_a_licence_that_allows_its_use() -> None:
    wrong = []
    for name, one in locked(DEVELOPMENT).items():
        try:
            licence = licence_of(name)
        except metadata.PackageNotFoundError:
            marker = one.requirement.marker
            if marker is None or marker.evaluate():
                wrong.append(f"{name}: not installed")
            continue
        if name not in APART and not is_allowed(licence):
            wrong.append(f"{name}: {licence}")
    assert wrong == []


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "MIT AND GPL-2.0-only", "Proprietary", "", "LGPL-2.1-or-later"])
def test_a_licence_that_was_not_weighed_is_refused(licence: str) -> None:
    assert not is_allowed(licence)


def test_no_exception_outlives_its_reason() -> None:
    assert APART.keys() <= locked(DEVELOPMENT).keys()
