"""Pages of docs/ on a real API server, and kubectl in the sandbox's shell: commands in their order and what they print.

Where a page says `-k mine`, the test gives what kustomize makes of it by `-f`: it must not need a new kubectl.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.profiles import builtin
from scripts.releasing.kustomize import only, render, render_with_namespace
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.fixtures import skip_or_fail
from tests.support.control_plane.kubelet import NEVER, NodeFactory, OperandsFactory
from tests.support.control_plane.pod_process import DriverNode, PodRunner, old_driver, settled, wait_pod
from tests.support.control_plane.processes import RUN_TIMEOUT_S
from tests.support.control_plane.rollout_fleet import RolloutFleet, serve_rollouts
from tests.support.control_plane.runner import (
    JOURNAL,
    NEW,
    OLD,
    OLD_DIGEST,
    OLD_ROOT,
    PREFIX,
    CommandRunner,
    assert_untouched,
    node_of,
    start_and_take,
)
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, User
from tests.support.deploy.apply import applied, path_of
from tests.support.docs.console import commands, commands_below, files
from tests.support.docs.markdown import DOCS

FILE = "by-hand.kubeconfig"
ACCOUNT = "rebellions-driver"
POD = "driver-pod"
CREATE_TOKEN = f"kubectl -n {NAMESPACE} create token {ACCOUNT} --bound-object-kind=Pod --bound-object-name={POD}"
IN_POD = f"kubectl -n {NAMESPACE} exec -i D -- "


def recipe() -> tuple[str, ...]:
    """The commands of the page from the first to the last that has the file."""
    found = [one.text for one in commands(DOCS / "operate.md")]
    mine = [number for number, text in enumerate(found) if FILE in text]
    assert mine == list(range(mine[0], mine[-1] + 1)), "they are one block"
    return tuple(found[mine[0] : mine[-1] + 1])


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


@dataclass
class PluginLaptop:
    """A person with kubectl and a plugin, and a debug pod on the node that has neither."""

    folder: Path
    runner: CommandRunner
    api: Api

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        pod = self.runner.environment(DRIVER_PROFILE="rebellions")
        inside = " ".join(f"{name}={pod[name]}" for name in ("PATH", "HOST_ROOT", "TERMINATION_LOG", "DRIVER_PROFILE"))
        line = line.replace(IN_POD, f"env -i {inside} ").replace(
            "--node-name=N", f"--node-name={node_of(self.runner).name}"
        )
        line = line.replace("--bound-object-name=P)", f"--bound-object-name={POD})")
        if "token" not in self._run("kubectl create --help").stdout:  # kubectl before 1.24: what the newer one asks for
            line = line.replace(CREATE_TOKEN, f"echo {self._token()}")
        return self._run(line)

    def _token(self) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": POD}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
        return str(self.api.post(path, body)["status"]["token"])

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder / "plugin"), os.environ["PATH"]])
        return typed(f"set -o pipefail\n{line}", self.folder, PATH=path, KUBECONFIG=str(self.folder / "config"))


@pytest.fixture
def plugin_laptop(
    control_plane: ControlPlane, admin_api: Api, tmp_path: Path, node: NodeFactory
) -> Iterator[PluginLaptop]:
    """The overlay's account and its rights are there, and a node whose driver is loaded."""
    home, plugin = tmp_path / "home", tmp_path / "home/plugin"
    plugin.mkdir(parents=True)
    version = "client.authentication.k8s.io/v1beta1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": control_plane.admin.token}}
    script = plugin / "cloud-login"
    script.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    script.chmod(0o700)
    config = json.loads(control_plane.kubeconfig("unused").read_text())
    config["users"][0]["user"] = {"exec": {"apiVersion": version, "command": script.name}}
    (home / "config").write_text(json.dumps(config))
    runner = CommandRunner(control_plane, control_plane.nobody, tmp_path).with_upgrade()
    (runner.tree.bin / "driver-manager").symlink_to(Path(sys.executable).parent / "driver-manager")
    runner.node = node({f"{PREFIX}driver": "true"}, boot_id=runner.tree.boot_id)
    objects = [one for one in render_with_namespace("rebellions") if one["kind"] != "DaemonSet"]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    with applied(admin_api, objects):
        containers = [{"name": "c", "image": "i"}]
        spec = {
            "serviceAccountName": ACCOUNT,
            "nodeName": runner.node.name,
            "containers": containers,
            "terminationGracePeriodSeconds": 0,
        }
        admin_api.post(pods, {"metadata": {"name": POD}, "spec": spec})
        yield PluginLaptop(home, runner, admin_api)


