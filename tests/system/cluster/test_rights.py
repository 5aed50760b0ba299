"""The shipped rights are enough for every path, and each single one is needed: without it some path fails or warns.

The agent and the rebooter run with tokens of the shipped service accounts on the real API server; a right is taken away
there, and the very path that needed it says so.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import pytest

from driver_manager.adapters.kube.fleet import revisions_of
from driver_manager.adapters.kube.leases import RECOVERY_LEASE, LeaseSlots
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.core.rebooter import NodeDrain
from driver_manager.core.recovery import NodeRecovery, RecoveryPolicy, RecoveryPorts
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.fleet.state import newest_revision
from driver_manager.domain.health.watch import WedgeSeen
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.profile import RecoveryStep
from driver_manager.profiles import builtin
from scripts.releasing.kustomize import only, render, render_with_namespace
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.approved_reboot import LEASE, approved_reboot
from tests.support.control_plane.kubelet import CONDITION, NEVER, NodeFactory, OperandsFactory, conditions
from tests.support.control_plane.old_server import PodClaim
from tests.support.control_plane.pod_transport import pod_transport
from tests.support.control_plane.processes import RUN_TIMEOUT_S, Ended, ForkedCommand, Running
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import FleetFactory, RolloutFleet, Witness
from tests.support.control_plane.runner import (
    ENABLED,
    EVICT,
    PREFIX,
    REQUESTED,
    SAFE_LOAD,
    CommandRunner,
    RunnerFactory,
    start_and_take,
)
from tests.support.control_plane.scene import WatchedNode, open_world, watched_node
from tests.support.control_plane.servers import NAMESPACE, AuditRecord, ControlPlane
from tests.support.control_plane.workloads import Pod, Shape, Workloads, WorkloadsFactory
from tests.support.deploy.apply import Right, applied, rights_of
from tests.support.deploy.renderings import kubectl
from tests.support.deploy.rights import BOUND_KINDS, shown, user, without
from tests.support.fakes.clock import RecordingReporter
from tests.support.fakes.recovery_world import RecoveryWorld

# This overlay has no eviction.
OBJECTS = [one for one in render_with_namespace("ascend", "clients") if one["kind"] in BOUND_KINDS]
CLIENTS_ACCOUNT = only(OBJECTS, "ServiceAccount", "ascend-driver")
OF_THE_COMPONENT = sorted(set(rights_of(OBJECTS, CLIENTS_ACCOUNT)) - set(rights_of(render("ascend"), CLIENTS_ACCOUNT)))
NEEDED = [*OF_THE_COMPONENT, ("", "", "pods", "", "list")]
RESTARTED = "DriverClientRestarted"


@pytest.fixture(scope="module")
def clients_shipped(admin_api: Api) -> Iterator[None]:
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
            return client_complaints(loop)


def ran_before_now(pod: Pod) -> bool:
    """Whether its container runs since an earlier second than this one."""
    states = [one["state"] for one in (pod.read() or {})["status"].get("containerStatuses", [])]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return bool(states) and all("running" in state and state["running"]["startedAt"] < now for state in states)


def client_complaints(loop: Running) -> str:
    """Its lines about clients and claims that something is wrong with."""
    return "\n".join(line for line in loop.lines if "not every client" in line or "cannot tell" in line)


@pytest.fixture
def clients(
    control_plane: ControlPlane, admin_api: Api, clients_shipped: None, dra: None, tmp_path: Path
) -> Iterator[Clients]:
    """Such a node, whose health-watch has the account's token."""
    account = user(admin_api, CLIENTS_ACCOUNT)
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
    with without(admin_api, OBJECTS, CLIENTS_ACCOUNT, right):
        output = clients.restarted()
    assert f"{right[4]} {right[2]}" in output, output
    assert clients.client.state() == ("gone" if right[2] == "resourceclaims" else "Running")


WARNING = '"level": "warning"'
MANAGED = "the operator manages upgrades on this node"  # a warning that has nothing to do with rights

