"""The last line reaches `kubectl describe pod` with its remedy, and never a file that the kubelet did not make."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from driver_manager.adapters.report.log import TERMINATION_LOG_BYTES, write_termination_log

KUBELET_BYTES = 4096
"""What the kubelet keeps (pkg/kubelet/container, MaxContainerTerminationMessageLength)."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").write_text("from the run before, and longer than what follows")
    return tmp_path / "log"


def test_what_and_remedy_replace_what_was_there(log: Path) -> None:
    write_termination_log(str(log), "exit 4: driver busy", "Stop it.")
    assert log.read_text() == "exit 4: driver busy. Stop it."
    write_termination_log(str(log), "exit 4: is it busy?", "Stop it.")
    assert log.read_text() == "exit 4: is it busy? Stop it."
    write_termination_log(str(log), "done")
    assert log.read_text() == "done"


@pytest.mark.parametrize("length", [TERMINATION_LOG_BYTES - 20, TERMINATION_LOG_BYTES, 100_000])
def test_a_long_text_is_cut_and_the_remedy_kept(log: Path, length: int) -> None:
    write_termination_log(str(log), "exit 3: " + "p" * length, "Remove what holds each pod.")
    text = log.read_text()
    assert text.startswith("exit 3: ppp")
    assert text.endswith("p. Remove what holds each pod.")
    assert len(text.encode()) <= KUBELET_BYTES


def test_no_text_of_any_length_goes_beyond_what_the_kubelet_keeps(log: Path) -> None:
    write_termination_log(str(log), "€" * 9_000, "€" * 9_000)
    assert 0 < len(log.read_bytes()) <= KUBELET_BYTES


def test_text_that_cannot_be_encoded_or_moves_a_cursor_is_escaped(log: Path) -> None:
    write_termination_log(str(log), "bad \udcff name\x1b[2J\u202e\nnode is ready", "do \x07 this")
    assert log.read_text() == r"bad \udcff name\x1b[2J\u202e\nnode is ready. do \x07 this"


@pytest.mark.parametrize("place", ["absent", "folder", "link", "absent/below"])
def test_only_a_file_that_is_there_is_written(tmp_path: Path, log: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(log)
    before = sorted(entry.name for entry in tmp_path.iterdir())
    write_termination_log(str(tmp_path / place), "text")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before
    assert "from the run before" in log.read_text()


def test_a_full_device_does_not_hide_the_exit_code() -> None:
    assert os.path.exists("/dev/full")  # noqa: PTH110  # a device of Linux
    write_termination_log("/dev/full", "text")


def test_a_fifo_that_nobody_reads_does_not_hold_the_end_of_a_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    write_termination_log(str(tmp_path / "log"), "what")
    assert stat.S_ISFIFO((tmp_path / "log").stat().st_mode)
