"""Where mutants live: copies of package and tests in temporary folders, never the working tree.

Owns one run of pytest on such a copy and what its end means. A copy serves one mutant after the other: copying takes
longer than most of their tests.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.assurance.mutants.fork_server import UNSHRUNK
from tests.assurance.mutants.line_mutants import LIMIT_S, LineMutant
from tests.assurance.mutants.mutant import PACKAGE, Mutant, NoLongerAppliesError

CHECKOUT = Path(__file__).resolve().parents[3]
FORK_SERVER = CHECKOUT / "tests/assurance/mutants/fork_server.py"
COPIED = (PACKAGE, "README.md", "deploy", "docs", "images", "requirements", "scripts", "tests", "pyproject.toml")
"""What unit tests read."""
CONTROL_LIMIT_S = 3_600
FAR_LIMIT_S = 900
PATIENCE_S = "30"
"""For what tests wait for: on a sandbox it takes milliseconds, and who waits for it in vain has seen the mutant."""

OF_THE_OUTER_RUN = ("PYTEST_", "HYPOTHESIS_", "COVERAGE_", "COV_")
COMPILED_BY_PYTEST = re.compile(r"/test_[^/]*$")

ALL_PASSED, SOME_FAILED, NO_END = 0, 1, None
"""Of pytest's exit statuses; any other says that it did not come to run the tests."""


class End(Enum):
    """How it ended for a mutant. Only `KILLED` is right. `UNDECIDED` is nothing wrong: the time was over."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"
    NO_END = "no end"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """One mutant's end, and the seconds it took. `says`: the test that killed it, or what is wrong with the mutant."""

    mutant: str
    end: End
    seconds: float
    says: str

    def __str__(self) -> str:
        return f"{self.end.value:<9} {self.seconds:>6.1f} s  {self.mutant:<32} {self.says}"


@dataclass(frozen=True)
class Bench:
    """A copy of what the tests need, and the process that runs them there. One run at a time."""

    root: Path
    fork_server: subprocess.Popen[str]

    def pytest(self, tests: Iterable[str], limit_s: int) -> tuple[int | None, str]:
        """Status and last lines of one run that ends with the first failure, or at `limit_s`."""
        assert self.fork_server.stdin is not None
        assert self.fork_server.stdout is not None
        arguments = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "--run=release"]
        arguments += [f"--hypothesis-profile={UNSHRUNK}", *(f"tests/{test}" for test in tests)]
        request = {"root": str(self.root), "arguments": arguments, "limit_s": limit_s}
        self.fork_server.stdin.write(json.dumps(request) + "\n")
        self.fork_server.stdin.flush()
        answer = json.loads(self.fork_server.stdout.readline())
        return answer["status"], answer["output"]

    @contextlib.contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """The copy has this mutant, and none afterwards. Raises NoLongerAppliesError.

        Python writes no bytecode here, and takes what it finds for a file of the same size and time: what is put back
        has both from the working tree, what is mutated has a time of its own.
        """
        mutant.apply(self.root)
        try:
            yield
        finally:
            shutil.copy2(CHECKOUT / PACKAGE / mutant.path, self.root / PACKAGE / mutant.path)


