"""Pages of docs/ on a real API server, and kubectl in the sandbox's shell: commands in their order and what they print.

Where a page says `-k mine`, the test gives what kustomize makes of it by `-f`: it must not need a new kubectl.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import yaml

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import GROUP
from driver_manager.domain.profile import Strategy
from driver_manager.profiles import builtin
from driver_manager.sandbox.host import HostTree
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, only, render, render_with_namespace
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.kubelet import NEVER, Node, NodeFactory, OperandsFactory
from tests.support.control_plane.pod_process import (
    MANAGER,
    DriverNode,
    PodRunner,
    old_driver,
    request_token,
    settled,
    wait_pod,
)
from tests.support.control_plane.processes import RUN_TIMEOUT_S
from tests.support.control_plane.rollout_fleet import FleetFactory, serve_rollouts
from tests.support.control_plane.runner import (
    JOURNAL,
    NEW,
    OLD,
    OLD_DIGEST,
    OLD_ROOT,
    PREFIX,
    CommandRunner,
    RunnerFactory,
    assert_untouched,
    start_and_take,
)
from tests.support.control_plane.servers import NAMESPACE, ControlPlane
from tests.support.deploy.apply import applied, apply, path_of
from tests.support.docs.console import commands, commands_below, files
from tests.support.docs.markdown import DOCS
from tests.support.tiers import skip_or_fail

FILE = "by-hand.kubeconfig"
ACCOUNT = "rebellions-driver"
POD = "driver-pod"
CREATE_TOKEN = "kubectl -n $NS create token $A --bound-object-kind=Pod --bound-object-name=$P"
IN_POD = "kubectl -n $NS exec -i $D -- "


def recipe() -> tuple[str, ...]:
    """The commands of the page from the first to the last that has the file."""
    found = [one.text for one in commands(DOCS / "operate.md")]
    mine = [number for number, text in enumerate(found) if FILE in text]
    assert mine == list(range(mine[0], mine[-1] + 1)), "they are one block"
    return tuple(found[mine[0] : mine[-1] + 1])


def runbook_variables() -> tuple[str, ...]:
    """The commands of the page that find the driver pod of the node N, of any vendor."""
    return tuple(one.text for one in commands(DOCS / "operate.md") if re.match(r"read |A=", one.text))


def typed(line: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Type a line in a shell at home. Without kubectl the test skips, or fails if the tier is required."""
    if shutil.which("kubectl") is None:
        skip_or_fail("kubectl is not on PATH")
    return subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", line],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **env},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )


def by_plugin(plane: ControlPlane, home: Path) -> dict[str, str]:
    """The environment of a person whose kubeconfig has a credential plugin that only they have."""
    version, script = "client.authentication.k8s.io/v1beta1", home / "plugin/cloud-login"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": plane.admin.token}}
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    script.chmod(0o700)
    config = json.loads(plane.kubeconfig("unused").read_text())
    config["users"][0]["user"] = {"exec": {"apiVersion": version, "command": script.name}}
    (home / "config").write_text(json.dumps(config))
    return {"PATH": os.pathsep.join([str(script.parent), os.environ["PATH"]]), "KUBECONFIG": str(home / "config")}


