"""Figures of runs: what the last one took, and counters that only grow; whatever is in the file, a run goes on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.metrics import exposition
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.run_report import RunFigures, RunReport, decode_run_figures, encode_run_figures, run_families
from tests.support.exposition import samples
from tests.support.fakes.windows import WINDOWS

SINCE_WINDOWS = {"windows", "windowSeconds", "window"}
"""Fields that earlier versions did not write."""

NAMES = st.sampled_from(["unload modules", "wait for operands", "give back"])
SECONDS = st.floats(0, 1e6).map(lambda seconds: round(seconds, 3))
RUNS = st.builds(
    RunReport,
    exit_code=st.sampled_from(list(ExitCode)).map(int),
    ended_s=SECONDS,
    took_s=SECONDS,
    steps=st.dictionaries(NAMES, SECONDS, max_size=3),
    is_held=st.booleans(),
    requests=st.integers(0, 50),
    retries=st.integers(0, 50),
    window=st.none() | WINDOWS,
)


def after(*runs: RunReport) -> RunFigures:
    """The figures after these runs."""
    figures = RunFigures()
    for run in runs:
        figures = figures.with_run(run)
    return figures


def ended(*codes: int, held: int = -1) -> RunFigures:
    """The figures after runs with these exit codes; the one of number `held` left the node held."""
    runs = [RunReport(code, float(number), 1.0, is_held=number == held) for number, code in enumerate(codes)]
    return after(*runs)


def test_failures_in_a_row_are_those_since_the_last_success_and_standing_down_is_none() -> None:
    rows = {(): 0, (0,): 0, (5,): 1, (5, 5, 3): 3, (5, 5, 0): 0, (5, 5, 0, 5): 1, (5, 10, 5): 2, (5, 11, 5): 2}
    rows |= {(10, 10): 0, (5, 5, 9): 0, (2, 7, 8, 1): 4}
    assert {codes: ended(*codes).failures_in_a_row for codes in rows} == rows


def test_a_held_node_stays_so_until_a_run_ends_well_or_gives_it_back() -> None:
    rows = {((5,), 0): True, ((5, 5), 0): True, ((5, 10), 0): True, ((5, 5), 1): True}
    rows |= {((5, 0), 0): False, ((5, 9), 0): False, ((5,), -1): False}
    found = {row: ended(*row[0], held=row[1]) for row in rows}
    assert {row: figures.is_held for row, figures in found.items()} == rows
    assert {row: figures.holds for row, figures in found.items()} == {row: int(row[1] >= 0) for row in rows}
    held, failed = ended(5, held=0), RunReport(4, 2.0, 1.0)
    assert held.with_run(failed).is_held, "it may not have come so far"
    assert not held.with_run(failed, is_given_back=True).is_held


@given(st.lists(RUNS, max_size=12))
def test_counters_are_sums_and_the_last_run_is_the_last(runs: list[RunReport]) -> None:
    figures = after(*runs)
    assert sum(figures.runs.values()) == len(runs)
    assert figures.requests == sum(run.requests for run in runs)
    assert figures.retries == sum(run.retries for run in runs)
    assert figures.holds == sum(run.is_held for run in runs)
    assert sum(figures.steps.values()) == sum(len(run.steps) for run in runs)
    assert sum(figures.step_seconds.values()) == pytest.approx(sum(sum(run.steps.values()) for run in runs))
    assert figures.last == (runs[-1] if runs else None)
    over = [run.window for run in runs if run.window is not None and not run.window.is_open]
    assert figures.windows == len(over)
    assert figures.window_seconds == pytest.approx(sum(window.seconds for window in over))


@given(st.lists(RUNS, max_size=6))
def test_what_is_written_is_read_again(runs: list[RunReport]) -> None:
    figures = after(*runs)
    again = decode_run_figures(encode_run_figures(figures))
    last = replace(figures.last, window=None) if figures.last is not None else None
    assert replace(again, step_seconds={}) == replace(figures, step_seconds={}, last=last)
    assert again.step_seconds == pytest.approx(figures.step_seconds, abs=0.001)
    assert encode_run_figures(figures).count("\n") == 1


@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_garbage_is_no_figures_and_no_failure(text: str) -> None:
    assert decode_run_figures(text) == RunFigures()


def test_a_newer_version_and_wrong_fields_are_no_figures_but_an_earlier_version_has_no_window() -> None:
    text = encode_run_figures(ended(5, 0))
    body = json.loads(text)
    for key, value in (("schema", 2), ("runs", {"0": -1}), ("runs", []), ("holds", "x"), ("stepSeconds", {"a": "b"})):
        assert decode_run_figures(json.dumps({**body, key: value})) == RunFigures(), key
    for key in body.keys() - {"last", *SINCE_WINDOWS}:
        less = {name: value for name, value in body.items() if name != key}
        assert decode_run_figures(json.dumps(less)) == RunFigures(), key
    found = decode_run_figures(json.dumps({key: value for key, value in body.items() if key not in SINCE_WINDOWS}))
    assert (found.windows, found.window_seconds, found.window) == (0, 0.0, None)
    assert found.runs == {"5": 1, "0": 1}


@given(st.lists(RUNS, min_size=1, max_size=5))
def test_prometheus_reads_every_figure(runs: list[RunReport]) -> None:
    figures, last = after(*runs), runs[-1]
    found = sampled(figures)
    wanted = {
        "run_failures_in_a_row": figures.failures_in_a_row,
        "node_held": figures.is_held,
        "run_last_exit_code": last.exit_code,
        "run_last_duration_seconds": last.took_s,
        **{f"runs_total {code}": count for code, count in figures.runs.items()},
        **{f"run_last_step_seconds {step}": seconds for step, seconds in last.steps.items()},
        **{f"run_steps_total {step}": figures.steps[step] for step in last.steps},
    }
    assert {name: found[name] for name in wanted} == wanted


def test_the_last_window_is_published_and_counts_once_it_is_over() -> None:
    left = Outage(100.0, 4.0, {OutagePart.UNLOAD: 4.0}, is_open=True)
    figures, part = after(RunReport(0, 104.0, 4.0, window=left)), "window_last_part_seconds"
    values = {"windows_total": 0, "window_seconds_total": 0, "window_open": 1, "window_last_seconds": 4}
    assert sampled(figures, "window") == {**values, f"{part} unload": 4}
    figures = figures.with_window(left.ended_by_container(111.0, 113.0, 160.0))
    values = {"windows_total": 1, "window_seconds_total": 13, "window_open": 0, "window_last_seconds": 13}
    assert sampled(figures, "window") == {**values, f"{part} unload": 4, f"{part} install": 7, f"{part} probe": 2}


def sampled(figures: RunFigures, word: str = "") -> dict[str, float]:
    """The samples with this word in their names, by name and values of the labels."""
    found = samples(exposition(run_families(figures)))
    return {
        " ".join((name.removeprefix("driver_manager_"), *labels.values())): value
        for name, labels, value in found
        if word in name
    }


def test_before_the_first_run_of_a_boot_there_is_nothing_to_publish() -> None:
    assert run_families(RunFigures()) == ()