class Laboratory:
    """Tests mutants, `jobs` at a time, while the context lasts. What is under way at `until` is left undecided."""

    def __init__(self, jobs: int, until: float = math.inf) -> None:
        self._jobs, self._until, self._idle = jobs, until, SimpleQueue[Bench]()

    def __enter__(self) -> Laboratory:
        self._stack = contextlib.ExitStack()
        for _ in range(self._jobs):
            self._idle.put(self._stack.enter_context(a_bench()))
        self._pool = self._stack.enter_context(ThreadPoolExecutor(self._jobs))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def verdict(self, mutant: Mutant) -> Future[Verdict]:
        """Apply the mutant to a copy and run its tests there. One that hangs is killed where its tests do not end."""
        return self._pool.submit(self._verdict, mutant)

    def control(self, mutants: Iterable[Mutant]) -> Future[str]:
        """What the tests of all `mutants` say on a copy without any mutant, "" where they pass."""
        return self._pool.submit(self._control, tuple(dict.fromkeys(test for one in mutants for test in one.tests)))

    def _verdict(self, mutant: Mutant) -> Verdict:
        begun = time.monotonic()
        end, says = self._by_rule(mutant) if isinstance(mutant, LineMutant) else self._ended(mutant)
        return Verdict(mutant.name, end, time.monotonic() - begun, says)

    def _control(self, tests: tuple[str, ...]) -> str:
        with self._taken() as bench:
            status, output = bench.pytest(tests, self._seconds(CONTROL_LIMIT_S))
        return "" if status == ALL_PASSED else output or f"status {status}"

    def _ended(self, mutant: Mutant) -> tuple[End, str]:
        try:
            with self._taken() as bench, bench.holding(mutant):
                status, output = bench.pytest(mutant.tests, self._seconds(mutant.limit_s))
        except NoLongerAppliesError as error:
            return End.BROKEN, str(error)
        if status is NO_END and self._is_over():
            return End.UNDECIDED, "the time was over"
        if status is NO_END:
            return End.KILLED if mutant.hangs else End.NO_END, f"the tests come to no end within {mutant.limit_s} s"
        if status == SOME_FAILED:
            failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return End.KILLED, failed[0].split(" - ")[0].partition(" ")[2] if failed else "a test"
        if status == ALL_PASSED:
            return End.SURVIVED, f"passed all the same: {', '.join(mutant.tests)}"
        return End.BROKEN, f"the tests cannot be run (status {status}):\n{output}"

    def _by_rule(self, mutant: LineMutant) -> tuple[End, str]:
        """As `_ended`, of a mutant that was not made for its tests.

        One that survives the nearest tests has to survive the farther ones too. One that cannot be imported, or comes
        to no end, is killed if the same tests pass without it, and in a third of the time.
        """
        end, says = self._ended(mutant)
        if end is End.SURVIVED and mutant.farther:
            mutant = replace(mutant, tests=mutant.farther, limit_s=FAR_LIMIT_S)
            end, says = self._ended(mutant)
        if end in (End.SURVIVED, End.KILLED, End.UNDECIDED):
            return end, says
        begun = time.monotonic()
        if problem := self._control(mutant.tests):
            is_over = self._is_over()
            return (End.UNDECIDED, "the time was over") if is_over else (end, f"{says}; without it: {problem}")
        seconds = time.monotonic() - begun
        if end is End.NO_END and seconds > mutant.limit_s / 3:
            return self._ended(replace(mutant, limit_s=round(3 * seconds) + LIMIT_S, hangs=True))
        return End.KILLED, says.partition(":")[0]

    def _seconds(self, limit_s: int) -> int:
        """`limit_s`, or what is left until the end: at least one second, as 0 would set no limit."""
        left_s = self._until - time.monotonic()
        return limit_s if left_s > limit_s else max(1, math.ceil(left_s))

    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    @contextlib.contextmanager
    def _taken(self) -> Iterator[Bench]:
        bench = self._idle.get()
        try:
            yield bench
        finally:
            self._idle.put(bench)


@contextlib.contextmanager
def a_bench() -> Iterator[Bench]:
    """A copy of what the tests need and a process that runs pytest there in children.

    What is not mutated is compiled once. No run writes a file for the cache, where two mutants of one second could be
    taken for each other. A run takes all cases and examples of its tests, whatever the environment asks pytest for.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_OUTER_RUN)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "TEST_PATIENCE_S": PATIENCE_S, "CI": "true"}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in COPIED:
            if (source := CHECKOUT / name).is_dir():
                shutil.copytree(source, Path(folder, name), ignore=shutil.ignore_patterns(".hypothesis"))
            else:
                shutil.copy2(source, folder)
        compileall.compile_dir(folder, quiet=1, rx=COMPILED_BY_PYTEST)
        # In a session of its own: a mutant that signals its group does not end this run.
        own: dict[str, Any] = {"env": environment, "cwd": CHECKOUT.parent, "start_new_session": True}
        argv, pipe = [sys.executable, str(FORK_SERVER)], subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, **own)
        try:
            yield Bench(Path(folder), process)
        finally:
            process.kill()
            process.communicate()
