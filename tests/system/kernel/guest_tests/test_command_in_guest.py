"""The real command line on a real kernel, against the real API server on the host: all but a whole upgrade."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.core.swap import driver as driver_swap
from tests.support.control_plane.api import wait_until
from tests.support.kernel.guest_command import (
    DRIVER_ROOT,
    JOURNAL,
    PREFIX,
    RUN_TIMEOUT_S,
    STATE,
    VIRTIO_PCI_VENDOR,
    Command,
    assert_given_back,
    old_driver,
)
from tests.support.kernel.guest_fixtures import (
    DriverRoots,
    boot_id,
    holding_mapped,
    holding_open,
    is_loaded,
    module_fact,
)

pytestmark = [pytest.mark.usefixtures("guest_kernel"), pytest.mark.release]


def test_the_device_on_pci_tells_the_profile(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    status = json.loads(command.run("status", "-o", "json", DRIVER_ROOT=str(roots["v2"])).out)
    assert status["profile"] == "rebellions"
    assert status["host"]["pciDevices"] != []
    assert [(module["name"], module["holders"]) for module in status["host"]["modules"]] == [
        ("rebellions", []),
        ("rebellions_core", ["rebellions"]),
    ]


def test_a_mapping_without_an_open_file_is_found_too(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    with holding_mapped() as pid:
        busy = command.reconcile(roots["v2"], DEVICE_FREE_TIMEOUT="0s")
        assert busy.code == 4
        assert f"(pid {pid}) has /dev/rbln0 mapped" in busy.err


CONTAINER = "c" * 64


def put_into_pod(pid: int, uid: str) -> None:
    """Put a process into a cgroup as a kubelet makes them."""
    slices = ("kubepods-burstable.slice", f"kubepods-burstable-pod{uid.replace('-', '_')}.slice")
    top = Path("/sys/fs/cgroup/test-of-pods.slice")
    group = top.joinpath(*slices, f"cri-containerd-{CONTAINER}.scope")
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.procs").write_text(f"{pid}\n")


def test_a_holder_in_a_pod_is_named_by_its_cgroup(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    uid = "0a1b2c3d-1111-2222-3333-444455556666"
    with holding_open() as pid:
        put_into_pod(pid, uid)
        (holder,) = json.loads(command.run("holders", "-o", "json").out)["holders"]
    assert (holder["pod_uid"], holder["container"]) == (uid, CONTAINER)


@pytest.mark.parametrize(
    ("variant", "why"),
    [
        ("wrong-kernel", "its checksums are not those of"),
        ("unknown-symbol", "needs symbols that no module exports: rebellions_absent"),
        ("unknown-symbol-zst", "needs symbols that no module exports: rebellions_absent"),
        ("absent-kernel", "has no module rebellions for kernel"),
    ],
)
def test_a_driver_that_cannot_load_is_refused_before_any_label_changes(
    command: Command, roots: DriverRoots, variant: str, why: str
) -> None:
    old_driver(roots)
    before = command.node.labels(), command.node.annotations(), command.node.read()["spec"]
    refused = command.reconcile(roots[variant])
    assert refused.code == 6
    assert why in refused.err
    assert (command.node.labels(), command.node.annotations(), command.node.read()["spec"]) == before
    assert command.node.shown() == ("failed", 6)
    assert module_fact("rebellions", "version") == "1.2.92"
    checked = command.run("preflight", "-o", "text", DRIVER_ROOT=str(roots[variant]))
    assert (checked.code, "✗" in checked.out) == (6, True)


def test_a_dependency_that_cannot_load_is_refused_too(command: Command, roots: DriverRoots, tmp_path: Path) -> None:
    old_driver(roots)
    mixed = tmp_path / "mixed"
    shutil.copytree(roots["v2"], mixed)
    core = roots.module_file("wrong-kernel", "rebellions_core")
    shutil.copy(core, mixed / f"lib/modules/{os.uname().release}/updates/rebellions_core.ko")
    refused = command.reconcile(mixed)
    assert refused.code == 6
    assert "rebellions_core.ko was built for kernel" in refused.err
    updates = mixed / f"lib/modules/{os.uname().release}/updates"
    shutil.copy(roots.module_file("v2", "rebellions_core"), updates)
    shutil.copy(roots.module_file("unknown-symbol", "rebellions"), updates)
    for listed in updates.parent.glob("modules.*"):
        listed.unlink()
    unlisted = command.reconcile(mixed)
    assert unlisted.code == 6
    assert "no module exports: rebellions_absent" in unlisted.err
    assert module_fact("rebellions", "version") == "1.2.92"


@pytest.mark.parametrize("variant", ["v2", "v2-zst"])
def test_preflight_of_a_good_driver_has_only_good_news_and_a_run_loads_it(
    command: Command, roots: DriverRoots, variant: str
) -> None:
    checked = command.run("preflight", "-o", "json", DRIVER_ROOT=str(roots[variant]))
    assert checked.code == 0
    results = {check["name"]: check["ok"] for check in json.loads(checked.out)["checks"]}
    assert set(results.values()) == {True}
    assert {"symbols of rebellions", "rebellions for this kernel", "may patch nodes", "deadline"} <= results.keys()
    done = command.reconcile(roots[variant])
    assert (done.code, module_fact("rebellions", "version")) == (0, "2.0.1"), done.err


def test_a_driver_of_another_release_whose_checksums_fit_is_taken(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    assert command.reconcile(roots["other-release"]).code == 0
    assert module_fact("rebellions", "version") == "2.0.1"


def test_a_tree_without_modules_dep_gets_one(command: Command, roots: DriverRoots) -> None:
    tree = roots["no-modules-dep"] / "lib/modules" / os.uname().release
    assert command.reconcile(roots["no-modules-dep"]).code == 0
    assert module_fact("rebellions", "version") == "2.0.1"
    for made in tree.glob("modules.*"):  # other tests want it without
        made.unlink()


def test_a_failed_first_load_leaves_no_dependency_loaded(command: Command, roots: DriverRoots) -> None:
    failed = command.reconcile(roots["bad-init"])
    assert failed.code == 5
    assert [name for name in ("rebellions", "rebellions_core") if is_loaded(name)] == []
    assert_given_back(command)


def test_a_run_killed_without_a_driver_is_finished_by_the_next(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    run = command.start("reconcile-driver-state", DRIVER_ROOT=str(roots["v2"]))
    wait_until(lambda: not is_loaded("rebellions"), "the old driver is unloaded", RUN_TIMEOUT_S)
    run.kill()
    assert run.end().code == -9
    again = command.reconcile(roots["v2"])
    assert again.code == 0
    assert (module_fact("rebellions", "version"), STATE.read_text()) == ("2.0.1", "new-digest\n")
    assert_given_back(command)


def test_a_driver_that_hangs_on_its_way_out_is_held_until_it_is_out(
    command: Command, roots: DriverRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_driver(roots)
    hangs = Path("/sys/module/rebellions/parameters/hang_exit")
    hangs.write_text("1")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(driver_swap, "UNLOAD_S", 5.0)  # a minute and a half of waiting show nothing more
            stuck = command.reconcile(roots["v2"])
        assert stuck.code == 5
        assert "module rebellions is stuck while unloading" in stuck.err
        assert "Reboot the node" in stuck.err
        assert "the node stays paused, because its driver is stuck" in stuck.err
        held = command.node.read()["metadata"]
        assert JOURNAL in held["annotations"]
        assert held["labels"][f"{PREFIX}device-plugin"] == "paused-for-driver-upgrade"
        again = command.reconcile(roots["v2"])
        assert again.code == 5
        assert "the kernel is still unloading module rebellions" in again.err
        assert "is being unloaded by the kernel" in command.run("status").out
        assert command.node.read()["metadata"]["labels"] == held["labels"]
        assert not is_loaded("rebellions") or module_fact("rebellions", "version") == "1.2.92"
    finally:
        hangs.write_text("0")
        wait_until(lambda: not is_loaded("rebellions"), "the old driver is out", RUN_TIMEOUT_S)
    done = command.reconcile(roots["v2"])
    assert done.code == 0
    assert module_fact("rebellions", "version") == "2.0.1"
    assert_given_back(command)


def test_a_driver_whose_nodes_user_space_makes_is_verified_without_them(
    command: Command, roots: DriverRoots, tmp_path: Path
) -> None:
    """The shipped profile of NVIDIA, but for the names of module and devices: nothing here makes /dev/nvidia0."""
    text = Path("driver_manager/profiles/nvidia.toml").read_text()
    for old, new in (
        ('pci_vendor = "10de"', f'pci_vendor = "{VIRTIO_PCI_VENDOR}"'),
        ('pci_classes = ["0300", "0302"]', "pci_classes = []"),
        ('roots = ["nvidia"]', 'roots = ["rebellions"]'),
        ("own = [\n", 'own = [\n    "rebellions_core",\n'),
        ("/run/nvidia/", "/run/rbln/"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nvidia.toml").write_text(text)
    done = command.reconcile(roots["v2"], PROFILE_FILE=str(tmp_path / "nvidia.toml"), DRIVER_PROFILE="nvidia")
    assert done.code == 0
    assert not list(Path("/dev").glob("nvidia*"))
    assert module_fact("rebellions", "version") == "2.0.1"
    assert Path("/run/rbln/nvidia-driver.state").read_text() == "new-digest\n"
    assert "nvidia.com/gpu-driver-manager.journal" not in command.node.annotations()


def test_stale_mounts_at_the_driver_root_are_all_unmounted(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    inner = DRIVER_ROOT / "with space"
    for point in (DRIVER_ROOT, inner, DRIVER_ROOT):
        point.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True, timeout=150)
    done = command.run("reconcile-driver-state", DRIVER_LOAD="container")
    assert done.code == 0
    assert str(DRIVER_ROOT) not in Path("/proc/self/mountinfo").read_text()
    assert not is_loaded("rebellions")
    assert not STATE.exists()
    assert_given_back(command)


@contextlib.contextmanager
def with_mounts_of_its_own(uid: str, propagation: str) -> Iterator[None]:
    """A pod's process that starts with a copy of all mounts, as a runtime makes it for this propagation."""
    words = ["unshare", "--mount", "--propagation", propagation, "sleep", "280"]
    process = subprocess.Popen(words)
    try:
        wait_until(
            lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "its mounts are its own", RUN_TIMEOUT_S
        )
        put_into_pod(process.pid, uid)
        yield
    finally:
        process.kill()
        process.wait()


