"""The coverage-guided engine: atheris (libFuzzer) on a target, in a process of its own per target.

atheris has wheels for CPython on Linux x86_64 only; `why_not` says so where it is absent. libFuzzer ends its process,
so every target runs in a fork of one that has imported and instrumented the package.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.assurance.fuzz.mutation import MAX_BYTES, mutated
from tests.assurance.fuzz.target import Target, check

FOUND = Path(__file__).parents[3] / "build/fuzz"
HANG_S = 75
RSS_MIB = 1024
GRACE_S = 60.0
_COUNTS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+)")
_DONE = re.compile(r"Done (\d+) runs")


@dataclass(frozen=True)
class Campaign:
    """How one target went. `saved` are the inputs that were findings; `said` is the end of what the engine printed."""

    target: str
    runs: int
    coverage: int
    seconds: float
    saved: tuple[Path, ...]
    said: str = ""


def why_not() -> str:
    """Why this machine cannot run the engine, "" if it can."""
    return "" if importlib.util.find_spec("atheris") else "atheris is not installed (no wheel for this interpreter)"


def instrument() -> None:
    """Import the package with coverage built in; before anything else imports it, once per process."""
    atheris: Any = importlib.import_module("atheris")
    quiet = contextlib.redirect_stderr(io.StringIO())  # a line for each module
    with quiet, atheris.instrument_imports(include=["driver_manager"], enable_loader_override=False):
        importlib.import_module("tests.assurance.fuzz.targets")


def campaigns(targets: Iterable[Target], *, runs: int | None, seconds: float, seed: int) -> Iterator[Campaign]:
    """Each target in turn: its own number of runs (`runs` None), at most `seconds` seconds each. Raises OSError."""
    for target in targets:
        yield _campaign(target, target.runs if runs is None else runs, seconds, seed)


def _campaign(target: Target, runs: int, seconds: float, seed: int) -> Campaign:
    FOUND.mkdir(parents=True, exist_ok=True)
    begun_s = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _fuzz(target, output.fileno(), Path(folder), runs, seconds, seed)
            sys.exit(0)
        status = _wait(pid, seconds + GRACE_S)
        output.seek(0)
        said = output.read().decode(errors="replace")
    counts = _COUNTS.findall(said) or [("0", "0")]
    done = _DONE.findall(said)
    saved = [Path(name) for name in re.findall(r"written to (\S+)", said)]
    if status and not saved:
        raise OSError(f"the engine ended with status {status} on {target.name}:\n{said[-3000:]}")
    return Campaign(
        target.name,
        int(done[-1] if done else counts[-1][0]),
        int(counts[-1][1]),
        time.monotonic() - begun_s,
        tuple(saved),
        _finding(said) if saved else "",
    )


def _finding(said: str) -> str:
    """What the engine says of a finding: the end of the trace, or the summary of libFuzzer."""
    end = said.find("== ERROR: libFuzzer")
    return said[max(0, end - 1500) : end + 300]


def _wait(pid: int, timeout_s: float) -> int:
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)  # waitpid(2) knows no timeout
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise TimeoutError(f"the engine did not end within {timeout_s:g} s")


def _fuzz(target: Target, output: int, folder: Path, runs: int, seconds: float, seed: int) -> None:
    """The child's life. Leaves by the interpreter's own end: there libFuzzer saves the input of a finding.

    What it writes is in `folder`, which others remove: libFuzzer runs nobody's clean-up.
    """
    os.dup2(output, 1)
    os.dup2(output, 2)
    atheris: Any = importlib.import_module("atheris")
    tempfile.tempdir = str(folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, content in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(content)
    argv = [
        "fuzz",
        f"-runs={runs}",
        f"-max_total_time={int(seconds)}",
        f"-seed={seed}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={RSS_MIB}",
        f"-max_len={MAX_BYTES}",
        "-len_control=0",
        f"-artifact_prefix={FOUND}/{target.name}-",
        str(corpus),
    ]

    def once(data: bytes) -> None:
        check(target, data)

    def change(data: bytes, most: int, number: int) -> bytes:
        random = Random(number)  # noqa: S311  # changes inputs, guards nothing
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, most))[:most]
        return mutated(target.form, data, random)[:most]

    atheris.Setup(argv, once, custom_mutator=change)
    atheris.Fuzz()
