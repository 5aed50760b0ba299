"""Manifests of others run our command unchanged: both generations of the operator's contract, and NVIDIA's.

The manifests in tests/support/deploy/dropin are written from the vendors' documents; a container gets their command,
environment, mounts and rights, and nothing more.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL, HostTree, PciTree
from scripts.releasing.kustomize import only
from tests.support.control_plane.api import Api
from tests.support.control_plane.kubelet import NodeFactory, OperandsFactory
from tests.support.control_plane.old_server import PodClaim
from tests.support.control_plane.pod_process import MANAGER, OLD, DriverNode, PodRunner, old_driver, settled
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import PREFIX
from tests.support.control_plane.servers import ControlPlane
from tests.support.control_plane.workloads import Shape, WorkloadsFactory
from tests.support.deploy.apply import applied

FOLDER = Path(__file__).parents[2] / "support/deploy/dropin"
OLD_DIGEST, DIGEST, NEW = "digest-of-1.2.92", "digest-of-2.0.1", "2.0.1"
WARNING = '"level": "warning"'
GENERATIONS = ("generation-1", "generation-2")
DRA_PLUGIN = "nvidia.com/dra-kubelet-plugin"

SettleDropin = Callable[..., DriverNode]


@pytest.fixture
def settle(
    control_plane: ControlPlane, containers: None, admin_api: Api, tmp_path: Path, node: NodeFactory, proxy: Proxy
) -> Iterator[SettleDropin]:
    """Put a manifest in force on a node with an old driver of a profile; `renamed` is a word in it, and another one."""
    with ExitStack() as stack:

        def build(name: str, profile: str, renamed: tuple[str, str] = ("\0", "")) -> DriverNode:
            text = (FOLDER / f"{name}.yaml").read_text().replace(*renamed)
            objects = stack.enter_context(applied(admin_api, yaml.safe_load_all(text)))
            tree = old_driver(tmp_path, builtin()[profile], OLD_DIGEST)
            # As the kernel shows it: the way to the host's own view, which is not read-only.
            (tree.root / "proc/1/root").symlink_to(tree.root)
            (tree.root / "tmp").mkdir()
            runner = PodRunner(control_plane, admin_api, tree, tmp_path, proxy.url)
            return settled(node(boot_id=tree.boot_id), only(objects, "DaemonSet"), tree, runner)

        yield build


def warnings(text: str) -> list[str]:
    return [json.loads(line)["message"] for line in text.splitlines() if WARNING in line]


@pytest.mark.shares(6)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_operators_init_container_runs_unchanged(
    settle: SettleDropin, operands: OperandsFactory, workloads: WorkloadsFactory, generation: str
) -> None:
    driver_node = settle(generation, "rebellions")
    tree, node = driver_node.tree, driver_node.node
    made = operands(node, ("device-plugin", "metrics-exporter"))
    tenants = workloads(node).managed(1)
    if generation == "generation-2":
        tenants += workloads(node).managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
        workloads(node).claim("mine", tenants[1])

    ended = driver_node.clear("the driver was unloaded")
    assert (tree.driver_version, tree.digest, driver_node.is_mounted()) == ("not loaded", "", False)
    assert {pod.state() for pod in tenants} == {"gone"}
    (warning,) = warnings(ended.err)
    assert "no event was recorded" in warning
    made.wait_running()

    driver_node.serve(NEW, DIGEST)


def test_a_first_generation_run_that_would_have_to_read_claims_names_the_right(
    settle: SettleDropin, workloads: WorkloadsFactory
) -> None:
    driver_node = settle("generation-1", "rebellions")
    (holder,) = workloads(driver_node.node).managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
    labels = driver_node.node.labels()
    ended = driver_node.runner.run(driver_node.pod, MANAGER)
    assert (ended.code, "list resourceclaims.resource.k8s.io" in ended.last_line) == (7, True), ended.err
    assert (driver_node.tree.driver_version, driver_node.node.labels(), holder.state()) == (OLD, labels, "Running")


def add_module(tree: HostTree, name: str, *below: str) -> None:
    """Load a module that uses those `below` it."""
    folder = tree.root / "sys/module" / name
    (folder / "holders").mkdir(parents=True)
    for file, text in (("refcnt", "0"), ("initstate", "live")):
        (folder / file).write_text(f"{text}\n")
    for used in below:
        (tree.root / "sys/module" / used / "holders" / name).touch()
        fake_tools.count(tree.root / "sys/module" / used, 1)


LEFT_BY_THE_CONTAINER = {
    "run/nvidia/nvidia-driver.pid": "4242",
    "run/nvidia/validations/.driver-ctr-ready": "DRIVER=1",
    "run/nvidia/validations/.driver-daemons-status": "Ready",
}


def nvidia(settle: SettleDropin) -> DriverNode:
    """NVIDIA's manifest on a node with all of its modules, and what its driver container leaves."""
    driver_node = settle("nvidia", "nvidia")
    for name in ("nvidia_uvm", "nvidia_modeset", "nvidia_peermem", "nvidia_fs", "gdrdrv"):
        add_module(driver_node.tree, name, "nvidia")
    add_module(driver_node.tree, "nvidia_drm", "nvidia_modeset")
    for path, text in LEFT_BY_THE_CONTAINER.items():
        (driver_node.tree.root / path).parent.mkdir(exist_ok=True)
        (driver_node.tree.root / path).write_text(f"{text}\n")
    return driver_node


