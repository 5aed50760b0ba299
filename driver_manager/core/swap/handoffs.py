"""Steps that another program carries out: Kernel Module Management, the NVIDIA operator, a reboot."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from driver_manager.core.pods import NodeWait, said_meanwhile
from driver_manager.core.swap.node import NodeSteps, RunContext
from driver_manager.domain import events
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import DriverBusy, ManagerError, ModuleFailed, PodsRemain, RebootRequired, Terminated
from driver_manager.domain.host import UPGRADE_REASON, Marker, encode_marker, encode_reboot_wish
from driver_manager.domain.kmm import KmmModule, KmmRequest
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.pods.workloads import PodAction, with_action
from driver_manager.domain.profile import driver_version, has_root, users
from driver_manager.domain.reboot.decision import request_labels
from driver_manager.domain.reboot.state import event_key, request_of
from driver_manager.domain.swap.eviction import clearing
from driver_manager.domain.swap.node_patches import asked_kmm
from driver_manager.domain.swap.steps import (
    AnyKmmStep,
    AnyRebootStep,
    AskKmm,
    AwaitKmm,
    ClearRebootRequest,
    EndWithoutReboot,
    HoldForReboot,
    RequestReboot,
)
from driver_manager.domain.text import several

KERNEL_POLL_S = 1.0
"""The kernel has no event for a module that comes, so it is looked at."""

KERNEL_LOOK_S = 15.0
"""How long the kernel is looked at before the Node is read again: its label may have been a stale one."""


class KmmHandoff:
    """KMM on one node."""

    def __init__(self, context: RunContext, node: NodeSteps) -> None:
        self._context = context
        self._node = node
        self._cluster = context.ports.cluster
        self._host = context.ports.host
        self._clock = context.ports.clock
        self._reporter = context.ports.reporter

    def do(self, step: AnyKmmStep) -> None:
        """Do `step`. Raises DriverBusy or ModuleFailed where KMM does not get there, and as the API."""
        match step:
            case AskKmm():
                self._ask(step)
            case AwaitKmm():
                self._await(step.module)
            case _:
                assert_never(step)

    def _ask(self, step: AskKmm) -> None:
        """One patch: the journal with the load that is to go, and the label, after which KMM begins.

        Where KMM shows the version without having it loaded, it would not begin: that has to end first. Raises
        ModuleFailed where it does not, and where KMM has loaded a driver meanwhile whose users nobody has cleared;
        PodsRemain for users who have come since the node was cleared.
        """
        situation, module, node = self._context.situation, step.module, self._cluster.node()
        is_there = has_root(self._host.modules(), situation.profile.modules)
        if step.is_first and is_there and not module.is_asked(node.labels):
            raise ModuleFailed(
                f"a driver was loaded while this run was about to ask KMM ({module.shown(node.labels)})",
                "No action needed: the next run looks again, and clears the node first if that driver is to go.",
            )
        is_shown = module.ready(node.labels) == module.version and not module.is_asked(node.labels)
        if is_shown and (not is_there or self._is_old(module)):
            self._await_withdrawal(module, node)
        if step.is_cleared:
            self._refuse_newcomers()
        loaded = self._boot_id, self._host.load_id()
        self._node.rewrite(step, lambda node, journal: asked_kmm(node, journal, situation.profile, module, loaded))

    def _refuse_newcomers(self) -> None:
        """Raise PodsRemain for users' pods: without a cordon, some may have come since everybody left."""
        now = self._context.situation
        fresh = replace(now, obs=replace(now.obs, pods=self._cluster.pods()))
        users = with_action(clearing(fresh).found, PodAction.EVICT, PodAction.WAIT)
        found = [one for one in users if not one.pod.has_left]
        if found:
            names = several(str(one.pod) for one in found)
            raise PodsRemain(
                f"{len(found)} pod(s) that use the device came after the node was cleared: {names}",
                "Make the device plugin a component with a deploy label (docs/operands.md), so that it leaves first.",
            )

    def _await_withdrawal(self, module: KmmModule, node: Node) -> None:
        """Wait until KMM no longer shows the version that it has not loaded."""
        deadline = self._context.deadline
        what = f"KMM still shows version {module.version} of {module} as ready, which it has not loaded"
        wait = NodeWait(
            self._cluster, self._clock, self._reporter, lambda now: module.ready(now.labels) != module.version, what
        )
        if not wait.until_wanted(node, deadline):
            raise self._failure(module, self._cluster.node(), deadline)

    def _await(self, module: KmmModule) -> None:
        deadline, node, was_seen = self._context.deadline, self._cluster.node(), False
        while self._is_shown(module, node, deadline):
            has_come = self._is_in_kernel(module, deadline)
            node = self._cluster.node()
            if has_come and module.is_ready(node.labels):
                if was_seen or not self._is_load_of_before():
                    return self._has_done(module)
                # KMM may not have seen yet that it is asked for this version again.
                was_seen = True
                self._clock.sleep(deadline.bound(KERNEL_LOOK_S))
                node = self._cluster.node()
            if deadline.is_over:
                break
        raise self._failure(module, self._cluster.node(), deadline)

    def _has_done(self, module: KmmModule) -> None:
        self._context.settler.driver_has_come()
        self._context.settler.driver_is_proved()
        version = driver_version(self._host.modules()) or "(no version)"
        self._reporter.info(f"KMM has loaded version {module.version} of {module}: driver {version}")

    def _is_load_of_before(self) -> bool:
        """Whether the driver is the one that was there when KMM was asked."""
        request = self._request
        return request is not None and request.is_of(self._boot_id, self._host.load_id())

    @property
    def _request(self) -> KmmRequest | None:
        """What KMM was asked for, by this run or the one that it goes on from."""
        journal = self._context.settler.held
        return journal.kmm if journal is not None else None

    @property
    def _boot_id(self) -> str:
        return self._context.situation.host.boot_id

    def _is_shown(self, module: KmmModule, node: Node, deadline: Deadline) -> bool:
        """Whether KMM shows the version as ready in time, by a watch on the Node."""
        what = f"KMM has not shown version {module.version} of {module} as ready"
        wait = NodeWait(self._cluster, self._clock, self._reporter, lambda now: module.is_ready(now.labels), what)
        return wait.until_wanted(node, deadline)

    def _is_in_kernel(self, module: KmmModule, deadline: Deadline) -> bool:
        """Whether the kernel has the new driver within a few looks: KMM's label alone may be a stale one."""
        look = deadline.within(KERNEL_LOOK_S)
        what = f"KMM shows version {module.version} of {module} as ready, but {self._in_kernel(module)}"
        with said_meanwhile(self._clock, self._reporter, deadline, lambda: what):
            while not self._has_come(module):
                if look.is_over:
                    return False
                self._clock.sleep(look.bound(KERNEL_POLL_S))
        return True

    def _has_come(self, module: KmmModule) -> bool:
        """Whether a driver is in the kernel, and not still that one which KMM was to replace."""
        return has_root(self._host.modules(), self._context.situation.profile.modules) and not self._is_old(module)

    def _is_old(self, module: KmmModule) -> bool:
        request = self._request
        return request is not None and request.is_in_the_way(self._boot_id, self._host.load_id(), module.version)

    def _in_kernel(self, module: KmmModule) -> str:
        """What the kernel has, for people."""
        loaded = self._host.modules()
        if not has_root(loaded, self._context.situation.profile.modules):
            return "the kernel has no driver loaded"
        which = "still the old driver" if self._is_old(module) else "driver"
        return f"the kernel has {which} {driver_version(loaded) or '(no version)'}"

    def _failure(self, module: KmmModule, node: Node, deadline: Deadline) -> ManagerError:
        """What to say of a KMM that did not get there: its pod, the labels, and what the kernel has."""
        loaded, labels = self._host.modules(), node.labels
        busy = [f"{one.name} ({users(one)} user(s))" for one in loaded.values() if users(one)]
        what = (
            f"KMM has not loaded version {module.version} of {module} within {deadline.allowed_s:g} s "
            f"({module.shown(labels)}), and {self._in_kernel(module)}"
        )
        look = (
            f"Look at worker pod {module.worker(node.name)} and at spec.moduleLoader.container.version of the Module; "
            "the next run continues."
        )
        if module.is_ready(labels):
            return ModuleFailed(what, f"The label is stale: remove {module.asked_key} and let KMM load again. {look}")
        if busy and not self._has_come(module):
            return DriverBusy(f"{what}: in use are {', '.join(busy)}", f"End what uses the device. {look}")
        if node.unschedulable:
            return ModuleFailed(what, f"The node is cordoned, so KMM loads nothing there: uncordon it. {look}")
        return ModuleFailed(what, look)


