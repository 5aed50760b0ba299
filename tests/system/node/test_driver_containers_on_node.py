"""docs/driver-containers.md on a real kubelet: each example by the page's commands, loaded, changed and stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import machine as machines
from tests.support.node import vendor_containers
from tests.support.node.images import KERNEL
from tests.support.node.machine import Machine
from tests.support.node.node_init import NAME
from tests.support.node.vendor_containers import ASCEND_MODULE, VERSIONS, ExampleClone, Vendor, lines_of

pytestmark = pytest.mark.shares(6)
"""Together, as they share a node of their own."""

OLD, NEW = VERSIONS
NAMESPACES = {"rebellions": "rbln-system", "nvidia": "gpu-operator", "ascend": "npu-operator"}
KEY = "nvidia.com/gpu.deploy.device-plugin"
BOOT_ID = "proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module")
def node(able: None) -> Iterator[Machine]:
    with Machine(archives=lambda: [*machines.own_archives(), *vendor_containers.archive()]) as running:
        yield running


@pytest.fixture
def clone(node: Machine, tmp_path: Path) -> Iterator[ExampleClone]:
    """With every namespace that the page makes first; what was applied is removed at the end."""
    made = ExampleClone(node, tmp_path / "clone")
    for overlay in NAMESPACES:
        made.types(f"kubectl apply -k deploy/overlays/{overlay}/namespace")
    yield made
    for namespace in NAMESPACES.values():
        made.types(f"kubectl delete daemonsets --all -n {namespace}")
        made.types(f"kubectl delete pods --all -n {namespace} --grace-period=0 --force")


def ready(vendor: Vendor, marker: str, version: str) -> bool:
    return vendor.loaded() == version and (vendor.root / marker).exists()


def replace(clone: ExampleClone, vendor: Vendor, line: str) -> None:
    """Type the page's line that applies, and delete the pod, whose successor comes."""
    clone.types(line)
    old = vendor.pod()
    clone.types(f"kubectl -n {vendor.namespace} delete pod P --wait=false", P=old)
    vendor.wait(lambda: vendor.pods() and vendor.pod() != old, "another driver pod")


def test_rebellions_is_mounted_loaded_swapped_and_kept(node: Machine, clone: ExampleClone) -> None:
    apply, label = lines_of("Rebellions")
    vendor, marker = Vendor(node, "rbln-system", "rebellions"), "run/rbln/validations/.driver-ctr-ready"
    clone.types(apply)
    clone.types(label, N=NAME)
    vendor.wait(lambda: ready(vendor, marker, OLD), "the driver is ready")
    assert vendor.mounts("/run/rbln/driver") == 1

    inode = vendor.folder.stat().st_ino
    replace(clone, vendor, apply)
    vendor.wait(lambda: ready(vendor, marker, OLD) and vendor.mounts("/run/rbln/driver") == 1, "ready again")
    assert vendor.folder.stat().st_ino == inode, "a current driver is not loaded again"

    clone.replace("rebellions-driver", OLD, NEW)
    replace(clone, vendor, apply)
    vendor.wait(lambda: ready(vendor, marker, NEW), "the new driver is ready")
    assert vendor.mounts("/run/rbln/driver") == 1

    clone.types("kubectl delete -k deploy/examples/rebellions-driver")
    vendor.wait(lambda: not (vendor.root / marker).exists(), "the marker is gone with the container")
    assert (vendor.loaded(), vendor.mounts("/run/rbln/driver")) == (NEW, 1), "the driver stays for its operands"


def test_each_kernel_has_a_daemon_set_of_its_own(node: Machine, clone: ExampleClone) -> None:
    apply, label, kernel = lines_of("Several kernels")
    vendor, marker = Vendor(node, "rbln-system", "rebellions"), "run/rbln/validations/.driver-ctr-ready"
    clone.types(apply)
    clone.replace("rebellions-one-kernel", "6.1.0-18-amd64", KERNEL)
    clone.replace("rebellions-one-kernel", "linux-6-1-0-18-amd64", "linux-of-this-node")
    clone.types(apply)
    clone.types(label, N=NAME)
    clone.types(kernel, N=NAME)
    vendor.wait(lambda: ready(vendor, marker, OLD), "the driver of this kernel is ready")
    sets = node.api.list("/apis/apps/v1/namespaces/rbln-system/daemonsets")
    wanted = {one["metadata"]["name"]: one["status"]["desiredNumberScheduled"] for one in sets}
    assert wanted == {"linux-of-this-node-rebellions-driver": 1, "linux-6-1-0-18-amd64-rebellions-driver": 0}


