"""Pods that see an old driver root are named once it is unmounted, and only those that still see it."""

from __future__ import annotations

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.observation import Policy
from tests.support.fakes.builders import PROFILE, pod
from tests.support.fakes.executions import run
from tests.support.fakes.scenarios import LABELS
from tests.support.fakes.world import World


def stale_root() -> World:
    """A driver container has died, and its tree is still mounted at the driver root."""
    world = World(LABELS, Policy())
    world.host.mounts = [PROFILE.paths.driver_root]
    return world


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ((), (), ()),
        (("follows",), (), ()),
        (("copy", "follows"), ("copy",), ("copy",)),
        (("copy",), ("copy", "later"), ("copy",)),
        (("driver-a", "copy"), ("driver-a", "copy"), ("copy",)),
    ],
    ids=[
        "nobody sees it",
        "the unmount reaches the pod",
        "a mount of its own stays",
        "a later mount has the same number",
        "our own ends with this container",
    ],
)
def test_a_pod_is_named_that_still_sees_the_root_after_the_unmount(
    before: tuple[str, ...], after: tuple[str, ...], named: tuple[str, ...]
) -> None:
    world = stale_root()
    world.host.seen_before, world.host.seen_after = before, after
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.mounts == []
    assert [line.split(":")[0] for line in world.reporter.warnings] == [
        f"pod {uid} still sees the old driver root" for uid in named
    ]


def test_a_pod_of_this_node_is_named_by_its_name() -> None:
    world = stale_root()
    world.cluster.add_pod(pod("exporter"))
    uid = next(one.uid for one in world.cluster.pods().pods if one.name == "exporter")
    world.host.seen_before = world.host.seen_after = (uid,)
    assert run(world).exit_code is ExitCode.DONE
    (line,) = world.reporter.warnings
    assert line.startswith("pod rbln-system/exporter still sees the old driver root: restart it")