def modules(driver_node: DriverNode) -> set[str]:
    """Names of the loaded modules, but for the one that the stand-in's driver is based on."""
    return {entry.name for entry in (driver_node.tree.root / "sys/module").iterdir()} - {"nvidia_core"}


@pytest.mark.shares(6)
def test_nvidias_uninstall_driver_runs_unchanged(
    settle: SettleDropin, operands: OperandsFactory, workloads: WorkloadsFactory
) -> None:
    driver_node = nvidia(settle)
    tree, node = driver_node.tree, driver_node.node
    made = operands(node, ("device-plugin", "dcgm-exporter"), deploy_prefix="nvidia.com/gpu.deploy.")
    node.set_labels({DRA_PLUGIN: "true", "nvidia.com/gpu.deploy.mig-manager": "false"})
    (tenant,) = workloads(node).managed(1, Shape(resource="nvidia.com/gpu"))
    (mig,) = workloads(node).managed(1, Shape(resource="nvidia.com/mig-1g.5gb"))

    ended = driver_node.clear("the driver was unloaded")
    assert modules(driver_node) == set()
    assert (tree.digest, driver_node.is_mounted()) == ("", False)
    assert [path for path in LEFT_BY_THE_CONTAINER if (tree.root / path).exists()] == []
    assert (tenant.state(), mig.state()) == ("gone", "gone")
    rdma, *polled, event = warnings(ended.err)
    assert rdma.startswith("GPU_DIRECT_RDMA_ENABLED is set but has no effect here")
    assert polled
    assert all("watch pods" in one and one.endswith("polling every 2 s instead") for one in polled)
    assert "no event was recorded" in event
    made.wait_running()

    driver_node.serve(NEW, DIGEST)
    forced = copy.deepcopy(driver_node.pod)
    (one,) = [one for one in forced["spec"]["initContainers"][0]["env"] if one["name"] == "FORCE_REINSTALL"]
    one["value"] = "true"
    again = driver_node.runner.run(forced, MANAGER)
    assert (again.code, "a reinstall was forced" in again.last_line, modules(driver_node)) == (0, True, set())


VFIO_LABEL = f"{PREFIX}vfio-manager"