def test_nvidias_container_unloads_and_one_that_cannot_is_cleared_by_the_next_run(
    node: Machine, clone: ExampleClone
) -> None:
    apply, label, pause, drain, delete = lines_of("NVIDIA")
    vendor, marker = Vendor(node, "gpu-operator", "nvidia"), "run/nvidia/validations/.driver-ctr-ready"
    clone.types(f"kubectl label node N {KEY}=true", N=NAME)
    clone.types(apply)
    clone.types(label, N=NAME)
    vendor.wait(lambda: ready(vendor, marker, OLD), "the driver is ready")
    assert (vendor.root / "run/nvidia/nvidia-driver.state").read_text() == f"nvidia-{OLD}\n"

    clone.replace("nvidia-driver", OLD, NEW)
    clone.types(apply)
    for line in (pause, drain):
        clone.types(line, N=NAME)
    clone.types(delete, P=vendor.pod())
    vendor.wait(lambda: ready(vendor, marker, NEW), "the new driver is ready")
    vendor.wait(lambda: node.kubelet.node()["metadata"]["labels"][KEY] == "true", "the label is restored")
    assert node.kubelet.node()["spec"].get("unschedulable"), "the drain's cordon is its author's"
    clone.types(f"kubectl uncordon {NAME}")

    # A process uses the device: its container cannot unload, and the next run waits for them.
    (vendor.folder / "refcnt").write_text("1\n")
    clone.replace("nvidia-driver", NEW, OLD)
    replace(clone, vendor, apply)
    vendor.wait(lambda: "for the device to be released" in vendor.output(), "the run waits for them")
    assert vendor.loaded() == NEW
    (vendor.folder / "refcnt").write_text("0\n")
    vendor.wait(lambda: ready(vendor, marker, OLD), "the driver is changed once it is not in use")


def test_ascends_driver_is_installed_once_and_changed_by_a_reboot_alone(node: Machine, clone: ExampleClone) -> None:
    apply, label = lines_of("Ascend")
    vendor = Vendor(node, "npu-operator", ASCEND_MODULE)
    state, request = vendor.root / "run/ascend/ascend-driver.state", vendor.root / "var/lib/ascend/.reboot-required"
    clone.types(apply)
    clone.types(label, N=NAME)
    vendor.wait(lambda: state.exists() and vendor.loaded() == OLD, "the driver is loaded")

    clone.replace("ascend-driver", OLD, NEW)
    replace(clone, vendor, apply)
    vendor.wait(request.exists, "a reboot is asked for")
    assert json.loads(request.read_text())["reason"] == "upgrade"
    assert (vendor.loaded(), state.read_text()) == (OLD, f"ascend-{OLD}\n"), "the running kernel keeps its driver"

    # A reboot: the kernel's modules and /run are gone, and it has another boot id.
    before = (vendor.root / BOOT_ID).read_text()
    for name in (ASCEND_MODULE, f"{ASCEND_MODULE}_core"):
        node.namespaces.checked("rm", "-r", f"/sys/module/{name}")
    state.unlink()
    other = f"tr 0-9a-f 1-9a-f0 </{BOOT_ID} >/run/boot && cat /run/boot >/{BOOT_ID}"
    node.namespaces.checked("sh", "-c", other)
    assert (vendor.root / BOOT_ID).read_text() != before
    clone.types("kubectl -n npu-operator delete pod P --wait=false", P=vendor.pod())
    vendor.wait(lambda: state.exists() and vendor.loaded() == NEW, "the new driver is loaded")
    assert state.read_text() == f"ascend-{NEW}\n"
