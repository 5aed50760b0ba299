"""How many examples a property is tried with: a fifth of them in a run that leaves out the long tests."""

from __future__ import annotations

import pytest

FEWEST = 10
"""As few as a property is tried with, whatever is left out."""


class _Run:
    """What is known about this run of pytest before the first test module is imported."""

    leaves_long_out = False


def configure(config: pytest.Config) -> None:
    """Note whether this run leaves out what is marked `long`."""
    _Run.leaves_long_out = "not long" in config.option.markexpr


def examples(count: int) -> int:
    """`max_examples` for a property that is worth `count` of them; known from when pytest is configured."""
    return max(count // 5, min(count, FEWEST)) if _Run.leaves_long_out else count
