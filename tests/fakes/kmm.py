"""KMM on one node: it follows the version label by worker pods that take their time, and shows what it has loaded."""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.policy import Loader, Policy
from tests.fakes.builders import OLD_DIGEST, PROFILE
from tests.fakes.scenarios import LABELS, OPERANDS
from tests.fakes.world import World

MODULE = KmmModule("kube-npu", "npu", "2.0")
ASKED, READY = MODULE.asked_key, MODULE.ready_key
POLICY = Policy(loader=Loader.KMM, kmm=MODULE)
WORK_S = 3.0


class FakeKmm:
    """`hangs`: its unload does not end. `lies`: it shows a version that it has not loaded. `log`: what it did.

    `wrong`: what must never be: a driver that has users is unloaded, or that of a node which is not taken.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.hangs = self.lies = False
        self.log: list[str] = []
        self.wrong: list[str] = []
        self._is_due = False
        world.cluster.operator = lambda _: self.react()

    def react(self) -> None:
        """What it does about the labels, each piece of work some seconds later."""
        if not self._is_due and self._next():
            self._is_due = True
            self.world.clock.after(WORK_S, self._work)

    def _next(self) -> str:
        node, host = self.world.cluster.current, self.world.host
        assert node is not None
        asked, ready, loaded = MODULE.asked(node.labels), MODULE.ready(node.labels), host.loaded.get(host.root, "")
        if node.unschedulable:
            return "unload" if loaded else ""
        if asked == ready or self.lies:
            return "show" if asked != ready else "load" if asked and not loaded else ""
        if ready:
            return "hide"
        if loaded and loaded != asked:
            return "" if self.hangs else "unload"
        return "show" if loaded else "load"

    def _work(self) -> None:
        self._is_due = False
        work, host, node = self._next(), self.world.host, self.world.cluster.current
        if not work or node is None:
            return
        self.log.append(work)
        asked = MODULE.asked(node.labels)
        match work:
            case "hide":
                self.world.cluster.edit({READY: None})
            case "unload":
                self.wrong += ["it is in use"] if self.world.cluster.device_users() else []
                self.wrong += [] if self.world.profile.keys.journal in node.annotations else ["the node is not taken"]
                host.loaded.clear()
            case "load":
                host.loaded = dict.fromkeys((*host.needs.get(host.root, ()), host.root), asked)
                host.loads += 1
            case _:
                self.world.cluster.edit({READY: asked})
        self.react()


def kmm_world(*, loaded: str = "1.0", asked: str = "1.0", ready: str = "1.0") -> tuple[World, FakeKmm]:
    """A node whose driver KMM loads, and KMM; "" leaves a label out, or the driver."""
    shown = {key: value for key, value in ((ASKED, asked), (READY, ready)) if value}
    world = World({**LABELS, **shown}, replace(POLICY, deadline_s=900.0), OPERANDS)
    if loaded:
        world.host.loaded = {"rebellions_core": loaded, "rebellions": loaded}
        world.host.files[PROFILE.paths.state_file] = f"{OLD_DIGEST}\n"
    return world, FakeKmm(world)
