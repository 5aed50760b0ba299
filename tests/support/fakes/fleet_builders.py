"""Facts of a fleet, with the least said: nodes on an old revision that a rollout to a new one is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from driver_manager.domain import selectors
from driver_manager.domain.fleet.spec import (
    DaemonSetFacts,
    DriverPod,
    Fleet,
    FleetNode,
    NodeRecord,
    Requests,
    Revision,
    RolloutPolicy,
    RolloutState,
    UpgradeState,
    Wave,
)

NOW_S = 1_800_000_000.0
ROLLOUT = "npu/driver"
OLD, NEW, OTHER = "old", "new", "other"
REVISIONS = (Revision("driver-old", OLD, 1), Revision("driver-new", NEW, 2))
ONE_WAVE = (Wave("all"),)
DAEMON_SET = DaemonSetFacts("npu", "driver", "ds-uid", "9", "OnDelete")


def policy(**said: Any) -> RolloutPolicy:
    return RolloutPolicy(**{"daemon_set": "driver", "waves": ONE_WAVE, **said})


def node(name: str, state: UpgradeState | None = None, **said: Any) -> FleetNode:
    """A node that nothing is wrong with; `state` with a record of the new revision, unless another one is said."""
    if state is not None:
        said = {"upgrade": state.value, "record": record(name), **said}
    return FleetNode(**{"name": name, "uid": f"uid-{name}", "resource_version": "1", "boot_id": "boot-1", **said})


def pod(of: str, revision: str = OLD, uid: str = "", **said: Any) -> DriverPod:
    """The driver's pod of a node: ready, on the old revision; of before a restart where no `uid` is said."""
    uid = uid or f"{of}-before"
    known = {"namespace": "npu", "name": f"driver-{uid}", "uid": uid, "node": of, "revision": revision}
    return DriverPod(**{**known, "is_ready": True, **said})


def new_pod(of: str, revision: str = NEW, **said: Any) -> DriverPod:
    return pod(of, revision, f"{of}-after", **said)


def record(of: str = "a", **said: Any) -> NodeRecord:
    known = {"rollout": ROLLOUT, "revision": NEW, "wave": 1, "pod": f"{of}-before", "boot_id": "boot-1"}
    return NodeRecord(**{**known, "began_s": NOW_S - 60.0, "since_s": NOW_S - 60.0, **said})


def fleet(nodes: Iterable[FleetNode], pods: Iterable[DriverPod] | None = None, **said: Any) -> Fleet:
    """Those nodes; with an old pod on each, unless others are said."""
    nodes = tuple(nodes)
    known: dict[str, Any] = {"policy": policy(), "memory": RolloutState(target=NEW), "wishes": Requests()}
    known |= {"revisions": REVISIONS, "daemon_set": DAEMON_SET, "rollout": ROLLOUT}
    found = tuple(pod(node.name) for node in nodes) if pods is None else tuple(pods)
    return Fleet(**{**known, "nodes": nodes, "pods": found, **said})


def matching(text: str) -> selectors.Selector:
    return selectors.parse(text)