AGENT = render_with_namespace("rebellions", "safe-load", "node-condition")
REBOOTER = render_with_namespace("ascend", "rebooter-eviction")
AGENT_ACCOUNT = only(AGENT, "ServiceAccount")
REBOOTER_ACCOUNT = only(REBOOTER, "ServiceAccount", "ascend-driver-rebooter")
ASCEND_ACCOUNT = only(REBOOTER, "ServiceAccount", "ascend-driver")


@pytest.fixture(scope="module")
def shipped(admin_api: Api) -> Iterator[None]:
    """The rights of the overlays, in force."""
    rights = [one for one in (*AGENT, *REBOOTER) if one["kind"] in BOUND_KINDS]
    with applied(admin_api, rights):
        yield


class Case:
    """A node with an old driver and all that a run can meet, for one path."""

    def __init__(self, command_runner: CommandRunner, made: Workloads, operands: OperandsFactory) -> None:
        self.command_runner = command_runner
        self.made = made
        self.node = command_runner.node
        self.operands = operands

    def populate(self) -> list[str]:
        """Operands, a pod that asks for a device, one that holds a claim; names of the latter two."""
        self.operands(self.node, ("device-plugin", "dra-kubelet-plugin"))
        asking = self.made.managed(1)
        holding = self.made.managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
        self.made.claim("mine", *holding)
        return [pod.key for pod in (*asking, *holding)]


GroundFactory = Callable[[], Case]


@pytest.fixture
def case(
    admin_api: Api,
    shipped: None,
    runner_for: RunnerFactory,
    operands: OperandsFactory,
    workloads: WorkloadsFactory,
    proxy: Proxy,
) -> GroundFactory:
    """Builds a node for the agent with the rights of its service account."""

    def build() -> Case:
        runner = runner_for({f"{PREFIX}device-plugin": "true"}, user=user(admin_api, AGENT_ACCOUNT), proxy=proxy)
        return Case(runner, workloads(runner.node), operands)

    return build


def complaints(ended: Ended, code: int = 0) -> str:
    """What went wrong, "" if nothing did."""
    warnings = [line for line in ended.err.splitlines() if WARNING in line and MANAGED not in line]
    return ended.err + ended.out if ended.code != code or warnings or "✗" in ended.out else ""


def upgrade(one: Case) -> str:
    """The full path: operands leave, pods are evicted by request and by claim, the driver is swapped."""
    one.populate()
    output = complaints(one.command_runner.reconcile(**EVICT))
    shown = conditions(one.node.read()).get(CONDITION)
    return output or ("" if shown == ("True", "Ready") else f"without patch nodes/status the condition is {shown}")


def drain(one: Case) -> str:
    """A drain of what eviction alone may not move."""
    one.made.managed(1, Shape(npus=0))
    one.made.managed(1)
    return complaints(one.command_runner.reconcile(ENABLE_AUTO_DRAIN="true", DRAIN_TIMEOUT_SECONDS="20"))


def operator_managed(one: Case) -> str:
    """An operator is asked to move the pods, and does."""
    one.node.api.patch(one.node.path, {"metadata": {"annotations": {ENABLED: "true"}}})
    (pod,) = one.made.managed(1)
    run = one.command_runner.start("reconcile-driver-state", **EVICT)
    wait_until(
        lambda: REQUESTED in one.node.annotations() or run.has_ended, "the operator is asked, or not", RUN_TIMEOUT_S
    )
    pod.api.delete(pod.path)
    return complaints(run.end())


def safe_load(one: Case) -> str:
    """The operator is asked before the load, and gives its word."""
    driver = one.operands(one.node, ("driver",)).pods()["driver"][0]["metadata"]["name"]
    run = one.command_runner.start("reconcile-driver-state", "--safe-load", POD_NAME=driver)
    wait_until(
        lambda: SAFE_LOAD in one.node.annotations() or run.has_ended, "its word is asked for, or not", RUN_TIMEOUT_S
    )
    one.node.api.patch(one.node.path, {"metadata": {"annotations": {SAFE_LOAD: None}}})
    return complaints(run.end())


