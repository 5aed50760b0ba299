"""The command starts without losing a signal, on closed streams too; a loop goes on in a lean interpreter."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.report.log import LogForm
from driver_manager.cli import lean_entry
from driver_manager.cli.lean import become
from driver_manager.cli.start import LOOPS
from driver_manager.domain.errors import ExitCode
from tests.support.fakes.plain_pod import kubeconfig
from tests.support.fakes.typed import slow

REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 150.0

SIGNALLED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Ends(MetaPathFinder):
    '''SIGTERM arrives while the first library is imported: it cannot be handled yet.'''
    def find_spec(self, name, *_):
        if name == "click" and not sys.modules.get("signalled"):
            sys.modules["signalled"] = os
            signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, Ends())
sys.argv = ["driver-manager", *sys.argv[1:]]
from driver_manager.cli import start
if "--first" in sys.argv:
    sys.argv.remove("--first")
    os.getpid = lambda: start.FIRST_PID
start.entry()
"""


Done = subprocess.CompletedProcess[str]


def ran(argv: list[str], *, check: bool = False, **options: Any) -> Done:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(argv, text=True, timeout=TIMEOUT_S, check=check, **{**streams, **options})


def start(*words: str, code: str = "", closed: Sequence[int] = (), stdout: int = subprocess.PIPE) -> Done:
    """The command, or `code` with its words, run in a process of its own that begins with descriptors `closed`."""

    def close() -> None:
        for number in closed:
            os.close(number)

    argv = [sys.executable, *(["-c", code] if code else ["-m", "driver_manager"]), *words]
    return ran(argv, cwd=REPOSITORY, stdout=stdout, preexec_fn=close)


@pytest.fixture
def host(tmp_path: Path) -> list[str]:
    """Options of a loop on an empty host."""
    for folder in ("etc", "sys/module", "dev", "run", "proc/sys/kernel/random", "var/lib/ascend"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "proc/uptime").write_text("100.0 100.0\n")
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:9"))
    return ["--host-root", str(tmp_path), "--node-name", "n", "--profile", "ascend"]


@pytest.mark.parametrize("command", sorted(LOOPS))
def test_a_loop_that_a_signal_ends_while_it_starts_ends_well(command: str, host: list[str], tmp_path: Path) -> None:
    way = ["--kubeconfig", str(tmp_path / "kubeconfig")]
    options = {"health-watch": host, "rebooter": [*host, *way], "rollout controller": [*way, *host[-2:]]}
    done = start(*command.split(), *options[command], code=SIGNALLED)
    assert (done.returncode, "terminated by SIGTERM" in done.stderr) == (ExitCode.DONE, True), done.stderr


@pytest.mark.parametrize("words", [["status"], ["--first", "sandbox", "--list"]], ids=" ".join)
def test_a_command_by_hand_and_the_sandbox_can_be_interrupted_from_their_first_moment(words: list[str]) -> None:
    assert start(*words, code=SIGNALLED).returncode == -15


def test_the_first_process_of_a_container_keeps_a_signal_of_its_start(host: list[str], tmp_path: Path) -> None:
    options = [*host, "--kubeconfig", str(tmp_path / "kubeconfig")]
    done = start("--first", "reconcile-driver-state", *options, code=SIGNALLED)
    assert (done.returncode, "terminated by SIGTERM" in done.stderr) == (ExitCode.STANDING_DOWN, True), done.stderr


@slow
@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("argv", [["status", "-o", "json"], ["--help"], ["health-watch", "--once"], []])
def test_a_closed_stream_is_no_traceback(argv: list[str], closed: tuple[int, ...], host: list[str]) -> None:
    done = start(*argv, *(host if argv and argv[0] != "--help" else []), closed=closed)
    assert done.returncode not in (ExitCode.INTERNAL, 120), done.stderr
    assert "Traceback" not in done.stderr


def test_a_loop_whose_output_is_closed_runs_and_ends_well(host: list[str]) -> None:
    done = start("health-watch", *host, code=SIGNALLED, closed=[1])
    assert done.returncode == ExitCode.DONE, done.stderr


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_the_streams_stay_open_in_the_program_that_a_loop_becomes(closed: tuple[int, ...]) -> None:
    code = "import os, sys; from driver_manager.cli import start; start._fill_streams(); os.execv(sys.executable, "
    code += "[sys.executable, '-c', 'import os; [os.fstat(number) for number in range(3)]'])"
    assert start(code=code, closed=closed).returncode == 0


def test_half_a_character_is_spelled_out_and_a_closed_stream_is_not_taken_by_the_next_file() -> None:
    code = "from driver_manager.cli import start; start._fill_streams(); import os; "
    done = start(code=code + "print('a\\ud800b', os.open('/dev/null', 0) > 2)", closed=[0, 2])
    assert done.stdout == "a\\ud800b True\n"


