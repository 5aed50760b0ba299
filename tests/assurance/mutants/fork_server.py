"""Runs pytest in children of a process that has imported what all tests need, and nothing of this project.

A script of its own, not a module of the tests: its children find package and tests in the folder that they are given. A
request is a line of JSON (`root`, `arguments`, `limit_s`), and so is the answer: `status`, None for one that came to no
end, and `output`, its last lines. Whatever a run leaves behind is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest
from _pytest.config import default_plugins

LAST_LINES = 15
PLUGINS = ("_hypothesis_pytestplugin", "hypothesis", "pyfakefs.pytest_plugin", "pytest_cov.plugin", "xdist.plugin")
REWRITTEN = ("_hypothesis", "hypothesis", "pyfakefs", "pytest_cov", "xdist")
"""How the modules begin that pytest takes for plugins."""
LONG = ("asyncio", "kubernetes.client", "kubernetes.config", "tenacity", "unittest.mock", "xml.etree.ElementTree")
"""Other modules that take long to import."""
UNSHRUNK = "unshrunk"
"""Hypothesis' profile for CI, which leaves counterexamples as they are found. For `--hypothesis-profile`."""
MEMORY_LIMIT = 4 << 30
"""In bytes, of a process: a loop without an end may fill a list."""
BROKEN = 70  # sysexits(3), EX_SOFTWARE
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def warm_up() -> None:
    """Import what each run of pytest would import: its plugins, and what takes long."""
    for name in (*PLUGINS, *(f"_pytest.{name}" for name in default_plugins), *LONG):
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.startswith(REWRITTEN)]:
        sys.modules[name].__doc__ = "PYTEST_DONT_REWRITE"  # pytest would rather import its plugins itself, and warns
    # That a property fails is enough: to make its counterexample small takes longer than to find it.
    settings, phase = hypothesis.settings, hypothesis.Phase
    settings.register_profile(UNSHRUNK, settings.get_profile("ci"), phases=(phase.explicit, phase.generate))


def run(root: str, arguments: list[str], limit_s: int) -> dict[str, object]:
    out = Path(root, "pytest.out")
    child = os.fork()
    if child == 0:
        _be_pytest(root, arguments, limit_s, out)
    _, ended = os.waitpid(child, 0)
    _kill_what_is_left()
    output = out.read_text(errors="replace").splitlines()[-LAST_LINES:]
    status = os.waitstatus_to_exitcode(ended)
    return {"status": None if status == -signal.SIGALRM else status, "output": "\n".join(output)}


class _Verdict:
    """A plugin that keeps how the tests ended, whatever pytest stumbles on as it leaves: a socket of theirs, say."""

    status: int | None = None

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.status = int(exitstatus)


def _be_pytest(root: str, arguments: list[str], limit_s: int, out: Path) -> NoReturn:
    status: int = BROKEN
    verdict = _Verdict()
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number in (1, 2):
            os.dup2(descriptor, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(root)
        sys.path.insert(0, root)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
        signal.alarm(limit_s)
        status = int(pytest.main(arguments, plugins=[verdict]))
    except BaseException:  # noqa: BLE001  # reported, and not taken for this process' own
        traceback.print_exc()
        status = verdict.status or BROKEN
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _kill_what_is_left() -> None:
    """Orphans of the run are ours: we are their reaper."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while left := children.read_text().split():
        for pid in map(int, left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def main() -> None:
    """Serve until the input ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The folder of this script would be searched for modules before the run's own.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    warm_up()
    gc.freeze()  # no child looks through what all have in common
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
