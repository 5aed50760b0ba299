"""Records on the host: the rebooter's record, the record of the driver's clients, and the figures of runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles, HostRoots, WorkLock, boot_id, changing, translated
from driver_manager.core.ports_base import Clock
from driver_manager.domain.baseline import Baseline, baseline_of_boot
from driver_manager.domain.errors import ConfigError, Conflict, ModuleFailed
from driver_manager.domain.host import Marker, decode_marker
from driver_manager.domain.metrics import Family
from driver_manager.domain.node_state import Sighting
from driver_manager.domain.outage import Outage
from driver_manager.domain.profile import HostPaths, Modules, Profile
from driver_manager.domain.reboot.state import (
    Record,
    RecordUnreadable,
    Snapshot,
    decode_reboot_record,
    encode_reboot_record,
    reboot_families,
)
from driver_manager.domain.run_report import RunFigures, RunReport, decode_run_figures, encode_run_figures, run_families
from driver_manager.domain.text import is_digest
from driver_manager.domain.wire import Unreadable

# The current load of the driver's modules.


def load_text(roots: HostRoots, modules: Modules) -> str:
    """A text that differs for each load of the driver, "" if a required root module is not loaded.

    The text has the inode numbers of the modules' folders: sysfs assigns a new one to each folder (fs/kernfs/dir.c).
    """
    numbers = load_numbers(roots, modules)
    return ",".join(numbers.values()) if modules.are_loaded(numbers.__contains__) else ""


def load_numbers(roots: HostRoots, modules: Modules) -> dict[str, str]:
    """The inode numbers of the root modules that are loaded, by name."""
    found = {name: _number(roots.sys / "module" / name) for name in modules.roots}
    return {name: number for name, number in found.items() if number}


def _number(folder: Path) -> str:
    try:
        return str(folder.stat().st_ino)
    except OSError:
        return ""


# The ClientNotes port: the driver's files on the host, and the record of its clients.

MAX_RECORD_BYTES = 2**20
"""Maximum size in bytes: a node has some hundred pods, with some hundred characters each."""


class DriverFiles:
    """The files of a profile's driver on the host, and a lock for them at the host path `lock`."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock, lock: str) -> None:
        self._roots = roots
        self._clock = clock
        self._files = roots.files()
        self._paths = profile.paths
        self._modules = profile.modules
        self._lock = WorkLock(self._files, lock)

    def _locked(self) -> AbstractContextManager[bool]:
        """Hold the lock. Yields False if another process has it. Raises ConfigError."""
        return self._held(self._lock)

    @contextmanager
    def _held(self, lock: WorkLock) -> Generator[bool, None, None]:
        with contextlib.ExitStack() as stack:
            with changing(lock.path):
                is_alone = stack.enter_context(lock.alone(self._clock))
            yield is_alone


