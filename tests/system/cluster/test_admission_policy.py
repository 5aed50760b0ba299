"""The admission policies before a real API server: no patch of a whole run is denied, and each is denied to others.

The server knows no policies of its own; vapcheck is its webhook, with the code that newer servers judge by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from driver_manager.profiles import builtin
from scripts.releasing.admission import RESERVED
from scripts.releasing.kustomize import Json, only, render, render_with_namespace
from tests.support.control_plane.api import Api, gone, wait_until
from tests.support.control_plane.approved_reboot import LEASE, approved_reboot
from tests.support.control_plane.kubelet import NEVER, OperandsFactory
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import FleetFactory
from tests.support.control_plane.runner import EVICT, JOURNAL, PREFIX, CommandRunner, RunnerFactory, start_and_take
from tests.support.control_plane.scene import open_world, watched_node
from tests.support.control_plane.servers import ControlPlane
from tests.support.control_plane.workloads import Shape, WorkloadsFactory
from tests.support.deploy.apply import applied
from tests.support.deploy.rights import BOUND_KINDS, user
from tests.support.deploy.vapcheck import Sender, Webhook, enforced, reviewed, update

pytestmark = [pytest.mark.submission, pytest.mark.shares(6)]

PROFILES = builtin()
RESERVED_KEYS = [getattr(PROFILES[name].keys, field) for name in ("rebellions", "ascend") for field in RESERVED]
IN_PLACE = render_with_namespace("rebellions")
ROLLOUT = render("rebellions/rollout")
REBOOTS = render_with_namespace("ascend", "rebooter-eviction")
POLICIES = [one for vendor in ("rebellions", "ascend") for one in render(f"{vendor}/admission-policy")]

AGENT = only(IN_PLACE, "ServiceAccount")
CONTROLLER = only(ROLLOUT, "ServiceAccount")
ASCEND = only(REBOOTS, "ServiceAccount", "ascend-driver")
REBOOTER = only(REBOOTS, "ServiceAccount", "ascend-driver-rebooter")
PROBLEM_DETECTOR = "system:serviceaccount:kube-system:node-problem-detector"


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, admin_api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """The accounts of two vendors with their rights, and both vendors' policies in force."""
    everything = [*IN_PLACE, *ROLLOUT, *REBOOTS, *POLICIES]
    folder = tmp_path_factory.mktemp("policies") / "webhook"
    with ExitStack() as stack:
        stack.enter_context(applied(admin_api, [one for one in everything if one["kind"] in BOUND_KINDS]))
        policies = [one for one in POLICIES if one["kind"].startswith("ValidatingAdmissionPolicy")]
        yield stack.enter_context(enforced(control_plane, admin_api, policies, folder))


Site = Callable[..., CommandRunner]


@pytest.fixture
def site(control_plane: ControlPlane, admin_api: Api, runner_for: RunnerFactory, proxy: Proxy) -> Site:
    """Builds a node whose commands have a token of an account: of a pod there, or on the node `of`."""

    def build(
        account: Json, labels: dict[str, str], profile: str = "rebellions", of: str | None = None
    ) -> CommandRunner:
        who = user(admin_api, account)
        runner = runner_for(labels, profile, user=who, proxy=proxy)
        bound = runner.node.name if of is None else of
        proxy.identity.bind_to_node(who.token, who.name, bound, control_plane.admin.token)
        return runner

    return build


def test_a_run_and_both_ways_to_restore_are_never_denied(
    webhook: Webhook,
    site: Site,
    control_plane: ControlPlane,
    proxy: Proxy,
    workloads: WorkloadsFactory,
    operands: OperandsFactory,
) -> None:
    runner = site(AGENT, {f"{PREFIX}device-plugin": "true"})
    node = runner.node
    operands(node, ("device-plugin",))
    made = workloads(node)
    made.managed(1)
    ended = runner.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    assert ended.last_line.startswith("exit 0: done")
    for env in ({}, control_plane.service_account(control_plane.admin.token, proxy.url)):
        app = f"slow{len(env)}"
        runner.tree.record("older", "/opt/rbln/1.2.92", "1.2.92")
        made.managed(1, Shape(labels={"app": app}))
        node.kubelet.stop_after(app, NEVER)
        start_and_take(runner, **EVICT).kill()
        restored = runner.run("restore", **env)
        assert restored.code == 0, restored.err
        assert JOURNAL not in node.annotations()
        assert "unschedulable" not in node.read()["spec"]
        node.kubelet.release(app)
    assert webhook.denied() == []
    assert denied_to_others(webhook, node.name)


