"""Runs cells of the fault matrix, each on a node of its own, against the real API server: one bench in each process.

Owns what is looked at after a run. What has to be seen is `faultkinds`'.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import multiprocessing.util
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.control_plane.api import Api, Json
from tests.support.control_plane.exchanges import Exchange
from tests.support.control_plane.fault_kinds import KINDS, Asked, Cell, code_of, most_requests
from tests.support.control_plane.fault_routes import ROUTES, Bystander, Scene, State, is_as_before, is_taken
from tests.support.control_plane.fault_script import to_text
from tests.support.control_plane.faults import ALWAYS, Answer, Fault
from tests.support.control_plane.in_process import Said, run
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.shown import NOTHING


@dataclass(frozen=True)
class FaultSetup:
    """Where the API server is, and who may do what there: all that a process needs to know."""

    url: str
    ca: Path
    admin: str
    agent: str
    certificates: Mapping[str, tuple[Path, Path]]


@dataclass(frozen=True)
class Verdict:
    """What one cell came to; no problems is what is wanted."""

    cell: Cell
    code: int
    problems: tuple[str, ...]
    requests: int
    took_s: float


@dataclass(frozen=True)
class Record:
    """An undisturbed run: what it asked, its code, what the node was like before and after."""

    asked: tuple[Asked, ...]
    code: int
    before: State
    after: State
    paused: Json | None = None  # what its nodes are like where they are found paused


class Bench:
    """Everything that a process keeps from one cell to the next."""

    def __init__(self, fault_setup: FaultSetup, stack: contextlib.ExitStack) -> None:
        self._ground = fault_setup
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        api = stack.enter_context(Api(fault_setup.url, fault_setup.ca, fault_setup.admin))
        self._bystander = stack.enter_context(Bystander(api))

    def paused(self) -> Json:
        """A node as a run leaves it that was cut off from the API server while it waited."""
        faults = (
            Fault(Answer(403), "watch", "pods", times=ALWAYS),
            Fault(Answer(403), "patch", "nodes", nth=2, times=ALWAYS),
        )
        with self._scene("full") as scene, self._proxy(*faults) as proxy:
            self._run(scene, proxy.url)
            assert is_taken(scene.state())
            return scene.snapshot()

    def record(self, route: str) -> Record:
        """The route undisturbed."""
        paused = self.paused() if ROUTES[route].is_paused else None
        with self._scene(route, paused) as scene, self._proxy() as proxy:
            before = scene.state()
            said = self._run(scene, proxy.url)
            assert said.code == scene.route.code, said.err
            return Record(enumerate_requests(proxy.exchanges()), said.code, before, scene.state(), paused)

    def judge(self, cell: Cell, record: Record) -> Verdict:
        """Run the cell and look at everything."""
        began_s = time.monotonic()
        with self._scene(cell.route, record.paused) as scene:
            fault = cell.fault(str(scene.folder / "token"))
            with self._proxy(fault) as proxy:
                before = scene.state()
                said = self._run(scene, proxy.url, cell)
                fired, asked = proxy.fired(fault), proxy.exchanges(cell.asked.verb)
            after = scene.state()
            requests = sum(one.request.target.resource == cell.asked.resource for one in asked)
            problems = [*_of_end(cell, said, record), *_of_requests(cell, fired, requests)]
            if said.code == record.code:
                problems += _of_state("the run", record.after, after)
            else:
                problems += self._of_failure(scene, said, record, before, after)
        return Verdict(cell, said.code, _told(cell, fault, said, problems), requests, time.monotonic() - began_s)

    def _of_failure(self, scene: Scene, said: Said, record: Record, before: State, after: State) -> Iterator[str]:
        """Given back, held and said so, or as after a good end whose answer was lost; the next run ends as ever."""
        if after != record.after:
            if not is_as_before(after, before) and not is_taken(after):
                yield f"neither given back nor held: {after}"
            yield from _of_what_is_shown(said, before, after)
        is_said = "paused" in said.last_line or "does not exist" in said.last_line
        if not is_as_before(after, before) and is_taken(after) and not is_said:
            yield f"held, and it is not said: {said.last_line}"
        with self._proxy() as proxy:
            again = self._run(scene, proxy.url)
        if again.code != record.code:
            yield f"the next run ended with {again.code}: {again.last_line}"
        yield from _of_state("the next run", record.after, scene.state())

    @contextlib.contextmanager
    def _scene(self, route: str, paused: Json | None = None) -> Iterator[Scene]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        scene = Scene(ROUTES[route], self._bystander, folder, paused)
        try:
            yield scene
        finally:
            scene.close()

    @contextlib.contextmanager
    def _proxy(self, *faults: Fault) -> Iterator[Proxy]:
        with Proxy(self._ground.url, self._ground.ca, self._ground.certificates, faults=faults) as proxy:
            yield proxy

    def _account(self, scene: Scene, server: str) -> dict[str, str]:
        """The service account in the scene's folder, and the environment that leads to it."""
        (scene.folder / "token").write_text(self._ground.agent)
        (scene.folder / "ca.crt").write_bytes(self._ground.ca.read_bytes())
        url = urlsplit(server)
        return {
            "TEST_SERVICE_ACCOUNT": str(scene.folder),
            "KUBERNETES_SERVICE_HOST": str(url.hostname),
            "KUBERNETES_SERVICE_PORT": str(url.port),
        }

    def _run(self, scene: Scene, server: str, cell: Cell | None = None) -> Said:
        wait_s, budget_s = (cell.wait_s, cell.by.budget_s) if cell else (KINDS[0].wait_s, KINDS[0].budget_s)
        waits = dict.fromkeys(("POD_TERMINATION_TIMEOUT", "POD_EVICTION_TIMEOUT", "OPERATOR_TIMEOUT"), f"{wait_s}s")
        env = {**scene.env, **waits, "API_TIMEOUT": f"{budget_s}s", **self._account(scene, server)}
        return run(scene.route.argv, env, scene.tree, scene.folder, scene.settle)


