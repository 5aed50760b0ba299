"""A process that sleeps in the kernel with its memory locked: no look at /proc waits for it, and it is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.host.holders import find_holders
from driver_manager.adapters.process.forked import lines_within
from driver_manager.adapters.process.tools import process_lives
from driver_manager.domain.journal import Owner
from tests.support.image.stuck_process import stuck

BOUND_S = 120.0
PATTERNS = ("/dev/vendor0",)


@pytest.fixture
def device(tmp_path: Path, able: None) -> Iterator[Path]:
    node = tmp_path / "vendor0"
    os.mknod(node, 0o600 | 0o020000, os.makedev(1, 5))
    with node.open("rb"):
        yield node


def found(dev: Path) -> list[str]:
    """Who uses the device, with a bound for a look that would never end."""
    lines = lines_within(BOUND_S, lambda: [str(one) for one in find_holders(Path("/proc"), dev, PATTERNS)])
    assert lines is not None, "the look at /proc does not end"
    return lines


@pytest.mark.parametrize("is_open", [True, False])
def test_a_process_that_does_not_answer_is_named_and_hides_no_other(
    device: Path, tmp_path: Path, is_open: bool
) -> None:
    other = tmp_path / "mnt/dev/vendor0"
    other.parent.mkdir(parents=True)
    os.mknod(other, 0o600 | 0o020000, os.makedev(1, 5))
    with stuck(other if is_open else Path("/dev/null"), tmp_path / "file") as pid:
        lines = found(device.parent)
    mine = [line for line in lines if f"pid {os.getpid()})" in line]
    theirs = [line for line in lines if f"pid {pid})" in line]
    assert len(mine) == 1, lines
    what = "has /dev/vendor0 open" if is_open else "may use the device: unknown"
    assert len(theirs) == 1, lines
    assert theirs[0].startswith("vendor-tool-wrk")
    assert what in theirs[0]


def test_whether_another_process_lives_is_known_all_the_same(device: Path, tmp_path: Path) -> None:
    with stuck(device, tmp_path / "file"):
        assert process_lives(Owner(pid=2**22 + 1, start_ticks=1, pid_namespace=1), Path("/proc")) is False