@pytest.mark.shares(6)
def test_a_token_by_the_page_does_what_the_plugins_kubeconfig_cannot(plugin_laptop: PluginLaptop) -> None:
    view, credentials, context, status, remove = recipe()
    without = status.replace(f"--kubeconfig={FILE} ", "")
    ended = plugin_laptop.types(without)
    assert ended.returncode == ExitCode.USAGE, ended.stdout + ended.stderr
    assert "the API server requires credentials, and the kubeconfig has none" in ended.stderr
    assert "kubectl create token" in ended.stderr

    for line in (view, credentials, context):
        done = plugin_laptop.types(line)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    assert (plugin_laptop.folder / FILE).stat().st_mode & 0o077 == 0
    shown = plugin_laptop.types(status)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.startswith("ready: ")
    assert "access" not in shown.stdout, "nothing is out of sight"
    assert node_of(plugin_laptop.runner).name in shown.stdout
    assert plugin_laptop.types(status.replace("status", "restore --dry-run")).returncode == 0
    assert plugin_laptop.types(remove).returncode == 0
    assert not (plugin_laptop.folder / FILE).exists()


PAGE = DOCS / "going-back.md"
MANAGER = "k8s-driver-manager"
BAD = "3.0.0"
SKIP = "rebellions.ai/npu-driver-upgrade.skip"
NPU = "npu.openfuyao.com/"


def said_in(section: str) -> tuple[str, ...]:
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
    assert sum((said_in(section) for section in SECTIONS), ()) == tuple(one.text for one in commands(PAGE))


