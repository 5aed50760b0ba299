"""A node that is cleared before its driver pod is deleted: short-lived pods that clear, the driver pod, its successor.

Somebody deletes the driver pod once the Node says that it is cleared, as a rollout's controller does; its container
then unloads the driver if nobody else has the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from driver_manager.core.swap.run import Outcome
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.journal import Journal
from driver_manager.domain.node import Node, Pod
from driver_manager.domain.observation import Loader
from tests.support.fakes.builders import OLD_DIGEST, PROFILE, ROOT_MOUNT, driver_pod
from tests.support.fakes.scenarios import replace_with_workloads
from tests.support.fakes.world import World

REVISION = "rev-2"
OLD, NEW = "driver-a", "driver-b"
DELETED_AFTER_S, STOPS_S = 1.0, 4.0


@dataclass
class ClearWorld:
    """A World whose runs are in pods that clear, until `go_on`. `deleted_after_s` None: nobody deletes the driver pod.

    `bystanders` are users of the device that nobody sees, so that the driver's container cannot unload. When the driver
    pod was deleted, so many others had the device open, and health-watch was kept silent or not.
    """

    deleted_after_s: float | None = DELETED_AFTER_S
    bystanders: int = 0
    world: World = field(init=False)
    clears: int = 0
    users_at_restart: int | None = None
    was_at_work: bool = False

    def __post_init__(self) -> None:
        world = self.world = replace_with_workloads()
        world.policy = replace(world.policy, loader=Loader.CONTAINER, driver_pod_leaves=True, clear_for=REVISION)
        world.host.files.pop(PROFILE.paths.load_record, None)
        world.host.put_driver("1.0", OLD_DIGEST, peer=False)
        world.host.mounts = [ROOT_MOUNT]
        world.host.known_holders = (Holder(77, "daemon", "/dev/rbln0", "open", pod_uid=OLD, pod=f"rbln-system/{OLD}"),)
        world.host.stuck_users = {"rebellions": 1}
        world.cluster.add_pod(driver_pod(main_started=True))
        world.cluster.operator = self._look
        world.is_shown = False
        self.next_pod()

    @property
    def journal(self) -> Journal | None:
        """What the Node carries."""
        assert self.world.cluster.current is not None
        text = self.world.cluster.current.annotations.get(PROFILE.keys.journal)
        return journals.decode(text).claims if text is not None else None

    @property
    def driver(self) -> Pod | None:
        """The old driver pod while it is there."""
        return self.world.cluster.listed.get(OLD)

    def next_pod(self) -> None:
        """The run before has ended, however; another short-lived pod is made."""
        cluster = self.world.cluster
        for pod in [pod for pod in cluster.listed.values() if pod.name.startswith("clear-")]:
            cluster.add_pod(replace(pod, phase="Failed", have_ended=True))
        self.clears += 1
        self.world.pod = f"clear-{self.clears}"
        pod = Pod("rbln-system", self.world.pod, self.world.pod, owner_kind="DriverRollout", main_started=True)
        cluster.add_pod(pod)
        self.world.next_process()

    def run(self) -> Outcome | None:
        """One run that clears; None where it was killed."""
        return self.world.run()

    def delete_driver(self) -> None:
        """The driver pod is deleted, whoever does it; its container unloads the driver, and the next pod comes."""
        pod = self.driver
        if pod is None or pod.deleting:
            return
        self.was_at_work = self.world.host.is_at_work
        self.users_at_restart = self.world.cluster.device_users()
        self.world.cluster.stop(pod, STOPS_S)
        self.world.clock.after(STOPS_S, self._succeed)

    def _succeed(self) -> None:
        world = self.world
        world.host.known_holders, world.host.stuck_users = (), {}
        if not world.cluster.device_users() and not self.bystanders:
            world.host.loaded, world.host.mounts = {}, []
        world.cluster.add_pod(replace(driver_pod(), name=NEW, uid=NEW))

    def _look(self, node: Node) -> None:
        """What a rollout's controller does once the Node says so."""
        found = self.journal
        if found is None or found.cleared != REVISION or self.deleted_after_s is None:
            return
        owner = found.owner.pod_uid
        self.world.clock.after(self.deleted_after_s, lambda: self._delete_for(owner))

    def _delete_for(self, owner: str) -> None:
        found, pod = self.journal, self.world.cluster.listed.get(owner)
        if found is not None and found.cleared and found.owner.pod_uid == owner and pod is not None and not pod.is_over:
            self.delete_driver()

    def go_on(self) -> Outcome:
        """The init container of the next driver pod, started again as often as it takes; the driver is loaded then."""
        world = self.world
        self.delete_driver()
        world.next_process()
        world.clock.sleep(2 * STOPS_S)
        for pod in [pod for pod in world.cluster.listed.values() if pod.name.startswith("clear-")]:
            world.cluster.add_pod(replace(pod, phase="Succeeded", have_ended=True))
        world.pod = NEW
        world.policy = replace(world.policy, driver_pod_leaves=False, clear_for="")
        for _ in range(4):
            world.next_process()
            outcome = world.run()
            if outcome is not None and outcome.exit_code is ExitCode.DONE:
                world.host.start_driver_container("2.0", world.digest)
                return outcome
        raise AssertionError(f"never done: {outcome}")
