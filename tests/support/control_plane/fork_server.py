"""Runs commands in children of a process that has imported the program: real processes without the start.

Run as a program. An order is a JSON line: `argv`, `env`, the `folder` for `out`, `err`, `calls` and `effects`, and what
`processes.Orders` has. It prints a JSON line for each child that begins (`pid`), stops (`stopped`) or ends (`code`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config  # noqa: F401  # imported here so that no child has to
from msgspec.structs import replace

from driver_manager.adapters.host import system as host_fence
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.adapters.kube import api as retries
from driver_manager.adapters.kube import node as kube_cluster  # noqa: F401  # likewise
from driver_manager.adapters.kube.fleet import KubeFleet
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.report.log import LogReporter
from driver_manager.cli import main
from driver_manager.core.swap import node as settling
from driver_manager.core.swap.node import Fence
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.pods import labels
from driver_manager.domain.swap import node_patches
from tests.support.control_plane.pod_transport import enter_pod
from tests.support.control_plane.processes import API, EFFECTS, FLEET, LOG
from tests.support.control_plane.sweep.effects import Recorder, Surroundings


class Gate:
    """Counts the calls of this process, writes their names to `record`, and stops it at those in `stops`."""

    def __init__(self, record: Path, stops: frozenset[str]) -> None:
        self._record = record.open("a", buffering=1)
        self._stops = stops
        self._number = 0

    def install(self) -> None:
        for kind, names in ((KubeCluster, API), (KubeFleet, FLEET), (LinuxHost, EFFECTS), (LogReporter, LOG)):
            for name in names:
                setattr(kind, name, self._gated(name, getattr(kind, name)))

    def _gated(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            number, self._number = self._number, self._number + 1
            self._record.write(f"{name}\n")
            self._stop_at(f"{number} before", f"{name} before")
            result = method(*arguments, **options)
            self._stop_at(f"{number} after", f"{name} after")
            return result

        return call

    def _stop_at(self, *points: str) -> None:
        if self._stops.intersection(points):
            os.kill(os.getpid(), signal.SIGSTOP)


def apply(name: str) -> None:
    if name:
        MUTANTS[name]()


def _replace(owner: object, name: str, mutant: Callable[..., Any]) -> None:
    assert hasattr(owner, name), f"{name} was renamed: the mutant breaks nothing"
    setattr(owner, name, mutant)


def _unconditional_restore() -> None:
    """Every label gets its saved value, even if another writer changed it."""

    def restored(now: Mapping[str, str], saved: Mapping[str, str], _: str) -> dict[str, str]:
        return {key: value for key, value in saved.items() if now.get(key) != value}

    _replace(labels, "restored", restored)


def _always_uncordon() -> None:
    release = node_patches.release

    def uncordoning(node: Node, *rest: Any) -> NodeChange:
        change: NodeChange = release(node, *rest)
        return replace(change, unschedulable=False if node.unschedulable else None)

    for module in (settling, node_patches):
        _replace(module, "release", uncordoning)


def _no_fence() -> None:
    _replace(Fence, "effect", lambda *_: contextlib.nullcontext())


def _unlisted_effect() -> None:
    remove = LinuxHost.remove

    def remove_and_note(self: LinuxHost, path: str) -> None:
        self.write_text("/run/removed", path)
        remove(self, path)

    _replace(LinuxHost, "remove", remove_and_note)


MUTANTS: dict[str, Callable[[], None]] = {
    "unconditional restore": _unconditional_restore,
    "always uncordon": _always_uncordon,
    "no fence": _no_fence,
    "an effect that is not listed": _unlisted_effect,
}


def serve() -> None:
    """Until standard input ends; children that are left are killed then."""
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    orders: Any = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  # for as long as the process lives
    rest = b""
    while True:
        ready, _, _ = select.select([orders, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report(children)
        if orders in ready:
            got = orders.read(65536)
            if not got:
                break
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                children.add(_begin(json.loads(line)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _report(children: set[int]) -> None:
    while children:
        try:
            pid, word = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if not pid:
            return
        if os.WIFSTOPPED(word):
            _say({"pid": pid, "stopped": True})
        else:
            children.discard(pid)
            _say({"pid": pid, "code": os.waitstatus_to_exitcode(word)})


def _say(words: dict[str, Any]) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def _begin(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _be_command(order)
    _say({"pid": pid, "began": order["folder"]})
    return pid


def _be_command(order: dict[str, Any]) -> None:
    """The child's life: never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(order["env"])
        enter_pod(order["env"])
        for descriptor, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, f"{order['folder']}/out", os.O_WRONLY | os.O_CREAT),
            (2, f"{order['folder']}/err", os.O_WRONLY | os.O_CREAT),
        ):
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        if order["turn_s"] is not None:
            host_fence.TURN_S = order["turn_s"]
        if order["attempt_s"] is not None:
            retries.ATTEMPT_S = order["attempt_s"]
        apply(order["mutant"])
        recorder = _prepared(order)
        code = main.run(order["argv"])
        if recorder is not None:
            recorder.end()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  # a child must not come back into the fork server
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _prepared(order: dict[str, Any]) -> Recorder | None:
    """The recorder of this process' effects, which is installed, or else the gate before its calls is."""
    folder, env = Path(order["folder"]), order["env"]
    if not order["records"]:
        Gate(folder / "calls", frozenset(order["stops"])).install()
        return None
    around = Surroundings(env["HOST_ROOT"], str(Path(env["TERMINATION_LOG"]).parent), env["TMPDIR"])
    recorder = Recorder(around, str(folder / "effects"), order["kill_at"], after=order["after"])
    sys.addaudithook(recorder)
    return recorder


if __name__ == "__main__":
    serve()
