"""The vendors' driver containers keep the contract on stand-ins for kmod, mount and the vendor's package."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver_manager.domain.host import UPGRADE_REASON, Marker, decode_marker, encode_marker
from tests.support.fakes.driver_containers import KERNEL, EntryProgram

BOOT = "0b5ad2f6-6a8e-4a7b-9c40-3d0c1f1d4f10"
RUN = """\
#!/bin/sh
# As makeself's archives: unpacks without running anything.
for word; do case $word in --extract=*) to=${{word#--extract=}} ;; --noexec) quiet=1 ;; esac; done
[ -n "${{quiet:-}}" ] || {{ echo "it would run its installer" >&2; exit 3; }}
mkdir -p "$to" && cp -a {tree}/. "$to/"
echo >>{count}
"""


@pytest.fixture
def rebellions(tmp_path: Path) -> EntryProgram:
    """With a mount table of its own: a mount is a line in `mounts`, and a file in the driver root."""
    made = EntryProgram("rebellions-driver", tmp_path)
    made.tree(tmp_path / "tree")
    table = tmp_path / "mounts"
    made.tool("mountpoint", f"[ -s {table} ]\n")
    made.tool("umount", f"sed -i '$d' {table}\n")
    made.tool("mount", f'echo "$2 $3" >>{table}\n')
    return made


@pytest.fixture
def ascend(tmp_path: Path) -> EntryProgram:
    """With a .run that unpacks into a driver's tree."""
    made = EntryProgram("ascend-driver", tmp_path, "drv_pcie_host")
    made.tree(tmp_path / "unpacked")
    (tmp_path / "package.run").write_text(RUN.format(tree=tmp_path / "unpacked", count=tmp_path / "count"))
    (tmp_path / "boot_id").write_text(f"{BOOT}\n")
    return made


def told(ascend: EntryProgram, **env: str) -> dict[str, str]:
    """What the container of an Ascend driver is told beside what all are."""
    return {
        "DRIVER_MODULE": "drv_pcie_host",
        "READY_MARKER": "",
        "DRIVER_PACKAGE": str(ascend.folder / "package.run"),
        "REBOOT_MARKER": str(ascend.folder / "reboot-required"),
        "BOOT_ID_FILE": str(ascend.folder / "boot_id"),
        "NODE_NAME": "node-1",
        **env,
    }


def test_the_tree_is_mounted_loaded_and_recorded_and_stays_so_after_sigterm(rebellions: EntryProgram) -> None:
    assert rebellions.ended(rebellions.start()) == 0
    mounted = (rebellions.folder / "mounts").read_text()
    assert mounted == f"{rebellions.folder / 'tree'} {rebellions.root}\n"
    assert rebellions.state.read_text() == "new\n"
    assert rebellions.module.is_dir(), "unloading is driver-manager's"
    assert not rebellions.marker.exists(), "nobody may take a driver for ready whose container is gone"


def test_a_current_driver_is_mounted_again_and_not_loaded(rebellions: EntryProgram) -> None:
    rebellions.load("2.0.1")
    rebellions.record("new")
    (rebellions.folder / "mounts").write_text("of a container that died\n")
    rebellions.tool("modprobe", "exit 1\n")
    assert rebellions.ended(rebellions.start()) == 0
    mounted = (rebellions.folder / "mounts").read_text()
    assert mounted == f"{rebellions.folder / 'tree'} {rebellions.root}\n", "one mount, of this container"


def test_what_does_not_load_is_not_recorded(rebellions: EntryProgram) -> None:
    rebellions.record("old")
    rebellions.tool("modprobe", "exit 1\n")
    done = rebellions.run("run")
    assert (done.returncode, "cannot be loaded; see the kernel log" in done.stderr) == (1, True), done.stderr
    assert not rebellions.state.exists()


def test_a_package_for_other_kernels_changes_nothing(rebellions: EntryProgram) -> None:
    rebellions.record("old")
    done = rebellions.run("run", DRIVER_TREE=str(rebellions.folder / "absent"))
    assert (done.returncode, f"no modules for kernel {KERNEL}; use a package" in done.stderr) == (1, True)
    assert rebellions.state.read_text() == "old\n"
    assert not (rebellions.folder / "mounts").exists()


def test_left_to_the_manager_it_mounts_and_loads_nothing(rebellions: EntryProgram) -> None:
    rebellions.tool("modprobe", "exit 1\n")
    refused = rebellions.run("run", DRIVER_LOAD="manager")
    assert (refused.returncode, "see the log of its init container" in refused.stderr) == (1, True)
    rebellions.load("2.0.1")
    rebellions.record("new")
    assert rebellions.ended(rebellions.start(DRIVER_LOAD="manager")) == 0
    assert not (rebellions.folder / "mounts").exists()


def test_install_copies_the_tree_for_stage(rebellions: EntryProgram) -> None:
    done = rebellions.run("install", INSTALL_TO=str(rebellions.folder / "into"), DRIVER_CONFIG_DIGEST="")
    assert done.returncode == 0, done.stderr
    assert (rebellions.folder / "into/lib/modules" / KERNEL / "modules.dep").exists()


def test_a_root_that_leads_to_a_slot_is_not_mounted_over(rebellions: EntryProgram) -> None:
    (rebellions.folder / "slot").mkdir()
    rebellions.root.parent.mkdir()
    rebellions.root.symlink_to(rebellions.folder / "slot")
    done = rebellions.run("run")
    assert (done.returncode, "is a link to a staged slot" in done.stderr) == (1, True)


def test_an_unknown_loader_is_refused(rebellions: EntryProgram) -> None:
    assert "set it to container or manager" in rebellions.run("run", DRIVER_LOAD="kubelet").stderr


def test_the_run_is_unpacked_once_and_loaded_at_each_boot(ascend: EntryProgram) -> None:
    env = told(ascend)
    assert ascend.ended(ascend.start(**env), **env) == 0
    assert (ascend.root / "lib/modules" / KERNEL / "modules.dep").exists()
    assert ascend.state.read_text() == "new\n"
    assert not (ascend.folder / "reboot-required").exists()
    # A boot: module and state are gone, the disk stays.
    for path in sorted(ascend.module.rglob("*"), reverse=True):
        path.unlink()
    ascend.module.rmdir()
    ascend.state.unlink()
    assert ascend.ended(ascend.start(**env), **env) == 0
    assert (ascend.folder / "count").read_text() == "\n", "unpacked once"


def test_a_running_kernel_keeps_its_driver_and_a_reboot_is_asked_for(ascend: EntryProgram) -> None:
    ascend.load("1.0.0")
    ascend.record("old")
    ascend.root.mkdir(parents=True)
    (ascend.root / "of-the-old-driver").touch()
    ascend.tool("modprobe", f"touch {ascend.folder}/touched\n")
    env = told(ascend)
    marker = ascend.folder / "reboot-required"
    process = ascend.start(**env)
    ascend.wait(process, marker.exists)
    assert ascend.run("ready", **env).returncode == 1
    assert ascend.end(process) == 0
    read = decode_marker(marker.read_text())
    assert (read.reason, read.boot_id, read.node, read.from_driver, read.to_driver) == (
        UPGRADE_REASON,
        BOOT,
        "node-1",
        "old",
        "new",
    )
    assert (ascend.root / "of-the-old-driver").exists(), "the driver that runs keeps its files"
    assert (ascend.root.with_name("driver.next") / "lib/modules" / KERNEL).is_dir(), "the new one is there"
    assert not (ascend.folder / "touched").exists()
    assert ascend.state.read_text() == "old\n"


def test_a_load_that_was_not_completed_is_loaded_again_and_asks_for_no_reboot(ascend: EntryProgram) -> None:
    env = told(ascend)
    works = ascend.folder / "bin/modprobe"
    complete = works.read_text()
    ascend.tool("modprobe", f"mkdir -p {ascend.module}; echo live > {ascend.module}/initstate; exit 1\n")
    failed = ascend.run("run", **env)
    assert (failed.returncode, ascend.state.exists()) == (1, False)
    assert "cannot be loaded" in failed.stderr
    works.write_text(complete)
    assert ascend.ended(ascend.start(**env), **env) == 0
    assert ascend.state.read_text() == "new\n"
    assert not (ascend.folder / "reboot-required").exists()
    assert [one.name for one in ascend.state.parent.glob("driver.state*")] == ["driver.state"]


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        (encode_marker(Marker("recovery", BOOT)), True),
        ("driver upgrade\n", True),
        (encode_marker(Marker(UPGRADE_REASON, "of-an-earlier-boot")), False),
    ],
    ids=["of this boot", "of an older operator", "of an earlier boot"],
)
def test_a_marker_that_is_there_is_replaced_only_if_it_is_stale(ascend: EntryProgram, there: str, stays: bool) -> None:
    ascend.load("1.0.0")
    marker, prepared = ascend.folder / "reboot-required", ascend.root.with_name("driver.next")
    marker.write_text(there)
    process = ascend.start(**told(ascend))
    ascend.wait(process, lambda: prepared.exists() and (stays or marker.read_text() != there))
    ascend.end(process)
    assert (marker.read_text() == there) is stays


def test_a_package_that_cannot_be_unpacked_changes_nothing(ascend: EntryProgram) -> None:
    (ascend.folder / "package.run").write_text("exit 1\n")
    done = ascend.run("run", **told(ascend))
    assert (done.returncode, "check that the file is complete" in done.stderr) == (1, True)
    assert not ascend.root.exists()


def test_what_was_half_unpacked_is_unpacked_again(ascend: EntryProgram) -> None:
    env, left = told(ascend), ascend.root.with_name("driver.unpacked")
    left.mkdir(parents=True)
    (left / "half").touch()
    assert ascend.ended(ascend.start(**env), **env) == 0
    assert not (ascend.root / "half").exists()


def test_a_folder_of_the_package_may_be_the_driver_root(ascend: EntryProgram) -> None:
    (ascend.folder / "unpacked").rename(ascend.folder / "driver")
    (ascend.folder / "unpacked").mkdir()
    (ascend.folder / "driver").rename(ascend.folder / "unpacked/driver")
    env = told(ascend, PACKAGE_FOLDER="driver")
    assert ascend.ended(ascend.start(**env), **env) == 0
    assert (ascend.root / "lib/modules" / KERNEL).is_dir()