def killed_and_restored(one: Case) -> str:
    """A run dies with the node taken; it is given back by hand."""
    one.made.managed(1, Shape(labels={"app": "slow"}))
    one.node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(one.command_runner, **EVICT)
    run.kill()
    output = complaints(one.command_runner.run("restore"))
    one.node.kubelet.release("slow")
    return output or ("" if "unschedulable" not in one.node.read()["spec"] else "the cordon stayed")


def looked_at(one: Case) -> str:
    """Whatever only looks, with pods and claims there to look at."""
    pods = one.populate()
    message = ""
    for command in (["status"], ["plan"], ["preflight", "-o", "text"], ["holders"], ["restore", "--dry-run"]):
        env = EVICT if command[0] in ("status", "plan", "preflight") else {}
        ended = one.command_runner.run(*command, **env)
        message += complaints(ended)
        if command == ["plan"] and not all(pod in ended.out for pod in pods):
            message += f"plan names not all of {pods}: {ended.out}"
    return message


PATHS: tuple[Callable[[Case], str], ...] = (upgrade, safe_load, operator_managed, drain, killed_and_restored, looked_at)


@pytest.mark.shares(6)
@pytest.mark.usefixtures("dra")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_the_agents_rights_are_enough(case: GroundFactory, path: Callable[[Case], str]) -> None:
    assert path(case()) == ""


@pytest.mark.shares(6)
@pytest.mark.usefixtures("dra")
@pytest.mark.parametrize("right", rights_of(AGENT, AGENT_ACCOUNT), ids=shown)
def test_every_right_of_the_agent_is_needed(admin_api: Api, case: GroundFactory, right: Right) -> None:
    _, group, resource, _, verb = right
    with without(admin_api, AGENT, AGENT_ACCOUNT, right):
        found = ((path.__name__, path(case())) for path in PATHS)
        name, output = next(((name, output) for name, output in found if output), ("", ""))
    assert output, f"no path needs to {verb} {resource}"
    assert f"{verb} {resource}{f'.{group}' if group else ''}" in output, f"{name}: {output}"


def test_kubectl_waits_for_the_drivers_condition(case: GroundFactory, control_plane: ControlPlane) -> None:
    one = case()
    one.made.managed(1, Shape(labels={"app": "slow"}))
    one.node.kubelet.stop_after("slow", NEVER)
    others = conditions(one.node.read())
    kubeconfig = control_plane.kubeconfig(control_plane.admin.token)
    wait = [kubectl(), f"--kubeconfig={kubeconfig}", "wait", f"--for=condition={CONDITION}", f"node/{one.node.name}"]
    run = start_and_take(one.command_runner, **EVICT)
    wait_until(lambda: conditions(one.node.read()).get(CONDITION) == ("False", "Upgrading"), "the run shows itself")
    early = subprocess.run([*wait, "--timeout=1s"], capture_output=True, text=True, check=False, timeout=60)
    assert "timed out" in early.stderr, early
    with subprocess.Popen([*wait, "--timeout=60s"], stdout=subprocess.PIPE, text=True) as waiting:
        one.node.kubelet.release("slow")
        assert complaints(run.end()) == ""
        assert "condition met" in waiting.communicate(timeout=90)[0]
    assert conditions(one.node.read()) == {**others, CONDITION: ("True", "Ready")}


@pytest.fixture
def watched(control_plane: ControlPlane, admin_api: Api, shipped: None, tmp_path: Path) -> Iterator[WatchedNode]:
    """A node whose health-watch has the token of the overlay's service account."""
    account = user(admin_api, AGENT_ACCOUNT)
    with open_world(control_plane, account, admin_api, tmp_path) as world, watched_node(world) as made:
        yield made