@pytest.mark.shares(6)
@pytest.mark.parametrize("of_the_host", [False, True], ids=["container-driver", "host-driver"])
def test_a_vfio_managers_init_container_uninstalls_and_leaves_its_own_label_alone(
    settle: SettleDropin, operands: OperandsFactory, workloads: WorkloadsFactory, of_the_host: bool
) -> None:
    driver_node = settle("vfio-manager", "rebellions")
    tree, node = driver_node.tree, driver_node.node
    if of_the_host:
        tree.add_driver("/", OLD)
        (tree.root / tree.profile.paths.state_file.lstrip("/")).unlink()
    made = operands(node, ("sandbox-device-plugin",))
    (elsewhere,) = workloads(node).managed(1, Shape(npus=0))
    assert node.labels()[VFIO_LABEL] == "true"

    ended = driver_node.clear("the driver was unloaded (pod rbln-system/rbln-vfio-manager-")
    assert f"which is placed by {VFIO_LABEL}, needs the driver uninstalled" in ended.last_line
    assert (tree.driver_version, driver_node.is_mounted()) == ("not loaded", False)
    assert elsewhere.state() == "Running"
    narrow, event = warnings(ended.err)
    assert narrow.startswith("this account may list pods in namespace rbln-system only")
    assert "no event was recorded" in event
    made.wait_running()
    again = driver_node.runner.run(driver_node.pod, MANAGER)
    assert (again.code, ": there is nothing to uninstall" in again.last_line) == (0, True), again.err


DEVICE = "0000:c1:00.0"


@pytest.mark.shares(6)
def test_a_vfio_managers_own_command_gives_the_devices_to_virtual_machines(
    settle: SettleDropin, operands: OperandsFactory, workloads: WorkloadsFactory
) -> None:
    driver_node = settle("vfio-state", "rebellions")
    tree, node = driver_node.tree, driver_node.node
    bus = PciTree(tree.root, "rebellions")
    bus.add(DEVICE, group="10", driver="rebellions", module="rebellions")
    bus.add_vfio(KERNEL)
    made = operands(node, ("device-plugin",))
    tenants = workloads(node).managed(1)
    tenants += workloads(node).managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
    workloads(node).claim("mine", tenants[1])

    with bus.running():
        ended = driver_node.clear("the devices are on vfio")
        assert (bus.driver_of(DEVICE), tree.driver_version) == ("vfio-pci", "not loaded")
        assert not driver_node.is_mounted()
        assert {pod.state() for pod in tenants} == {"gone"}, "the claim's holder too, though claims may not be listed"
        (event,) = warnings(ended.err)
        assert "no event was recorded" in event
        made.wait_running()
        before = node.read()["metadata"]["resourceVersion"]
        again = driver_node.runner.run(driver_node.pod, MANAGER)
        assert (again.code, "on vfio already" in again.last_line) == (0, True), again.err
        assert node.read()["metadata"]["resourceVersion"] == before


GIVEN = "0000:c2:00.0"


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    ("component", "given"), [("vgpu-manager", ("", "")), ("vfio-manager", ("vfio-pci", "vfio-pci"))]
)
def test_nvidias_uninstall_driver_takes_from_vfio_what_the_pods_own_driver_needs_and_nothing_else(
    settle: SettleDropin, operands: OperandsFactory, component: str, given: tuple[str, str]
) -> None:
    driver_node = settle("nvidia-vgpu-manager", "nvidia", ("vgpu-manager", component))
    tree, node = driver_node.tree, driver_node.node
    bus = PciTree(tree.root, "nvidia")
    bus.add(DEVICE, vendor="10de", kind="030200", group="10", driver="nvidia", module="nvidia")
    bus.add(GIVEN, vendor="10de", kind="030200", group="11", driver="vfio-pci", module="vfio_pci", override="vfio-pci")
    made = operands(node, ("sandbox-device-plugin",), deploy_prefix="nvidia.com/gpu.deploy.")
    assert node.labels()[f"nvidia.com/gpu.deploy.{component}"] == "true"

    with bus.running():
        driver_node.clear("the driver was unloaded")
    assert (modules(driver_node), bus.driver_of(DEVICE)) == (set(), "")
    assert (bus.driver_of(GIVEN), bus.read(GIVEN, "driver_override")) == given
    made.wait_running()
