"""Vendors are data: the package's code names none of them, but where it reads a vendor's tool and in the sandbox."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from driver_manager.domain.profile import Profile
from driver_manager.profiles import builtin

PACKAGE = Path(__file__).parents[2] / "driver_manager"
MAY = {
    "domain/health/parsers.py": "parsers of the vendors' tools",
    "domain/fleet/spec.py": "the API group of DriverRollout, whatever the vendor",
    "domain/swap/vfio.py": "amd_iommu, an option of the kernel",
    "sandbox/cluster.py": "data of a scenario",
    "sandbox/fake_tools.py": "stand-ins for the vendors' tools",
    "sandbox/fleet.py": "the profile of a scenario",
    "sandbox/scenarios.py": "the profile of the scenarios",
}
"""Modules that name a vendor, each with its reason."""


def words(profile: Profile) -> set[str]:
    """What a vendor is known by: its profile's name, the domains of its keys and resources, its modules, its tool."""
    domains = (key.partition("/")[0] for key in (profile.keys.journal, *profile.resource_prefixes))
    tool = {profile.probe.tool} if profile.probe else set()
    return {profile.name, *(domain.split(".")[-2] for domain in domains), *profile.modules.roots, *tool}


WORDS = sorted({word for profile in builtin().values() for word in words(profile)})


def texts(code: str) -> list[str]:
    """Every name and every string of the code, apart from comments and docstrings."""
    tree = ast.parse(code)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if id(node) not in docstrings:
            found += [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module", "value")]
    return [text for text in found if isinstance(text, str)]


def named_in(code: str) -> set[str]:
    """The words of vendors in `code`. A word goes on with no letter or digit: amd64 is nobody's."""
    said = "\n".join(texts(code)).lower()
    return {word for word in WORDS if word in said and re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z0-9])", said)}


@pytest.mark.submission
@pytest.mark.reads("driver_manager")
def test_no_vendor_is_named_but_where_there_is_a_reason() -> None:
    naming = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if named_in(path.read_text())}
    assert naming == MAY.keys()


@pytest.mark.parametrize("profile", builtin().values(), ids=lambda profile: profile.name)
def test_each_word_of_a_vendor_is_found(profile: Profile) -> None:
    assert len(words(profile)) > 1
    for word in words(profile):
        assert word in named_in(f"if profile.name == {word!r}:\n    pass\n")
        assert not named_in(f'"""About {word}."""\nx = 1  # {word}\n')


def test_a_name_and_a_part_of_a_text_are_found_and_a_longer_word_is_not() -> None:
    assert named_in("from driver_manager import nvidia") == {"nvidia"}
    assert named_in("def unload_gaudi(): ...") == {"gaudi"}
    assert named_in("text = f'on {node} for Furiosa'") == {"furiosa"}
    assert named_in("machine = 'amd64'") == set()
