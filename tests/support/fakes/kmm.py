"""KMM on one node: it follows the version label by worker pods that take their time, and shows what it has loaded."""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.node import Node
from driver_manager.domain.observation import Loader, Policy
from driver_manager.sandbox.cluster import KmmStatus, changed_labels
from tests.support.fakes.builders import OLD_DIGEST, PROFILE
from tests.support.fakes.scenarios import LABELS, OPERANDS
from tests.support.fakes.world import World

MODULE = KmmModule("kube-npu", "npu", "2.0")
ASKED, WORKERS, READY = MODULE.asked_key, MODULE.worker_key, MODULE.ready_key
POLICY = Policy(loader=Loader.KMM, kmm=MODULE)
WORK_S = 3.0


class FakeKmm:
    """`hangs`: its unload does not end. `lies`: it shows a version that it has not loaded. `log`: what it did.

    `has` is the version that it has loaded, as far as it knows; `offers` that of the Module, the only one that it
    loads. `tolerates`: the Module tolerates a cordon. `wrong`: what must never be: a driver that has users is unloaded,
    or that of a node which is not taken.
    """

    def __init__(self, world: World, has: str, offers: str) -> None:
        self.world = world
        self.has, self.offers = has, offers
        self.hangs = self.lies = self.tolerates = False
        self.work_s = WORK_S
        self.log: list[str] = []
        self.wrong: list[str] = []
        self._boot_id = world.host.boot_id
        self._is_due = False
        world.cluster.operator = lambda _: self.react()

    def react(self) -> None:
        """What it does about the labels, each piece of work some seconds later."""
        if not self._is_due and self._next():
            self._is_due = True
            self.world.clock.after(self.work_s, self._work)

    def goes_on(self) -> None:
        """Its unload does not hang any more."""
        self.hangs = False
        self.react()

    def settle(self, seconds: float) -> None:
        """Time goes by, in which nobody else does anything."""
        end_s = self.world.clock.now + seconds
        self.react()
        while self.world.clock.to_next(end_s):
            pass

    def _next(self) -> str:
        node = self.world.cluster.current
        if node is None:
            return ""
        is_target = self.tolerates or not node.unschedulable
        is_rebooted = self._boot_id != self.world.host.boot_id
        work = KmmStatus(self.has, {self.offers} - {""}, is_target, is_rebooted).next_work(MODULE, node.labels)
        return "" if self.hangs and work == "unload" else work

    def _work(self) -> None:
        self._is_due = False
        work, node = self._next(), self.world.cluster.current
        if not work or node is None:
            return
        self.log.append(work)
        match work:
            case "unload":
                self._unload(node)
            case "forget":
                self.has = ""
            case "load":
                self._load(MODULE.at_work(node.labels))
            case _:
                self.world.cluster.edit(changed_labels(work, MODULE, node.labels, self.has))
        self.react()

    def _load(self, version: str) -> None:
        host = self.world.host
        if not host.loaded.get(host.root):
            host.loaded = dict.fromkeys((*host.needs.get(host.root, ()), host.root), version)
            host.loads += 1
        self.has, self._boot_id = version, host.boot_id

    def _unload(self, node: Node) -> None:
        if not self.lies and self.world.host.loaded:
            self.wrong += ["it is in use"] if self.world.cluster.device_users() else []
            self.wrong += [] if self.world.profile.keys.journal in node.annotations else ["the node is not taken"]
            self.world.host.loaded.clear()
        self.has = ""


def kmm_world(*, loaded: str = "1.0", asked: str = "1.0", ready: str = "1.0") -> tuple[World, FakeKmm]:
    """A node whose driver KMM loads, and KMM, whose Module has 2.0; "" leaves a label out, or the driver."""
    shown = {key: value for key, value in ((ASKED, asked), (WORKERS, ready), (READY, ready)) if value}
    world = World({**LABELS, **shown}, replace(POLICY, deadline_s=900.0), OPERANDS)
    if loaded:
        world.host.loaded = {"rebellions_core": loaded, "rebellions": loaded}
        world.host.files[PROFILE.paths.state_file] = f"{OLD_DIGEST}\n"
    return world, FakeKmm(world, ready, MODULE.version)
