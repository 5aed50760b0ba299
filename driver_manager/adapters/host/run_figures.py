"""The figures that each run leaves on the host for the next one, and for whoever publishes metrics."""

from __future__ import annotations

from driver_manager.adapters.host.files import HostFiles
from driver_manager.domain import run_figures
from driver_manager.domain.host_paths import HostPaths
from driver_manager.domain.run_figures import RunFigures, RunReport
from driver_manager.domain.window import Window


class RunFiguresFile:
    """The file of one host, gone with the boot."""

    def __init__(self, files: HostFiles, paths: HostPaths) -> None:
        self._files = files
        self._path = paths.run_figures

    def read(self) -> RunFigures:
        """What the runs of this boot left; none where there is none, or it cannot be read."""
        try:
            return run_figures.decode(self._files.read(self._path) or "")
        except OSError:
            return RunFigures()

    def add(self, run: RunReport, *, is_given_back: bool = False) -> RunFigures:
        """The figures with one more run, as they are kept. Raises ConfigError where they cannot be."""
        text = run_figures.encode(self.read().with_run(run, is_given_back=is_given_back))
        self._files.write(self._path, text)
        return run_figures.decode(text)

    def returned(self, recorded_s: float | None, ready_s: float | None, now_s: float) -> Window | None:
        """The window that is over now that the driver of a container serves, None where none was open for it.

        Times as `Window.ended_by_container` takes them. Raises ConfigError.
        """
        figures = self.read()
        if figures.window is None or not figures.window.is_open or figures.is_held:
            return None
        window = figures.window.ended_by_container(recorded_s, ready_s, now_s)
        self._files.write(self._path, run_figures.encode(figures.with_window(window)))
        return window

    def release(self) -> None:
        """Somebody gave the node back by hand. Raises ConfigError."""
        figures = self.read()
        if figures.is_held:
            self._files.write(self._path, run_figures.encode(figures.given_back()))