@pytest.mark.shares(6)
def test_a_token_by_the_page_does_what_the_plugins_kubeconfig_cannot(
    control_plane: ControlPlane, admin_api: Api, tmp_path: Path, runner_for: RunnerFactory
) -> None:
    view, credentials, context, status, remove = recipe()
    home, runner = tmp_path / "home", runner_for({f"{PREFIX}driver": "true"}, user=control_plane.nobody)
    mine, node = by_plugin(control_plane, home), runner.node
    (runner.tree.bin / "driver-manager").symlink_to(Path(sys.executable).parent / "driver-manager")
    pod = runner.environment(DRIVER_PROFILE="rebellions")
    inside = " ".join(f"{name}={pod[name]}" for name in ("PATH", "HOST_ROOT", "TERMINATION_LOG", "DRIVER_PROFILE"))
    meant = {IN_POD: f"env -i {inside} "}
    values = {"NS": NAMESPACE, "N": node.name, "P": POD, "A": ACCOUNT}

    def types(line: str) -> subprocess.CompletedProcess[str]:
        for written, instead in meant.items():
            line = line.replace(written, instead)
        return typed(f"set -o pipefail\n{line}", home, **mine, **values)

    with applied(admin_api, [one for one in render_with_namespace("rebellions") if one["kind"] != "DaemonSet"]):
        containers = [{"name": "c", "image": "i"}]
        spec = {"serviceAccountName": ACCOUNT, "nodeName": node.name, "containers": containers}
        spec["initContainers"] = [{"name": MANAGER, "image": "i:1"}]
        body = {"metadata": {"name": POD}, "spec": {**spec, "terminationGracePeriodSeconds": 0}}
        made = admin_api.post(f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        found = types("\n".join((*runbook_variables(), 'echo "$NS $P $IMAGE $A"')))
        assert found.stdout == f"{NAMESPACE} {POD} i:1 {ACCOUNT}\n", found.stderr
        if "token" not in types("kubectl create --help").stdout:  # before 1.24: what the newer one asks for
            meant[CREATE_TOKEN] = f"echo {request_token(admin_api, NAMESPACE, ACCOUNT, made)}"
        ended = types(status.replace(f"--kubeconfig={FILE} ", ""))
        assert ended.returncode == ExitCode.USAGE, ended.stdout + ended.stderr
        words = " ".join(ended.stdout.split())  # the screen wraps them
        assert "the API server requires credentials, and the kubeconfig has none" in words
        assert "kubectl create token" in words

        for line in (view, credentials, context):
            done = types(line)
            assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        assert (home / FILE).stat().st_mode & 0o077 == 0
        shown = types(status)
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert shown.stdout.startswith("ready: ")
        assert "access" not in shown.stdout, "nothing is unreadable"
        assert node.name in shown.stdout
        assert types(status.replace("status", "restore --dry-run")).returncode == 0
        assert types(remove).returncode == 0
        assert not (home / FILE).exists()


PAGE = DOCS / "going-back.md"
BAD = "3.0.0"


def lines_of(section: str) -> tuple[str, ...]:
    """The commands below one heading of the page, up to the next heading."""
    return tuple(commands_below(PAGE, section))


SECTIONS = (
    "First, stop it from spreading",
    "One node",
    "Only this node",
    "The fleet",
    "The manager",
    "Remove everything",
)


def test_no_command_of_the_page_is_left_out() -> None:
    assert sum((lines_of(section) for section in SECTIONS), ()) == tuple(one.text for one in commands(PAGE))


class Laptop:
    """A person with an administrator's kubeconfig, who types what the page says."""

    def __init__(self, plane: ControlPlane, home: Path) -> None:
        self.home = home
        self._mine = home / "mine.json"
        self.env = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "KUBECONFIG": str(plane.kubeconfig(plane.admin.token)),
            "DRIVER_PROFILE": "rebellions",
            "TERMINATION_LOG": str(home / "last-line"),
        }

    def edit(self, objects: list[Json]) -> None:
        self._mine.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def tries(self, line: str, **names: str) -> subprocess.CompletedProcess[str]:
        """Type one line; `names` are what its single capital letters stand for."""
        for name, meant in names.items():
            line = re.sub(rf"\b{name}\b", meant, line)
        return typed(line.replace("-k mine", f"-f {self._mine}"), self.home, **self.env)

    def types(self, line: str, **names: str) -> str:
        """As `tries`, for a line that ends well; what it prints."""
        done = self.tries(line, **names)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def laptop(control_plane: ControlPlane, tmp_path: Path) -> Laptop:
    (tmp_path / "home").mkdir()
    return Laptop(control_plane, tmp_path / "home")


