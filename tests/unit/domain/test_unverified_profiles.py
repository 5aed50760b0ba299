"""Examples that nobody has run are right in form, say so in their first line, and are not picked by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver_manager import profiles
from driver_manager.domain.profile import Strategy
from tests.support.fakes.builders import PROFILES

EXAMPLES = sorted((Path(profiles.__file__).parents[2] / "deploy/profiles-unverified").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_right_marked_and_never_unloads(path: Path) -> None:
    text = path.read_text()
    found = profiles.parse(text, path.name)
    assert text.startswith("# UNVERIFIED: ")
    assert found.name == path.stem
    assert found.name not in PROFILES
    assert found.strategy is Strategy.REBOOT, "whether its modules may leave a running kernel, nobody has seen"


def test_there_is_one_for_each_vendor_of_whom_the_names_are_known() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names == {"aws-neuron", "cambricon", "hygon", "metax", "moore-threads"}
