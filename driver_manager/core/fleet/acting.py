"""How each act of a decision is done, and what its failure means. Whether it may be done now is the controller's.

After each success the world knows the answer, so that the next decision is not made on what was before it. Depends on
ports only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import assert_never

from driver_manager.core.fleet.rests import Rests
from driver_manager.core.fleet.world import NODES, FleetWorld
from driver_manager.domain.errors import ApiUnavailable, ConfigError, Conflict, ManagerError, Terminated
from driver_manager.domain.fleet.acts import Act, Announce, MarkNode, RestartPod, SetTemplate
from driver_manager.domain.fleet.model import Policy
from driver_manager.domain.fleet.node_patches import marked
from driver_manager.domain.fleet.reading import RolloutObject
from driver_manager.domain.profile import NodeKeys
from driver_manager.fleet_ports import EventAbout, FactKind, FleetCluster
from driver_manager.ports import Reporter

MAX_POSTED = 10_000
"""Keys of Events that are remembered."""


@dataclass
class Acting:
    """Does acts. `posted` are the keys of Events that need no other try, `counts` what was done."""

    cluster: FleetCluster
    reporter: Reporter
    world: FleetWorld
    rests: Rests
    keys: NodeKeys
    posted: set[str]
    counts: Counter[str]

    def do(self, act: Act, rollout: RolloutObject, policy: Policy) -> None:
        """Do `act`, unless one for the same thing failed just now: the acts of one thing come in an order, and those
        after one that failed are not due yet. Raises Terminated.
        """
        if isinstance(act, Announce):
            self._announce(act, rollout)
            return
        key = f"DaemonSet {policy.daemon_set}" if isinstance(act, SetTemplate) else f"node {act.node}"
        if self.rests.is_resting(key):
            return
        try:
            self._do(act, rollout, policy)
        except Terminated:
            raise
        except ManagerError as error:
            if isinstance(error, Conflict):
                self._doubt(act, policy)
            self.rests.failed(key, error)
            return
        self.rests.went_well(key)
        self.counts[type(act).__name__] += 1

    def _do(self, act: MarkNode | RestartPod | SetTemplate, rollout: RolloutObject, policy: Policy) -> None:
        match act:
            case MarkNode():
                item = self.cluster.patch_node(act.node, marked(act, self.keys), act.resource_version)
                self.world.learn(NODES, item)
                why = f" ({act.record.reason})" if act.record is not None and act.record.reason else ""
                self.reporter.info(f"node {act.node}: {act.state.value if act.state else 'left to itself'}{why}")
            case RestartPod():
                self.cluster.delete_pod(act.namespace, act.name, act.uid)
                self.world.end_pod(act.uid)
                self.reporter.info(f"node {act.node}: driver pod {act.namespace}/{act.name} is restarted")
            case SetTemplate():
                self._set_template(act, rollout, policy)
            case _:
                assert_never(act)

    def _set_template(self, act: SetTemplate, rollout: RolloutObject, policy: Policy) -> None:
        template = self.world.template(policy, act.revision)
        if not template:
            raise ConfigError(
                f"revision {act.revision} of DaemonSet {policy.daemon_set} is not there any more",
                "Set the DaemonSet's template by hand.",
            )
        item = self.cluster.set_template(rollout.namespace, policy.daemon_set, template, act.resource_version)
        self.world.learn(self.world.of(FactKind.DAEMON_SETS), item)
        self.reporter.info(f"DaemonSet {policy.daemon_set}: template of revision {act.revision}: {act.why}")

    def _doubt(self, act: MarkNode | RestartPod | SetTemplate, policy: Policy) -> None:
        match act:
            case MarkNode():
                self.world.doubt(NODES, act.node)
            case SetTemplate():
                self.world.doubt(self.world.of(FactKind.DAEMON_SETS), policy.daemon_set)

    def _announce(self, act: Announce, rollout: RolloutObject) -> None:
        """An Event is worth a warning where it cannot be posted, and no more."""
        key = f"{act.reason}/{act.key}"
        if key in self.posted or self.rests.is_resting(key):
            return
        about = EventAbout(act.node) if act.node else EventAbout(rollout.name, rollout.namespace, rollout.uid)
        try:
            self.cluster.post_event(about, act.reason, act.message, warning=act.is_warning, key=key)
        except Terminated:
            raise
        except ApiUnavailable as error:
            self.rests.failed(key, error)
            return
        except ManagerError as error:
            self.reporter.warn(f"no event was recorded: {error.what}. {error.remedy}")
        self.rests.went_well(key)
        if len(self.posted) >= MAX_POSTED:  # the server itself has each only once
            self.posted.clear()
        self.posted.add(key)
        self.counts[Announce.__name__] += 1
