"""The ClientNotes port: the driver's files on the host, and the record of its clients."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import contextmanager

from driver_manager.adapters.host.loads import load_text
from driver_manager.adapters.host.locks import WorkLock
from driver_manager.adapters.host.refusals import translated
from driver_manager.adapters.host.roots import HostRoots, boot_id
from driver_manager.domain.digest import is_digest
from driver_manager.domain.generation import Sighting
from driver_manager.domain.profile import Profile
from driver_manager.ports.base import Clock

MAX_RECORD_BYTES = 2**20
"""A node has some hundred pods; each is some hundred letters."""


class HostClientNotes:
    """See `driver_manager.ports.clients.ClientNotes`."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock) -> None:
        self._roots = roots
        self._clock = clock
        self._files = roots.files()
        self._paths = profile.paths
        self._modules = profile.modules
        self._lock = WorkLock(self._files, profile.paths.client_lock)

    @contextmanager
    def alone(self) -> Generator[bool, None, None]:
        """See the port."""
        with contextlib.ExitStack() as stack:
            with translated(self._paths.client_lock):
                is_alone = stack.enter_context(self._lock.alone(self._clock))
            yield is_alone

    def sighting(self) -> Sighting:
        """See the port."""
        with translated(self._paths.state_file):
            recorded = (self._files.read(self._paths.state_file) or "").strip()
        marks = (self._paths.state_file, self._paths.ready_marker)
        return Sighting(
            boot_id(self._roots),
            load_text(self._roots, self._modules),
            recorded if is_digest(recorded) else "",
            tuple(moment for path in marks if (moment := self._files.written_s(path)) is not None),
        )

    def recall(self) -> str:
        """See the port."""
        with translated(self._paths.client_record):
            return self._files.read(self._paths.client_record, MAX_RECORD_BYTES) or ""

    def remember(self, text: str) -> None:
        """See the port."""
        self._files.write(self._paths.client_record, text, 0o600)
