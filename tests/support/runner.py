"""Runs the parts of `scripts/test`, `--all` and `--release` beside each other and reports each part and the sum.

A part is one process, mostly pytest, with a log in build/test. Parts of one lane run one after the other; lanes run at
the same time, so that one part works while another one waits. `lanes` has the parts of each run. Standard library only,
as it must say what the machine lacks before anything else runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.support import assets, selection
from tests.support.image import builder
from tests.support.kernel import tools
from tests.support.node import machine
from tests.support.tiers import TierError

CHECKOUT = Path(__file__).resolve().parents[2]
LOGS = CHECKOUT / "build/test"
QUICK_CLUSTER = (
    "test_reconcile.py::test_an_upgrade_ends_with_every_label_as_it_was_in_few_requests",
    "test_rollout.py::test_a_rollout_goes_through_its_waves_in_few_writes_and_is_idle_afterwards",
)
COVERED_BY = "3.13"
"""The release of Python that coverage is measured on: its interpreter counts lines at nearly no cost."""
COVERED_CASES = "2"
LINES_FLOOR = 91
"""Percent of the lines that the unit tests reach with that number of cases of each function."""
PROGRESS_EVERY_S = 60.0
GRACE_S = 60.0
INTERRUPTED = 130  # 128 + SIGINT
OUTCOMES = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
CLOSING = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+, )*\d+ [a-z]+ in [\d.]+s.*?)(?: =+)?$", re.MULTILINE)
ON_A_PYTHON = re.compile(r"unit on (\d+\.\d+)")
PERCENT = re.compile(r"\[ *(\d+)%\]")


@dataclass(frozen=True)
class Part:
    """Pytest with `paths` and `options`, or else `argv`. A negative `niceness` lets it go first, where root runs it."""

    name: str
    paths: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    python: str = ".venv/bin/python"
    environment: tuple[tuple[str, str], ...] = ()
    niceness: int = 0

    def command(self, run: str, passed_on: Sequence[str]) -> list[str]:
        if self.argv:
            return list(self.argv)
        return [self.python, "-m", "pytest", "-q", "--run", run, *self.options, *passed_on, *self.paths]


LINT = Part("lint", argv=("scripts/lint",))
"""Ends before the tests begin, which run after a finding too; the other Pythons are set up meanwhile."""


@dataclass(frozen=True)
class Result:
    """How a part ended: exit status, pytest's closing line, and seconds by the clock and of processor time."""

    part: str
    status: int
    closing: str = ""
    wall_s: float = 0.0
    processor_s: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        return {word.removesuffix("s"): int(number) for number, word in OUTCOMES.findall(self.closing)}

    @property
    def failed(self) -> bool:
        return self.status != 0


QUICK, SUBMISSION, RELEASE = selection.RUNS


def workers(more: int = 0) -> tuple[str, ...]:
    return ("-n", str(min(os.cpu_count() or 1, 4) + more), "--dist", "worksteal")


def covered(run: str) -> tuple[str, ...]:
    """Options for a unit tier with coverage: in a release of branches too, else with two cases of a function."""
    floor = ("--cov", "--cov-report=", f"--cov-fail-under={LINES_FLOOR}")
    return (*workers(), *floor, "--cov-branch") if run == RELEASE else (*workers(), "--cases", COVERED_CASES, *floor)


