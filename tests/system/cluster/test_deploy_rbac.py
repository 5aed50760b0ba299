"""The shipped rights are enough for every path, and each single one is needed: without it some path fails or warns.

The agent and the rebooter run with tokens of the shipped service accounts on the real API server; a right is taken away
there, and the very path that needed it says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.releasing.kustomize import only, render_with_namespace
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.kubelet import NEVER, Node, NodeFactory, OperandsFactory
from tests.support.control_plane.old_server import PodClaim
from tests.support.control_plane.processes import RUN_TIMEOUT_S, Command, Ended, Loop
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import PREFIX, CommandRunner, node_of, start_and_take
from tests.support.control_plane.scene import WatchedNode, open_world, watched_node
from tests.support.control_plane.servers import ControlPlane
from tests.support.control_plane.workloads import Shape, Workloads, WorkloadsFactory
from tests.support.deploy.apply import Right, applied, apply, rights_of
from tests.support.deploy.rights import BOUND_KINDS, shown, user, without

EVICT = {"ENABLE_NPU_POD_EVICTION": "true"}
UPGRADE = "rebellions.ai/npu-driver-upgrade"
ASCEND = "npu.openfuyao.com/"
WARNING = '"level": "warning"'
MANAGED = "the operator manages upgrades on this node"  # a warning that has nothing to do with rights

AGENT = render_with_namespace("rebellions", "safe-load")
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
        self.node = node_of(command_runner)
        self._operands = operands

    def populate(self) -> list[str]:
        """Operands, a pod that asks for a device, one that holds a claim; names of the latter two."""
        self._operands(self.node, ("device-plugin", "dra-kubelet-plugin"))
        asking = self.made.managed(1)
        holding = self.made.managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
        self.made.claim("mine", *holding)
        return [pod.key for pod in (*asking, *holding)]

    def driver_pod(self) -> str:
        """A pod of the driver DaemonSet on the node."""
        return str(self._operands(self.node, ("driver",)).pods()["driver"][0]["metadata"]["name"])


GroundFactory = Callable[[], Case]


@pytest.fixture
def case(
    control_plane: ControlPlane,
    admin_api: Api,
    shipped: None,
    tmp_path: Path,
    node: NodeFactory,
    operands: OperandsFactory,
    workloads: WorkloadsFactory,
    proxy: Proxy,
) -> GroundFactory:
    """Builds a node for the agent with the rights of its service account."""

    def build() -> Case:
        folder = tmp_path / f"ground-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        command_runner = CommandRunner(
            control_plane, user(admin_api, AGENT_ACCOUNT), folder, proxy=proxy
        ).with_upgrade()
        command_runner.node = node({f"{PREFIX}device-plugin": "true"}, boot_id=command_runner.tree.boot_id)
        return Case(command_runner, workloads(command_runner.node), operands)

    return build


def complaints(ended: Ended, code: int = 0) -> str:
    """What went wrong, "" if nothing did."""
    warnings = [line for line in ended.err.splitlines() if WARNING in line and MANAGED not in line]
    return ended.err + ended.out if ended.code != code or warnings or "✗" in ended.out else ""


def upgrade(one: Case) -> str:
    """The full path: operands leave, pods are evicted by request and by claim, the driver is swapped."""
    one.populate()
    return complaints(one.command_runner.reconcile(**EVICT))


def drain(one: Case) -> str:
    """A drain of what eviction alone may not move."""
    one.made.managed(1, Shape(npus=0))
    one.made.managed(1)
    return complaints(one.command_runner.reconcile(ENABLE_AUTO_DRAIN="true", DRAIN_TIMEOUT_SECONDS="20"))


def operator_managed(one: Case) -> str:
    """An operator is asked to move the pods, and does."""
    one.node.api.patch(one.node.path, {"metadata": {"annotations": {f"{UPGRADE}-enabled": "true"}}})
    (pod,) = one.made.managed(1)
    run = one.command_runner.start("reconcile-driver-state", **EVICT)
    wait_until(
        lambda: f"{UPGRADE}-requested" in one.node.annotations() or run.has_ended,
        "the operator is asked, or not",
        RUN_TIMEOUT_S,
    )
    pod.api.delete(pod.path)
    return complaints(run.end())


def safe_load(one: Case) -> str:
    """The operator is asked before the load, and gives its word."""
    run = one.command_runner.start("reconcile-driver-state", "--safe-load", POD_NAME=one.driver_pod())
    key = f"{UPGRADE}.driver-wait-for-safe-load"
    wait_until(
        lambda: key in one.node.annotations() or run.has_ended,
        "its word is asked for, or not",
        RUN_TIMEOUT_S,
    )
    one.node.api.patch(one.node.path, {"metadata": {"annotations": {key: None}}})
    return complaints(run.end())


def killed_and_restored(one: Case) -> str:
    """A run dies with the node taken; it is given back by hand."""
    one.made.managed(1, Shape(labels={"app": "slow"}))
    one.node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(one.command_runner, **EVICT)
    run.kill()
    said = complaints(one.command_runner.run("restore"))
    one.node.kubelet.release("slow")
    return said or ("" if "unschedulable" not in one.node.read()["spec"] else "the cordon stayed")


def looked_at(one: Case) -> str:
    """Whatever only looks, with pods and claims there to look at."""
    pods = one.populate()
    said = ""
    for command in (["status"], ["plan"], ["preflight", "-o", "text"], ["holders"], ["restore", "--dry-run"]):
        env = EVICT if command[0] in ("status", "plan", "preflight") else {}
        ended = one.command_runner.run(*command, **env)
        said += complaints(ended)
        if command == ["plan"] and not all(pod in ended.out for pod in pods):
            said += f"plan names not all of {pods}: {ended.out}"
    return said


PATHS: tuple[Callable[[Case], str], ...] = (
    upgrade,
    safe_load,
    operator_managed,
    drain,
    killed_and_restored,
    looked_at,
)


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
        name, said = next(((name, said) for name, said in found if said), ("", ""))
    assert said, f"no path needs to {verb} {resource}"
    assert f"{verb} {resource}{f'.{group}' if group else ''}" in said, f"{name}: {said}"


@pytest.fixture
def watched(control_plane: ControlPlane, admin_api: Api, shipped: None, tmp_path: Path) -> Iterator[WatchedNode]:
    """A node whose health-watch has the token of the overlay's service account."""
    account = user(admin_api, AGENT_ACCOUNT)
    with open_world(control_plane, account, admin_api, tmp_path) as world, watched_node(world) as made:
        yield made