def enumerate_requests(exchanges: Sequence[Exchange]) -> tuple[Asked, ...]:
    """The requests in order, each by its number among those of its verb and resource."""
    seen: dict[tuple[str, str], int] = {}
    found: list[Asked] = []
    for target in (exchange.request.target for exchange in exchanges):
        key = (target.verb, target.resource)
        seen[key] = seen.get(key, 0) + 1
        found.append(Asked(*key, seen[key]))
    return tuple(found)


def _of_end(cell: Cell, said: Said, record: Record) -> Iterator[str]:
    """The exit code, and what is said of it."""
    wanted = code_of(cell, record.code)
    if said.code != wanted:
        yield f"exit code {said.code}, not {wanted}"
    if "Traceback" in said.err:
        yield "a traceback"
    is_two_lines = len(said.errors) == 2 and said.errors[1].startswith("what to do: ") and all(said.errors)
    if said.code and not (is_two_lines and len(said.errors[1]) > len("what to do: ")):
        yield f"not one line what and one line what to do: {said.errors}"
    if any("\n" in line for line in said.errors):
        yield f"more than one line: {said.errors}"


def _of_requests(cell: Cell, fired: int, requests: int) -> Iterator[str]:
    """Whether the fault met anything, and how often the same was asked."""
    if not fired:
        yield "the fault met no request"
    most = most_requests(cell)
    if requests > most:
        yield f"{requests} requests of {cell.asked}, more than {most}"


def _of_state(whose: str, wanted: State, now: State) -> Iterator[str]:
    if replace(now, shown=wanted.shown) != wanted:
        yield f"{whose} ended in {now}, not in {wanted}"
    # Where an undisturbed run has nothing to say, an earlier failure's word is replaced.
    right = {wanted.shown, ("ready", 0)} if wanted.shown == NOTHING else {wanted.shown}
    if now.shown not in right:
        yield f"{whose} is shown as {now.shown}, not as {wanted.shown}"


def _of_what_is_shown(said: Said, before: State, after: State) -> Iterator[str]:
    """A failure is shown as one, or nothing is where the Node could not be patched; a taken node is held or at work."""
    word, code = after.shown
    if is_taken(after):
        right = word in ("held", "upgrading") or after.shown == before.shown
    else:
        right = (word, code) == ("failed", said.code) or after.shown == before.shown
    if not right:
        yield f"exit code {said.code} is shown as {after.shown}"


def _told(cell: Cell, fault: Fault, said: Said, problems: Sequence[str]) -> tuple[str, ...]:
    """The problems, with what somebody needs who looks into them."""
    return (*problems, f"script: {to_text([fault])}", f"last line: {said.last_line}") if problems else ()


_BENCH: list[Bench] = []


def set_up(fault_setup: FaultSetup) -> None:
    """Once in each process of a pool: it lives as long as the process, and that not longer than the pool's own."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), name="end-with-the-pool", daemon=True).start()
    stack = contextlib.ExitStack()
    multiprocessing.util.Finalize(None, stack.close, exitpriority=10)
    _BENCH.append(Bench(fault_setup, stack))


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """A pool whose own process was killed ends nobody, and its workers would hold open what they inherited."""
    parent.join()
    os._exit(1)


def judge(cell: Cell, record: Record) -> Verdict:
    """In a process of a pool."""
    return _BENCH[0].judge(cell, record)


def record(route: str) -> Record:
    """In a process of a pool."""
    return _BENCH[0].record(route)
