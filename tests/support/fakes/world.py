"""A node, its host and a run over both, for tests of whole runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from msgspec.structs import replace

from driver_manager.core.ports import Ports
from driver_manager.core.swap.run import Identity, Outcome, forecast, observe, reconcile
from driver_manager.domain import journal as journals
from driver_manager.domain.deadline import Deadline, Moment
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import decode_marker
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import PROGRAM, Node, Pod
from driver_manager.domain.observation import EvictionRules, Loader, Observation, Policy
from driver_manager.domain.pci import Binding, PciFunction, noted_bindings
from driver_manager.domain.profile import RUN_RECORD, Profile
from tests.support.fakes.builders import DRIVER, NEW_DIGEST, PROFILE, driver_pod, node
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import DaemonSet, FakeCluster
from tests.support.fakes.host import FakeHost
from tests.support.fakes.killer import Killed, Killer
from tests.support.fakes.shown import NOTHING_SHOWN, Shown, shown, why_wrong

SECONDS = ("driver-b", "driver-a", "")
"""Where a second run may begin: in another pod, in the first one's own, by hand."""


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


class Place:
    """A node in memory with its pods and its host. They share one clock and one killer."""

    def __init__(
        self,
        *pods: Pod,
        known: Node | None = None,
        cluster: type[FakeCluster] = FakeCluster,
        profile: Profile = PROFILE,
        daemon_sets: tuple[DaemonSet, ...] = (),
    ) -> None:
        self.killer = Killer()
        self.clock = FakeClock(self.killer)
        self.reporter = RecordingReporter()
        self.cluster = cluster(self.killer, self.clock, node() if known is None else known, daemon_sets)
        self.host = FakeHost(self.killer, profile, self.cluster.device_holders)
        for pod in pods:
            self.cluster.add_pod(pod)

    @property
    def ports(self) -> Ports:
        return Ports(self.cluster, self.host, self.clock, self.reporter, slots=self.host.slots, devices=self.host.pci)

    @property
    def node(self) -> Node:
        assert self.cluster.current is not None
        return self.cluster.current

    def deadline(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self.clock.monotonic)

    def calls(self, *names: str) -> list[str]:
        return [name for name in self.killer.calls if name in names]


