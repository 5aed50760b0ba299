"""What tiers say of themselves as programs. Standard library only: `--check` works before anything is installed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import NoReturn


class TierError(Exception):
    """Something that a tier needs could not be made, or did not run; the message says why."""


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test that needs what this machine lacks, or fail it where every tier is required."""
    import pytest  # noqa: PLC0415  # not installed yet where a tier is asked what it lacks

    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def answer(tier: str, lacking: Sequence[str], prepare: Callable[[], str]) -> int:
    """What `python -m …` of the tier does with `--check` or `--prepare`, which makes what takes long: 0, or 1."""
    parser = argparse.ArgumentParser(description=f"What the {tier} tier needs of this machine.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="report what the machine lacks")
    what.add_argument("--prepare", action="store_true", help="make what is not there yet")
    asked = parser.parse_args()
    if lacking:
        print(f"{tier} tier: missing {'; '.join(lacking)}")
        return 1
    if asked.check:
        print(f"{tier} tier: can run")
        return 0
    try:
        print(f"{tier} tier: {prepare()}")
    except TierError as error:
        print(f"{tier} tier: {error}")
        return 1
    return 0
