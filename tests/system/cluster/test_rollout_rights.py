"""The controller's shipped rights are enough for a rollout, and each is needed: without it, it says which one it lacks.

The controller runs with a token of the shipped service account; each right is taken away on the real API server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import pytest

from scripts.releasing.kustomize import only, render
from tests.support.control_plane.api import Api, gone, wait_until
from tests.support.control_plane.processes import ForkedCommand, ForkServer
from tests.support.control_plane.rollout_fleet import RolloutFleet, TaskPods, Witness, serve_rollouts
from tests.support.control_plane.servers import NAMESPACE, AuditRecord, ControlPlane
from tests.support.deploy.apply import Right, applied, rights_of
from tests.support.deploy.rights import BOUND_KINDS, shown, user, without
from tests.support.docs.rollout_object import definition

SHIPPED = [one for one in render("rebellions/rollout") if one["kind"] in BOUND_KINDS]
ACCOUNT = only(SHIPPED, "ServiceAccount")
LEASE = "driver-manager-rollout"
NODES = 2
AT_ONCE = ("list", "watch", "get")
"""What every controller asks for, whether there is anything to do or not."""


@dataclass
class Scene:
    """A fleet on whose second node no further driver serves, and who plays a controller of it with shipped rights."""

    fleet: RolloutFleet
    fork_server: ForkServer
    token: str
    good: str
    images: Iterator[int]

    def start(self) -> ForkedCommand:
        """A controller, which leads at once."""
        self.fleet.free_lease()
        return self.fleet.fork(self.fork_server, token=self.token)

    def new_driver(self) -> str:
        """One more revision, which fails on the second node: the rollout goes back then."""
        image = f"driver:{next(self.images)}"
        self.fleet.kubelets.wedging.add((self.fleet.nodes[1], image))
        return self.fleet.set_driver(image)

    def wait_back(self, bad: str) -> None:
        """Until the rollout has gone back from that revision."""
        wait_until(
            lambda: self.fleet.is_complete(self.good) and bad in str(self.fleet.status()),
            f"it goes back: {self.fleet.status()}",
            120,
            every_s=0.1,
        )


@pytest.fixture
def scene(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[Scene]:
    """All of it, with the first revision complete."""
    serve_rollouts(admin_api, definition())
    (tmp_path / "runs").mkdir()
    with ExitStack() as stack:
        stack.enter_context(applied(admin_api, SHIPPED))
        fleet = stack.enter_context(RolloutFleet(control_plane, admin_api, tmp_path, NODES, LEASE))
        stack.enter_context(TaskPods(admin_api, "preflight"))
        server = stack.enter_context(ForkServer(tmp_path / "runs"))
        (good,) = set(fleet.serving().values())
        made = Scene(fleet, server, user(admin_api, ACCOUNT).token, good, count(2))
        waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
        fleet.make_rollout(waves=waves, onHalt="undo", preflight="require")
        run = made.start()
        wait_until(lambda: fleet.is_complete(good), f"the first revision: {fleet.status()}", 120)
        assert run.terminate().code == 0
        yield made


def lacking(right: Right) -> re.Pattern[str]:
    """What a controller says that lacks it."""
    namespace, group, resource, _, verb = right
    plural, _, subresource = resource.partition("/")
    what = ".".join(filter(None, (plural, group if group != "coordination.k8s.io" else "")))
    what += f"/{subresource}" if subresource else ""
    where = f" in namespace {namespace}" if namespace else r"( in namespace \S+)?"
    return re.compile(rf".*refused to {verb} {re.escape(what)}{where} \(403\).*")


def complaint(scene: Scene, right: Right) -> list[str]:
    """The lines in which a controller without the right says so; it is ended then."""
    if right[2] == "leases" and right[4] == "create":
        gone(lambda: scene.fleet.api.delete(scene.fleet.lease_path))
    run = scene.start()
    wanted = lacking(right)
    try:
        wait_until(lambda: wanted.search(run.log), f"it says what it lacks: {shown(right)}", 120)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{run.log}\n{scene.fleet.status()}") from error
    said = run.terminate().err
    return [line for line in said.splitlines() if wanted.search(line)]


@pytest.mark.shares(6)
def test_every_right_is_needed_said_where_it_lacks_and_all_of_them_are_enough(scene: Scene, admin_api: Api) -> None:
    fleet, rights = scene.fleet, rights_of(SHIPPED, ACCOUNT)
    for right in (one for one in rights if one[4] in AT_ONCE or one[2] == "leases"):
        with without(admin_api, SHIPPED, ACCOUNT, right):
            check_said_once(complaint(scene, right))
    mark = fleet.plane.audit_mark()
    with Witness(admin_api, fleet.name) as witness:
        for right in (one for one in rights if one[4] not in AT_ONCE and one[2] != "leases"):
            bad = scene.new_driver()
            with without(admin_api, SHIPPED, ACCOUNT, right):
                check_said_once(complaint(scene, right))
            run = scene.start()
            scene.wait_back(bad)
            assert run.terminate().code == 0
        witness.caught_up()
        served = witness.served()
    assert served[fleet.nodes[0]].count(scene.good) > 1
    for revisions in served.values():
        assert all(before != after for before, after in pairwise(revisions)), f"restarted twice: {served}"
    assert witness.most_under_way() == 1
    assert witness.labels_lost({"fleet": fleet.name}) == []
    forbidden = {(one.verb, one.resource, one.subresource) for one in refused(fleet, mark)}
    assert forbidden == {
        (verb, *split(resource)) for _, _, resource, _, verb in rights if verb not in AT_ONCE and resource != "leases"
    }
    mark = fleet.plane.audit_mark()
    bad, run = scene.new_driver(), scene.start()
    scene.wait_back(bad)
    assert run.terminate().code == 0
    assert refused(fleet, mark) == []


def check_said_once(lines: list[str]) -> None:
    """Raise AssertionError unless each thing was said, in one line."""
    assert lines
    assert len(lines) == len(set(lines)), lines


def refused(fleet: RolloutFleet, mark: int) -> list[AuditRecord]:
    """What the controllers were not allowed to do since then."""
    name = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT['metadata']['name']}"
    return [one for one in fleet.plane.audit(name, mark) if one.code == 403]


def split(resource: str) -> tuple[str, str]:
    """Plural and subresource."""
    plural, _, subresource = resource.partition("/")
    return plural, subresource