def drivers(digest: str) -> Json:
    """The DaemonSet of the overlay `rebellions`, for the driver of this digest."""
    found = copy.deepcopy(only(render("rebellions"), "DaemonSet"))
    found["spec"]["template"]["metadata"]["annotations"][f"{GROUP}/driver-config-digest"] = digest
    return found


@pytest.fixture
def bad_driver(
    control_plane: ControlPlane,
    containers: None,
    admin_api: Api,
    tmp_path: Path,
    node: NodeFactory,
    operands: OperandsFactory,
    laptop: Laptop,
) -> Iterator[DriverNode]:
    """The overlay was applied with the former driver and then with a bad one, which one node has got."""
    tree = old_driver(tmp_path, builtin()["rebellions"], OLD_DIGEST)
    with ExitStack() as stack:
        stack.enter_context(
            applied(admin_api, (one for one in render_with_namespace("rebellions") if one["kind"] != "DaemonSet"))
        )
        laptop.edit([drivers(OLD_DIGEST)])
        laptop.types("kubectl apply --server-side -k mine")
        stack.callback(gone, partial(admin_api.delete, path_of(drivers(""))))
        runner = PodRunner(control_plane, admin_api, tree, tmp_path)
        first = settled(node(boot_id=tree.boot_id), drivers(OLD_DIGEST), tree, runner)
        operands(first.node, ("device-plugin",))
        assert runner.run(first.pod, MANAGER).code == 0

        laptop.edit([drivers("bad")])
        laptop.types("kubectl apply --server-side -k mine")
        second = DriverNode(tree, first.node, runner, successor(first, first.pod))
        assert runner.run(second.pod, MANAGER).code == 0
        second.install(BAD, "bad")
        yield second


def successor(driver_node: DriverNode, pod: Json) -> Json:
    """The driver pod that comes after this one, which is deleted if it is still there."""
    meta = pod["metadata"]
    gone(partial(driver_node.node.api.delete, f"/api/v1/namespaces/{NAMESPACE}/pods/{meta['name']}"))
    found: list[Json] = []

    def is_there() -> bool:
        found[:] = [wait_pod(driver_node.node.api, driver_node.node.name, "rebellions-driver")]
        return bool(found[0]["metadata"]["uid"] != meta["uid"])

    wait_until(is_there, "the next driver pod")
    return found[0]


@pytest.mark.shares(6)
def test_one_node_goes_back_by_the_page(bad_driver: DriverNode, laptop: Laptop) -> None:
    node, labels = bad_driver.node, bad_driver.node.labels()
    states, pods = lines_of("First, stop it from spreading")
    undo, apply, delete, look, status = lines_of("One node")
    pod = bad_driver.pod["metadata"]["name"]
    assert re.search(rf"{node.name} .* ready$", laptop.types(states), re.MULTILINE)
    revision = bad_driver.pod["metadata"]["labels"]["controller-revision-hash"]
    assert re.search(rf"{pod} .* {revision}$", laptop.types(pods), re.MULTILINE)

    laptop.types(undo)
    assert node.api.get(path_of(drivers("")))["metadata"]["generation"] == 3
    assert wait_pod(node.api, node.name, "rebellions-driver")["metadata"]["name"] == pod, "no pod is restarted by it"
    without_force = laptop.tries(apply.replace(" --force-conflicts", ""))
    assert 'conflict with "kubectl' in without_force.stderr, "what was bad is not applied by mistake"
    laptop.edit([drivers(OLD_DIGEST)])
    laptop.types(apply)
    laptop.types(delete, P=pod)
    after = successor(bad_driver, bad_driver.pod)
    ended = bad_driver.runner.run(after, MANAGER)
    assert ended.code == 0, ended.err
    assert bad_driver.tree.driver_version == "not loaded", "its container loads it"
    bad_driver.install(OLD, OLD_DIGEST)
    assert re.search(r" ready$", laptop.types(look, N=node.name), re.MULTILINE)
    assert laptop.types(status, N=node.name).startswith("ready")
    assert (node.labels(), JOURNAL in node.annotations()) == (labels, False)