@slow
@pytest.mark.parametrize("command", ["plan", "status", "reconcile-driver-state"])
def test_the_exit_status_is_the_same_if_the_output_has_no_reader(command: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [command, "-o", "json", "--node-name", "n", "--kubeconfig", str(tmp_path / "none")]
    with os.fdopen(writer, "wb") as nobody:
        done = start(*argv, stdout=nobody.fileno())
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert not re.search("Traceback|Exception ignored", done.stderr)


THRESHOLD = """
import gc, sys
before = gc.get_threshold()
sys.argv = ["driver-manager", *sys.argv[1:]]
from driver_manager.cli import main, start
main.entry = lambda: print(gc.get_threshold()[0] // before[0])
start.entry()
"""


ENDING = [["reconcile-driver-state"], ["status", "-o", "json"], ["rollout", "status"], []]


@pytest.mark.parametrize("words", [*ENDING, *(loop.split() for loop in sorted(LOOPS))])
def test_a_command_that_ends_looks_for_garbage_seldom_and_a_loop_as_often_as_python_does(words: list[str]) -> None:
    times = int(start(*words, code=THRESHOLD).stdout)
    assert times > 10 if words in ENDING else times == 1


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
    if document.get("frees"):
        def heap_kib():
            words = open("/proc/self/smaps").read().partition("[heap]")[2].split()
            return int(words[words.index("Rss:") + 1])
        before = heap_kib()
        bytes(300 * 1024)
        del [bytes(1000) for _ in range(500)][:]
        print(heap_kib() - before)
    rss_kib = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))
    print(json.dumps({
        "pid": os.getpid(), "document": document, "modules": sorted(sys.modules), "rss_mib": int(rss_kib) / 1024,
        "argv": open("/proc/self/cmdline").read(), "env": open("/proc/self/environ").read(), "json": log.as_json,
    }))
    return 3
"""


def handed_over(tmp_path: Path, document: dict[str, Any]) -> tuple[Done, list[str]]:
    """How a process ended that became `lean_target`, and its lines."""
    (tmp_path / "lean_target.py").write_text(TARGET)
    (tmp_path / "termination-log").touch()
    argv = [sys.executable, "-c", BECOME, json.dumps(document), str(tmp_path / "termination-log")]
    done = ran(argv, env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    return done, done.stdout.splitlines()


def test_the_loop_runs_in_the_same_process_without_the_libraries_of_the_command_line(tmp_path: Path) -> None:
    document = {"secret": "hand-me-over", "of": ["näme", 1.5, None]}
    done, lines = handed_over(tmp_path, document)
    assert done.returncode == 3, done.stderr
    seen = json.loads(lines[1])
    assert (str(seen["pid"]), seen["document"], seen["json"]) == (lines[0], document, True)
    assert "hand-me-over" not in seen["argv"] + seen["env"]
    assert not {"click", "kubernetes", "psutil", "pyudev", "site", "subprocess", "socket"} & set(seen["modules"])
    assert seen["rss_mib"] < 14


def test_a_loop_gives_freed_memory_back(tmp_path: Path) -> None:
    """A large block is freed, then 500 blocks of 1 kB: glibc would keep them, and twice the size of the large one."""
    assert int(handed_over(tmp_path, {"frees": True})[1][1]) < 200


def test_a_failure_of_the_loop_is_two_lines_an_exit_code_and_a_termination_log(tmp_path: Path) -> None:
    done, _ = handed_over(tmp_path, {"fail": True})
    assert done.returncode == 2
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == ["no good", "what to do: Do better."]
    assert (tmp_path / "termination-log").read_text() == "exit 2: no good. Do better."


def test_a_signal_that_comes_before_the_loop_takes_signals_is_not_lost(tmp_path: Path) -> None:
    done, lines = handed_over(tmp_path, {"loop": True})
    assert (done.returncode, lines[1]) == (7, "blocked"), done.stderr


def test_what_does_not_fit_json_is_refused_before_anything_is_given_up() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(TypeError):
        become("lean_target:run", {"set": {1}}, LogForm(as_json=True))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


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
    assert {*ran(argv, check=True).stdout.split()} & {*TOO_LARGE, *lean_entry.LAZY, "msgspec"} == {"msgspec"}


WARNS = """
import sys, warnings
from driver_manager.cli import main, start
def entry():
    from urllib3.exceptions import InsecureRequestWarning
    warnings.warn("Unverified HTTPS request", InsecureRequestWarning, stacklevel=1)
main.entry = entry
sys.argv = ["driver-manager", "plan"]
start.entry()
"""


@pytest.mark.parametrize("options", [[], ["-W", "default"]])
def test_a_warning_of_a_library_is_shown_only_to_those_who_ask_python_for_it(options: list[str]) -> None:
    done = ran([sys.executable, *options, "-c", WARNS], check=True)
    assert ("InsecureRequestWarning" in done.stderr) == bool(options)