# Asks for a reboot of the node by marker, label and event, holds for it, and takes back what an earlier boot asked.
#
# Owns how a reconcile does these steps; rebooting belongs to `driver_manager.core.rebooter`. Depends on ports only.

HEARTBEAT_S = 60.0


def _required() -> RebootRequired:
    return RebootRequired(
        "a reboot is required for the new driver; the marker is written and the old driver stays loaded",
        "Reboot the node, or let the rebooter do it once the reboot is approved.",
    )


class RebootRequests:
    """The requests of one observed node."""

    def __init__(self, context: RunContext) -> None:
        self._situation = context.situation
        self._cluster = context.ports.cluster
        self._clock = context.ports.clock
        self._reporter = context.ports.reporter
        self._host = context.ports.host
        self._state = context.settler.state

    def do(self, step: AnyRebootStep) -> None:
        """Do `step`. Raises ConfigError, ModuleFailed, and at the end of a hold RebootRequired."""
        match step:
            case RequestReboot():
                self._request(step)
            case HoldForReboot():
                self._hold(step)
            case ClearRebootRequest():
                self._clear(step)
            case EndWithoutReboot():
                raise ModuleFailed(step.what, step.remedy)
            case _:
                assert_never(step)

    def _request(self, step: RequestReboot) -> None:
        """Write the marker where none of this boot is there, label the node, tell of it. Raises ConfigError."""
        # First: whoever sees the marker may reboot, and the next boot has to know what for.
        if step.wish is not None:
            self._host.write_text(step.wish_path, encode_reboot_wish(step.wish))
        there = self._situation.host.marker
        marker = self._write_marker(step.path, step.marker) if step.path or there is None else there
        self._state.fails(_required())
        if not step.change.is_empty:
            change = self._state.ending(self._situation.obs.node, step.change)
            self._state.saw(self._cluster.patch_node(change, None))
        self._announce(marker)

    def _write_marker(self, path: str, marker: Marker) -> Marker:
        written = replace(marker, writer=str(self._situation.obs.me), written_s=int(self._clock.wall()))
        self._host.write_text(path, encode_marker(written))
        return written

    def _announce(self, marker: Marker) -> None:
        """The event, once for each request, whether the rebooter posts it too or not."""
        key = replace(request_of(marker, self._situation.host.boot_id), reason=UPGRADE_REASON).key
        name = events.REBOOT_REQUIRED
        self._cluster.post_event(name, f"reason={UPGRADE_REASON}", warning=True, key=event_key(name, key))

    def _hold(self, step: HoldForReboot) -> None:
        """Hold until the boot changes, asking again where the request goes meanwhile. Raises RebootRequired."""
        error = _required()
        if step.no_wait:
            raise error
        try:
            while True:
                self._clock.sleep(HEARTBEAT_S)
                self._reporter.info("holding until the node reboots")
                self._assert_request(step)
        except Terminated:
            raise error from None

    def _assert_request(self, step: HoldForReboot) -> None:
        """Ask again where the marker is gone: one that served a recovery too goes when the chip recovers."""
        try:
            if self._host.exists(step.path):
                return
            marker = self._write_marker(step.path, step.marker)
            self._reporter.info("the reboot-required marker was removed meanwhile and is written again")
            labels = request_labels(self._cluster.node(), self._situation.profile.keys, UPGRADE_REASON)
            if labels:
                self._cluster.patch_node(NodeChange(labels), None)
            self._announce(marker)
        except Terminated:
            raise
        except ManagerError as error:
            self._reporter.warn(f"{error.what}; trying again")

    def _clear(self, step: ClearRebootRequest) -> None:
        """Take back what an earlier boot asked for. Raises ModuleFailed."""
        # The marker last: as long as it is there, a run that was killed in between is done again.
        if not step.change.is_empty:
            self._state.saw(self._cluster.patch_node(step.change, None))
        if step.seen is not None:
            self._host.remove_marker(step.seen)
