"""A node, its host and a run over both, for tests of whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from driver_manager.core.ports import Ports
from driver_manager.core.swap.run import Identity, Outcome, observe, reconcile
from driver_manager.domain.deadline import Moment
from driver_manager.domain.host import decode_marker
from driver_manager.domain.journal import Owner
from driver_manager.domain.node import PROGRAM, Pod
from driver_manager.domain.observation import Loader, Observation, Policy
from driver_manager.domain.pci import Binding, PciFunction, noted_bindings
from driver_manager.domain.profile import RUN_RECORD, Profile
from tests.support.fakes.builders import DRIVER, NEW_DIGEST, PROFILE, driver_pod, node
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import DaemonSet, FakeCluster
from tests.support.fakes.host import FakeHost
from tests.support.fakes.killer import Killed, Killer
from tests.support.fakes.shown import NOTHING_SHOWN, Shown, shown, why_wrong


@dataclass(frozen=True)
class State:
    """What is left after a run, compared byte for byte; notes that hold a time are left out of `files`.

    `shown` is the driver's state, apart from what it says of time. Its label and annotation are in no other field.
    `bindings` are the original ones of the devices, as the record of this boot has them.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    unschedulable: bool
    modules: Mapping[str, str]
    files: Mapping[str, str]
    mounts: tuple[str, ...]
    services: Mapping[str, bool]
    shown: Shown = NOTHING_SHOWN
    staged: object = None
    devices: tuple[PciFunction, ...] = ()
    bindings: tuple[Binding, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()
    firmware_path: str = ""


@dataclass
class World:
    """One node. `policy` and `digest` are what its runs want; `pod` is the pod they run in, placed by the label `gate`.

    `is_shown`: every run that ends shows on the Node how; else the test says itself what is shown.
    """

    labels: Mapping[str, str]
    policy: Policy = field(default_factory=Policy)
    daemon_sets: tuple[DaemonSet, ...] = ()
    profile: Profile = PROFILE
    digest: str = NEW_DIGEST
    driver_root: str = ""
    pod: str = "driver-a"
    enclosing_uid: str = ""
    is_shown: bool = True
    gate: str = DRIVER

    def __post_init__(self) -> None:
        self.killer = Killer()
        self.clock = FakeClock(self.killer)
        self.reporter = RecordingReporter()
        self.cluster = FakeCluster(self.killer, self.clock, node(dict(self.labels)), self.daemon_sets)
        self.host = FakeHost(self.killer, self.profile, self.cluster.device_users)
        self.cluster.add_pod(self._own_pod())
        self.pid = 100
        self.running: set[Owner] = set()

    @property
    def process(self) -> Owner:
        """The process that runs now, or would."""
        return Owner(pid=self.pid, start_ticks=self.pid, pid_namespace=1, boot_id=self.host.boot_id)

    @property
    def ports(self) -> Ports:
        return Ports(self.cluster, self.host, self.clock, self.reporter, slots=self.host.slots, devices=self.host.pci)

    def observe(self) -> Observation:
        """As the command line would."""
        return observe(
            self.cluster.node(),
            self.cluster.pods(),
            self.profile,
            Identity(self.pod, bool(self.pod), "rbln-system", self.process, self.enclosing_uid),
            digest=self.digest,
            read_host=lambda journal, wanted: self.host.facts(
                journal,
                driver_root=self.driver_root,
                loads=self.policy.loader is Loader.MANAGER,
                ships=self.policy.loader is Loader.NONE,
                wanted=wanted,
            ),
            process_lives=lambda owner: replace(owner, pod="", pod_uid="") in self.running,
            at=Moment(self.clock.monotonic(), self.clock.wall()),
        )

    def run(self) -> Outcome | None:
        """One process from begin to end; None where it was killed."""
        self.killer.guard()
        me, before = self.process, self.cluster.current
        self.running.add(me)
        try:
            outcome = reconcile(self.ports, self.observe, self.profile, self.policy, before)
        except Killed:
            return None
        finally:
            self.running.discard(me)
        was_ended = self.clock.ended_at is not None
        marker = self.host.files.get(self.profile.paths.reboot_marker)
        asked = marker is not None and not decode_marker(marker).is_stale(self.host.boot_id)
        wrong = why_wrong(
            outcome, before, self.cluster.current, self.profile.keys, was_ended=was_ended, is_reboot_asked=asked
        )
        assert not (wrong and self.is_shown), wrong
        return outcome

    def next_process(self) -> None:
        """The killed or ended process is followed by another one."""
        self.killer.revive()
        self.clock.forget_the_end()
        self.pid += 1

    def reboot(self) -> None:
        """The host reboots, and its kubelet tells so."""
        self.host.reboot()
        if self.cluster.current is not None:
            self.cluster.current = replace(self.cluster.current, boot_id=self.host.boot_id)

    def move_to_new_pod(self) -> None:
        """The driver pod is deleted and made again by its DaemonSet."""
        self.cluster.remove_pod(self.pod)
        self.pod += "x"
        self.cluster.add_pod(self._own_pod())

    def serve_containers(self) -> None:
        """The user wants the devices for containers again: whoever had one has ended, and a driver pod comes."""
        self.host.pci.held = {}
        self.policy, self.gate = Policy(eviction=self.policy.eviction), DRIVER
        self.move_to_new_pod()

    def _own_pod(self) -> Pod:
        name = self.pod or "driver-a"
        return replace(driver_pod(), name=name, uid=name, selector_keys=frozenset({self.gate}), programs=(PROGRAM,))

    def state(self) -> State:
        """What is on the Node and the host now."""
        current, paths = self.cluster.current, self.profile.paths
        assert current is not None
        keys = self.profile.keys
        return State(
            {key: value for key, value in current.labels.items() if key != keys.state},
            {key: value for key, value in current.annotations.items() if key != keys.last_outcome},
            current.unschedulable,
            dict(self.host.loaded),
            {
                path: text
                for path, text in self.host.files.items()
                if path not in (paths.load_record, paths.failure_note, paths.bindings) and RUN_RECORD not in path
            },
            tuple(self.host.mounts),
            dict(self.host.services),
            shown(current, keys),
            self.host.slots.state,
            self.host.pci.see().functions,
            noted_bindings(self.host.files.get(paths.bindings, ""), self.host.boot_id),
            dict(self.host.given),
            frozenset(self.host.foreign),
            self.host.firmware_path,
        )
