"""A log whose reader does not read stops nobody: lines that do not fit are dropped, and counted once there is room."""

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
from typing import TextIO

import pytest

from driver_manager.adapters.report.log import LogForm, LogReporter
from driver_manager.domain.errors import ExitCode
from tests.support.fakes.pace import patient

LINES = 500
LONG = "x" * 200
LONG_CHARS = 200_000
"""More than a pipe holds, or takes in one write."""


@dataclass
class Log:
    """Both ends of a log; `reader` is not read unless `read` is called."""

    stream: TextIO
    reader: int

    def reporter(self, *, as_json: bool = False) -> LogReporter:
        """A reporter that writes to it."""
        return LogReporter(lambda: 0.0, as_json=as_json, level="info", stream=self.stream)

    def read(self) -> list[str]:
        """The lines that are there."""
        found = b""
        while select.select([self.reader], [], [], 0.05)[0]:
            found += os.read(self.reader, 65536)
        return [line for line in found.decode().splitlines() if line]


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    return writer, reader


def _terminal() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    return theirs, ours


def _socket() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


@pytest.fixture(params=[_pipe, _terminal, _socket], ids=["pipe", "terminal", "socket"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    make: Callable[[], tuple[int, int]] = request.param
    writer, reader = make()
    stream = io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True)
    yield Log(stream, reader)
    with contextlib.suppress(OSError):
        stream.close()
    os.close(reader)


def numbered(lines: list[str]) -> list[int]:
    """The numbers of the lines that `fill` wrote."""
    return [int(line.split("line ")[1].split()[0]) for line in lines if "line " in line and LONG in line]


def fill(reporter: LogReporter) -> None:
    for number in range(LINES):
        reporter.info(f"line {number} {LONG}")


def test_a_reader_that_does_not_read_costs_a_moment_once_and_is_told_how_much_it_missed(log: Log) -> None:
    reporter = log.reporter()
    begun = time.monotonic()
    fill(reporter)
    assert time.monotonic() - begun < patient(5.0), "not PATIENCE_S for each line"
    kept = numbered(log.read())
    assert kept == list(range(len(kept))), "those that fit are whole and in order"
    reporter.info("after")
    *rest, notice, after = log.read()
    assert after.endswith("after")
    dropped = LINES - len(kept) - len(numbered(rest))
    assert dropped > 0
    assert notice.endswith(f"{dropped} lines were dropped: the reader of this log did not read")
    assert "warning: " in notice


def test_as_json_each_line_stays_an_object_and_the_number_is_for_all_reporters(log: Log) -> None:
    fill(log.reporter(as_json=True))
    lines = log.read()
    log.reporter(as_json=True).error("the end", exit_code=4)
    bodies = [json.loads(line) for line in [*lines, *log.read()]]
    assert [body["message"].partition(" ")[2][:5] for body in bodies[-2:]] == ["lines", "end"]
    assert bodies[-1]["exit_code"] == 4


def test_the_descriptor_that_others_write_to_as_well_stays_as_it_is(log: Log) -> None:
    fill(log.reporter())
    assert os.get_blocking(log.stream.fileno())


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
        fill(LogReporter(lambda: 0.0, as_json=False, level="info", stream=stream))
        thread.join(patient(20.0))
    os.close(reader)
    assert numbered(bytes(read).decode().splitlines()) == list(range(LINES))


def test_a_line_longer_than_a_pipe_is_finished_before_the_next_one() -> None:
    reader, writer = os.pipe()
    log = Log(os.fdopen(writer, "w"), reader)
    reporter = log.reporter()
    reporter.info("y" * LONG_CHARS)
    text = ""
    while "again" not in text:
        text += os.read(reader, LONG_CHARS).decode()
        reporter.info("again")
    log.stream.close()
    os.close(reader)
    first, notice, *_ = text.splitlines()
    assert first.count("y") == LONG_CHARS
    assert notice.endswith("lines were dropped: the reader of this log did not read")


def test_a_reader_that_went_ends_no_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as stream:
        fill(LogReporter(lambda: 0.0, as_json=True, level="info", stream=stream))


def test_the_two_lines_of_a_failure_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        fill(LogForm(as_json=True).reporter(lambda: 0.0))
        assert LogForm(as_json=True).fail(lambda: 0.0, ExitCode.USAGE, "what", "remedy") == ExitCode.USAGE
    os.close(reader)


FULL_BYTES = 40_000
"""What lies in a pipe that takes no further line: a line is not split over its pages."""
RUN = """
import signal, sys
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


@pytest.mark.submission
@pytest.mark.parametrize(("limit_s", "ended_by"), [(1.0, "deadline"), (300.0, "SIGTERM")])
def test_a_process_whose_log_is_full_keeps_its_deadline_and_hears_a_signal(limit_s: float, ended_by: str) -> None:
    argv = [sys.executable, "-c", RUN, str(limit_s)]
    reader, writer = os.pipe()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=writer, text=True)
    os.close(writer)
    try:
        if ended_by == "SIGTERM":
            while int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4), sys.byteorder) < FULL_BYTES:
                time.sleep(0.01)
            process.terminate()
        out, _ = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait(5.0)
        os.close(reader)
    assert out == f"{ended_by}\n"
