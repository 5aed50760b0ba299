"""Log lines for people and machines, a log that is not read, and the termination log that the kubelet shows."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import select
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

from driver_manager.adapters.report.log import TERMINATION_LOG_BYTES, LogForm, LogReporter, write_termination_log
from driver_manager.domain.errors import ExitCode
from tests.support.fakes.pace import patient


def reporter(stream: TextIO, *, as_json: bool = False, level: str = "debug") -> LogReporter:
    return LogReporter(lambda: 1_700_000_000.25, LogForm(as_json, level), stream=stream)


def test_a_line_is_text_with_time_and_level_or_one_json_object_with_its_fields() -> None:
    text, out = io.StringIO(), io.StringIO()
    reporter(text).step(2, 7, "unload x")
    reporter(text).warn("odd")
    assert text.getvalue() == "22:13:20.250 [2/7] unload x\n22:13:20.250 warning: odd\n"
    reporter(out, as_json=True).step(1, 2, "two\nlines")
    reporter(out, as_json=True).error("failed", exit_code=4)
    first, second = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (first["message"], first["step"], first["steps"]) == ("[1/2] two\nlines", 1, 2)
    assert (second["level"], second["exit_code"], second["time"]) == ("error", 4, "2023-11-14T22:13:20.250+00:00")


def test_less_than_the_level_is_left_out() -> None:
    for level, lines in (("debug", 4), ("info", 4), ("warning", 2), ("error", 1)):
        out = io.StringIO()
        log = reporter(out, level=level)
        log.info("a")
        log.step(1, 1, "b")
        log.warn("c")
        log.error("d")
        assert len(out.getvalue().splitlines()) == lines, level
        out.close()
        log.error("it is not heard")  # which ends no run


@pytest.mark.parametrize("as_json", [False, True])
def test_foreign_text_begins_no_line_and_moves_no_cursor(as_json: bool) -> None:
    stream = io.StringIO()
    reporter(stream, as_json=as_json).warn("a\nerror: forged \x1b[2J \ud800")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert "forged" in stream.getvalue()
    stream.getvalue().encode()


class Interrupted(io.StringIO):
    """A stream that a signal interrupts in the middle of a write, as a buffered one is."""

    def __init__(self) -> None:
        super().__init__()
        self.handler: LogReporter | None = None
        self.is_writing = False

    def write(self, text: str) -> int:
        if self.is_writing:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter>")
        self.is_writing = True
        if self.handler is not None:
            self.handler.info("from a signal handler")
        self.is_writing = False
        return super().write(text)


def test_a_signal_handler_that_speaks_in_the_middle_of_a_line_breaks_nothing() -> None:
    out = Interrupted()
    log = out.handler = reporter(out)
    log.info("a line")
    out.handler = None
    log.info("another")
    assert out.getvalue() == "22:13:20.250 a line\n22:13:20.250 another\n"


# a reader that does not read

LINES = 500
LONG = "x" * 200
LONG_CHARS = 200_000
"""More than a pipe holds, or takes in one write."""


@dataclass
class Log:
    """Both ends of a log; `reader` is not read unless `read` is called."""

    stream: TextIO
    reader: int

    def read(self) -> list[str]:
        found = b""
        while select.select([self.reader], [], [], 0.05)[0]:
            found += os.read(self.reader, 65536)
        return [line for line in found.decode().splitlines() if line]


def ends_of_a_socket() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


@pytest.fixture(params=[os.pipe, pty.openpty, ends_of_a_socket], ids=["pipe", "terminal", "socket"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    make: Callable[[], tuple[int, int]] = request.param
    reader, writer = make()
    stream = io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True)
    yield Log(stream, reader)
    with contextlib.suppress(OSError):
        stream.close()
    os.close(reader)


def numbered(lines: list[str]) -> list[int]:
    return [int(line.split("line ")[1].split()[0]) for line in lines if "line " in line and LONG in line]


def fill(log: LogReporter) -> None:
    for number in range(LINES):
        log.info(f"line {number} {LONG}")


def test_a_reader_that_does_not_read_costs_a_moment_once_and_gets_the_count_of_missed_lines(log: Log) -> None:
    ours = reporter(log.stream)
    begun = time.monotonic()
    fill(ours)
    assert os.get_blocking(log.stream.fileno()), "others write to it as well"
    assert time.monotonic() - begun < patient(5.0), "not PATIENCE_S for each line"
    kept = numbered(log.read())
    assert kept == list(range(len(kept))), "those that fit are whole and in order"
    ours.info("after")
    *rest, notice, after = log.read()
    assert after.endswith("after")
    dropped = LINES - len(kept) - len(numbered(rest))
    assert dropped > 0
    assert notice.endswith(f"{dropped} lines were dropped: the reader of this log did not read")
    assert "warning: " in notice


def test_as_json_each_line_stays_an_object_and_the_number_is_for_all_reporters(log: Log) -> None:
    fill(reporter(log.stream, as_json=True))
    lines = log.read()
    reporter(log.stream, as_json=True).error("the end", exit_code=4)
    bodies = [json.loads(line) for line in [*lines, *log.read()]]
    assert [body["message"].partition(" ")[2][:5] for body in bodies[-2:]] == ["lines", "end"]
    assert bodies[-1]["exit_code"] == 4


def test_a_slow_reader_misses_nothing() -> None:
    reader, writer = os.pipe()
    read = bytearray()

    def read_slowly() -> None:
        while f"line {LINES - 1} ".encode() not in read:
            read.extend(os.read(reader, 8192))
            time.sleep(0.01)

    thread = threading.Thread(target=read_slowly, daemon=True)
    thread.start()
    with os.fdopen(writer, "w") as stream:
        fill(reporter(stream))
        thread.join(patient(20.0))
    os.close(reader)
    assert numbered(bytes(read).decode().splitlines()) == list(range(LINES))


def test_a_line_longer_than_a_pipe_is_finished_before_the_next_one() -> None:
    reader, writer = os.pipe()
    text = ""
    with os.fdopen(writer, "w") as stream:
        log = reporter(stream)
        log.info("y" * LONG_CHARS)
        while "again" not in text:
            text += os.read(reader, LONG_CHARS).decode()
            log.info("again")
    os.close(reader)
    first, notice, *_ = text.splitlines()
    assert first.count("y") == LONG_CHARS
    assert notice.endswith("lines were dropped: the reader of this log did not read")


def test_a_reader_that_went_ends_no_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as stream:
        fill(reporter(stream, as_json=True))


def test_the_two_lines_of_a_failure_wait_for_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        fill(LogForm(as_json=True).reporter(lambda: 0.0))
        assert LogForm(as_json=True).fail(lambda: 0.0, ExitCode.USAGE, "what", "remedy") == ExitCode.USAGE
    os.close(reader)


FULL_BYTES = 40_000
"""What lies in a pipe that takes no further line: a line is not split over its pages."""
RUN = """
import sys
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogForm
clock = SystemClock()
clock.install()
log = LogForm(as_json=True).reporter(clock.wall)
end_s = clock.monotonic() + float(sys.argv[1])
while clock.monotonic() < end_s and not clock.is_ending():
    log.info("x" * 1000)
