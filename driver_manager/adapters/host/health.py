"""Health-watch's files on the host, and its tasks that run in short-lived processes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from msgspec.structs import asdict

from driver_manager.adapters.host.files import HostFiles, HostRoots, boot_id, changing, text_of
from driver_manager.adapters.host.notes import (
    MAX_RECORD_BYTES,
    DriverFiles,
    RunFiguresFile,
    load_text,
    read_baseline,
    read_marker,
)
from driver_manager.adapters.process.supervisor import TaskProcess, problem_in
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health import watch
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.outage import Outage
from driver_manager.domain.profile import Profile
from driver_manager.domain.wire import Unreadable


class HostMarks(DriverFiles):
    """See `driver_manager.core.ports_base.HealthMarks`."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock) -> None:
        super().__init__(roots, profile, clock, profile.paths.work_lock)

    @contextmanager
    def alone(self) -> Generator[watch.Surroundings, None, None]:
        with contextlib.ExitStack() as stack:
            with changing(self._paths.work_lock):
                is_alone = stack.enter_context(self._lock.alone(self._clock))
            with changing(self._paths.ready_marker):
                seen = self._seen(is_reconciling=not is_alone)
            yield seen

    def withdraw_ready(self) -> None:
        paths = self._paths
        with changing(paths.ready_marker), contextlib.suppress(FileNotFoundError):
            self._files.put_aside(paths.ready_marker, self._withdrawn_name)

    def restore_ready(self) -> None:
        with changing(self._paths.ready_marker), contextlib.suppress(FileNotFoundError):
            self._files.put_back(self._paths.ready_marker, self._withdrawn_name)

    def forget_ready(self) -> None:
        with changing(self._paths.ready_withdrawn):
            self._files.remove(self._paths.ready_withdrawn)

    def request_recovery(self, marker: Marker) -> None:
        path, text = self._paths.reboot_marker, encode_marker(marker)
        if self._files.create(path, text):
            return
        # A marker exists. Replace it only if it is health-watch's own from an earlier boot.
        current, problem = read_marker(self._files, path)
        if current is None and not problem:
            raise ConfigError(
                f"cannot write {path} on the host: a dangling symlink is in its place", "Remove it if nothing needs it."
            )
        if current is not None and watch.is_own(current) and current.is_stale(marker.boot_id):
            self._files.write(path, text)

    def clear_request(self) -> None:
        with changing(self._paths.reboot_marker):
            self._files.remove(self._paths.reboot_marker)

    def recall(self) -> str:
        return self._files.text(self._paths.health_record)

    def remember(self, text: str) -> None:
        self._files.write(self._paths.health_record, text, 0o600)

    def touch(self) -> None:
        with changing(self._paths.health_record):
            self._files.touch(self._paths.health_record)

    def note_return(self) -> Outage | None:
        """See the port. Uses the times of the driver's files, as health-watch looks only once per interval."""
        paths = self._paths
        recorded_s, ready_s = (self._files.written_s(path) for path in (paths.state_file, paths.ready_marker))
        return RunFiguresFile(self._files, paths).returned(recorded_s, ready_s, self._clock.wall())

    def touched_s(self) -> float | None:
        """Time of the last `remember` or `touch`, in seconds since the epoch; None if there is no record."""
        return self._files.written_s(self._paths.health_record)

    def _seen(self, *, is_reconciling: bool) -> watch.Surroundings:
        paths = self._paths
        marker, problem = read_marker(self._files, paths.reboot_marker)
        mute, mute_problem = self._mute()
        this_boot = boot_id(self._roots)
        return watch.Surroundings(
            boot_id=this_boot,
            driver=load_text(self._roots, self._modules),
            is_loaded=self._modules.are_loaded(self._is_live),
            is_reconciling=is_reconciling,
            ready=self._files.exists(paths.ready_marker) if paths.ready_marker else None,
            is_withdrawn=bool(paths.ready_withdrawn) and self._files.exists(paths.ready_withdrawn),
            can_request=bool(paths.reboot_marker),
            marker=marker,
            marker_problem=problem,
            mute=mute,
            mute_problem=mute_problem,
            baseline=read_baseline(self._files, paths, this_boot),
        )

    def _mute(self) -> tuple[watch.Mute | None, str]:
        """The mute in the host's file, or why it cannot be read; (None, "") if the file is missing."""
        path = self._paths.mute_file
        try:
            text = self._files.read(path)
        except OSError as error:
            return None, f"{path} on the host does not mute health-watch: {error.strerror}"
        if text is None:
            return None, ""
        try:
            return watch.parsed_mute(text, f"{path} on the host"), ""
        except ValueError as error:
            return None, str(error)

    def _is_live(self, module: str) -> bool:
        """True if the module is neither being loaded nor unloaded (kernel/module/sysfs.c, initstate)."""
        return text_of(self._roots.sys / "module" / module / "initstate") == "live"

    @property
    def _withdrawn_name(self) -> str:
        return PurePosixPath(self._paths.ready_withdrawn).name