def other_pythons(run: str) -> dict[str, str]:
    """Interpreters of the other Python releases that the run needs, by release. Makes their environments."""
    if run == QUICK:
        return {}
    argv = ["scripts/setup", "--others", *([COVERED_BY] if run == SUBMISSION else [])]
    done = subprocess.run(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
    return {re.sub(r"^\.venv-|/bin/python$", "", line): line for line in done.stdout.split()}


def lanes(run: str, pythons: dict[str, str]) -> list[list[Part]]:
    """The parts of a run's tests, in lanes that begin together. `pythons` are other interpreters by their release."""
    unit = Part("unit", ("tests/unit",), workers())
    checks = Part("checks", ("tests/checks", "tests/assurance/fuzz"), workers())
    mutants = Part("mutants", ("tests/assurance/mutants",), workers() if run == RELEASE else (), niceness=-5)
    cluster = Part("cluster", ("tests/system/cluster",), ("-n", "2", "--dist", "loadfile"), tiers=("cluster",))
    if run == QUICK:
        return [
            [replace(unit, paths=(*unit.paths, *checks.paths, *mutants.paths))],
            [replace(cluster, paths=tuple(f"tests/system/cluster/{test}" for test in QUICK_CLUSTER), options=())],
        ]
    if run == SUBMISSION and COVERED_BY in pythons:
        unit = replace(unit, options=(*unit.options, "--cases", COVERED_CASES, "--other-cases"))
    counting = Part(
        f"unit on {COVERED_BY}" if COVERED_BY in pythons else "coverage",
        ("tests/unit",),
        covered(run),
        python=pythons.get(COVERED_BY, ".venv/bin/python"),
        environment=(("COVERAGE_CORE", "ctrace" if run == RELEASE else "sysmon"),),
    )
    further = {release: python for release, python in pythons.items() if run == RELEASE and release != COVERED_BY}
    others = [replace(unit, name=f"unit on {release}", python=python) for release, python in further.items()]
    sweep = Part("sweep", ("tests/assurance/sweep",), tiers=("cluster",))
    node = Part("node", ("tests/system/node",), tiers=("node",))
    image = Part("image", ("tests/system/image",), tiers=("image", "cluster"))
    kernel = Part("kernel", ("tests/system/kernel",), tiers=("kernel", "image", "cluster"), niceness=-5)
    return [[unit, *others, mutants, counting], [cluster, sweep], [node, checks], [image, kernel]]


class Interrupted(Exception):
    """The user has ended the run."""


class Running:
    """The processes of a run. Each has a process group of its own, so that an interrupt ends all of it."""

    def __init__(self, run: str, passed_on: Sequence[str] = ()) -> None:
        self._run = run
        self._passed_on = passed_on
        self._lock = threading.Lock()
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._is_over = False
        self.results: list[Result] = []

    def lane(self, parts: Sequence[Part]) -> None:
        """Run the parts one after the other, until the run is over."""
        for part in parts:
            self._part(part)

    def _part(self, part: Part) -> None:
        log = log_of(part.name)
        began_s = time.monotonic()
        with log.open("wb") as out, self._lock:
            if self._is_over:
                return
            argv = part.command(self._run, self._passed_on)
            argv = ["nice", "-n", str(part.niceness), *argv] if part.niceness else argv
            env, null = {**os.environ, **dict(part.environment)}, subprocess.DEVNULL
            process = subprocess.Popen(
                argv, cwd=CHECKOUT, env=env, stdin=null, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            self._started[part.name] = process
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has left behind
        with self._lock:
            del self._started[part.name]
            if self._is_over:
                return
            closing, took_s = closing_line(log.read_text(errors="replace")), time.monotonic() - began_s
            result = Result(part.name, process.returncode, closing, took_s, usage.ru_utime + usage.ru_stime)
            self.results.append(result)
        say(row(result))

    def stop(self) -> None:
        """Interrupt what runs, and start nothing any more. What has not ended after a minute is killed."""
        with self._lock:
            self._is_over = True
            left = list(self._started.values())
        for number in (signal.SIGINT, signal.SIGKILL):
            for process in left:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            until_s = time.monotonic() + GRACE_S
            while self._are_running(left) and time.monotonic() < until_s:
                time.sleep(0.1)

    def _are_running(self, processes: Sequence[subprocess.Popen[bytes]]) -> bool:
        with self._lock:
            return any(process in self._started.values() for process in processes)

    def progress(self) -> str:
        """How far each running part is, as its log says."""
        with self._lock:
            names = list(self._started)
        found = {name: PERCENT.findall(log_of(name).read_text(errors="replace")) for name in names}
        return ", ".join(f"{name} {percents[-1]} %" if percents else name for name, percents in found.items())


def log_of(name: str) -> Path:
    return LOGS / f"{name.replace(' ', '-')}.log"


def closing_line(text: str) -> str:
    return next(reversed(CLOSING.findall(text)), "")


def row(result: Result) -> str:
    how, took, processor = "failed" if result.failed else "ok", minutes(result.wall_s), minutes(result.processor_s)
    return f"{result.part:<14} {how:<7} {took:>6} min {processor:>6} processor min   {result.closing}".rstrip()


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def say(line: str) -> None:
    """Print a line at once: who waits for a long run reads it while it goes."""
    print(f"test: {line}", flush=True)


def lacking() -> dict[str, str]:
    """The tiers that cannot run on this machine, each with the reason."""
    cluster = []
    try:
        os.environ["KUBEBUILDER_ASSETS"] = str(assets.control_plane())
    except TierError as error:
        cluster = [str(error)]
    if shutil.which("openssl") is None:
        cluster.append("openssl is not installed")
    # The node tier needs that variable.
    found = {"cluster": cluster, "image": builder.missing(), "kernel": tools.missing(), "node": machine.missing()}
    return {tier: "; ".join(reasons) for tier, reasons in found.items() if reasons}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/test", allow_abbrev=False, add_help=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--release", action="store_true")
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--share")
    options, rest = parser.parse_known_args(argv)
    LOGS.mkdir(parents=True, exist_ok=True)
    run = RELEASE if options.release or options.part else SUBMISSION if options.all else QUICK
    if run == QUICK and (rest or options.share):
        return named([*(["--share", options.share] if options.share else []), *rest])
    if rest or (options.all and run == RELEASE):
        print(f"test: --all and --release take no tests: {' '.join(rest)}", file=sys.stderr)
        return 2
    return whole(run, options.part, options.share)


def named(arguments: Sequence[str]) -> NoReturn:
    tiers = " and ".join(f"not {tier}" for tier in lacking())
    words = [sys.executable, "-m", "pytest", *(["-m", tiers] if tiers else [])]
    os.execv(sys.executable, [*words, *arguments])  # noqa: S606  # pytest takes this process' place, terminal and signals


def whole(run: str, names: Sequence[str], share: str | None) -> int:
    if problem := _unknown(run, names, share):
        print(f"test: {problem}", file=sys.stderr)
        return 2
    absent = lacking()
    for tier in ("cluster", "image", "kernel", "node") if run != QUICK else ("cluster",):
        say(f"tier {tier}: {'does not run, ' + absent[tier] if tier in absent else 'runs'}")
    running = Running(run, ["--share", share] if share else [])
    began_s = time.monotonic()
    try:
        with ThreadPoolExecutor(1) as beside:
            pythons = beside.submit(other_pythons, run)
            together(running, [] if names else [[LINT]])
        planned = lanes(run, pythons.result())
        known = [part for lane in planned for part in lane]
        if problem := _unknown_part(names, known):  # an interpreter that this machine lacks
            print(f"test: {problem}", file=sys.stderr)
            return 2
        wanted = [part for part in known if not names or part.name in names]
        lost = {tier for part in wanted for tier in part.tiers if tier in absent}
        if lost and (names or os.environ.get("CI") == "true"):
            reason = f"--part names {', '.join(names)}" if names else "CI=true requires every tier"
            print(f"test: {reason}, and these tiers cannot run: {', '.join(sorted(lost))}", file=sys.stderr)
            return 1
        possible = [part for part in wanted if not set(part.tiers) & lost]
        together(running, [[part for part in lane if part in possible] for lane in planned])
    except Interrupted:
        running.stop()
        print("test: interrupted", file=sys.stderr)
        return INTERRUPTED
    return report(running.results, time.monotonic() - began_s)


def _unknown(run: str, names: Sequence[str], share: str | None) -> str:
    """Which part or share is not known, "" if all are. Found before anything is set up."""
    if share:
        try:
            selection.parsed(share)
        except ValueError as error:
            return str(error)
    pythons = dict.fromkeys([COVERED_BY, *(found[1] for name in names if (found := ON_A_PYTHON.fullmatch(name)))], "")
    return _unknown_part(names, [part for lane in lanes(run, pythons) for part in lane])


def _unknown_part(names: Sequence[str], known: Sequence[Part]) -> str:
    there = [part.name for part in known]
    unknown = sorted(set(names) - set(there))
    return f"no part {', '.join(unknown)}; there are {', '.join(there)}" if unknown else ""


def together(running: Running, chosen: Sequence[Sequence[Part]]) -> None:
    """Run the lanes at the same time, and report progress. Raises Interrupted."""

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        raise Interrupted

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = [threading.Thread(target=running.lane, args=(lane,), daemon=True) for lane in chosen]
    began_s = reported_s = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.1)
            if time.monotonic() - reported_s >= PROGRESS_EVERY_S:
                reported_s = time.monotonic()
                say(f"after {minutes(reported_s - began_s)}: {running.progress()}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def report(results: Sequence[Result], took_s: float) -> int:
    failed = [result for result in results if result.failed]
    skipped = [result for result in results if result.counts.get("skipped") and os.environ.get("CI") == "true"]
    for result in failed or skipped:
        print(f"\n{result.part}:\n{log_of(result.part).read_text(errors='replace')}")
    for result in results:
        say(row(result))
    total: Counter[str] = sum((Counter(result.counts) for result in results), Counter())
    processor, logs = minutes(sum(result.processor_s for result in results)), LOGS.relative_to(CHECKOUT)
    say(f"all parts: {minutes(took_s)} min, {processor} processor min; logs in {logs}/")
    if skipped:
        say(f"CI=true allows no skipped test: {', '.join(result.part for result in skipped)}")
    for result in failed:
        say(f"{result.part} failed with status {result.status}")
    print(f"{total['passed']} passed, {total['failed'] + total['error']} failed")
    return 1 if failed or skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