@pytest.fixture
def runner(runner_for: RunnerFactory) -> CommandRunner:
    """A node on which the former driver is loaded, and the new one at hand."""
    return runner_for({f"{PREFIX}driver": "true", "kubernetes.io/os": "linux"})


@pytest.mark.shares(6)
def test_the_run_of_the_former_driver_loads_it_again_where_a_node_is_held(
    runner: CommandRunner, operands: OperandsFactory
) -> None:
    node = runner.node
    operands(node, ("device-plugin",))
    labels = node.labels()
    for root in ("/opt/rbln/bad", OLD_ROOT):
        runner.tree.add_driver(root, BAD, fails=True)
    assert runner.reconcile(DRIVER_ROOT="/opt/rbln/bad").code == 5
    assert node.shown()[0] == "held"
    runner.tree.add_driver(OLD_ROOT, OLD)
    ended = runner.reconcile(DRIVER_CONFIG_DIGEST=OLD_DIGEST, DRIVER_ROOT=OLD_ROOT)
    assert (ended.code, f"done: driver {OLD} loaded" in ended.last_line) == (0, True), ended.err
    assert "wait until" not in ended.err, "another wanted driver is a change"
    assert (runner.tree.driver_version, runner.tree.digest) == (OLD, OLD_DIGEST)
    assert_untouched(runner, labels)


@pytest.mark.shares(6)
def test_a_node_that_a_killed_run_has_left_is_seen_from_a_laptop_and_released_on_the_node(
    runner: CommandRunner, operands: OperandsFactory, laptop: Laptop
) -> None:
    node = runner.node
    operands(node, ("device-plugin",))
    labels = node.labels()
    taken, look = lines_of("The manager")
    assert re.search(rf"^{node.name} +<none>$", laptop.types(taken), re.MULTILINE)
    node.kubelet.stop_after("device-plugin", NEVER)
    start_and_take(runner).kill()
    node.kubelet.release()
    assert node.shown()[0] == "upgrading"
    assert re.search(rf'^{node.name} +{{.*"owner"', laptop.types(taken), re.MULTILINE)
    assert "would restore" in laptop.types(look, N=node.name)
    assert JOURNAL in node.annotations()
    restored = runner.run("restore")
    assert restored.code == 0, restored.err
    assert re.search(rf"^{node.name} +<none>$", laptop.types(taken), re.MULTILINE)
    assert node.labels() == labels


@pytest.mark.shares(6)
def test_the_fleet_goes_back_by_the_page(rollout_fleet: FleetFactory, laptop: Laptop) -> None:
    fleet = rollout_fleet(4)
    fleet.start()
    fleet.make_complete(waves=[{"name": "canary", "count": 1, "approval": True}, {"name": "rest"}])
    (good,) = set(fleet.serving().values())
    (leave_out,) = lines_of("Only this node")
    out = fleet.nodes[3]
    laptop.types(leave_out, N=out)
    bad = fleet.set_driver("driver:bad")
    wait_until(lambda: bad in fleet.serving().values(), "the canary", 60)
    wait_until(lambda: fleet.status().get("phase") == "WaitingForApproval", "the canary is done", 60)

    pause, status, history, undo, resume = lines_of("The fleet")
    laptop.types(pause)
    assert laptop.types(status).startswith("Paused")
    assert bad in laptop.types(history)
    laptop.types(undo)
    wait_until(lambda: fleet.status().get("targetRevision") == good, "the template goes back", 60)
    assert bad in fleet.serving().values(), "no node does, while it is paused"
    laptop.types(resume)
    wait_until(lambda: fleet.is_complete(good), f"{fleet.status()}", 120)
    assert fleet.serving() == dict.fromkeys(fleet.nodes, good)
    fleet.set_driver("driver:bad")
    wait_until(lambda: "FailedBefore" in laptop.types(f"{status} || true"), "it is not tried again", 60)


