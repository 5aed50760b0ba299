"""The version is declared once, in pyproject.toml; everything else that tells it agrees."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

VERSION = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
NUMBER = re.compile(r"\b\d+\.\d+\.\d+\b")


def test_the_command_tells_it() -> None:
    argv = [sys.executable, "-m", "driver_manager", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == f"driver-manager, version {VERSION}\n"


def test_the_changelog_begins_with_it() -> None:
    sections = re.findall(
        r"^## \[(.+?)\] - (\d{4}-\d{2}-\d{2}|unreleased)$", Path("CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert sections[0][0] == VERSION
    assert "unreleased" not in [date for _, date in sections[1:]]


def test_the_image_takes_it_from_there() -> None:
    script = Path("scripts/image").read_text()
    (line,) = [line for line in script.splitlines() if line.startswith("version=")]
    found = subprocess.run(
        ["sh", "-c", f"{line}; echo $version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == f"{VERSION}\n"
    assert "VERSION=" in Path("Containerfile").read_text()
    assert not NUMBER.findall(
        "\n".join(re.findall(r"^(?:ARG|LABEL).*", Path("Containerfile").read_text(), re.MULTILINE))
    )


def test_no_module_has_a_version_of_its_own() -> None:
    assert [path for path in Path("driver_manager").rglob("*.py") if "__version__" in path.read_text()] == []