def test_after_an_unmount_pods_with_a_copy_of_the_root_are_named_and_those_that_follow_the_host_are_not(
    command: Command, roots: DriverRoots
) -> None:
    old_driver(roots)
    DRIVER_ROOT.mkdir(parents=True, exist_ok=True)
    above = str(DRIVER_ROOT.parent)
    subprocess.run(["mount", "--bind", above, above], check=True, timeout=150)
    try:
        subprocess.run(["mount", "--make-shared", above], check=True, timeout=150)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(DRIVER_ROOT)], check=True, timeout=150)
        copy, follows = "0a1b2c3d-1111-2222-3333-44445555aaaa", "0a1b2c3d-1111-2222-3333-44445555bbbb"
        with with_mounts_of_its_own(copy, "private"), with_mounts_of_its_own(follows, "slave"):
            done = command.run("reconcile-driver-state", DRIVER_LOAD="container")
        assert done.code == 0, done.err
        assert f"pod {copy} still sees the old driver root" in done.err
        assert follows not in done.err
    finally:
        subprocess.run(["umount", above], check=True, timeout=150)


UMOUNT = Path("/usr/bin/umount")


def test_a_container_unmounts_in_the_hosts_mounts_though_the_host_has_no_umount(
    command: Command, roots: DriverRoots
) -> None:
    old_driver(roots)
    DRIVER_ROOT.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(DRIVER_ROOT)], check=True, timeout=150)
    hidden = UMOUNT.with_name("umount.hidden")
    UMOUNT.rename(hidden)
    try:
        with (DRIVER_ROOT / "busy").open("w"):
            done = subprocess.run(
                ["unshare", "--mount", sys.executable, "-m", "driver_manager", "reconcile-driver-state"],
                env=command.environment(DRIVER_LOAD="container"),
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
    finally:
        hidden.rename(UMOUNT)
    assert done.returncode == 0, done.stderr
    assert str(DRIVER_ROOT) not in Path("/proc/1/mountinfo").read_text(), "busy, so it was detached lazily"
    assert_given_back(command)


def test_a_reboot_only_driver_stays_loaded(command: Command, roots: DriverRoots, tmp_path: Path) -> None:
    old_driver(roots)
    profile = tmp_path / "reboot.toml"
    text = Path("driver_manager/profiles/rebellions.toml").read_text()
    text = text.replace('strategy = "in-place"', 'strategy = "reboot"').replace('["reload", "reboot"]', '["reboot"]')
    profile.write_text(re.sub("^reboot_marker = .*", f'reboot_marker = "{tmp_path}/marker"', text, flags=re.MULTILINE))
    asked = command.reconcile(roots["v2"], NO_WAIT="true", PROFILE_FILE=str(profile), DRIVER_PROFILE="rebellions")
    assert asked.code == 9
    assert module_fact("rebellions", "version") == "1.2.92"
    assert json.loads((tmp_path / "marker").read_text())["bootId"] == boot_id()