def test_health_watch_is_never_denied(
    webhook: Webhook, control_plane: ControlPlane, admin_api: Api, tmp_path: Path
) -> None:
    who = user(admin_api, AGENT)
    with open_world(control_plane, who, admin_api, tmp_path) as world, watched_node(world) as watched:
        name = watched.scene.node.name
        world.proxy.identity.bind_to_node(who.token, who.name, name, control_plane.admin.token)
        with watched.watch() as loop:
            loop.says("→ healthy")
            watched.fail()
            loop.says("→ wedged")
            wait_until(lambda: watched.state == "wedged", "the wedge is shown")
            watched.repair()
            watched.wait_reported("recovered")
    assert webhook.denied() == []
    assert denied_to_others(webhook, name)


def test_a_reboot_from_its_request_to_its_end_is_never_denied(
    webhook: Webhook, site: Site, admin_api: Api, control_plane: ControlPlane, proxy: Proxy, workloads: WorkloadsFactory
) -> None:
    runner = site(ASCEND, {"openfuyao.com/npu.present": "true"}, "ascend")
    node = runner.node
    (runner.tree.root / "var/lib/ascend").mkdir()
    workloads(node).managed(1, Shape(resource="huawei.com/Ascend910"))
    asked = runner.reconcile("--no-wait", DRIVER_LOAD="container")
    assert asked.code == 9, asked.err
    who = user(admin_api, REBOOTER)
    proxy.identity.bind_to_node(who.token, who.name, node.name, control_plane.admin.token)
    assert approved_reboot(runner, control_plane.service_account(who.token, proxy.url)) == ""
    assert "unschedulable" not in node.read()["spec"]
    assert webhook.denied() == []
    assert denied_to_others(webhook, node.name)
    gone(lambda: admin_api.delete(LEASE))


def test_a_rollout_is_never_denied(webhook: Webhook, rollout_fleet: FleetFactory, admin_api: Api) -> None:
    fleet = rollout_fleet(2, "driver-manager-rollout-rebellions")
    fleet.make_rollout(waves=[{"name": "canary", "count": 1}, {"name": "rest"}])
    wanted = fleet.set_driver("driver:2")
    run = fleet.fork(token=user(admin_api, CONTROLLER).token)
    fleet.wait_complete(wanted)
    assert run.terminate().code == 0
    assert webhook.denied() == []
    assert denied_to_others(webhook, fleet.nodes[0])


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("", "kubectl create token --bound-object-kind=Pod --bound-object-name=POD"),
        ("another-node", "the token is for node another-node"),
    ],
)
def test_a_token_that_is_not_of_this_node_takes_nothing(webhook: Webhook, site: Site, of: str, expected: str) -> None:
    runner = site(AGENT, {f"{PREFIX}device-plugin": "true"}, of=of)
    before = runner.node.read()["metadata"]
    ended = runner.reconcile()
    assert ended.code == 7, ended.err
    assert expected in ended.err
    after = runner.node.read()["metadata"]
    assert (after["labels"], after.get("annotations")) == (before["labels"], before.get("annotations"))


def denied_to_others(webhook: Webhook, name: str) -> bool:
    """True if the accounts changed this Node, and none of their patches is allowed to a token that is not theirs.

    A token of another node, one without a node, and, of a patch that touches the journal or the grant, other users.
    """
    patches = [
        asked
        for asked, answer in webhook.reviews()
        if asked["name"] == name and "-driver" in asked["userInfo"]["username"] and answer["allowed"]
    ]
    asked, expected = [], []
    for one in patches:
        who, old, new = one["userInfo"]["username"], one["oldObject"], one["object"]
        spoiled = copy.deepcopy(new)
        spoiled["metadata"].setdefault("annotations", {})["a.example/b"] = "x"
        asked.append(update(Sender(who, name), old, spoiled))
        expected.append("these annotations: a.example/b")
        if not who.endswith("-rollout"):
            asked += [update(Sender(who, "other"), old, new), update(Sender(who), old, new)]
            expected += ["is for node other", "kubectl create token"]
        if _touches(old, new):
            asked.append(update(Sender(PROBLEM_DETECTOR), old, new))
            expected.append("write-journal on nodes")
    answers = reviewed(webhook.policies, asked, lambda user, _: user != PROBLEM_DETECTOR)
    assert [(want, got) for want, got in zip(expected, answers, strict=True) if want not in got] == []
    return bool(patches)


def _touches(old: Json, new: Json) -> bool:
    """True if a reserved annotation changes."""
    before, after = (one["metadata"].get("annotations", {}) for one in (old, new))
    return any(before.get(key) != after.get(key) for key in RESERVED_KEYS)
