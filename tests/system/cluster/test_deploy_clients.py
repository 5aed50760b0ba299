"""deploy/components/clients on the real API server: its rights restart clients without the component for evictions.

health-watch has the token of the service account that the component gives rights to, and each of them is taken away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.releasing.kustomize import only, render, render_with_namespace
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.old_server import PodClaim
from tests.support.control_plane.processes import Loop
from tests.support.control_plane.scene import WatchedNode, open_world, watched_node
from tests.support.control_plane.servers import ControlPlane
from tests.support.control_plane.workloads import Pod, Shape
from tests.support.deploy.apply import Right, applied, rights_of
from tests.support.deploy.rights import BOUND_KINDS, shown, user, without

# This overlay has no eviction.
OBJECTS = [one for one in render_with_namespace("ascend", "clients") if one["kind"] in BOUND_KINDS]
ACCOUNT = only(OBJECTS, "ServiceAccount", "ascend-driver")
OF_THE_COMPONENT = sorted(set(rights_of(OBJECTS, ACCOUNT)) - set(rights_of(render("ascend"), ACCOUNT)))
NEEDED = [*OF_THE_COMPONENT, ("", "", "pods", "", "list")]
RESTARTED = "DriverClientRestarted"


@pytest.fixture(scope="module")
def shipped(admin_api: Api) -> Iterator[None]:
    """The rights of the overlay with the component, in force."""
    with applied(admin_api, OBJECTS):
        yield


class Clients:
    """A node with a client, and a user's pod that holds a claim; both have run since before the driver was ready."""

    def __init__(self, watched: WatchedNode) -> None:
        self.watched = watched
        made = watched.scene.pods
        (self.client,) = made.managed(1, Shape(npus=0, labels={"role": "exporter"}), namespace="monitoring")
        (self.user,) = made.managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
        made.claim("mine", self.user)
        wait_until(lambda: all(map(ran_before_now, (self.client, self.user))), "both have run for a while")
        watched.be_ready()

    def restarted(self) -> str:
        """What health-watch says that it could not do, "" where the client was restarted and the claim named."""
        with self.watched.watch(CLIENT_SELECTOR="role=exporter") as loop:
            wait_until(
                lambda: any(" was restarted: " in line or "not every client" in line for line in loop.lines),
                "the client is restarted, or a right lacks",
            )
            return complaints(loop)


def ran_before_now(pod: Pod) -> bool:
    """Whether its container runs since an earlier second than this one."""
    states = [one["state"] for one in (pod.read() or {})["status"].get("containerStatuses", [])]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return bool(states) and all("running" in state and state["running"]["startedAt"] < now for state in states)


def complaints(loop: Loop) -> str:
    """Its lines about clients and claims that something is wrong with."""
    return "\n".join(line for line in loop.lines if "not every client" in line or "cannot tell" in line)


@pytest.fixture
def clients(control_plane: ControlPlane, admin_api: Api, shipped: None, dra: None, tmp_path: Path) -> Iterator[Clients]:
    """Such a node, whose health-watch has the account's token."""
    account = user(admin_api, ACCOUNT)
    with open_world(control_plane, account, admin_api, tmp_path) as world, watched_node(world) as watched:
        yield Clients(watched)


@pytest.mark.shares(6)
def test_the_rights_of_the_component_are_enough_and_no_users_pod_is_evicted(clients: Clients) -> None:
    assert clients.restarted() == ""
    clients.client.wait_state("gone")
    assert clients.user.state() == "Running"
    (event,) = clients.watched.events(RESTARTED)
    assert event["message"].endswith(f"{clients.user.namespace}/mine"), "the claim that survives is named"


@pytest.mark.shares(6)
@pytest.mark.parametrize("right", NEEDED, ids=shown)
def test_every_right_of_the_component_is_needed(admin_api: Api, clients: Clients, right: Right) -> None:
    with without(admin_api, OBJECTS, ACCOUNT, right):
        said = clients.restarted()
    assert f"{right[4]} {right[2]}" in said, said
    assert clients.client.state() == ("gone" if right[2] == "resourceclaims" else "Running")
