"""Every process that the package starts has a timeout, a short environment and no shell; nothing else starts any."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import driver_manager
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.forked import lines_within
from driver_manager.adapters.process.run import run
from driver_manager.adapters.process.supervisor import Supervisor
from tests.support.fakes.signals import signals_kept

PACKAGE = Path(driver_manager.__file__).parent
STARTERS = {
    "adapters/process/run.py": {"subprocess.Popen"},
    "adapters/process/supervisor.py": {"os.fork", "os.execve"},
    "adapters/process/forked.py": {"os.fork"},
    "cli/lean.py": {"os.execv"},
    "cli/rebooter_idle.py": {"os.execv"},
    "sandbox/cluster.py": {"subprocess.Popen", "pty.openpty"},
    "sandbox/scenarios.py": {"subprocess.Popen"},
}
"""Who may start what. The two `execv` are this process itself, going on as another program of ours; the shell of the
sandbox is its user's, and takes as long as they like.
"""

STARTS = ("subprocess.", "os.fork", "os.exec", "os.spawn", "os.posix_spawn", "os.system", "os.popen", "pty.")
NOT_STARTS = {"subprocess.DEVNULL", "subprocess.PIPE", "subprocess.STDOUT", "subprocess.TimeoutExpired"}
BOUNDED = {"communicate", "run", "call", "check_call", "check_output"}
"""These wait for a process, and need a timeout."""

CHILD = "import os; print('\\n'.join(f'{name}={value}' for name, value in os.environ.items()))"


def dotted(node: ast.expr) -> str:
    """`a.b` for an attribute of a plain name, else ""."""
    is_plain = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return ast.unparse(node) if is_plain else ""


def faults(source: str, allowed: set[str]) -> Iterator[str]:
    if not re.search(r"\b(subprocess|os|pty|communicate)\b", source):
        return  # most modules, which need not be parsed
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="subprocess" | "os" | "pty"):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                yield from (f"imports {name} by its name" for name in names if name.startswith(STARTS))
            case ast.Import():
                aliased = (alias.name for alias in node.names if alias.asname)
                yield from (f"renames {name}" for name in aliased if name in ("subprocess", "os", "pty"))
            case ast.Attribute() if dotted(node).startswith(STARTS) and dotted(node) not in NOT_STARTS | allowed:
                yield f"uses {dotted(node)}"
            case ast.Call():
                yield from _faults_of_call(node)


def _faults_of_call(call: ast.Call) -> Iterator[str]:
    name = dotted(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    is_ours = name.startswith("subprocess.") or method == "communicate"
    if is_ours and method in BOUNDED and given.get("timeout", "None") == "None":
        yield f"{method} without a timeout"
    if name in ("subprocess.Popen", "subprocess.run"):
        yield from (f"{name} without its own {word}" for word in ("env", "stdin") if word not in given)
    if name.startswith("subprocess.") and "shell" in given:
        yield f"{name} with a word on a shell"


def test_a_module_starts_only_what_it_may_and_as_it_should() -> None:
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert len(texts) > 100
    found = {name: list(faults(text, STARTERS.get(name, set()))) for name, text in texts.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    for name, listed in STARTERS.items():
        used = {dotted(node) for node in ast.walk(ast.parse(texts[name])) if isinstance(node, ast.Attribute)}
        assert listed <= used, f"{name} still starts what is listed"
    for name, text in (("run", "subprocess.run(['a'], env={}, stdin=0)"), ("communicate", "def f(p): p.communicate()")):
        assert list(faults(text, {"subprocess.run"})) == [f"{name} without a timeout"]


@pytest.mark.submission
def test_nothing_of_our_environment_reaches_a_tool_but_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "KUBECONFIG", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_OF_OURS", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "geheim")
    argv, clock = [sys.executable, "-I", "-S", "-c", CHILD], LoopClock()
    with signals_kept():
        clock.install()  # without it, the end of the tool does not end the wait
        printed = (run(argv, env={"OWN": "1"}).out, Supervisor(clock).run(argv, {"OWN": "1"}, 20.0).out)
    for seen in (dict(line.split("=", 1) for line in text.splitlines()) for text in printed):
        by_python = {"LC_CTYPE"}  # it sets this for itself (PEP 538)
        assert seen.keys() - by_python == {"PATH", "LC_ALL", "STARTED_BY", "OWN"}
        assert "geheim" not in str(seen)


def test_a_child_that_looks_at_stuck_processes_has_none_of_our_descriptors(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w"):
        found = lines_within(
            10.0, lambda: [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        )
    assert found
    assert not [line for line in found if "secret" in line]
