"""A loop runs in the command's own process, in an interpreter that has imported next to nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.report.log import LogForm
from driver_manager.cli import lean_entry
from driver_manager.cli.lean import become
from driver_manager.domain.profile import decode_profile, encode_profile
from driver_manager.profiles import builtin

REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 100.0

BECOME = """
import json, os, sys
import click
from driver_manager.adapters.report.log import LogForm
from driver_manager.cli.lean import become
print(os.getpid(), flush=True)
become("lean_target:run", json.loads(sys.argv[1]), LogForm(as_json=True, termination_log=sys.argv[2]))
"""
TARGET = """
import json, os, signal, sys, time
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.domain.errors import ConfigError, Terminated

def run(document, log):
    if document.get("fail"):
        raise ConfigError("no good", "Do better.")
    if document.get("loop"):
        print("blocked" if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()) else "open", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        clock = SystemClock()
        clock.install()
        try:
            clock.sleep(10)
        except Terminated:
            return 7
    rss_kib = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))
    print(json.dumps({
        "pid": os.getpid(), "document": document, "modules": sorted(sys.modules), "rss_mib": int(rss_kib) / 1024,
        "argv": open("/proc/self/cmdline").read(), "env": open("/proc/self/environ").read(),
        "json": log.as_json,
    }))
    return 3
"""


def handed_over(tmp_path: Path, document: dict[str, Any]) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """How a process ended that became `lean_target`, and its lines."""
    (tmp_path / "lean_target.py").write_text(TARGET)
    (tmp_path / "termination-log").touch()
    done = subprocess.run(
        [sys.executable, "-c", BECOME, json.dumps(document), str(tmp_path / "termination-log")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done, done.stdout.splitlines()


def test_the_loop_runs_in_the_same_process_with_its_document_and_its_exit_status(tmp_path: Path) -> None:
    document = {"secret": "hand-me-over", "of": ["näme", 1.5, None]}
    done, lines = handed_over(tmp_path, document)
    assert done.returncode == 3, done.stderr
    seen = json.loads(lines[1])
    assert (str(seen["pid"]), seen["document"], seen["json"]) == (lines[0], document, True)
    assert "hand-me-over" not in seen["argv"] + seen["env"]


def test_the_loop_has_none_of_the_command_lines_libraries(tmp_path: Path) -> None:
    _, lines = handed_over(tmp_path, {})
    seen = json.loads(lines[1])
    assert not {"click", "kubernetes", "psutil", "pyudev", "site", "subprocess", "socket"} & set(seen["modules"])
    assert seen["rss_mib"] < 14


def test_a_failure_of_the_loop_is_two_lines_an_exit_code_and_a_termination_log(tmp_path: Path) -> None:
    done, _ = handed_over(tmp_path, {"fail": True})
    assert done.returncode == 2
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == ["no good", "what to do: Do better."]
    assert (tmp_path / "termination-log").read_text() == "exit 2: no good. Do better."


def test_a_signal_that_comes_before_the_loop_takes_signals_is_not_lost(tmp_path: Path) -> None:
    done, lines = handed_over(tmp_path, {"loop": True})
    assert lines[1] == "blocked"
    assert done.returncode == 7, done.stderr


def test_what_does_not_fit_json_is_refused_before_anything_is_given_up() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(TypeError):
        become("lean_target:run", {"set": {1}}, LogForm(as_json=True))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.parametrize("name", builtin())
def test_a_profile_is_handed_over_whole(name: str) -> None:
    profile = builtin()[name]
    assert decode_profile(encode_profile(profile)) == profile


LOOP = """
import importlib, sys
sys.path += sys.argv[2:]
from driver_manager.cli import lean_entry
lean_entry.stand_in()
importlib.import_module(sys.argv[1])
print(*(name for name, found in sys.modules.items() if type(found) is not lean_entry.LoadedWhenUsed))
"""
TOO_LARGE = {"_hashlib", "_ssl", "click", "dataclasses", "decimal", "inspect", "typing_extensions", "urllib3", "uuid"}


@pytest.mark.parametrize("loop", ["health_watch_loop", "rebooter_idle"])
def test_a_loop_never_loads_large_modules(loop: str) -> None:
    """OpenSSL alone is three MiB, in every node's memory for ever."""
    argv = [sys.executable, "-I", "-S", "-c", LOOP, f"driver_manager.cli.{loop}", str(REPOSITORY), *sys.path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {*TOO_LARGE, *lean_entry.LAZY}
    assert "msgspec" in loaded