def failure_to_report(watched: WatchedNode) -> str:
    """What health-watch says that it could not do about a wedge, "" if the Node shows it."""
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.fail()
        loop.says("→ wedged")
        wait_until(
            lambda: (watched.state == "wedged" and watched.events("DriverWedged")) or _not_shown(loop),
            "the Node shows it, or a right is missing",
        )
        shown = conditions(watched.scene.node.read()).get(CONDITION)
        return _not_shown(loop) or ("" if shown == ("False", "Wedged") else f"the condition is {shown}")


def _not_shown(loop: Running) -> str:
    return "\n".join(line for line in loop.lines if "on the Node: " in line or "whether the Node" in line)


def test_the_rights_of_health_watch_are_enough(watched: WatchedNode) -> None:
    assert failure_to_report(watched) == ""


WATCH_RIGHTS = [("", "", "nodes", "", "get"), ("", "", "nodes", "", "patch"), ("default", "", "events", "", "create")]


@pytest.mark.shares(6)
@pytest.mark.parametrize("right", WATCH_RIGHTS, ids=shown)
def test_every_right_of_health_watch_is_needed(admin_api: Api, watched: WatchedNode, right: Right) -> None:
    with without(admin_api, AGENT, AGENT_ACCOUNT, right):
        output = failure_to_report(watched)
    assert f"the API server refused to {right[4]} {right[2]}" in output, output


@pytest.fixture
def ascend(
    admin_api: Api, shipped: None, runner_for: RunnerFactory, workloads: WorkloadsFactory, proxy: Proxy
) -> Callable[[Json], CommandRunner]:
    """Builds a node for an overlay's account whose driver only a reboot replaces; a pod uses the accelerator."""

    def build(account: Json) -> CommandRunner:
        gone(lambda: admin_api.delete(LEASE))
        labels, who = {"openfuyao.com/npu.present": "true"}, user(admin_api, account)
        runner = runner_for(labels, "ascend", user=who, proxy=proxy)
        (runner.tree.root / "var/lib/ascend").mkdir()
        workloads(runner.node).managed(1, Shape(resource="huawei.com/Ascend910"))
        return runner

    return build


AscendFactory = Callable[[Json], CommandRunner]


def reboot_asked_for(one: CommandRunner) -> str:
    """A reconcile asks for a reboot, and so does preflight find nothing amiss."""
    looked = one.run("preflight", "-o", "text", DRIVER_LOAD="container", **EVICT)
    asked = one.reconcile("--no-wait", DRIVER_LOAD="container")
    return complaints(looked) + complaints(asked, 9)


def rebooted(one: CommandRunner) -> str:
    """An approved reboot with slot and eviction, and what comes after the boot."""
    (one.tree.root / "var/lib/ascend/.reboot-required").write_text("upgrade\n")
    kind = builtin()["ascend"].keys.condition
    there = [*one.node.read()["status"]["conditions"], {"type": kind, "status": "True", "reason": "Ready"}]
    one.node.api.patch(f"{one.node.path}/status", {"status": {"conditions": there}})
    output = approved_reboot(one, {})
    assert output or not one.node.pods(), "the pod is evicted"
    assert output or conditions(one.node.read())[kind] == ("True", "Ready")
    return output


def test_the_rights_of_an_agent_that_never_unloads_are_enough(ascend: AscendFactory) -> None:
    assert reboot_asked_for(ascend(ASCEND_ACCOUNT)) == ""


@pytest.mark.parametrize("right", rights_of(REBOOTER, ASCEND_ACCOUNT), ids=shown)
def test_every_right_of_an_agent_that_never_unloads_is_needed(
    admin_api: Api, ascend: AscendFactory, right: Right
) -> None:
    with without(admin_api, REBOOTER, ASCEND_ACCOUNT, right):
        output = reboot_asked_for(ascend(ASCEND_ACCOUNT))
    assert f"{right[4]} {right[2]}" in output, output


