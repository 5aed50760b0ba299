"""Facts of a fleet, with as few fields as possible: nodes on an old revision that a rollout to a new one is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from driver_manager.domain import selectors
from driver_manager.domain.fleet import spec

NOW_S = 1_800_000_000.0
ROLLOUT = "npu/driver"
OLD, NEW, OTHER = "old", "new", "other"
REVISIONS = (spec.Revision("driver-old", OLD, 1), spec.Revision("driver-new", NEW, 2))
ONE_WAVE = (spec.Wave("all"),)
DAEMON_SET = spec.DaemonSetFacts("npu", "driver", "ds-uid", "9", "OnDelete")


def policy(**fields: Any) -> spec.RolloutPolicy:
    return spec.RolloutPolicy(**{"daemon_set": "driver", "waves": ONE_WAVE, **fields})


def node(name: str, state: spec.UpgradeState | None = None, **fields: Any) -> spec.FleetNode:
    """A node that nothing is wrong with; `state` with a record of the new revision, unless another one is given."""
    if state is not None:
        fields = {"upgrade": state.value, "record": record(name), **fields}
    return spec.FleetNode(
        **{"name": name, "uid": f"uid-{name}", "resource_version": "1", "boot_id": "boot-1", **fields}
    )


def pod(of: str, revision: str = OLD, uid: str = "", **fields: Any) -> spec.DriverPod:
    """The driver's pod of a node: ready, on the old revision; of before a restart if no `uid` is given."""
    uid = uid or f"{of}-before"
    known = {"namespace": "npu", "name": f"driver-{uid}", "uid": uid, "node": of, "revision": revision}
    return spec.DriverPod(**{**known, "is_ready": True, **fields})


def new_pod(of: str, revision: str = NEW, **fields: Any) -> spec.DriverPod:
    return pod(of, revision, f"{of}-after", **fields)


def record(of: str = "a", **fields: Any) -> spec.NodeRecord:
    known = {"rollout": ROLLOUT, "revision": NEW, "wave": 1, "pod": f"{of}-before", "boot_id": "boot-1"}
    return spec.NodeRecord(**{**known, "began_s": NOW_S - 60.0, "since_s": NOW_S - 60.0, **fields})


def fleet(nodes: Iterable[spec.FleetNode], pods: Iterable[spec.DriverPod] | None = None, **fields: Any) -> spec.Fleet:
    """Those nodes; with an old pod on each, unless others are given."""
    nodes = tuple(nodes)
    known: dict[str, Any] = {"policy": policy(), "memory": spec.RolloutState(target=NEW), "wishes": spec.Requests()}
    known |= {"revisions": REVISIONS, "daemon_set": DAEMON_SET, "rollout": ROLLOUT}
    found = tuple(pod(node.name) for node in nodes) if pods is None else tuple(pods)
    return spec.Fleet(**{**known, "nodes": nodes, "pods": found, **fields})


def matching(text: str) -> selectors.Selector:
    return selectors.parse(text)
