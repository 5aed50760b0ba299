"""The part of the RebootHost port that an idle rebooter needs: plain files, and no library to read them."""

from __future__ import annotations

import math
from collections.abc import Callable

from driver_manager.adapters.host.marker_file import read_marker
from driver_manager.adapters.host.roots import HostRoots, boot_id
from driver_manager.domain.errors import ConfigError, Conflict
from driver_manager.domain.reboot import record as reboot_record
from driver_manager.domain.reboot.record import Record, RecordUnreadable
from driver_manager.domain.reboot.snapshot import Snapshot


class RebootFiles:
    """See `driver_manager.ports.reboot.RebootHost`. `marker` and `record` are paths on the host.

    `publish` sees each record that is kept.
    """

    def __init__(
        self, roots: HostRoots, marker: str, record: str, publish: Callable[[Record], None] = lambda _: None
    ) -> None:
        self._publish = publish
        self._roots = roots
        self._files = roots.files()
        self._marker = marker
        self._record = record

    def look(self) -> Snapshot:
        """See the port."""
        marker, problem = read_marker(self._files, self._marker)
        return Snapshot(boot_id(self._roots), self._uptime_s(), marker, problem)

    def record(self) -> Record:
        """See the port."""
        try:
            text = self._files.read(self._record)
        except OSError as error:
            raise RecordUnreadable(
                f"cannot read {self._record} on the host: {error.strerror}", "Look at that path on the host."
            ) from error
        return reboot_record.decode(text) if text is not None else Record()

    def has_record(self) -> bool:
        """Whether a rebooter was on this host before, and what it kept is still there, readable or not."""
        try:
            return self._files.exists(self._record)
        except OSError:
            return True

    def keep(self, record: Record, seen: Record | None = None) -> None:
        """See the port."""
        if seen is not None and reboot_record.encode(self.record()) != reboot_record.encode(seen):
            raise Conflict(f"another process has replaced {self._record}", "No action needed; it is retried.")
        self._files.write(self._record, reboot_record.encode(record))
        self._publish(record)

    def _uptime_s(self) -> float:
        """Seconds since boot, suspension included (proc(5), uptime)."""
        path = self._roots.proc / "uptime"
        try:
            uptime_s = float(path.read_text().split()[0])
            if not 0.0 <= uptime_s < math.inf:
                raise ValueError(uptime_s)
            return uptime_s
        except (OSError, ValueError, IndexError) as error:
            raise ConfigError(f"cannot read {path}", "Mount the host's /proc (PROC_ROOT).") from error