@dataclass
class World(Place):
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
        super().__init__(known=node(dict(self.labels)), profile=self.profile, daemon_sets=self.daemon_sets)
        self.cluster.add_pod(self._own_pod())
        self.pid = 100
        self.running: set[Owner] = set()

    @property
    def process(self) -> Owner:
        return Owner(pid=self.pid, start_ticks=self.pid, pid_namespace=1, boot_id=self.host.boot_id)

    def given(self, **changes: Any) -> Self:
        """Set fields by name: of the policy, its eviction rules, this world, the host, cluster, slots or devices."""
        for name, value in changes.items():
            if name in Policy.__struct_fields__:
                self.policy = replace(self.policy, **{name: value})
            elif name in EvictionRules.__struct_fields__:
                self.policy = replace(self.policy, eviction=replace(self.policy.eviction, **{name: value}))
            elif name == "profile":
                self.profile = self.host.profile = value
            else:
                parts = (self, self.host, self.cluster, self.host.slots, self.host.pci)
                setattr(next(part for part in parts if hasattr(part, name)), name, value)
        return self

    def observe(self) -> Observation:
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

    @property
    def announced_end(self) -> ExitCode:
        """The exit code of `plan`."""
        error = forecast(self.ports, self.observe(), self.profile, self.policy).error
        return error.exit_code if error is not None else ExitCode.DONE

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
        after, keys = self.cluster.current, self.profile.keys
        wrong = why_wrong(outcome, before, after, keys, was_ended=was_ended, is_reboot_asked=asked)
        assert not (wrong and self.is_shown), wrong
        return outcome

    def on(self, call: str, *actions: Callable[[Self], object] | Exception, after: bool = False) -> Self:
        """At the next calls called `call`: an action each, which gets this world, or a failure."""
        for action in actions:
            self.killer.at(call, action if isinstance(action, Exception) else partial(action, self), after=after)
        return self

    def noted(self, call: int, action: Callable[[Self], Any]) -> list[Any]:
        """What `action` returns at the call of this number, once there was such a call."""
        found: list[Any] = []
        self.killer.at_call(call, lambda: found.append(action(self)))
        return found

    def ended(self, code: ExitCode = ExitCode.DONE, *words: str, remedy: str = "") -> Outcome:
        """Run. Raises AssertionError unless the run ends with `code`, says all of `words`, and names the remedy."""
        outcome = self.run()
        assert outcome is not None, "it was killed"
        assert outcome.exit_code is code, outcome
        for word in words:
            assert word in outcome.what
        assert remedy in outcome.remedy
        return outcome

    def again(self, code: ExitCode = ExitCode.DONE, *words: str, remedy: str = "") -> Outcome:
        self.next_process()
        return self.ended(code, *words, remedy=remedy)

    def killed(self, at: str | int = "", *, after: bool = True) -> Self:
        """Run until the process is killed at an effect, given by its number, or at a call; the next one may begin."""
        if isinstance(at, int):
            self.killer.kill_at(at, after=after)
        elif at:
            self.killer.at(at, self.killer.die, after=after)
        assert self.run() is None, "the kill must have struck"
        self.next_process()
        return self

    def finish(self, *, runs: int = 4) -> None:
        """Let processes follow each other until one ends well, as the kubelet restarts an init container."""
        for _ in range(runs):
            self.next_process()
            outcome = self.run()
            if outcome is not None and outcome.exit_code is ExitCode.DONE:
                return
        raise AssertionError(f"never done: {outcome}")

    def run_through(self, kill: tuple[int, bool] | None) -> None:
        """Run. If the process is killed, right before or after an effect, let others finish."""
        if kill is not None:
            self.killer.kill_at(kill[0], after=kill[1])
        if self.run() is None:
            self.finish()

    def second(self, pod: str) -> World:
        """The same node and host, seen by a second process in `pod` ("": by hand)."""
        other = copy(self)
        other.pod, other.pid = pod, self.pid + 1_000
        if pod and pod not in self.cluster.listed:
            self.cluster.add_pod(replace(self._own_pod(), name=pod, uid=pod))
        return other

    @property
    def journal(self) -> Journal:
        return journals.decode(self.node.annotations[self.profile.keys.journal]).claims

    @property
    def is_released(self) -> bool:
        state = self.state()
        return state.labels == dict(self.labels) and not state.annotations and not state.unschedulable

    @property
    def is_held(self) -> bool:
        state = self.state()
        paused = [value for value in state.labels.values() if value.endswith(self.profile.deploy.paused_value)]
        return bool(paused) and self.profile.keys.journal in state.annotations

    @property
    def only_showed_its_end(self) -> bool:
        """True if one patch changed the Node, and only what it shows of the driver's state."""
        keys = self.profile.keys
        touched = [{*patch.labels, *patch.annotations} - {keys.version} for patch in self.cluster.patches]
        return self.killer.effects == ["patch"] and touched == [{keys.state, keys.last_outcome}]

    def next_process(self) -> None:
        self.killer.revive()
        self.clock.forget_the_end()
        self.pid += 1

    def reboot(self) -> None:
        self.host.reboot()
        if self.cluster.current is not None:
            self.cluster.current = replace(self.cluster.current, boot_id=self.host.boot_id)

    def move_to_new_pod(self) -> None:
        self.cluster.remove_pod(self.pod)
        self.pod += "x"
        self.cluster.add_pod(self._own_pod())

    def serve_containers(self) -> None:
        """The user wants the devices for containers again: the users have ended, and a driver pod comes."""
        self.host.pci.held = {}
        self.policy, self.gate = Policy(eviction=self.policy.eviction), DRIVER
        self.move_to_new_pod()

    def _own_pod(self) -> Pod:
        name = self.pod or "driver-a"
        return replace(driver_pod(), name=name, uid=name, selector_keys=frozenset({self.gate}), programs=(PROGRAM,))

    def state(self) -> State:
        current, paths, keys = self.node, self.profile.paths, self.profile.keys
        hidden = {paths.load_record, paths.failure_note, paths.bindings, paths.baseline}
        return State(
            {key: value for key, value in current.labels.items() if key not in (keys.state, keys.version)},
            {key: value for key, value in current.annotations.items() if key != keys.last_outcome},
            current.unschedulable,
            dict(self.host.loaded),
            {path: text for path, text in self.host.files.items() if path not in hidden and RUN_RECORD not in path},
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
