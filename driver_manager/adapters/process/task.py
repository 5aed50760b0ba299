"""One task for a short-lived process of our own, under supervision: JSON in, JSON out.

For a loop that must stay small: what a task needs is imported there, and whatever it meets (a server that hangs, a full
disk, a process stuck in the kernel) is over when its time is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from driver_manager.adapters.process.supervisor import StillStuckError, Supervisor

PROBLEM = "problem"


class TaskProcess:
    """`argv` starts a process that is given what `hand_over` makes of a task, as its standard input.

    Its answer is one JSON object; `problem` in it is what could not be done.
    """

    def __init__(
        self, supervisor: Supervisor, argv: Sequence[str], hand_over: Callable[[Mapping[str, Any]], bytes]
    ) -> None:
        self._supervisor = supervisor
        self._argv = tuple(argv)
        self._hand_over = hand_over

    def ask(self, timeout_s: float, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to one task; a process that gives none is a problem of its own. Raises Terminated."""
        try:
            ran = self._supervisor.run(self._argv, {}, timeout_s, self._hand_over(task))
        except StillStuckError as error:
            return {PROBLEM: f"an earlier process for it ({error.args[0]}) cannot be killed"}
        except OSError as error:
            return {PROBLEM: f"no process can be started for it: {error.strerror}"}
        try:
            answer = json.loads(ran.out)
        except (ValueError, RecursionError):
            return {PROBLEM: ran.last_line}
        return answer if isinstance(answer, dict) else {PROBLEM: "its answer is not an object"}


def problem_in(answer: Mapping[str, Any]) -> str:
    """What the process could not do, "" where it did all."""
    return str(answer.get(PROBLEM, ""))