# The NodeNotifier and EvidenceKeeper ports. Short-lived processes do the tasks, each with a timeout in seconds.

MUTE_S = 10.0
REPORT_S = 20.0
CLIENTS_S = 30.0
EVIDENCE_S = 30.0
RECOVERY_S = 120.0
"""Maximum seconds of a turn of the recovery, without the resets."""


class ChildNotifier:
    """See `driver_manager.core.ports_base.NodeNotifier`."""

    def __init__(self, process: TaskProcess) -> None:
        self._process = process

    def mute(self) -> watch.MuteAnswer:
        answer = self._process.ask(MUTE_S, {"task": "mute"})
        if "text" not in answer:
            return watch.MuteAnswer(None, str(answer.get("invalid", "")), problem_in(answer))
        try:
            return watch.MuteAnswer(watch.Mute(float(answer["until_s"]), str(answer["text"]), str(answer["where"])))
        except (KeyError, TypeError, ValueError):
            return watch.MuteAnswer(problem="its answer is not understood")

    def report(self, notice: watch.Notice) -> str:
        return problem_in(self._process.ask(REPORT_S, {"task": "report", "notice": notice.to_json()}))

    def report_window(self, window: Outage) -> str:
        return problem_in(self._process.ask(REPORT_S, {"task": "window", "window": window.to_json()}))

    def restart_clients(self, load: str) -> watch.ClientAnswer:
        answer = self._process.ask(CLIENTS_S, {"task": "clients", "load": load})
        left = problem_in(answer) or str(answer.get("left", ""))
        return watch.ClientAnswer(
            _texts(answer, "restarted"), left, _texts(answer, "warnings"), answer.get("isEarly") is True
        )


def _texts(answer: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = answer.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()


class ChildKeeper:
    """See `driver_manager.core.ports_base.EvidenceKeeper`."""

    def __init__(self, process: TaskProcess) -> None:
        self._process = process

    def keep(self, since_s: int, lines: Iterable[str]) -> watch.Kept:
        answer = self._process.ask(EVIDENCE_S, {"since_s": since_s, "lines": list(lines)})
        return watch.Kept(str(answer.get("path", "")), problem_in(answer))


class ChildRecoverer:
    """See `driver_manager.core.ports_base.Recoverer`. The reset of one device may take `reset_s` seconds.

    `expect` is called before each task with the seconds that it may take. `record` is the path of the record.
    """

    def __init__(  # process, limit, record and heartbeat
        self,
        process: TaskProcess,
        reset_s: float,
        files: HostFiles,
        record: str,
        expect: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._process = process
        self._reset_s = reset_s
        self._files = files
        self._record = record
        self._expect = expect

    def is_begun(self) -> bool:
        """See the port. A record that cannot be read has none: no step can be taken with it."""
        try:
            body = json.loads(self._files.read(self._record, MAX_RECORD_BYTES) or "{}")
            return "slot" in body or any(one["closed"] is False for one in body.get("attempts", [])[-1:])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return False

    def recover(self, seen: watch.WedgeSeen) -> watch.RecoveryAnswer:
        limit_s = RECOVERY_S + self._reset_s * max(1, len(seen.devices))
        self._expect(limit_s)
        answer = self._process.ask(limit_s, {"seen": asdict(seen)})
        try:
            return watch.RecoveryAnswer(watch.read_recovery(str(answer["recovery"])))
        except (KeyError, Unreadable) as error:
            return watch.RecoveryAnswer(problem=problem_in(answer) or f"its answer is not understood: {error}")
