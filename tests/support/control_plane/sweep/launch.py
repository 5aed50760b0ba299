"""Owns the start of the command line in a process that notes its own effects on the host, and dies where it is told.

The process is a fork of one that has imported the program and done nothing else. It runs the program's own entry point
and dies by a real SIGKILL, in the audit hook: nothing of it runs any more, no `finally`. What it forks has that hook.
Must import nothing of the product but its entry point and, where one is asked for, a mutant.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.control_plane.sweep.host_effects import Surroundings, effect_of


@dataclass(frozen=True)
class Order:
    """One run: its words and environment, the files for what it says and does, and at which host effect it dies.

    `kill_at` counts from 0, -1 for never; `after` means once the effect is done. `mutant` names a change to the
    product.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    out: str
    err: str
    record: str
    kill_at: int = -1
    after: bool = False
    mutant: str = ""

    def encode(self) -> str:
        """One line."""
        return json.dumps(self.__dict__)

    @classmethod
    def decode(cls, line: str) -> Order:
        """The order in a line."""
        fields = json.loads(line)
        return cls(**{**fields, "words": tuple(fields["words"])})


class Recorder:
    """The audit hook: a line with time and name for each effect, before it happens, also in forks of the process.

    A fork has ended before its parent has its next effect: the record is in the order of what happened.
    """

    def __init__(self, order: Order) -> None:
        self._around = Surroundings(order.env["HOST_ROOT"], os.path.dirname(order.err), order.env["TMPDIR"])  # noqa: PTH120
        self._order = order
        self._main = os.getpid()
        self._has_forked = False
        self._seen = 0
        self._is_busy = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """One audit event, before it happens."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            self._handle(event, args)
        finally:
            self._is_busy = False

    def end(self) -> None:
        """The program is done: an effect that nothing followed is followed by this."""
        if self._has_forked:
            self._seen = self._noted()
        if self._order.after and 0 <= self._order.kill_at < self._seen:
            self._die()

    def _handle(self, event: str, args: tuple[Any, ...]) -> None:
        self.end()
        self._has_forked = self._has_forked or event == "os.fork"
        effect = effect_of(event, args, self._around)
        if not effect:
            return
        if self._seen == self._order.kill_at and not self._order.after:
            self._die()
        self._note(effect)
        self._seen += 1

    def _note(self, effect: str) -> None:
        """Open for each: a fork of the program closes what it has inherited."""
        record = os.open(self._order.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(record, f"{json.dumps([time.monotonic(), effect])}\n".encode())
        os.close(record)

    def _noted(self) -> int:
        """How many effects are in the record, which the first one makes: a fork may come before that."""
        try:
            with open(self._order.record, "rb") as record:  # noqa: PTH123  # at each event
                return record.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def _die(self) -> None:
        """SIGKILL to the program, and to the fork of it that this may be: the call does not return."""
        os.kill(self._main, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def run(order: Order) -> None:
    """Be the command line, and end with its exit code unless it dies: the call does not return."""
    for number, (path, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), (order.out, os.O_WRONLY | os.O_CREAT), (order.err, os.O_WRONLY | os.O_CREAT))
    ):
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order.env)
    from tests.support.control_plane.pod_transport import enter_pod  # noqa: PLC0415  # the parent imported it

    enter_pod(order.env)
    sys.argv = ["driver-manager", *order.words]
    if order.mutant:
        from tests.support.control_plane.sweep import mutants  # noqa: PLC0415  # it imports what it changes

        mutants.apply(order.mutant)
    recorder = Recorder(order)
    sys.addaudithook(recorder)
    from driver_manager.cli import main  # noqa: PLC0415  # imported by the parent already

    code = main.run(sys.argv[1:])
    recorder.end()
    main.leave(code)
