"""One transition is one line: text for people, JSON for machines, and a closed log ends no run."""

from __future__ import annotations

import io
import json

import pytest

from driver_manager.adapters.report.log import LEVELS, LogReporter


def log(stream: io.StringIO, *, as_json: bool, level: str = "debug") -> LogReporter:
    return LogReporter(lambda: 1_700_000_000.25, as_json=as_json, level=level, stream=stream)


def test_text_has_time_level_and_words() -> None:
    out = io.StringIO()
    reporter = log(out, as_json=False)
    reporter.step(2, 7, "unload x")
    reporter.warn("odd")
    assert out.getvalue() == "22:13:20.250 [2/7] unload x\n22:13:20.250 warning: odd\n"


def test_json_is_one_object_a_line_with_its_fields() -> None:
    out = io.StringIO()
    reporter = log(out, as_json=True)
    reporter.step(1, 2, "two\nlines")
    reporter.error("failed", exit_code=4)
    first, second = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (first["message"], first["step"], first["steps"]) == ("[1/2] two\nlines", 1, 2)
    assert (second["level"], second["exit_code"], second["time"]) == ("error", 4, "2023-11-14T22:13:20.250+00:00")


@pytest.mark.parametrize(("level", "lines"), [("debug", 4), ("info", 4), ("warning", 2), ("error", 1)])
def test_less_than_the_level_is_left_out(level: str, lines: int) -> None:
    out = io.StringIO()
    reporter = log(out, as_json=False, level=level)
    reporter.info("a")
    reporter.step(1, 1, "b")
    reporter.warn("c")
    reporter.error("d")
    assert len(out.getvalue().splitlines()) == lines
    assert level in LEVELS


def test_a_closed_log_ends_no_run() -> None:
    out = io.StringIO()
    out.close()
    log(out, as_json=True).info("nobody hears it")


@pytest.mark.parametrize("as_json", [False, True])
def test_foreign_text_begins_no_line_and_moves_no_cursor(as_json: bool) -> None:
    stream = io.StringIO()
    LogReporter(lambda: 0.0, as_json=as_json, level="info", stream=stream).warn("a\nerror: forged \x1b[2J \ud800")
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
    reporter = out.handler = log(out, as_json=False)
    reporter.info("a line")
    out.handler = None
    reporter.info("another")
    assert out.getvalue() == "22:13:20.250 a line\n22:13:20.250 another\n"