class Laptop:
    """A person with an administrator's kubeconfig, who types what the page says."""

    def __init__(self, plane: ControlPlane, home: Path) -> None:
        self.home = home
        self._mine = home / "mine.json"
        self._env = {
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
        return typed(line.replace("-k mine", f"-f {self._mine}"), self.home, **self._env)

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
    found["spec"]["template"]["metadata"]["annotations"]["driver-config-digest"] = digest
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
    states, pods = said_in("First, stop it from spreading")
    undo, apply, delete, look, status = said_in("One node")
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
def runner(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node on which the former driver is loaded, and the new one at hand."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    made.node = node({f"{PREFIX}driver": "true", f"{PREFIX}device-plugin": "true"}, boot_id=made.tree.boot_id)
    return made


def rolled_back(runner: CommandRunner) -> str:
    """The new driver did not load."""
    runner.tree.add_driver("/opt/rbln/bad", BAD, fails=True)
    ended = runner.reconcile(DRIVER_ROOT="/opt/rbln/bad")
    assert "is loaded again" in ended.last_line, ended.last_line
    return "failed"


def given_back(runner: CommandRunner) -> str:
    runner.tree.hold_device_by(4711, "old-daemon")
    assert runner.reconcile(DEVICE_FREE_TIMEOUT="0s").code == 4
    runner.tree.end_process(4711)
    return "failed"


def held(runner: CommandRunner) -> str:
    """Neither did load, and the former one is repaired since."""
    for root in ("/opt/rbln/bad", OLD_ROOT):
        runner.tree.add_driver(root, BAD, fails=True)
    assert runner.reconcile(DRIVER_ROOT="/opt/rbln/bad").code == 5
    runner.tree.add_driver(OLD_ROOT, OLD)
    return "held"


def loaded(runner: CommandRunner) -> str:
    assert runner.reconcile().code == 0
    assert runner.tree.driver_version == NEW
    return "ready"


def killed(runner: CommandRunner) -> str:
    node_of(runner).kubelet.stop_after("device-plugin", NEVER)
    start_and_take(runner).kill()
    node_of(runner).kubelet.release()
    return "upgrading"


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (rolled_back, "nothing to do: driver is current"),
        (given_back, "nothing to do: driver is current"),
        (held, f"done: driver {OLD} loaded"),
        (loaded, f"done: driver {OLD} loaded"),
        (killed, ""),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_run_of_the_former_driver_does_what_the_table_says(
    runner: CommandRunner, operands: OperandsFactory, leave: Callable[[CommandRunner], str], said: str
) -> None:
    node = node_of(runner)
    operands(node, ("device-plugin",))
    labels = node.labels()
    word = leave(runner)
    assert node.shown()[0] == word
    ended = runner.reconcile(DRIVER_CONFIG_DIGEST=OLD_DIGEST, DRIVER_ROOT=OLD_ROOT)
    assert (ended.code, said in ended.last_line) == (0, True), ended.err
    assert "wait until" not in ended.err, "another wanted driver is a change"
    assert (runner.tree.driver_version, runner.tree.digest) == (OLD, OLD_DIGEST)
    assert_untouched(runner, labels)


def test_a_reboot_that_the_former_driver_does_not_need_is_taken_back(
    control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory
) -> None:
    runner = CommandRunner(control_plane, agent_with_events, tmp_path, "ascend")
    root = "/var/lib/Ascend/driver"
    runner.tree.add_driver(root, OLD)
    runner.tree.load(root)
    runner.tree.record(OLD_DIGEST, root, OLD)
    made = runner.node = node({"openfuyao.com/npu.present": "true"}, boot_id=runner.tree.boot_id)
    assert runner.reconcile("--no-wait", DRIVER_LOAD="container").code == 9
    assert made.labels()[f"{NPU}reboot-required"] == "true"
    ended = runner.reconcile("--no-wait", DRIVER_LOAD="container", DRIVER_CONFIG_DIGEST=OLD_DIGEST)
    assert ended.code == 0, ended.err
    assert f"{NPU}reboot-required" not in made.labels()
    assert not (runner.tree.root / "var/lib/ascend/.reboot-required").exists()


@pytest.mark.shares(6)
def test_a_node_that_a_killed_run_has_left_is_seen_from_a_laptop_and_released_on_the_node(
    runner: CommandRunner, operands: OperandsFactory, laptop: Laptop
) -> None:
    node = node_of(runner)
    operands(node, ("device-plugin",))
    labels = node.labels()
    taken, look = said_in("The manager")
    assert re.search(rf"^{node.name} +<none>$", laptop.types(taken), re.MULTILINE)
    killed(runner)
    assert re.search(rf'^{node.name} +{{.*"owner"', laptop.types(taken), re.MULTILINE)
    assert "would restore" in laptop.types(look, N=node.name)
    assert JOURNAL in node.annotations()
    restored = runner.run("restore")
    assert restored.code == 0, restored.err
    assert re.search(rf"^{node.name} +<none>$", laptop.types(taken), re.MULTILINE)
    assert node.labels() == labels


@pytest.fixture
def fleet(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    """Four nodes that serve a driver that was good everywhere, and a controller."""
    serve_rollouts(admin_api)
    with RolloutFleet(control_plane, admin_api, tmp_path, 4) as made:
        made.start()
        made.make_rollout(waves=[{"name": "canary", "count": 1, "approval": True}, {"name": "rest"}])
        wait_until(lambda: made.status().get("phase") == "Complete", "the first revision", 120)
        yield made


@pytest.mark.shares(6)
def test_the_fleet_goes_back_and_everything_is_removed_by_the_page(
    fleet: RolloutFleet, admin_api: Api, laptop: Laptop
) -> None:
    (good,) = set(fleet.serving().values())
    (leave_out,) = said_in("Only this node")
    out = fleet.nodes[3]
    laptop.types(leave_out, N=out)
    bad = fleet.set_driver("driver:bad")
    wait_until(lambda: bad in fleet.serving().values(), "the canary", 60)
    wait_until(lambda: fleet.status().get("phase") == "WaitingForApproval", "the canary is done", 60)

    pause, status, history, undo, resume = said_in("The fleet")
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

    delete, under_way, uninstall, labels, notes = said_in("Remove everything")
    laptop.types(delete)
    wait_until(lambda: not [word for word in fleet.states().values() if word != "upgrade-done"], "nobody is under way")
    assert laptop.types(under_way).count("upgrade-done") == len(fleet.states())
    rendered = (*render("rebellions"), *render("rebellions/rollout"))
    objects = [one for one in rendered if one["kind"] not in APART]
    laptop.edit(objects)
    laptop.types("kubectl apply --server-side --force-conflicts -k mine")
    laptop.types(uninstall)
    assert not [path_of(one) for one in objects if admin_api.answers(path_of(one))]
    for name in fleet.nodes:
        kept = {"labels": dict.fromkeys(LABELS, "x"), "annotations": dict.fromkeys(KEYS.names - LABELS - RELEASED, "x")}
        admin_api.patch(f"/api/v1/nodes/{name}", {"metadata": kept})
    laptop.types(labels)
    laptop.types(notes)
    for name in fleet.nodes:
        meta = admin_api.get(f"/api/v1/nodes/{name}")["metadata"]
        assert not KEYS.names & {*meta.get("labels", {}), *meta.get("annotations", {})}
        assert f"{PREFIX}driver" not in meta["labels"]


APART = ("Namespace", "PodDisruptionBudget")
"""The control plane's own, and what this API server is too old for."""

KEYS = builtin()["rebellions"].keys
LABELS = {KEYS.state, KEYS.upgrade_state, KEYS.skip, f"{PREFIX}driver"}
RELEASED = {KEYS.journal, KEYS.cordon, KEYS.upgrade_enabled, KEYS.safe_load}
"""What a run removes when it releases the node, and what is an operator's."""


OPERANDS_PAGE = DOCS / "operands.md"
KEY = f"{PREFIX}device-plugin"
MADE = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/device-plugin"

Types = Callable[[str], str]


@pytest.fixture
def types(laptop: Laptop, admin_api: Api, one: CommandRunner) -> Iterator[Types]:
    """Types a line of the page where its files are; what kubectl prints."""
    for name, content in files(OPERANDS_PAGE).items():
        (laptop.home / name).write_text(content)
    yield lambda line: laptop.types(line, N=node_of(one).name)
    gone(partial(admin_api.delete, MADE, grace_s=0))


@pytest.fixture
def one(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node on which an old driver is loaded, and the new one at hand."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    made.node = node({f"{PREFIX}driver": "true", "kubernetes.io/os": "linux"}, boot_id=made.tree.boot_id)
    return made


def plugin(one: CommandRunner) -> str:
    found: list[str] = []

    def runs() -> bool:
        pods = [one for one in node_of(one).pods() if one["metadata"]["labels"].get("app") == "device-plugin"]
        found[:] = [one["metadata"]["uid"] for one in pods if one["status"].get("phase") == "Running"]
        return len(found) == 1

    wait_until(runs, "the plugin runs")
    return found[0]


@pytest.mark.shares(6)
def test_an_ordinary_plugin_stays_and_the_pages_operand_leaves_and_comes_back(types: Types, one: CommandRunner) -> None:
    label, patch, rolled = (one.text for one in commands(OPERANDS_PAGE) if one.text.startswith("kubectl"))
    types("kubectl apply -f device-plugin.yaml")
    ordinary = plugin(one)
    before = one.run("plan", LOG_FORMAT="text").out
    assert "operand pod(s)" not in before

    types(label)
    types(patch)
    types(rolled)
    wait_until(lambda: plugin(one) != ordinary, "the operand takes the plugin's place")
    operand, labels = plugin(one), node_of(one).labels()
    assert labels[KEY] == "true"
    promised = re.findall(r"^ +(\d\. .*)$", OPERANDS_PAGE.read_text(), re.MULTILINE)
    assert len(promised) == 2
    said = one.run("plan", LOG_FORMAT="text").out
    assert [line for line in promised if line not in said] == [], said

    assert one.reconcile().code == 0
    assert one.tree.driver_version == NEW
    assert_untouched(one, labels)
    assert plugin(one) != operand, "it has left and come back"


TIMEOUT_S = 900.0
MARK = "=== "
NODE, STATE = "sandbox-node", "rebellions.ai/npu-driver-manager.state"
TYPED = (
    f"kubectl get nodes -L {STATE}",
    f"kubectl get nodes -l '{STATE} in (held,failed)'",
    "kubectl get pods -A",
    "kubectl -n rbln-system get ds",
    f"kubectl describe node {NODE}",
    "kubectl -n rbln-system describe pod rbln-driver",
    "kubectl get events -A",
    f"kubectl cordon {NODE}",
    f"kubectl get node {NODE}",
    f"kubectl uncordon {NODE}",
    f"kubectl label node {NODE} team=a",
    f"kubectl annotate node {NODE} note=b",
    f"kubectl get node {NODE} -o jsonpath='{{.metadata.labels.team}} {{.metadata.annotations.note}}'",
    "kubectl -n rbln-system delete pod -l app=rbln-device-plugin",
    "kubectl -n rbln-system get pods -l app=rbln-device-plugin",
    "kubectl get pod no-such-pod",
    "driver-manager status",
)


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, str]:
    """What each command printed, in the shell after the scenario `upgrade`; its exit status is the last line."""
    if shutil.which("kubectl") is None:
        skip_or_fail("kubectl is not on PATH")
    script = "".join(f"echo '{MARK}{number}'\n{line} 2>&1\necho $?\n" for number, line in enumerate(TYPED))
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
    _, *parts = re.split(rf"^{MARK}\d+\n", done.stdout, flags=re.MULTILINE)
    return {line: part.strip() for line, part in zip(TYPED, parts, strict=True)}


def answer(answers: dict[str, str], beginning: str) -> list[str]:
    """The lines of the one command that begins so, which ended well."""
    (found,) = [text for line, text in answers.items() if line.startswith(beginning)]
    *lines, status = found.splitlines()
    assert status == "0", found
    return lines


def cells(lines: list[str]) -> list[list[str]]:
    """A table of kubectl's, without its headings."""
    return [re.split(r" {2,}", line.rstrip()) for line in lines[1:]]


@pytest.mark.shares(6)
def test_kubectl_works_in_the_sandboxs_shell(answers: dict[str, str]) -> None:
    heading, row = answer(answers, "kubectl get nodes -L")
    assert heading.split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION", "NPU-DRIVER-MANAGER.STATE"]
    assert row.split()[:3] == [NODE, "Ready", "<none>"]
    assert row.split()[-1] == "ready"
    assert answer(answers, "kubectl get nodes -l") == ["No resources found"]

    lines = answer(answers, "kubectl get pods -A")
    assert lines[0].split() == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    states = {row[1].rpartition("-")[0]: (row[2], row[3]) for row in cells(lines)}
    assert states.pop("rbln-driver") == ("0/1", "Init:0/1")
    assert set(states.values()) == {("1/1", "Running")}
    assert len(states) == 6
    assert "rbln-driver" in {row[0] for row in cells(answer(answers, "kubectl -n rbln-system get ds"))}

    text = "\n".join(answer(answers, "kubectl describe node"))
    assert re.search(rf"{re.escape(STATE)}=ready$", text, re.MULTILINE)
    assert re.search(r"^Unschedulable: +false$", text, re.MULTILINE)
    assert re.search(r"^Non-terminated Pods: +\(7 in total\)$", text, re.MULTILINE)
    assert re.search(r"^ +cpu +0 \(0%\)", text, re.MULTILINE)
    assert re.search(r"Normal +DriverReconciled .*driver 2\.0\.1", text)
    pod = "\n".join(answer(answers, "kubectl -n rbln-system describe pod"))
    assert re.search(r"^Controlled By: +DaemonSet/rbln-driver$", pod, re.MULTILINE)
    assert "k8s-driver-manager:" in pod
    events = answer(answers, "kubectl get events")
    assert [row[3:5] for row in cells(events)] == [["DriverReconciled", f"node/{NODE}"]]

    assert answer(answers, "kubectl cordon") == [f"node/{NODE} cordoned"]
    cordoned = answers[f"kubectl get node {NODE}"]
    assert "Ready,SchedulingDisabled" in cordoned
    assert answer(answers, "kubectl uncordon") == [f"node/{NODE} uncordoned"]
    answer(answers, "kubectl label")
    answer(answers, "kubectl annotate")
    (line,) = [text for typed, text in answers.items() if "jsonpath" in typed]
    assert line == "a b0", "and its exit status"

    (said,) = answer(answers, "kubectl -n rbln-system delete pod")
    old = re.findall(r'"(rbln-device-plugin-\w+)"', said)
    new = [row[0] for row in cells(answer(answers, "kubectl -n rbln-system get pods"))]
    assert len(old) == len(new) == 1
    assert old != new

    text = answers["kubectl get pod no-such-pod"]
    assert text.splitlines() == ['Error from server (NotFound): pods "no-such-pod" not found', "1"]

    assert answer(answers, "driver-manager status")[0].startswith("ready since ")
