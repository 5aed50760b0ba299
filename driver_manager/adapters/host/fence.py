"""Whose effects on the driver may follow: a note on the host, read and written under a lock of one effect.

A run that was superseded while it slept, suspended or starved, finds out before its next effect, and without a request.
The lock is a flock(2): whoever dies in the middle of an effect lets go of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import contextmanager

from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.locks import WorkLock
from driver_manager.domain.errors import ConfigError, OwnedElsewhere
from driver_manager.domain.host_paths import HostPaths
from driver_manager.domain.journal import Owner
from driver_manager.ports.base import Clock

TURN_S = 10.0
"""What a run waits for another one's effect, or for its taking of the node, to end."""


class Ownership:
    """The note and the lock of one host."""

    def __init__(self, files: HostFiles, paths: HostPaths, clock: Clock) -> None:
        self._files = files
        self._note = paths.owner_note
        self._lock = WorkLock(files, paths.effect_lock)
        self._clock = clock

    @contextmanager
    def turn(self) -> Generator[Callable[[Owner], bool], None, None]:
        """See `driver_manager.ports.node.HostSystem`."""
        with contextlib.ExitStack() as stack:
            try:
                is_alone = stack.enter_context(self._lock.alone(self._clock, TURN_S))
            except OSError:
                yield lambda _: False
                return
            if not is_alone:
                raise OwnedElsewhere(
                    "another run is changing the driver and has not finished",
                    f"`lslocks` shows the process that holds {self._lock.path}: wait for it to end or kill it, then "
                    "run again.",
                )
            yield self._noted

    @contextmanager
    def owned(self, owner: Owner) -> Generator[None, None, None]:
        """See `driver_manager.ports.node.HostSystem`."""
        with self.turn():
            self._refuse_other(owner)
            yield

    def _noted(self, owner: Owner) -> bool:
        try:
            self._files.write(self._note, _text(owner), 0o600)
        except ConfigError:
            # Whoever is noted there must not go on. On a full file system a note can go, though none can come.
            with contextlib.suppress(OSError):
                self._files.remove(self._note)
            return False
        return True

    def _refuse_other(self, owner: Owner) -> None:
        """Raise OwnedElsewhere unless the note is still ours: one that cannot be read is not."""
        try:
            found = self._files.read(self._note) or ""
        except OSError:
            found = ""
        if found != _text(owner):
            who = found.partition("\n")[2].strip() or "somebody"
            raise OwnedElsewhere(
                f"the driver was taken over by {who} meanwhile",
                "No action needed: this run stopped changing the driver, and that run releases the node.",
            )


def _text(owner: Owner) -> str:
    return f"{owner.process}\n{owner}\n"
