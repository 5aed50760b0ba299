"""Where on a host a vendor keeps its driver, and we what we note beside it. Pure."""

from __future__ import annotations

from enum import Enum

from driver_manager.domain.digest import fingerprint
from driver_manager.domain.frozen import Frozen

RUN_RECORD = "driver-manager.run-"
"""The beginning of the names of such records."""


class NodeMaker(Enum):
    """Who makes the device nodes: the module when it finds a device, or a program of user space, whenever it is run."""

    MODULE = "module"
    USER_SPACE = "user-space"


class HostPaths(Frozen):
    """Absolute paths on the host, and who makes those of the devices. `firmware` is where the kernel has to look."""

    driver_root: str
    state_file: str
    load_record: str
    ready_marker: str = ""
    artifacts: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    device_nodes_made_by: NodeMaker = NodeMaker.MODULE
    reboot_marker: str = ""
    rebooter_record: str = ""
    reboot_evidence: str = ""
    evidence: str = ""
    firmware: str = ""

    @property
    def ready_withdrawn(self) -> str:
        """Where the ready marker is put aside while the driver is wedged, "" where there is none."""
        return self.ready_marker + ".withdrawn" if self.ready_marker else ""

    @property
    def work_lock(self) -> str:
        """The file that a reconcile holds locked while it works on the driver."""
        return self._of_ours("driver-manager.lock")

    @property
    def effect_lock(self) -> str:
        """The file that a run holds locked during one effect on the driver, and whoever takes over between two."""
        return self._of_ours("driver-manager.effect.lock")

    @property
    def owner_note(self) -> str:
        """The file that names the run whose effects alone may follow."""
        return self._of_ours("driver-manager.owner")

    @property
    def failure_note(self) -> str:
        """What a run notes that failed after it had disturbed somebody."""
        return self._of_ours("driver-manager.failure.json")

    @property
    def health_record(self) -> str:
        """What health-watch remembers of this boot."""
        return self._of_ours("health-watch.json")

    @property
    def reboot_wish(self) -> str:
        """The file that remembers over a reboot what it was asked for, "" where none is asked for."""
        return f"{self.reboot_marker}.wish" if self.reboot_marker else ""

    @property
    def run_figures(self) -> str:
        """What the runs of this boot took, for metrics."""
        return self._of_ours("driver-manager.figures.json")

    @property
    def bindings(self) -> str:
        """What the devices were bound to before a run of this boot gave them to virtual machines."""
        return self._of_ours("driver-manager.bindings.json")

    def run_record(self, run: str) -> str:
        """What the run `run`, which took the node, has to undo on the host."""
        return self._of_ours(f"{RUN_RECORD}{fingerprint(run)}.json")

    @property
    def client_record(self) -> str:
        """What was done about the clients of this boot's driver."""
        return self._of_ours("driver-manager.clients.json")

    @property
    def client_lock(self) -> str:
        """The file that whoever restarts clients holds locked."""
        return self._of_ours("driver-manager.clients.lock")

    @property
    def mute_file(self) -> str:
        """The file by which health-watch is muted on this host: a time."""
        return self._of_ours("health-watch.mute-until")

    @property
    def rebooter_lock(self) -> str:
        """The file that the one rebooter of the host holds locked, "" where there is none."""
        return f"{self.rebooter_record}.lock" if self.rebooter_record else ""

    def locks(self) -> tuple[str, ...]:
        """The files that a run holds locked; they are opened, never replaced."""
        return self.work_lock, self.effect_lock, self.client_lock

    def records(self, run: str = "") -> tuple[str, ...]:
        """The files that a run replaces or removes, where a failure would come after its first effect.

        `run` is the record that the journal names: a run that goes on replaces it.
        """
        ours = (self.state_file, self.load_record, self.owner_note, self.failure_note, self.bindings)
        return (*ours, self.client_record, *([self.run_record(run)] if run else []))

    def reboot_files(self) -> tuple[str, ...]:
        """The files by which a run asks for a reboot, removed in the next boot; none where it never asks."""
        return (self.reboot_marker, self.reboot_wish) if self.reboot_marker else ()

    def _of_ours(self, name: str) -> str:
        """A file beside our load record: in the vendor's folder under /run, gone with the boot."""
        return f"{self.load_record.rpartition('/')[0]}/{name}"
