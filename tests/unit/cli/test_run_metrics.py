"""What a run leaves for metrics, however it ends: real commands on the sandbox's cluster and host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host.notes import RunFiguresFile, others_of
from driver_manager.domain.metrics import exposition
from driver_manager.domain.reboot.state import Attempt, Record, encode_reboot_record
from driver_manager.domain.run_report import RunFigures
from tests.support.exposition import samples
from tests.support.fakes.builders import ASCEND, PROFILE
from tests.support.fakes.host_documents import roots_of
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.typed import slow

RUN = {"DRIVER_PROFILE": "rebellions", "DRIVER_LOAD": "manager", "DRIVER_ROOT": "/run/rbln/driver"}
Values = dict[tuple[str, ...], float]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ByHand]:
    (tmp_path / "collector").mkdir()
    with by_hand(tmp_path) as made:
        yield made


def collector(node: ByHand) -> Path:
    """The file that node_exporter reads."""
    return node.tree.root.parent / "collector/driver-manager.prom"


def command(node: ByHand, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the settings of RUN."""
    done = node.called(*words, **{**RUN, "METRICS_TEXTFILE": str(collector(node)), "NODE_NAME": "", **env})
    print(done.stderr)
    return done


def reconcile(node: ByHand, *arguments: str) -> int:
    return command(node, "reconcile-driver-state", *arguments).returncode


def read(text: str) -> Values:
    """Every sample by name and labels."""
    return {(name.removeprefix("driver_manager_"), *labels.values()): value for name, labels, value in samples(text)}


def published(node: ByHand) -> Values:
    """What is in the collector's folder, and the same from the host for who serves it."""
    text = collector(node).read_text()
    assert exposition(others_of(roots_of(node.tree.root), PROFILE.paths)) == text
    return read(text)


def figures(node: ByHand) -> RunFigures:
    return RunFiguresFile(roots_of(node.tree.root).files(), PROFILE.paths).read()


@slow
def test_a_run_that_swaps_the_driver_leaves_its_figures_and_the_next_ones_go_on_from_them(node: ByHand) -> None:
    def planned() -> Any:
        return json.loads(command(node, "plan", "--force-reinstall", "-o", "json").stdout)["window"]

    assert reconcile(node, "--dry-run") == 0
    assert (planned(), figures(node), collector(node).exists()) == (None, RunFigures(), False), "looks leave nothing"
    begun = time.time()
    assert reconcile(node) == 0
    values = published(node)
    assert (values["runs_total", "0"], values["run_retries_total",]) == (1, 0)
    assert values["run_last_exit_code",] == values["run_failures_in_a_row",] == values["node_held",] == 0
    steps = {key[1]: value for key, value in values.items() if key[0] == "run_last_step_seconds"}
    assert {"take node", "wait for operands", "unload modules", "load modules", "give back"} <= steps.keys()
    assert sum(steps.values()) <= values["run_last_duration_seconds",] <= time.time() - begun
    assert values["run_requests_total",] >= 5
    assert (values["windows_total",], values["window_open",]) == (1, 0)
    assert 0 < values["window_last_seconds",] <= values["run_last_duration_seconds",]
    assert begun <= values["run_last_end_timestamp_seconds",] <= time.time()
    window = figures(node).window
    assert window is not None
    assert planned() == window.to_json(), "the plan expects what the last run took"
    assert reconcile(node) == 0
    second = published(node)
    assert (second["runs_total", "0"], second["run_steps_total", "unload modules"]) == (2, 1)
    assert second["run_requests_total",] > values["run_requests_total",]
    assert not [key for key in second if key[0] == "run_last_step_seconds"], "a current driver costs no step"


@slow
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_run_that_holds_the_node_says_so_until_it_is_given_back_or_one_ends_well(node: ByHand, by_hand: bool) -> None:
    node.tree.add_driver("/run/rbln/driver", "2.0.1", fails=True)
    for old in (node.tree.root / "opt/rbln").rglob("*.ko"):
        old.unlink()
    for _ in range(2):
        assert reconcile(node) == 5
    values = published(node)
    assert (values["node_held",], values["run_failures_in_a_row",], values["runs_total", "5"]) == (1, 2, 2)
    if by_hand:
        assert command(node, "restore").returncode == 0
    else:
        node.tree.add_driver("/run/rbln/driver", "2.0.1")
        assert (reconcile(node), published(node)["node_held",]) == (0, 0)
    failures = 2 if by_hand else 0  # a node that is given back by hand has a driver that fails
    assert (figures(node).is_held, figures(node).failures_in_a_row, figures(node).runs["5"]) == (False, failures, 2)


@slow
@pytest.mark.parametrize(
    "env", [{"KUBECONFIG": "/absent"}, {"DRAIN_POD_SELECTOR_LABEL": "a in b"}, {"NODE_NAME": "another"}], ids=str
)
def test_a_run_that_never_saw_its_node_counts_as_failed(node: ByHand, env: dict[str, str]) -> None:
    assert command(node, "reconcile-driver-state", **env).returncode == 2
    values = published(node)
    assert (values["runs_total", "2"], values["run_failures_in_a_row",]) == (1, 1)


@pytest.mark.submission
def test_a_run_that_a_signal_ends_is_no_failure(node: ByHand) -> None:
    node.tree.hold_device()
    argv = [sys.executable, "-m", "driver_manager", "reconcile-driver-state"]
    with subprocess.Popen(argv, env=node.environment(**RUN), stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert any("device in use" in line for line in run.stderr)
        run.send_signal(signal.SIGTERM)
        assert run.wait(100.0) == 10
        run.stderr.close()
    found = figures(node)
    assert (found.runs, found.failures_in_a_row, found.step_seconds["wait for holders"] > 0) == ({"10": 1}, 0, True)


@slow
@pytest.mark.parametrize("has_figures", [True, False])
def test_figures_and_metrics_that_cannot_be_written_keep_no_run_from_its_end(node: ByHand, has_figures: bool) -> None:
    if not has_figures:
        (node.tree.root / PROFILE.paths.run_figures.lstrip("/")).mkdir(parents=True)
    done = command(node, "reconcile-driver-state", METRICS_TEXTFILE="/proc/no/driver-manager.prom")
    warnings = done.stderr.count("metrics cannot be written to /proc/no/driver-manager.prom")
    assert (done.returncode, warnings, dict(figures(node).runs)) == (0, *((1, {"0": 1}) if has_figures else (0, {})))


def test_what_the_rebooter_left_is_served_too_and_garbage_is_not(tmp_path: Path) -> None:
    seen = roots_of(tmp_path)
    assert others_of(seen, ASCEND.paths) == ()
    record = tmp_path / ASCEND.paths.rebooter_record.lstrip("/")
    record.parent.mkdir(parents=True)
    record.write_text(encode_reboot_record(Record().counting(Attempt(7, "recovery"))))
    assert read(exposition(others_of(seen, ASCEND.paths)))["reboots_total", "recovery"] == 1
    record.write_text("garbage")
    assert others_of(seen, ASCEND.paths) == ()
    assert others_of(seen, PROFILE.paths) == (), "a driver that is swapped has no rebooter"
    assert os.listdir(record.parent) == [record.name]  # noqa: PTH208
