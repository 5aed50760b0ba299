"""Figures of the runs on one host, for metrics: the last run, and counters since boot, which each run adds to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain import outage
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.metrics import Family, by_label, counter, gauge
from driver_manager.domain.outage import Outage
from driver_manager.domain.wire import Form, Part, Unreadable, body_of

NO_FAILURES = frozenset({ExitCode.DONE, ExitCode.REBOOT_REQUIRED})
NO_NEWS = frozenset({ExitCode.STANDING_DOWN, ExitCode.OWNED_ELSEWHERE})
"""Exit codes that do not show whether the driver works: the run left the node to another one, or was terminated."""


_MOST = 2**53
"""The largest whole number up to which a float is exact."""

COUNT = Part(least=0, most=_MOST)


class RunReport(Struct, frozen=True):
    """One run that ended at `ended_s` seconds since the epoch and took `took_s` seconds.

    `steps` has seconds by name. `is_held`: the run left the node taken. `retries` are the repeated ones of `requests`.
    """

    exit_code: Annotated[int, Part(least=0, most=255)]
    ended_s: Annotated[float, Part("ended")]
    took_s: Annotated[float, Part("took")]
    steps: Mapping[str, float] = field(default_factory=dict)
    is_held: bool = False
    requests: Annotated[int, COUNT] = 0
    retries: Annotated[int, COUNT] = 0
    window: Annotated[Outage | None, Part(None)] = None


class RunFigures(Struct, frozen=True):
    """The figures of one boot: `runs` by exit code, `steps` and their total `step_seconds` by name.

    `window` is the last one, open or over; `windows` and `window_seconds` sum up those that are over.
    """

    runs: Annotated[Mapping[str, int], COUNT] = field(default_factory=dict)
    failures_in_a_row: Annotated[int, COUNT] = 0
    holds: Annotated[int, COUNT] = 0
    is_held: bool = False
    requests: Annotated[int, COUNT] = 0
    retries: Annotated[int, COUNT] = 0
    steps: Annotated[Mapping[str, int], COUNT] = field(default_factory=dict)
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    last: Annotated[RunReport | None, Part(is_omitted=True)] = None
    windows: Annotated[int, Part(least=0, most=_MOST, is_optional=True)] = 0
    window_seconds: Annotated[float, Part(is_optional=True)] = 0.0
    window: Annotated[Outage | None, Part(None)] = None

    def with_run(self, run: RunReport, *, is_given_back: bool = False) -> RunFigures:
        """The figures after one more run. `is_given_back`: the run released the node, with any exit code."""
        code = str(run.exit_code)
        row = self.failures_in_a_row
        if run.exit_code not in NO_NEWS:
            row = 0 if run.exit_code in NO_FAILURES else row + 1
        figures = self if run.window is None else self.with_window(run.window)
        return replace(
            figures,
            runs={**self.runs, code: self.runs.get(code, 0) + 1},
            failures_in_a_row=row,
            holds=self.holds + run.is_held,
            is_held=run.is_held or (self.is_held and not is_given_back and run.exit_code not in NO_FAILURES),
            requests=self.requests + run.requests,
            retries=self.retries + run.retries,
            steps=_sum(self.steps, dict.fromkeys(run.steps, 1)),
            step_seconds=_sum(self.step_seconds, run.steps),
            last=run,
        )

    def with_window(self, measured: Outage) -> RunFigures:
        """The figures with `measured` as the last window, which counts only once it is over."""
        if measured.is_open:
            return replace(self, window=measured)
        seconds = round(self.window_seconds + measured.seconds, 3)
        return replace(self, window=measured, windows=self.windows + 1, window_seconds=seconds)

    def given_back(self) -> RunFigures:
        """The figures after a release of the node by hand."""
        return replace(self, is_held=False)


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, **{key: one.get(key, 0) + value for key, value in other.items()}}


FORM = Form("the figures of the runs", Unreadable, "No action needed: the next run starts them again.")


def encode_run_figures(figures: RunFigures) -> str:
    window = {"window": figures.window.to_json()} if figures.window is not None else {}
    return FORM.write(body_of(figures, digits=3) | window) + "\n"


def decode_run_figures(text: str) -> RunFigures:
    """The figures in `text`. Garbage and newer versions give empty figures, as they must not make a run fail."""
    try:
        body = FORM.read(text)
        return body.record(RunFigures, window=outage.read_in(body))
    except Unreadable:
        return RunFigures()


def run_families(figures: RunFigures) -> tuple[Family, ...]:
    """The metrics of the runs; () before the first run of a boot."""
    last = figures.last
    if last is None:
        return ()
    return (
        by_label("counter", "runs_total", "Runs of this boot by exit code.", "exit_code", figures.runs),
        gauge(
            "run_failures_in_a_row",
            "Consecutive failed runs; runs that only stood down are not counted.",
            figures.failures_in_a_row,
        ),
        gauge("node_held", "Whether the last run left the node taken: operands stay paused.", figures.is_held),
        counter("run_holds_total", "Runs of this boot that left the node taken.", figures.holds),
        counter("run_requests_total", "Requests that runs of this boot sent to the API server.", figures.requests),
        counter(
            "run_retries_total",
            "Requests of runs of this boot that were sent to the API server again.",
            figures.retries,
        ),
        by_label("counter", "run_steps_total", "Steps that runs of this boot began.", "step", figures.steps),
        by_label(
            "counter",
            "run_step_seconds_total",
            "How long the steps of this boot's runs took.",
            "step",
            figures.step_seconds,
        ),
        gauge("run_last_exit_code", "Exit code of the last run.", last.exit_code),
        gauge("run_last_end_timestamp_seconds", "When the last run ended.", last.ended_s),
        gauge("run_last_duration_seconds", "How long the last run took.", last.took_s),
        by_label("gauge", "run_last_step_seconds", "How long the steps of the last run took.", "step", last.steps),
        *_window_families(figures),
    )


def _window_families(figures: RunFigures) -> tuple[Family, ...]:
    """The metrics of the windows; () before the first window of a boot."""
    last = figures.window
    if last is None:
        return ()
    parts = {part.value: seconds for part, seconds in last.parts.items()}
    return (
        counter("windows_total", "Windows of this boot that are over: see docs/window.md.", figures.windows),
        counter(
            "window_seconds_total",
            "How long the windows of this boot that are over took in total.",
            figures.window_seconds,
        ),
        gauge("window_open", "Whether the last window is still open, because the driver is not back.", last.is_open),
        gauge("window_last_seconds", "How long the last window took, or has taken so far.", last.seconds),
        by_label("gauge", "window_last_part_seconds", "How long each part of the last window took.", "part", parts),
    )
