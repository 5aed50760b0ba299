"""The metrics of programs that nobody can ask: what the last run and the rebooter have left on the host."""

from __future__ import annotations

from driver_manager.adapters.host.reboot_files import RebootFiles
from driver_manager.adapters.host.roots import HostRoots
from driver_manager.adapters.host.run_figures import RunFiguresFile
from driver_manager.domain import run_figures
from driver_manager.domain.host_paths import HostPaths
from driver_manager.domain.metrics import Family
from driver_manager.domain.reboot import metrics as reboot_metrics
from driver_manager.domain.reboot.record import RecordUnreadable


def others_of(roots: HostRoots, paths: HostPaths) -> tuple[Family, ...]:
    """Families of the runs and of the rebooter on this host; none of a program that left nothing readable."""
    return (*run_figures.families(RunFiguresFile(roots.files(), paths).read()), *_of_rebooter(roots, paths))


def _of_rebooter(roots: HostRoots, paths: HostPaths) -> tuple[Family, ...]:
    if not paths.rebooter_record:
        return ()
    files = RebootFiles(roots, paths.reboot_marker, paths.rebooter_record)
    try:
        return reboot_metrics.families(files.record()) if files.has_record() else ()
    except RecordUnreadable:
        return ()
