"""How each act of a decision is done, and what its failure means. Whether it may be done now is the controller's.

After each success the world knows the answer, so that the next decision is not made on what was before it. Depends on
ports only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import assert_never

from driver_manager.core.fleet.rests import Rests
from driver_manager.core.fleet.world import NODES, FleetWorld
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError, Conflict, ManagerError, Terminated
from driver_manager.domain.fleet.acts import Act, Announce, CreatePod, DeletePod, MarkNode, RestartPod, SetTemplate
from driver_manager.domain.fleet.model import Policy
from driver_manager.domain.fleet.node_patches import marked
from driver_manager.domain.fleet.reading import RolloutObject
from driver_manager.domain.profile import NodeKeys
from driver_manager.ports.base import Reporter
from driver_manager.ports.fleet import EventAbout, FactKind, FleetCluster

MAX_POSTED = 10_000
"""Keys of Events that are remembered."""

OF_NODE = "node "

_Effect = RestartPod | CreatePod | DeletePod | SetTemplate


@dataclass
class Acting:
    """Does acts. `posted` are the keys of Events that need no other try, `counts` what was done.

    `unmade` is why the API server refuses to make short-lived pods, by rollout.
    """

    cluster: FleetCluster
    reporter: Reporter
    world: FleetWorld
    rests: Rests
    keys: NodeKeys
    posted: set[str]
    counts: Counter[str]
    unmade: dict[str, str] = field(default_factory=dict)

    def blocked(self) -> dict[str, str]:
        """Why nothing is done to which nodes for now, by name: requests are refused, or fail again and again."""
        lasting = self.rests.lasting().items()
        return {key.removeprefix(OF_NODE): why for key, why in lasting if key.startswith(OF_NODE)}

    def do(self, act: Act, rollout: RolloutObject, policy: Policy) -> None:
        """Do `act`, unless one for the same thing failed just now: the acts of one thing come in an order, and those
        after one that failed are not due yet. Raises Terminated.
        """
        if isinstance(act, Announce):
            self._announce(act, rollout)
            return
        if isinstance(act, MarkNode):
            self.mark(act)
            return
        key = _key(act, rollout, policy)
        if self.rests.is_resting(key) or (isinstance(act, CreatePod) and self.rests.is_resting(_of_node(act.node))):
            return
        try:
            self._do(act, rollout, policy)
        except Terminated:
            raise
        except ManagerError as error:
            if isinstance(act, SetTemplate) and isinstance(error, Conflict):
                self.world.doubt(self.world.of(FactKind.DAEMON_SETS), policy.daemon_set)
            if isinstance(act, CreatePod) and isinstance(error, ApiRefused):
                self.unmade[rollout.key] = error.what
            if isinstance(act, CreatePod) and isinstance(error, Conflict):
                key = _of_node(act.node)  # one pod's name is no reason to make no others
            self.rests.failed(key, error)
            return
        self._went_well(key, act)

    def mark(self, act: MarkNode) -> None:
        """Write what is to be kept on a Node, unless something failed there just now. Raises Terminated."""
        key = _of_node(act.node)
        if self.rests.is_resting(key):
            return
        try:
            item = self.cluster.patch_node(act.node, marked(act, self.keys), act.resource_version)
        except Terminated:
            raise
        except ManagerError as error:
            if isinstance(error, Conflict):
                self.world.doubt(NODES, act.node)
            self.rests.failed(key, error)
            return
        self.world.learn(NODES, item)
        why = f" ({act.record.reason})" if act.record is not None and act.record.reason else ""
        self.reporter.info(f"node {act.node}: {act.state.value if act.state else 'no longer managed'}{why}")
        self._went_well(key, act)

    def _went_well(self, key: str, act: Act) -> None:
        self.rests.went_well(key)
        self.counts[type(act).__name__] += 1

    def _do(self, act: _Effect, rollout: RolloutObject, policy: Policy) -> None:
        match act:
            case RestartPod():
                self.cluster.delete_pod(act.namespace, act.name, act.uid)
                self.world.end_pod(act.uid)
                self.reporter.info(f"node {act.node}: driver pod {act.namespace}/{act.name} is being restarted")
            case CreatePod():
                made = self.cluster.create_pod(act.namespace, act.body)
                self.unmade.pop(rollout.key, None)
                if made is None:  # the watch shows one of ours; another one's is never shown
                    raise Conflict(
                        f"pod {act.namespace}/{act.name} exists, but its labels or its owner were changed: delete it",
                        f"Delete it: kubectl -n {act.namespace} delete pod {act.name}",
                    )
                self.world.learn(self.world.tasks, made)
                self.reporter.info(f"node {act.node}: {act.task.value} pod {act.namespace}/{act.name} is created")
            case DeletePod():
                self.cluster.delete_pod(act.namespace, act.name, act.uid)
                self.world.end_pod(act.uid)
            case SetTemplate():
                self._set_template(act, rollout, policy)
            case _:
                assert_never(act)

    def _set_template(self, act: SetTemplate, rollout: RolloutObject, policy: Policy) -> None:
        template = self.world.template(policy, act.revision)
        if not template:
            raise ConfigError(
                f"revision {act.revision} of DaemonSet {policy.daemon_set} no longer exists",
                "Set the DaemonSet's template by hand.",
            )
        item = self.cluster.set_template(rollout.namespace, policy.daemon_set, template, act.resource_version)
        self.world.learn(self.world.of(FactKind.DAEMON_SETS), item)
        self.reporter.info(f"DaemonSet {policy.daemon_set}: template of revision {act.revision}: {act.why}")

    def _announce(self, act: Announce, rollout: RolloutObject) -> None:
        """An Event is worth a warning where it cannot be posted, and no more."""
        key = f"{act.reason}/{act.key}"
        alone = f"{rollout.uid}/{key}"  # another object may tell the same of the same revision
        if alone in self.posted or self.rests.is_resting(key):
            return
        about = EventAbout(act.node) if act.node else EventAbout(rollout.name, rollout.namespace, rollout.uid)
        try:
            self.cluster.post_event(about, act.reason, act.message, warning=act.is_warning, key=alone)
        except Terminated:
            raise
        except ApiUnavailable as error:
            self.rests.failed(key, error)
            return
        except ManagerError as error:
            self.reporter.warn(f"no event was recorded: {error.what}. {error.remedy}")
        if len(self.posted) >= MAX_POSTED:  # the server itself has each only once
            self.posted.clear()
        self.posted.add(alone)
        self._went_well(key, act)


def _key(act: _Effect, rollout: RolloutObject, policy: Policy) -> str:
    """What fails, and rests then, together: what refuses one new pod refuses all of them."""
    match act:
        case SetTemplate():
            return f"DaemonSet {policy.daemon_set}"
        case CreatePod():
            return f"short-lived pods of rollout {rollout.key}"
        case RestartPod() | DeletePod():
            return _of_node(act.node)
        case _:
            assert_never(act)


def _of_node(name: str) -> str:
    return f"{OF_NODE}{name}"
