"""The one gate that every call of the fakes passes: it counts, kills, and lets the world change between two calls.

SIGKILL is `Killed`: once raised, all that the dead run's code still tries meets it and changes nothing until `revive`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

Action = Callable[[], object] | Exception


class Killed(BaseException):
    """The process is gone."""


@dataclass
class _Hook:
    matches: Callable[[int, str], bool]
    after: bool
    action: Action
    used: bool = False


class Killer:
    """Counts calls and effects of one process at a time. Numbers start at 0 with each process."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.effects: list[str] = []
        self.is_dead = False
        self._kill: tuple[int, bool] | None = None
        self._hooks: list[_Hook] = []

    def kill_at(self, effect: int, *, after: bool) -> None:
        self._kill = (effect, after)

    def at_call(self, number: int, action: Action, *, after: bool = False) -> None:
        """Once, at call `number` of any kind: do `action`. It may raise; `after` means that the call had its effect."""
        self._hooks.append(_Hook(lambda index, _: index == number, after, action))

    def at(self, name: str, action: Action, *, after: bool = False, times: int = 1) -> None:
        """At the next `times` calls called `name`: do `action`; those after that are for the next action given here."""
        self._hooks += [_Hook(lambda _, called: called == name, after, action) for _ in range(times)]

    def die(self) -> None:
        self.is_dead = True
        raise Killed

    def revive(self) -> None:
        self.calls, self.effects, self.is_dead, self._kill = [], [], False, None

    def guard(self) -> None:
        if self.is_dead:
            raise Killed

    @contextmanager
    def call(self, name: str, *, effect: bool = False) -> Generator[None, None, None]:
        """One call of a port; `effect` for one that changes the outside."""
        self.guard()
        number = len(self.calls)
        self.calls.append(name)
        self._fire(number, name, after=False)
        self.guard()
        index = len(self.effects)
        if effect and self._kill == (index, False):
            self.die()
        yield
        if effect:
            self.effects.append(name)
            if self._kill == (index, True):
                self.die()
        self._fire(number, name, after=True)

    def _fire(self, number: int, name: str, *, after: bool) -> None:
        for hook in self._hooks:
            if not hook.used and hook.after is after and hook.matches(number, name):
                hook.used = True
                if isinstance(hook.action, Exception):
                    raise hook.action
                hook.action()
                return