class HostClientNotes(DriverFiles):
    """See `driver_manager.core.ports.ClientNotes`."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock) -> None:
        super().__init__(roots, profile, clock, profile.paths.client_lock)

    def alone(self) -> AbstractContextManager[bool]:
        return self._locked()

    def sighting(self) -> Sighting:
        with changing(self._paths.state_file):
            recorded = (self._files.read(self._paths.state_file) or "").strip()
        marks = (self._paths.state_file, self._paths.ready_marker)
        return Sighting(
            boot_id(self._roots),
            load_text(self._roots, self._modules),
            recorded if is_digest(recorded) else "",
            tuple(moment for path in marks if (moment := self._files.written_s(path)) is not None),
        )

    def recall(self) -> str:
        with changing(self._paths.client_record):
            return self._files.read(self._paths.client_record, MAX_RECORD_BYTES) or ""

    def remember(self, text: str) -> None:
        self._files.write(self._paths.client_record, text, 0o600)


# Facts of this boot, and the reboot-required marker on the host.


def uptime_s(roots: HostRoots) -> float:
    """Seconds since boot, including suspension (proc(5), uptime). Raises ConfigError."""
    path = roots.proc / "uptime"
    try:
        seconds = float(path.read_text().split()[0])
        if not 0.0 <= seconds < math.inf:
            raise ValueError(seconds)
        return seconds
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"cannot read {path}", "Mount the host's /proc (PROC_ROOT).") from error


def read_marker(files: HostFiles, path: str) -> tuple[Marker | None, str]:
    """The marker at `path`, or why it cannot be read; (None, "") if there is none or `path` is ""."""
    try:
        text = files.read(path) if path else None
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    if text is None:
        return None, ""
    try:
        return decode_marker(text), ""
    except Unreadable as error:
        return None, error.what


def read_baseline(files: HostFiles, paths: HostPaths, this_boot: str) -> Baseline | None:
    """The baseline of the last swap of this boot; None without one, and if it is unreadable."""
    try:
        return baseline_of_boot(files.read(paths.baseline, MAX_RECORD_BYTES) or "", this_boot)
    except OSError:
        return None


def remove_marker(files: HostFiles, path: str, seen: Marker) -> None:
    """Remove the marker at `path` if it still equals `seen`; a newer one stays. Raises ModuleFailed."""
    if read_marker(files, path)[0] != seen:
        return
    with translated(ModuleFailed, f"cannot remove {path} on the host", "Remove it by hand."):
        files.remove(path)


class RebootFiles:
    """See `driver_manager.core.ports.RebootHost`. `publish` is called with each record that was written."""

    def __init__(
        self, roots: HostRoots, marker: str, record: str, publish: Callable[[Record], None] = lambda _: None
    ) -> None:
        self._publish = publish
        self._roots = roots
        self._files = roots.files()
        self._marker = marker
        self._record = record

    def look(self) -> Snapshot:
        marker, problem = read_marker(self._files, self._marker)
        return Snapshot(boot_id(self._roots), uptime_s(self._roots), marker, problem)

    def record(self) -> Record:
        what = f"cannot read {self._record} on the host"
        with translated(RecordUnreadable, what, "Look at that path on the host."):
            text = self._files.read(self._record)
        return decode_reboot_record(text) if text is not None else Record()

    def has_record(self) -> bool:
        """True if the rebooter's record exists, readable or not, or if that cannot be determined."""
        try:
            return self._files.exists(self._record)
        except OSError:
            return True

    def keep(self, record: Record, seen: Record | None = None) -> None:
        if seen is not None and encode_reboot_record(self.record()) != encode_reboot_record(seen):
            raise Conflict(f"another process has replaced {self._record}", "No action needed; it is retried.")
        self._files.write(self._record, encode_reboot_record(record))
        self._publish(record)


# The figures of the runs of this boot, for the next run and for metrics.


class RunFiguresFile:
    """The figures file of one host. It is lost at a reboot."""

    def __init__(self, files: HostFiles, paths: HostPaths) -> None:
        self._files = files
        self._path = paths.run_figures

    def read(self) -> RunFigures:
        """The figures of the runs of this boot; empty ones if the file is missing or cannot be read."""
        return decode_run_figures(self._files.text(self._path))

    def add(self, run: RunReport, *, is_given_back: bool = False) -> RunFigures:
        """Add a run and write the figures; the figures as written. Raises ConfigError."""
        text = encode_run_figures(self.read().with_run(run, is_given_back=is_given_back))
        self._files.write(self._path, text)
        return decode_run_figures(text)

    def returned(self, recorded_s: float | None, ready_s: float | None, now_s: float) -> Outage | None:
        """Close the outage window that a driver container ends; None if none is open. Raises ConfigError."""
        figures = self.read()
        if figures.window is None or not figures.window.is_open or figures.is_held:
            return None
        window = figures.window.ended_by_container(recorded_s, ready_s, now_s)
        self._files.write(self._path, encode_run_figures(figures.with_window(window)))
        return window

    def release(self) -> None:
        """Record that a person released the node by hand. Raises ConfigError."""
        figures = self.read()
        if figures.is_held:
            self._files.write(self._path, encode_run_figures(figures.given_back()))


# Metrics of runs and of the rebooter, from their files, as neither serves HTTP.


def others_of(roots: HostRoots, paths: HostPaths) -> tuple[Family, ...]:
    """Metric families of the runs and of the rebooter on this host, without a program that has no readable file."""
    of_runs = run_families(RunFiguresFile(roots.files(), paths).read())
    files = RebootFiles(roots, paths.reboot_marker, paths.rebooter_record)
    if paths.rebooter_record and files.has_record():
        with contextlib.suppress(RecordUnreadable):
            return (*of_runs, *reboot_families(files.record()))
    return of_runs