def test_the_rebooters_rights_are_enough(ascend: AscendFactory) -> None:
    assert rebooted(ascend(REBOOTER_ACCOUNT)) == ""


@pytest.mark.shares(6)
@pytest.mark.parametrize("right", rights_of(REBOOTER, REBOOTER_ACCOUNT), ids=shown)
def test_every_right_of_the_rebooter_is_needed(admin_api: Api, ascend: AscendFactory, right: Right) -> None:
    with without(admin_api, REBOOTER, REBOOTER_ACCOUNT, right):
        output = rebooted(ascend(REBOOTER_ACCOUNT))
    assert f"{right[4]} {right[2]}" in output, output


# Without components/eviction, which has some of its rights.
RECOVERING = [
    one
    for one in render_with_namespace("nvidia", "recovery")
    if one["kind"] in BOUND_KINDS and "eviction" not in one["metadata"]["name"]
]
RECOVERING_ACCOUNT = only(RECOVERING, "ServiceAccount")
RECOVERY_RIGHTS = [right for right in rights_of(RECOVERING, RECOVERING_ACCOUNT) if right[4] != "watch"]


@pytest.fixture
def recover(
    control_plane: ControlPlane, admin_api: Api, node: NodeFactory, workloads: WorkloadsFactory, dra: None, proxy: Proxy
) -> Iterator[Callable[[], str]]:
    """Reloads a wedged driver with the component's rights, and gives what could not be done.

    A user's pod holds a claim for another driver.
    """
    profile, world, clock, reporter = builtin()["nvidia"], RecoveryWorld(), SystemClock(), RecordingReporter()
    there = node()
    made = workloads(there)
    holder = made.pod(Shape(npus=0, claims=(PodClaim("nic", claim="nic"),)))
    made.claim("nic", holder, device_class="nic.example.com")

    def reload() -> str:
        transport = pod_transport(control_plane, user(admin_api, RECOVERING_ACCOUNT).token, proxy.url)
        cluster = KubeCluster(transport, there.name, clock, reporter, RUN_TIMEOUT_S)
        ports = RecoveryPorts(
            cluster,
            lambda step: LeaseSlots(cluster.api, profile.namespace, profile.keys, step),
            world.disk_port,
            NodeDrain(cluster, clock, reporter, profile, EvictionRules(), spares_daemons=False),
            lambda pod: newest_revision(revisions_of(cluster.api, pod.namespace, pod.controller)),
            clock,
            reporter,
        )
        own = made.daemon_set_pod(Shape(npus=0), namespace=profile.namespace)
        turns = (
            (own.uid, WedgeSeen(is_wedged=True, since_s=1, load="1")),
            ("next", WedgeSeen(is_wedged=False, since_s=0, healthy=3)),
        )
        try:
            for pod, seen in turns:
                policy = RecoveryPolicy(profile, frozenset({RecoveryStep.RELOAD}), 300.0, "boot", pod)
                NodeRecovery(ports, policy, seen).turn()
        except ManagerError as error:
            reporter.warn(error.what)
        assert reporter.warnings or (own.state() != "Running" and world.steps == ["reload.healed"])
        return "\n".join((*reporter.warnings, *reporter.infos))

    with applied(admin_api, RECOVERING):
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{profile.namespace}/leases/{RECOVERY_LEASE}"
        gone(lambda: admin_api.delete(lease))
        yield reload


def test_the_rights_of_a_recovery_are_enough(recover: Callable[[], str]) -> None:
    assert recover() == ""


@pytest.mark.shares(3)
@pytest.mark.parametrize("right", RECOVERY_RIGHTS, ids=shown)
def test_every_right_of_a_recovery_is_needed(admin_api: Api, recover: Callable[[], str], right: Right) -> None:
    with without(admin_api, RECOVERING, RECOVERING_ACCOUNT, right):
        output = recover()
    assert f"refused to {right[4]} {right[2]}" in output, output