def told(watched: WatchedNode) -> str:
    """What health-watch says that it could not do about a wedge, "" where the Node was told."""
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.fail()
        loop.says("→ wedged")
        wait_until(
            lambda: (watched.state == "wedged" and watched.events("DriverWedged")) or _not_told(loop),
            "the Node is told, or a right lacks",
        )
        return _not_told(loop)


def _not_told(loop: Loop) -> str:
    return "\n".join(line for line in loop.lines if "on the Node: " in line or "whether the Node" in line)


def test_the_rights_of_health_watch_are_enough(watched: WatchedNode) -> None:
    assert told(watched) == ""


WATCH_RIGHTS = [
    ("", "", "nodes", "", "get"),
    ("", "", "nodes", "", "patch"),
    ("default", "", "events", "", "create"),
]


@pytest.mark.shares(6)
@pytest.mark.parametrize("right", WATCH_RIGHTS, ids=shown)
def test_every_right_of_health_watch_is_needed(admin_api: Api, watched: WatchedNode, right: Right) -> None:
    with without(admin_api, AGENT, AGENT_ACCOUNT, right):
        said = told(watched)
    assert f"the API server refused to {right[4]} {right[2]}" in said, said


LEASE = "/apis/coordination.k8s.io/v1/namespaces/npu-operator/leases/driver-manager-reboots"


class AscendGround:
    """A node whose driver only a reboot replaces, with a pod that uses the accelerator."""

    def __init__(self, command_runner: CommandRunner, made: Workloads) -> None:
        self.command_runner = command_runner
        self.made = made
        self.node = node_of(command_runner)

    def reboot(self) -> None:
        """The machine goes down and comes up again, and its driver is loaded."""
        tree = self.command_runner.tree
        tree.reboot()
        tree.load(ASCEND_ROOT)
        info = self.node.read()["status"]["nodeInfo"] | {"bootID": tree.boot_id}
        self.node.api.patch(f"{self.node.path}/status", {"status": {"nodeInfo": info}})


ASCEND_ROOT = "/var/lib/Ascend/driver"
AscendFactory = Callable[[Json], AscendGround]


@pytest.fixture
def ascend(
    control_plane: ControlPlane,
    admin_api: Api,
    shipped: None,
    tmp_path: Path,
    node: NodeFactory,
    workloads: WorkloadsFactory,
    proxy: Proxy,
) -> AscendFactory:
    """Builds such a node for one of the overlay's service accounts."""

    def build(account: Json) -> AscendGround:
        folder = tmp_path / f"ascend-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        gone(lambda: admin_api.delete(LEASE))
        command_runner = CommandRunner(control_plane, user(admin_api, account), folder, "ascend", proxy=proxy)
        command_runner.tree.add_driver(ASCEND_ROOT, "25.2.0")
        command_runner.tree.load(ASCEND_ROOT)
        command_runner.tree.record("old", ASCEND_ROOT, "25.2.0")
        (command_runner.tree.root / "var/lib/ascend").mkdir()
        command_runner.node = node({"openfuyao.com/npu.present": "true"}, boot_id=command_runner.tree.boot_id)
        return AscendGround(command_runner, workloads(command_runner.node))

    return build