print("SIGTERM" if clock.is_ending() else "deadline", flush=True)
"""


@pytest.mark.parametrize(("limit_s", "ended_by"), [("1", "deadline"), ("inf", "SIGTERM")])
def test_a_process_whose_log_is_full_keeps_its_deadline_and_hears_a_signal(limit_s: str, ended_by: str) -> None:
    argv = [sys.executable, "-c", RUN, limit_s]
    reader, writer = os.pipe()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=writer, text=True)
    os.close(writer)
    try:
        while int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4), sys.byteorder) < FULL_BYTES:
            time.sleep(0.01)
        if ended_by == "SIGTERM":
            process.terminate()
        out, _ = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait(5.0)
        os.close(reader)
    assert out == f"{ended_by}\n"


# the termination log

KUBELET_BYTES = 4096
"""What the kubelet keeps (pkg/kubelet/container, MaxContainerTerminationMessageLength)."""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "log").write_text("from the run before, and longer than what follows")
    return tmp_path / "log"


def test_what_and_remedy_replace_what_was_there_and_move_no_cursor(kept: Path) -> None:
    for what, remedy, text in (
        ("exit 4: driver busy", "Stop it.", "exit 4: driver busy. Stop it."),
        ("exit 4: is it busy?", "Stop it.", "exit 4: is it busy? Stop it."),
        ("bad \udcff name\x1b[2J\u202e\nready", "do \x07 this", r"bad \udcff name\x1b[2J\u202e\nready. do \x07 this"),
        ("done", "", "done"),
    ):
        write_termination_log(str(kept), what, remedy)
        assert kept.read_text() == text


@pytest.mark.parametrize("length", [TERMINATION_LOG_BYTES - 20, TERMINATION_LOG_BYTES, 100_000])
def test_a_long_text_is_cut_and_the_remedy_kept(kept: Path, length: int) -> None:
    write_termination_log(str(kept), "exit 3: " + "p" * length, "Remove what holds each pod.")
    text = kept.read_text()
    assert text.startswith("exit 3: ppp")
    assert text.endswith("p. Remove what holds each pod.")
    assert len(text.encode()) <= KUBELET_BYTES
    write_termination_log(str(kept), "€" * length, "€" * length)
    assert 0 < len(kept.read_bytes()) <= KUBELET_BYTES


@pytest.mark.parametrize("place", ["absent", "folder", "link", "absent/below"])
def test_only_a_file_that_is_there_is_written(tmp_path: Path, kept: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(kept)
    before = sorted(entry.name for entry in tmp_path.iterdir())
    write_termination_log(str(tmp_path / place), "text")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before
    assert "from the run before" in kept.read_text()


def test_a_full_device_or_a_fifo_without_a_reader_does_not_delay_the_end_of_a_run(tmp_path: Path) -> None:
    full, fifo = Path("/dev/full"), tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (full, fifo):
        before = path.stat().st_mode
        write_termination_log(str(path), "text")
        assert path.stat().st_mode == before
