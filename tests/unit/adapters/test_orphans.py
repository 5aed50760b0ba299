"""What a tool leaves behind in a session of its own ends with the tool; what nobody here started is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fakes.host_folders import is_alive
from tests.support.fakes.pace import patient

TIMEOUT_S = 60.0
BY_RUN = """
from driver_manager.adapters.process.run import run
def tool(argv, timeout_s):
    return run(argv, timeout_s=timeout_s).status
"""
BY_SUPERVISOR = """
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import Supervisor
clock = LoopClock()
clock.install()
def tool(argv, timeout_s):
    return Supervisor(clock).run(["/bin/sh", *argv[1:]], {}, timeout_s).status
"""
STARTER = """
import subprocess, sys, time
from driver_manager.adapters.process import tools
tools.adopt()
apart = subprocess.Popen(["sleep", "300"])
begun = time.monotonic()
status = tool(["sh", "-c", sys.argv[1]], float(sys.argv[2]))
print(status, round(time.monotonic() - begun, 1), apart.poll(), *(pid for pid, _ in tools._children()))
apart.kill()
"""
STARTERS = pytest.mark.parametrize("starter", [BY_RUN, BY_SUPERVISOR], ids=["run", "supervisor"])
GRANDCHILD = "sh -c 'echo $$ >> {notes}; exec sleep 300'"


def left_behind(notes: Path) -> list[int]:
    """What the tool left, as it noted itself."""
    return [int(line) for line in notes.read_text().split()]


def started(starter: str, script: str, timeout_s: float = 20.0, *before: str) -> tuple[str, float, list[str]]:
    """Status and seconds of a tool that a process of its own ran, and who its children are then."""
    argv = [*before, sys.executable, "-c", starter + STARTER, script, str(timeout_s)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    status, took_s, apart, *children = ran.stdout.split()
    assert apart == "None", "a process that the tool did not start goes on"
    return status, float(took_s), children


@pytest.mark.submission
@pytest.mark.shares(3)
@STARTERS
@pytest.mark.parametrize(
    "way",
    [
        "setsid {child} >/dev/null 2>&1 &",
        "setsid {child} &",
        "(setsid sh -c '{inner} & {inner}' >/dev/null 2>&1 &)",
    ],
    ids=["quiet", "with the output open", "with a child of its own"],
)
def test_a_grandchild_in_its_own_session_ends_with_its_tool(tmp_path: Path, starter: str, way: str) -> None:
    notes = tmp_path / "notes"
    count = 2 if "inner" in way else 1
    inner = f'sh -c "echo \\$\\$ >> {notes}; exec sleep 300"'
    begins = way.format(child=GRANDCHILD.format(notes=notes), inner=inner)
    script = f"{begins}\nuntil [ $(cat {notes} 2>/dev/null | wc -l) = {count} ]; do sleep 0.01; done; exit 3"
    status, took_s, children = started(starter, script)
    assert (status, len(children)) == ("3", 1), "the status is the tool's, and only the process apart is left"
    assert took_s < patient(3.0), "an output that is held open is not waited for"
    assert [pid for pid in left_behind(notes) if is_alive(pid)] == []


@pytest.mark.submission
@pytest.mark.shares(3)
@STARTERS
def test_a_tool_that_hangs_ends_with_its_grandchild(tmp_path: Path, starter: str) -> None:
    notes = tmp_path / "notes"
    script = f"setsid {GRANDCHILD.format(notes=notes)} & until [ -s {notes} ]; do sleep 0.01; done; sleep 300"
    assert started(starter, script, 2.0)[0] == "124"
    assert [pid for pid in left_behind(notes) if is_alive(pid)] == []


AS_INIT = """
import os, subprocess
from driver_manager.adapters.process import tools
from driver_manager.adapters.process.tools import environment
seen = tools.Orphans()
# What `kubectl exec` leaves behind comes to the init process as well, with the container's environment.
for environ in ({"PATH": os.environ["PATH"]}, environment({})):
    subprocess.run(["sh", "-c", "setsid sleep 300 &"], env=environ, stdout=subprocess.DEVNULL)
before = len(list(tools._children()))
while seen.end() is not None:
    pass
print(os.getpid(), before, len(list(tools._children())))
"""


@pytest.mark.submission
@pytest.mark.shares(3)
def test_an_init_process_leaves_what_came_in_by_exec_alone() -> None:
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    argv = ["unshare", *as_root, "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", AS_INIT]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert ran.stdout.split() == ["1", "2", "1"]


@pytest.mark.submission
def test_a_loop_that_becomes_lean_still_gets_the_orphans(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    target = tmp_path / "lean_target.py"
    target.write_text(
        BY_SUPERVISOR + "def run(document, log):\n" + "    return tool(['sh', '-c', document['script']], 20.0)\n"
    )
    script = f"setsid {GRANDCHILD.format(notes=notes)} >/dev/null 2>&1 & until [ -s {notes} ]; do sleep 0.01; done"
    code = f"""
import sys
sys.path.append({str(tmp_path)!r})
from driver_manager.adapters.process import tools
from driver_manager.adapters.report.log import LogForm
from driver_manager.cli import lean
tools.adopt()
lean.become("lean_target:run", {{"script": {script!r}}}, LogForm(as_json=False))
"""
    subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S, check=True)
    assert [pid for pid in left_behind(notes) if is_alive(pid)] == []


def test_the_command_of_a_reboot_may_go_on_after_it_has_ended(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    script = f"setsid {GRANDCHILD.format(notes=notes)} >/dev/null 2>&1 & until [ -s {notes} ]; do sleep 0.01; done"
    starter = BY_RUN.replace("timeout_s=timeout_s", "timeout_s=timeout_s, may_leave=True")
    assert started(starter, script)[0] == "0"
    (pid,) = left_behind(notes)
    try:
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
