"""Devices that were bad before a swap, got lost by it, or are slow after it: the real command on the sandbox's host.

Each situation is one of a public report, whose number is beside it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL, HostTree
from driver_manager.sandbox.scenarios import NEW, OLD, OLD_DIGEST
from tests.support.fakes.sandboxed import OWN_ROOT, ByHand, by_hand

pytestmark = [pytest.mark.submission, pytest.mark.shares(2)]

BOUND_S = 200.0
OLD_ROOT, NEW_ROOT = "/opt/driver-old", OWN_ROOT
GPU = "{}, 00000000:C{}:00.0, NVIDIA A100, 30, Enabled"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:C1:00.0"


def prints(*lines: str, status: int = 0, first: str = "") -> str:
    """A script that prints `lines`; `first` comes before it."""
    quoted = " ".join(f"'{line}'" for line in lines)
    return f"#!/bin/sh\n{first}\nprintf '%s\\n' {quoted}\nexit {status}\n"


def gpus(*numbers: int) -> list[str]:
    return [GPU.format(at, number) for at, number in enumerate(numbers)]


def npus(*words: str) -> str:
    """The answer of rbln-smi about devices with these states."""
    devices = [
        {"npu": at, "name": f"rbln{at}", "status": word, "pci": {"bus_id": f"0000:c{at + 1}:00.0"}}
        for at, word in enumerate(words)
    ]
    return json.dumps({"KMD_version": "x", "devices": devices, "contexts": []})


def put_tool(tree: HostTree, root: str, script: str) -> None:
    """Replace the vendor's tool in the driver root `root`."""
    probe = tree.profile.probe
    assert probe is not None
    path = tree.inside(root) / probe.search[0] / probe.tool
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script.replace("ROOT", str(tree.root)))
    path.chmod(0o755)


def add_devices(tree: HostTree, *numbers: int) -> None:
    """Functions of the vendor with its driver; the first one, which there is, has number 1."""
    first = tree.root / "sys/bus/pci/devices/0000:c1:00.0"
    for number in numbers:
        device = first.with_name(f"0000:c{number}:00.0")
        if device != first:
            shutil.copytree(first, device, symlinks=True)
        (device / "driver").unlink(missing_ok=True)
        (device / "driver").symlink_to(f"../../../bus/pci/drivers/{tree.profile.modules.roots[0]}")


def two_drivers(old: str, new: str, *devices: int) -> Callable[[HostTree], None]:
    """A host that runs one driver and has another; `old` and `new` are the tools of the two roots."""

    def prepare(tree: HostTree) -> None:
        for root, version, script in ((OLD_ROOT, OLD, old), (NEW_ROOT, NEW, new)):
            tree.add_driver(root, version)
            put_tool(tree, root, script)
        tree.load(OLD_ROOT)
        tree.record(OLD_DIGEST, OLD_ROOT, OLD)
        add_devices(tree, *devices)

    return prepare


def is_paused(node: ByHand) -> bool:
    return any("paused" in value for value in node.cluster.node()["metadata"]["labels"].values())


MADE = "touch ROOT/dev/nvidia0 ROOT/dev/nvidiactl"
ONE, BOTH = prints(*gpus(1), first=MADE), prints(*gpus(1, 2), first=MADE)
SLOW = prints(*gpus(1), first=f"{MADE}; sleep 21")
WARNED = prints(*gpus(1), INFOROM, status=14, first=MADE)
ONE_SICK = prints(npus("normal", "error"))
BACK = f"; the old driver {OLD} is loaded again"


@pytest.mark.parametrize(
    ("vendor", "prepare", "code", "version", "expected"),
    [
        # gpu-operator#285, #20: nvidia-smi ends with 14 on a GPU that works, with both drivers.
        ("nvidia", two_drivers(WARNED, WARNED, 1), 0, NEW, f"driver {NEW} loaded"),
        # KMM#1218, NVSentinel: one of two devices is bad before and after.
        ("rebellions", two_drivers(ONE_SICK, ONE_SICK, 1, 2), 0, NEW, "rbln1 is error, as before the swap"),
        # The new driver makes the other one bad, too: the old one is back, and its probe has the same result as before.
        ("rebellions", two_drivers(ONE_SICK, prints(npus("hang", "error")), 1, 2), 5, OLD, f"rbln0 is hang{BACK}"),
        # gpu-operator#2596: a device that served is not listed by the new driver.
        ("nvidia", two_drivers(BOTH, ONE, 1, 2), 5, OLD, f"0000:c2:00.0 missing{BACK}"),
        # AgentBaker#2829: the first nvidia-smi after a load initialises every GPU.
        ("nvidia", two_drivers(prints(*gpus(1)), SLOW, 1), 0, NEW, f"driver {NEW} loaded"),
    ],
    ids=["remark", "bad-before", "worse", "lost", "slow"],
)
def test_a_swap_is_judged_by_what_got_worse(
    tmp_path: Path, vendor: str, prepare: Callable[[HostTree], None], code: int, version: str, expected: str
) -> None:
    with by_hand(tmp_path, prepare, vendor) as node:
        found = node.call("reconcile-driver-state")
        assert (found[0], node.tree.driver_version) == (code, version), found[1]
        assert expected in found[1]
        assert not is_paused(node)
        outcome = json.loads(node.cluster.node()["metadata"]["annotations"][node.tree.profile.keys.last_outcome])
        assert expected in outcome["what"], "also a warning after the swap is on the Node"
        kept = json.loads((node.tree.root / node.tree.profile.paths.baseline.lstrip("/")).read_text())
        assert kept["version"] == OLD