SHIPPED = [one for one in render("rebellions/rollout") if one["kind"] in BOUND_KINDS]
ROLLOUT_ACCOUNT = only(SHIPPED, "ServiceAccount")
ROLLOUT_LEASE = "driver-manager-rollout-rebellions"
NODES = 2
AT_ONCE = ("list", "watch", "get")
"""What every controller asks for, whether there is anything to do or not."""


@dataclass
class Scene:
    """A fleet on whose second node no further driver serves, and who plays a controller of it with shipped rights."""

    fleet: RolloutFleet
    token: str
    good: str
    images: Iterator[int]

    def start(self) -> ForkedCommand:
        """A controller, which leads at once."""
        self.fleet.free_lease()
        return self.fleet.fork(token=self.token)

    def new_driver(self) -> str:
        """One more revision, which fails on the second node: the rollout goes back then."""
        image = f"driver:{next(self.images)}"
        self.fleet.kubelets.wedging.add((self.fleet.nodes[1], image))
        return self.fleet.set_driver(image)

    def wait_back(self, bad: str) -> None:
        wait_until(
            lambda: self.fleet.is_complete(self.good) and bad in str(self.fleet.status()),
            f"it goes back: {self.fleet.status()}",
            120,
            every_s=0.1,
        )


@pytest.fixture
def scene(rollout_fleet: FleetFactory, admin_api: Api) -> Iterator[Scene]:
    """All of it, with the first revision complete."""
    with applied(admin_api, SHIPPED):
        fleet = rollout_fleet(NODES, ROLLOUT_LEASE)
        (good,) = set(fleet.serving().values())
        made = Scene(fleet, user(admin_api, ROLLOUT_ACCOUNT).token, good, count(2))
        run = made.start()
        waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
        fleet.make_complete(waves=waves, onHalt="undo", preflight="require")
        assert run.terminate().code == 0
        yield made


def lacking(right: Right) -> re.Pattern[str]:
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
    output = run.terminate().err
    return [line for line in output.splitlines() if wanted.search(line)]


@pytest.mark.shares(6)
def test_every_right_is_needed_reported_where_it_is_missing_and_all_of_them_are_enough(
    scene: Scene, admin_api: Api
) -> None:
    fleet, rights = scene.fleet, rights_of(SHIPPED, ROLLOUT_ACCOUNT)
    for right in (one for one in rights if one[4] in AT_ONCE or one[2] == "leases"):
        with without(admin_api, SHIPPED, ROLLOUT_ACCOUNT, right):
            check_reported_once(complaint(scene, right))
    mark = fleet.plane.audit_mark()
    with Witness(admin_api, fleet.name) as witness:
        for right in (one for one in rights if one[4] not in AT_ONCE and one[2] != "leases"):
            bad = scene.new_driver()
            with without(admin_api, SHIPPED, ROLLOUT_ACCOUNT, right):
                check_reported_once(complaint(scene, right))
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
    forbidden = {(one.verb, one.resource, one.subresource) for one in refused_requests(fleet, mark)}
    assert forbidden == {
        (verb, *split(resource)) for _, _, resource, _, verb in rights if verb not in AT_ONCE and resource != "leases"
    }
    mark = fleet.plane.audit_mark()
    bad, run = scene.new_driver(), scene.start()
    scene.wait_back(bad)
    assert run.terminate().code == 0
    assert refused_requests(fleet, mark) == []


def check_reported_once(lines: list[str]) -> None:
    """Raise AssertionError unless each thing was logged, in one line."""
    assert lines
    assert len(lines) == len(set(lines)), lines


def refused_requests(fleet: RolloutFleet, mark: int) -> list[AuditRecord]:
    """What the controllers were not allowed to do since then."""
    name = f"system:serviceaccount:{NAMESPACE}:{ROLLOUT_ACCOUNT['metadata']['name']}"
    return [one for one in fleet.plane.audit(name, mark) if one.code == 403]


def split(resource: str) -> tuple[str, str]:
    plural, _, subresource = resource.partition("/")
    return plural, subresource