REMOVE = "Remove everything"
NOT_ON_THIS_SERVER = ("PodDisruptionBudget", "PodMonitor", "PrometheusRule")
KINDS = (
    *("core/serviceaccounts", "core/pods", "apps/daemonsets", "apps/deployments", "coordination.k8s.io/leases"),
    *("rbac.authorization.k8s.io/roles", "rbac.authorization.k8s.io/rolebindings"),
    *("rbac.authorization.k8s.io/clusterroles", "rbac.authorization.k8s.io/clusterrolebindings"),
)


def variables(vendor: str) -> dict[str, str]:
    """What the page sets for the vendor, as a shell understands it."""
    (line,) = re.findall(rf"^V={vendor} .*$", PAGE.read_text(), re.MULTILINE)
    return dict(word.split("=", 1) for word in shlex.split(line))


@pytest.mark.parametrize("vendor", OVERLAYS)
def test_the_page_finds_every_key_of_a_vendor_and_no_other(vendor: str) -> None:
    given, profile = variables(vendor), builtin()[vendor]
    assert given["NS"] == profile.namespace
    found = {name for name in profile.keys.names if re.match(given["D"], name)}
    assert found == profile.keys.names
    assert not [key for key in profile.deploy.on_unless_false if re.match(given["D"], key)]
    assert profile.keys.condition == f"{given['D'].partition('/')[0]}/DriverReady"


