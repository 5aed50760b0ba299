"""Measures one reconcile from its first moment, and leaves its figures on the host, however it ends.

A run that could not even reach its Node counts as well, where its profile is known without it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from driver_manager import profiles, settings
from driver_manager.adapters.host.run_figures import RunFiguresFile
from driver_manager.adapters.report.log import LogReporter
from driver_manager.adapters.report.textfile import Textfile
from driver_manager.cli.wiring import host_roots, log_form
from driver_manager.domain.errors import ExitCode, ManagerError
from driver_manager.domain.profile import Profile
from driver_manager.domain.run_figures import RunReport, families
from driver_manager.domain.setting import Values
from driver_manager.ports.node import Ports


class Measured:
    """What is known of the run so far: `profile` once it was picked, `ports` once it has begun."""

    def __init__(self) -> None:
        self.exit_code: int = ExitCode.INTERNAL
        self.profile: Profile | None = None
        self.ports: Ports | None = None

    def begins(self, profile: Profile, ports: Ports) -> Ports:
        """The run begins; `ports`, whose tally is kept."""
        self.profile, self.ports = profile, ports
        return ports


@contextmanager
def measured(values: Values) -> Generator[Measured, None, None]:
    """Within it one run: its `exit_code` is set at its end, or is that of what is raised."""
    run, begun_s = Measured(), time.monotonic()
    try:
        yield run
    except ManagerError as error:
        run.exit_code = error.exit_code
        raise
    finally:
        _keep(run, time.monotonic() - begun_s, values)


def _keep(run: Measured, took_s: float, values: Values) -> None:
    """Add the run to the figures on the host. What cannot be kept is missing in the metrics, and is no failure."""
    with suppress(ManagerError):
        profile = run.profile or _told(values)
        if profile is None:
            return
        is_given_back = run.ports is not None and run.ports.tally.is_given_back
        file = RunFiguresFile(host_roots(values).files(), profile.paths)
        figures = file.add(_report(run, took_s), is_given_back=is_given_back)
        path = values[settings.METRICS_TEXTFILE]
        if path:
            log: LogReporter = log_form(values).reporter(time.time)
            Textfile(Path(path), log).publish(families(figures))


def _report(run: Measured, took_s: float) -> RunReport:
    if run.ports is None:
        return RunReport(run.exit_code, time.time(), took_s)
    tally, (requests, retries) = run.ports.tally, run.ports.cluster.traffic()
    tally.ends(run.ports.clock.monotonic())
    window = tally.window.at(run.ports.clock.monotonic())
    return RunReport(run.exit_code, time.time(), took_s, dict(tally.seconds), tally.is_held, requests, retries, window)


def _told(values: Values) -> Profile | None:
    """The profile that the options name; None where it goes by the node."""
    wanted = values[settings.DRIVER_PROFILE]
    if wanted == profiles.AUTO:
        return None
    return profiles.pick(wanted, profiles.known(values[settings.PROFILE_FILE]), (), lambda _: False)