def test_a_plan_names_what_is_bad_before_the_swap(tmp_path: Path) -> None:
    with by_hand(tmp_path, two_drivers(ONE_SICK, ONE_SICK, 1, 2)) as node:
        for command in ("plan", "preflight"):
            output = node.call(command)[1]
            assert "rbln1 is `error` before the swap; this will not count against the new driver" in output
        assert not (node.tree.root / node.tree.profile.paths.baseline.lstrip("/")).exists(), "they change nothing"


NOT_READY = "dcmi model initialized failed, because the device is not ready. ret is -8012"


def test_a_chip_that_is_not_ready_after_the_load_gets_time(tmp_path: Path) -> None:
    """Ascend: -8012 for seconds after a load. A driver that was not proved is no reason for a reboot."""

    def prepare(tree: HostTree) -> None:
        tree.add_driver(NEW_ROOT, NEW, modules={"drv_pcie_host": ()})
        counted = f"n=$(cat {tree.root}/n 2>/dev/null || echo 0); echo $((n+1)) > {tree.root}/n"
        slow = f"if [ $n -lt 2 ]; then echo '{NOT_READY}'; exit 180; fi"
        put_tool(tree, NEW_ROOT, f"#!/bin/sh\n{counted}\n{slow}\ncat <<X\n{fake_tools.NPU_SMI_TABLE}\nX\n")

    with by_hand(tmp_path, prepare, "ascend") as node:
        code, output = node.call("reconcile-driver-state")
        assert (code, node.tree.driver_version) == (0, NEW), output
        assert "not ready yet: npu-smi failed with -8012" in output
        assert not (node.tree.root / "var/lib/ascend/.reboot-required").exists()


@contextmanager
def watched(node: ByHand) -> Iterator[list[str]]:
    """health-watch with one probe each second; after the block, the lines that it printed."""
    lines: list[str] = []
    argv = [sys.executable, "-m", "driver_manager", "health-watch", "--interval", "1s"]
    env = node.run_environment(DRIVER_ROOT="")
    with subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGTERM)
            lines += process.communicate(timeout=BOUND_S)[0].splitlines()


def in_service(script: str, *devices: int) -> Callable[[HostTree], None]:
    """A host whose driver is ready at the usual root."""

    def prepare(tree: HostTree) -> None:
        paths = tree.profile.paths
        tree.add_driver(paths.driver_root, NEW)
        tree.load(paths.driver_root)
        put_tool(tree, paths.driver_root, script)
        tree.write(paths.ready_marker.lstrip("/"), "")
        add_devices(tree, *devices)

    return prepare


def is_ready(node: ByHand) -> bool:
    return node.tree.inside(node.tree.profile.paths.ready_marker).exists()


def test_a_gpu_with_a_remark_and_one_that_is_excluded_take_no_gpu_out_of_service(tmp_path: Path) -> None:
    """gpu-operator#285; open-gpu-kernel-modules, nv-pci.c (NV_FLAG_EXCLUDED)."""
    with by_hand(tmp_path, in_service(WARNED, 1, 2), "nvidia") as node:
        information = "Model: \t\t NVIDIA A100\nGPU Excluded:\t Yes"  # of a GPU that NVreg_ExcludedGpus names
        node.tree.write("proc/driver/nvidia/gpus/0000:c2:00.0/information", information)
        with watched(node) as lines:
            time.sleep(6.0)
        assert is_ready(node), lines


def test_a_device_that_leaves_bus_and_tool_is_lost(tmp_path: Path) -> None:
    """dcgm-exporter#604, open-gpu-kernel-modules#387: a card falls off the bus."""
    with by_hand(tmp_path, in_service(prints(npus("normal", "normal")), 1, 2)) as node:
        with watched(node) as lines:
            time.sleep(4.0)
            shutil.rmtree(node.tree.root / "sys/bus/pci/devices/0000:c2:00.0")
            put_tool(node.tree, node.tree.profile.paths.driver_root, prints(npus("normal")))
            time.sleep(6.0)
            output = node.call("status")[1]
        assert any("wedged" in line and "0000:c2:00.0 is lost" in line for line in lines), lines
        assert not is_ready(node)
        assert "0000:c2:00.0" in output


