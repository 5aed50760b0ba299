"""The Prober port: the profile's probe, run under supervision and read by its parser."""

from __future__ import annotations

from driver_manager.adapters.host.pci import served_devices
from driver_manager.adapters.host.probe_command import probe_command
from driver_manager.adapters.host.roots import HostRoots
from driver_manager.adapters.process.supervisor import OUT_BYTES, StillStuckError, Supervisor
from driver_manager.domain.health.probe_output import parse
from driver_manager.domain.journal import Owner
from driver_manager.domain.probe_result import Health, ProbeResult
from driver_manager.domain.profile import Profile

OUTPUT_CHARS = 4096


class ToolProber:
    """See `driver_manager.ports.health.Prober`. `root` is the driver root, absolute on the host."""

    def __init__(
        self, roots: HostRoots, profile: Profile, root: str, supervisor: Supervisor, timeout_s: float | None = None
    ) -> None:
        self._roots = roots
        self._profile = profile
        self._root = root
        self._supervisor = supervisor
        self._timeout_s = timeout_s
        self._output = ""

    def sample(self) -> ProbeResult:
        """See the port."""
        probe = self._profile.probe
        if probe is None:
            return ProbeResult(Health.UNKNOWN, "the profile has no probe")
        try:
            command = probe_command(self._roots.files(), probe, self._root)
            if command is None:
                return ProbeResult(Health.UNKNOWN, f"{probe.tool} is not in {self._root}")
            self._output = ""
            ran = self._supervisor.run(command.argv, command.env, self._timeout_s or probe.timeout_s)
            self._output = "\n".join((ran.out[-OUTPUT_CHARS:], ran.err[-OUTPUT_CHARS:])).strip()
        except StillStuckError as error:
            return ProbeResult(
                Health.UNHEALTHY, f"an earlier {probe.tool} (process {error.args[0]}) is stuck in the kernel"
            )
        except OSError as error:  # short of processes, descriptors or memory: that is not the device's fault
            return ProbeResult(Health.UNKNOWN, f"{probe.tool} cannot be run: {error.strerror}")
        if ran.is_cut:
            return ProbeResult(Health.UNKNOWN, f"{probe.tool} printed more than {OUT_BYTES // 1024} KiB")
        present = served_devices(self._roots, self._profile)
        return parse(probe.parser, ran.status, ran.out, ran.last_line, present, err=ran.err)

    def output(self) -> str:
        """See the port."""
        return self._output

    def abandoned(self) -> int:
        """See the port."""
        return self._supervisor.abandoned

    def stuck(self) -> Owner | None:
        """See the port."""
        return self._supervisor.stuck

    def inherit(self, stuck: Owner) -> None:
        """See the port."""
        self._supervisor.inherit(stuck)