def test_the_page_removes_no_key_without_the_prefix_of_a_vendor(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho $* >> {tmp_path}/calls\necho \'"kubernetes.io/hostname": "a"\'\n')
    kubectl.chmod(0o755)
    (line,) = [line for line in lines_of(REMOVE) if "kubectl label nodes --all" in line]
    typed(line, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (tmp_path / "calls").read_text() == "get nodes -o json\n"


def everything(api: Api, node: Node, tree: HostTree, namespace: str) -> dict[str, object]:
    """What could be left of an installation: of the Node, the cluster, the namespaces and the host's disk."""
    read = node.read()
    meta, root = read["metadata"], tree.profile.paths.driver_root
    found: dict[str, object] = {kind: {*meta.get(kind, {})} for kind in ("labels", "annotations")}
    found["conditions"] = {one["type"] for one in read["status"].get("conditions", [])}
    for kind in KINDS:
        group, _, plural = kind.partition("/")
        listed = api.list(f"/api/v1/{plural}" if group == "core" else f"/apis/{group}/v1/{plural}")
        spaces = (namespace, "default", None)
        found[kind] = {one["metadata"]["name"] for one in listed if one["metadata"].get("namespace") in spaces}
    disk = (path for path in (tree.root / "var").rglob("*") if not path.is_dir())
    found["disk"] = {str(path) for path in disk if not str(path).startswith(f"{tree.root}{root}")}
    return found


def lead(runner: PodRunner, node: Node, deployment: Json) -> None:
    """The controller of rollouts runs until it leads; its pod is gone then."""
    meta, spec = deployment["metadata"], copy.deepcopy(deployment["spec"]["template"]["spec"])
    spec |= {"nodeName": node.name, "terminationGracePeriodSeconds": 0}
    path = f"/api/v1/namespaces/{meta['namespace']}/pods"
    pod = node.api.post(path, {"metadata": {"name": f"{meta['name']}-{node.name}"}, "spec": spec})
    (container,) = pod["spec"]["containers"]
    container["env"] = [one for one in container["env"] if one["name"] != "ROLLOUT_STATUS_ADDR"]
    running = runner.start(pod, "controller")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{meta['namespace']}/leases"
    wait_until(lambda: "rollout" in str(node.api.list(lease)), "the controller leads", RUN_TIMEOUT_S)
    assert running.terminate().code == 0
    gone(partial(node.api.delete, f"{path}/{pod['metadata']['name']}", grace_s=0))


def replace_driver(driver_node: DriverNode) -> None:
    """An upgrade to its end, with the reboot where the driver needs one."""
    node, runner, profile = driver_node.node, driver_node.runner, driver_node.tree.profile
    if profile.strategy is not Strategy.REBOOT:
        assert runner.run(driver_node.pod, MANAGER).code == 0
        driver_node.install(NEW, "sample-2.0.1")
        return
    rebooters = wait_pod(node.api, node.name, f"{profile.name}-driver-rebooter")
    waiting, rebooter = runner.start(driver_node.pod, MANAGER), runner.start(rebooters, "rebooter")
    asked = profile.keys.reboot_required
    wait_until(lambda: asked in node.labels(), "a reboot is asked for", RUN_TIMEOUT_S)
    node.api.patch(node.path, {"metadata": {"annotations": {profile.keys.approve_reboot: "true"}}})
    wait_until(lambda: driver_node.tree.is_reboot_requested, "the reboot command is given", RUN_TIMEOUT_S)
    driver_node.boot(waiting, rebooter)
    assert runner.run(driver_node.pod, MANAGER).code == 0
    driver_node.install(NEW, "sample-2.0.1")
    rebooter = runner.start(rebooters, "rebooter")
    slot = f"/apis/coordination.k8s.io/v1/namespaces/{profile.namespace}/leases/driver-manager-reboots"
    wait_until(lambda: not node.api.get(slot)["spec"].get("holderIdentity"), "the slot is given back", RUN_TIMEOUT_S)
    assert rebooter.terminate().code == 0


@pytest.mark.shares(6)
@pytest.mark.parametrize("vendor", ["rebellions", "nvidia", "ascend"])
def test_the_pages_removal_leaves_nodes_cluster_and_host_as_they_were(
    vendor: str,
    control_plane: ControlPlane,
    containers: None,
    admin_api: Api,
    tmp_path: Path,
    node: NodeFactory,
    laptop: Laptop,
) -> None:
    given, tree = variables(vendor), old_driver(tmp_path, builtin()[vendor], OLD_DIGEST)
    runner, mine = PodRunner(control_plane, admin_api, tree, tmp_path), node(boot_id=tree.boot_id)
    serve_rollouts(admin_api)
    apply(admin_api, only(render(f"{vendor}/namespace"), "Namespace"))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{given['NS']}/leases"
    for one in admin_api.list(leases):  # of other tests
        gone(partial(admin_api.delete, f"{leases}/{one['metadata']['name']}"))
    before = everything(admin_api, mine, tree, given["NS"])

    rendered = (*render(vendor, "metrics", "node-condition"), *render(f"{vendor}/rollout"))
    objects = [one for one in rendered if one["kind"] not in NOT_ON_THIS_SERVER]
    rollout = yaml.safe_load((DEPLOY / f"overlays/{vendor}/rollout/driverrollout.yaml").read_text())
    laptop.edit([*objects, rollout])
    laptop.types("kubectl apply --server-side --force-conflicts -k mine")
    driver_node = settled(mine, only(objects, "DaemonSet", f"{vendor}-driver"), tree, runner)
    lead(runner, mine, only(objects, "Deployment"))
    replace_driver(driver_node)
    assert runner.run(driver_node.pod, MANAGER).code == 0
    used = everything(admin_api, mine, tree, given["NS"])
    assert [part for part in before if used[part] == before[part]] == [], "everything has been used"

    delete, look, uninstall, free, keys, condition, *host, definition, namespace = lines_of("Remove everything")
    assert ("delete crd" in definition, "delete namespace" in namespace) == (True, True), "other tests need both"
    laptop.env |= given
    laptop.types(delete, R=rollout["metadata"]["name"])
    assert not re.search(r'\.(journal|rollout)"', laptop.types(look))
    for line in (uninstall, free, keys, condition):
        laptop.types(line)
    mine.set_labels(dict.fromkeys(driver_node.pod["spec"]["nodeSelector"]))
    for line in host:
        laptop.types(line.replace("/var/", f"{tree.root}/var/"))

    def changed() -> dict[str, object]:
        now = everything(admin_api, mine, tree, given["NS"])
        return {part: (before[part], now[part]) for part in now if now[part] != before[part]}

    with suppress(AssertionError):
        wait_until(lambda: not changed(), "nothing is left")
    assert changed() == {}


@pytest.mark.shares(6)
def test_an_update_from_selectors_of_an_earlier_version_keeps_the_driver_pods(
    admin_api: Api, node: NodeFactory, laptop: Laptop
) -> None:
    text = (DOCS / "install.md").read_text()
    (block,) = re.findall(r"^```\n(kubectl -n rbln-system label pods.*?)^```", text, re.MULTILINE | re.DOTALL)
    earlier = drivers(OLD_DIGEST)
    for labels in (earlier["spec"]["selector"]["matchLabels"], earlier["spec"]["template"]["metadata"]["labels"]):
        del labels["app.kubernetes.io/instance"]
    accounts = (one for one in render_with_namespace("rebellions") if one["kind"] != "DaemonSet")
    with applied(admin_api, accounts), ExitStack() as stack:
        stack.callback(gone, partial(admin_api.delete, path_of(earlier)))
        laptop.edit([earlier])
        laptop.types("kubectl apply --server-side -k mine")
        mine = node(labels=earlier["spec"]["template"]["spec"]["nodeSelector"])
        pod = wait_pod(admin_api, mine.name, "rebellions-driver")["metadata"]
        laptop.edit([drivers(OLD_DIGEST)])
        assert "field is immutable" in laptop.tries("kubectl apply --server-side -k mine").stderr
        for line in (*block.splitlines(), "kubectl apply --server-side -k mine"):
            laptop.types(line)
        owner = admin_api.get(path_of(earlier))["metadata"]["uid"]
        wait_until(lambda: [owners(one) for one in mine.pods()] == [[owner]], "the new DaemonSet has the pod")
        assert [one["metadata"]["uid"] for one in mine.pods()] == [pod["uid"]]
        history = laptop.types("kubectl -n rbln-system rollout history ds/rebellions-driver")
        assert history.count("<none>") == 2, "the earlier revision is there, too"


def owners(pod: Json) -> list[str]:
    return [one["uid"] for one in pod["metadata"].get("ownerReferences", [])]


OPERANDS_PAGE = DOCS / "operands.md"
KEY = f"{PREFIX}device-plugin"
MADE = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/device-plugin"

Types = Callable[[str], str]


@pytest.fixture
def types(laptop: Laptop, admin_api: Api, runner: CommandRunner) -> Iterator[Types]:
    """Types a line of the page where its files are; what kubectl prints."""
    for name, content in files(OPERANDS_PAGE).items():
        (laptop.home / name).write_text(content)
    yield lambda line: laptop.types(line, N=runner.node.name)
    gone(partial(admin_api.delete, MADE, grace_s=0))


def plugin(runner: CommandRunner) -> str:
    found: list[str] = []

    def runs() -> bool:
        pods = [one for one in runner.node.pods() if one["metadata"]["labels"].get("app") == "device-plugin"]
        found[:] = [one["metadata"]["uid"] for one in pods if one["status"].get("phase") == "Running"]
        return len(found) == 1

    wait_until(runs, "the plugin runs")
    return found[0]


@pytest.mark.shares(6)
def test_an_ordinary_plugin_stays_and_the_pages_operand_leaves_and_comes_back(
    types: Types, runner: CommandRunner
) -> None:
    label, patch, rolled = (one.text for one in commands(OPERANDS_PAGE) if one.text.startswith("kubectl"))
    types("kubectl apply -f device-plugin.yaml")
    ordinary = plugin(runner)
    before = runner.run("plan", LOG_FORMAT="text").out
    assert "operand pod(s)" not in before

    types(label)
    types(patch)
    types(rolled)
    wait_until(lambda: plugin(runner) != ordinary, "the operand takes the plugin's place")
    operand, labels = plugin(runner), runner.node.labels()
    assert labels[KEY] == "true"
    promised = re.findall(r"^ +(\d\. .*)$", OPERANDS_PAGE.read_text(), re.MULTILINE)
    assert len(promised) == 2
    output = runner.run("plan", LOG_FORMAT="text").out
    assert [line for line in promised if line not in output] == [], output

    assert runner.reconcile().code == 0
    assert runner.tree.driver_version == NEW
    assert_untouched(runner, labels)
    assert plugin(runner) != operand, "it has left and come back"


TIMEOUT_S = 900.0
NODE, SHOWN = "sandbox-node", "rebellions.ai/npu-driver-manager.state"
PLUGINS = "kubectl -n rbln-system get pods -l app=rbln-device-plugin"
TYPED = {
    f"kubectl get nodes -L {SHOWN}": rf"^{NODE} +Ready +<none> .* ready$",
    f"kubectl get nodes -l '{SHOWN} in (held,failed)'": r"^No resources found$",
    "kubectl get pods -A": r"^rbln-system +rbln-driver-\S+ +0/1 +Init:0/1 +0 ",
    "kubectl get pods -A --no-headers | grep -c '1/1 *Running'": r"^6$",
    "kubectl -n rbln-system get ds": r"^rbln-driver ",
    f"kubectl describe node {NODE}": (
        rf"(?s){SHOWN}=ready\n.*Unschedulable: +false\n.*Non-terminated Pods: +\(7 in total\)\n"
        r".*\n +cpu +0 \(0%\).*Normal +DriverReconciled .*driver 2\.0\.1"
    ),
    "kubectl -n rbln-system describe pod rbln-driver": (
        r"(?s)\nControlled By: +DaemonSet/rbln-driver\n.*k8s-driver-manager:"
    ),
    "kubectl get events -A": rf" DriverReconciled +node/{NODE} ",
    f"kubectl cordon {NODE}": rf"^node/{NODE} cordoned$",
    f"kubectl get node {NODE}": "Ready,SchedulingDisabled",
    f"kubectl uncordon {NODE}": rf"^node/{NODE} uncordoned$",
    f"kubectl label node {NODE} team=a && kubectl annotate node {NODE} note=b": "",
    f"kubectl get node {NODE} -o jsonpath='{{.metadata.labels.team}} {{.metadata.annotations.note}}'": "^a b$",
    f"before=$({PLUGINS} -o name) && kubectl -n rbln-system delete pod -l app=rbln-device-plugin": "deleted",
    f'after=$({PLUGINS} -o name) && test "$before" != "$after" && echo "$after" | wc -l': "^1$",
    "! kubectl get pod no-such-pod": r'^Error from server \(NotFound\): pods "no-such-pod" not found$',
    "driver-manager status": "^ready since ",
}
"""Lines for the shell after the scenario `upgrade`, each with what it prints; each ends well."""


@pytest.mark.shares(6)
def test_kubectl_works_in_the_sandboxs_shell(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        skip_or_fail("kubectl is not on PATH")
    script = "".join(f"echo '=== {number}'\n{line} 2>&1\necho status $?\n" for number, line in enumerate(TYPED))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SHELL": "/bin/sh", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "driver_manager", "sandbox", "--shell"],
        input=script,
        env=env,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, *parts = re.split(r"^=== \d+\n", done.stdout, flags=re.MULTILINE)
    for (line, wanted), part in zip(TYPED.items(), parts, strict=True):
        printed, _, status = part.partition("status ")
        assert re.search(wanted, printed, re.MULTILINE), f"$ {line}\n{part}"
        assert status.startswith("0"), f"$ {line}\n{part}"