def reboot_asked_for(one: AscendGround) -> str:
    """A reconcile asks for a reboot, and so does preflight find nothing amiss."""
    looked = one.command_runner.run("preflight", "-o", "text", DRIVER_LOAD="container", **EVICT)
    asked = one.command_runner.reconcile("--no-wait", DRIVER_LOAD="container")
    return complaints(looked) + complaints(asked, 9)


def rebooted(one: AscendGround) -> str:
    """An approved reboot with slot and eviction, and what comes after the boot."""
    env = {"OPERATOR_NAMESPACE": "npu-operator", "REBOOTER_INTERVAL": "0.1s", "REBOOT_EVICT": "true"}
    tree, node = one.command_runner.tree, one.node
    (pod,) = one.made.managed(1, Shape(resource="huawei.com/Ascend910"))
    (tree.root / "var/lib/ascend/.reboot-required").write_text("upgrade\n")
    node.api.patch(node.path, {"metadata": {"annotations": {f"{ASCEND}approve-reboot": "true"}}})
    first = one.command_runner.start("rebooter", **env)
    wait_until(lambda: tree.is_told_to_reboot or refused(first), "the reboot is told, or a right lacks", RUN_TIMEOUT_S)
    if said := refused(first):
        return said
    assert pod.state() == "gone"
    first.kill()
    one.reboot()
    second = one.command_runner.start("rebooter", **env)
    wait_until(lambda: is_clean(node) or refused(second), "all is given back, or a right lacks", RUN_TIMEOUT_S)
    return refused(second) or complaints(second.terminate())


def refused(run: Command) -> str:
    """What the rebooter says of a right that it lacks, "" if nothing."""
    said = run.said()
    return said if "forbidden" in said or WARNING in said or run.has_ended else ""


def is_clean(node: Node) -> bool:
    """Whether nothing tells of a reboot any more, and the slot is free."""
    keys = {**node.labels(), **node.annotations()}
    ours = [key for key in keys if key.startswith(ASCEND)]
    return not ours and not node.api.get(LEASE)["spec"].get("holderIdentity")


def test_the_rights_of_an_agent_that_never_unloads_are_enough(ascend: AscendFactory) -> None:
    assert reboot_asked_for(ascend(ASCEND_ACCOUNT)) == ""


@pytest.mark.parametrize("right", rights_of(REBOOTER, ASCEND_ACCOUNT), ids=shown)
def test_every_right_of_an_agent_that_never_unloads_is_needed(
    admin_api: Api, ascend: AscendFactory, right: Right
) -> None:
    with without(admin_api, REBOOTER, ASCEND_ACCOUNT, right):
        said = reboot_asked_for(ascend(ASCEND_ACCOUNT))
    assert f"{right[4]} {right[2]}" in said, said


def test_a_right_too_many_is_found(admin_api: Api, ascend: AscendFactory) -> None:
    role = only(REBOOTER, "ClusterRole", "ascend-driver-agent")
    wider = copy.deepcopy(role)
    wider["rules"].append({"apiGroups": [""], "resources": ["pods"], "verbs": ["watch"]})
    objects = [wider if one is role else one for one in REBOOTER]
    right = ("", "", "pods", "", "watch")
    assert right in rights_of(objects, ASCEND_ACCOUNT)
    apply(admin_api, wider)
    try:
        with without(admin_api, objects, ASCEND_ACCOUNT, right):
            assert reboot_asked_for(ascend(ASCEND_ACCOUNT)) == ""
    finally:
        apply(admin_api, role)


def test_the_rebooters_rights_are_enough(ascend: AscendFactory) -> None:
    assert rebooted(ascend(REBOOTER_ACCOUNT)) == ""


@pytest.mark.shares(6)
@pytest.mark.parametrize("right", rights_of(REBOOTER, REBOOTER_ACCOUNT), ids=shown)
def test_every_right_of_the_rebooter_is_needed(admin_api: Api, ascend: AscendFactory, right: Right) -> None:
    with without(admin_api, REBOOTER, REBOOTER_ACCOUNT, right):
        said = rebooted(ascend(REBOOTER_ACCOUNT))
    assert f"{right[4]} {right[2]}" in said, said