def modules_loaded(tree: HostTree, *names: str) -> None:
    """The old driver, with these modules in the kernel."""
    tree.add_driver(OLD_ROOT, OLD, modules=DRM)
    for name in names:
        argv = ["--dirname", str(tree.inside(OLD_ROOT)), "--set-version", KERNEL, name]
        assert fake_tools.modprobe(tree.root, argv) == 0
    tree.record(OLD_DIGEST, OLD_ROOT, OLD)


def check_disturbs_no_pod(node: ByHand, expected: str) -> None:
    """Raise AssertionError unless the driver is not uninstalled, for this reason, and every pod stays."""
    node.cluster.add_workload("train-0", app="train", resource="")
    pods = set(node.cluster.pods())
    options = {"DEVICE_FREE_TIMEOUT": "2s", "ENABLE_GPU_POD_EVICTION": "true", "DRIVER_LOAD": "container"}
    code, printed = node.call("uninstall_driver", **options)
    assert (code, set(node.cluster.pods()), is_paused(node)) == (4, pods, False), printed
    assert expected in printed


DRM = {"nvidia": (), "nvidia_modeset": ("nvidia",), "nvidia_drm": ("nvidia_modeset",), "nvidia_uvm": ("nvidia",)}


def test_a_module_whose_init_function_does_not_return_disturbs_no_pod(tmp_path: Path) -> None:
    """open-gpu-kernel-modules#968: `modprobe nvidia-drm` never returns, and no process has the device open."""

    def prepare(tree: HostTree) -> None:
        modules_loaded(tree, "nvidia_drm")
        tree.write("sys/module/nvidia_drm/initstate", "coming")
        fake_tools.count(tree.root / "sys/module/nvidia_drm", 1)

    with by_hand(tmp_path, prepare, "nvidia") as node:
        check_disturbs_no_pod(node, "module nvidia_drm is still being loaded: its init function has not returned")


@pytest.mark.parametrize(
    ("shown", "module", "process"),
    [
        ("dri/card1", "nvidia_drm", "gnome-shell"),
        ("nvidia-uvm", "nvidia_uvm", "python3"),
        ("nvidia-nvswitchctl", "nvidia", "nv-fabricmanage"),
        ("nvidia-caps/nvidia-cap1", "nvidia", "nvidia-mig"),
        ("i2c-3", "nvidia", "i2cdump"),
    ],
)
def test_a_process_is_found_by_any_node_of_the_driver(tmp_path: Path, shown: str, module: str, process: str) -> None:
    """optimus-manager#354, Bumblebee#1075: a desktop has the driver through DRM, and no /dev/nvidia0."""

    def prepare(tree: HostTree) -> None:
        modules_loaded(tree, "nvidia_drm", "nvidia_uvm")
        shown_by_the_kernel(tree, shown)
        tree.write("proc/2211/stat", f"2211 ({process}) S 1 {'0 ' * 40}")
        tree.write("proc/2211/status", f"Name:\t{process}")
        tree.write("proc/2211/cgroup", "0::/user.slice/user-1000.slice/session-3.scope")
        (tree.root / "proc/2211/fd").mkdir()
        (tree.root / "proc/2211/fd/3").symlink_to(f"/dev/{shown}")
        fake_tools.count(tree.root / "sys/module" / module, 1)

    with by_hand(tmp_path, prepare, "nvidia") as node:
        assert f"/dev/{shown}" in node.call("holders")[1]
        check_disturbs_no_pod(node, f"{process} (pid 2211)")


def shown_by_the_kernel(tree: HostTree, node_name: str) -> None:
    """The device node, as sysfs shows one with a class, and /proc/devices the majors without one."""
    tree.write(f"dev/{node_name}", "")
    majors = "195 nvidia\n235 nvidia-caps\n237 nvidia-nvswitch\n509 nvidia-uvm\n"
    tree.write("proc/devices", f"Character devices:\n  1 mem\n{majors}\nBlock devices:\n  8 sd")
    device, driver = tree.root / "sys/bus/pci/devices/0000:c1:00.0", tree.root / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    (driver / "module").symlink_to("../../../../module/nvidia")
    (device / "driver").symlink_to(driver)
    (device / "i2c-3").mkdir()
    for major, minor, name, parent in ((226, 1, "dri/card1", device), (89, 3, "i2c-3", device / "i2c-3")):
        shown = f"sys/dev/char/{major}:{minor}"
        tree.write(f"{shown}/uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={name}")
        (tree.root / shown / "device").symlink_to(parent)
