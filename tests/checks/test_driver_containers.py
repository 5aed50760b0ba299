"""The entry programs of images/ keep the contract of driver containers, on stand-ins for kmod, mount and packages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from driver_manager.domain.host import UPGRADE_REASON, Marker, decode_marker, encode_marker
from tests.support.fakes.driver_containers import KERNEL, EntryProgram

BOOT = "0b5ad2f6-6a8e-4a7b-9c40-3d0c1f1d4f10"
SEVERAL = "npu_core rebellions npu_net npu_rdma"
RUN = """\
#!/bin/sh
# As makeself's archives: unpacks without running anything.
for word; do case $word in --extract=*) to=${{word#--extract=}} ;; --noexec) quiet=1 ;; esac; done
[ -n "${{quiet:-}}" ] || {{ echo "it would run its installer" >&2; exit 3; }}
mkdir -p "$to" && cp -a {tree}/. "$to/"
echo >>{count}
"""


@pytest.fixture
def sample(tmp_path: Path) -> EntryProgram:
    """With a tree for this kernel, and a modprobe that loads 2.0.1 where nothing is loaded."""
    made = EntryProgram("sample-driver", tmp_path)
    made.tree(tmp_path / "tree")
    return made


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
    paths = {"DRIVER_PACKAGE": "package.run", "REBOOT_MARKER": "reboot-required", "BOOT_ID_FILE": "boot_id"}
    env = {"DRIVER_MODULE": "drv_pcie_host", "READY_MARKER": "", "NODE_NAME": "node-1"}
    env |= {name: str(tmp_path / path) for name, path in paths.items()}
    made = EntryProgram("ascend-driver", tmp_path, "drv_pcie_host", env)
    made.tree(tmp_path / "unpacked")
    (tmp_path / "package.run").write_text(RUN.format(tree=tmp_path / "unpacked", count=tmp_path / "count"))
    (tmp_path / "boot_id").write_text(f"{BOOT}\n")
    return made


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> EntryProgram:
    found: EntryProgram = request.getfixturevalue(request.param)
    return found


def refused(driver: EntryProgram, expected: str, *words: str, **env: str) -> None:
    done = driver.run(*(words or ("run",)), **env)
    assert (done.returncode, expected in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("modules", [SEVERAL, SEVERAL.replace(" ", "\n") + "\n"], ids=["one line", "a line for each"])
@pytest.mark.parametrize("driver", ["sample", "rebellions"], indirect=True)
def test_several_modules_are_loaded_in_the_order_that_is_given(driver: EntryProgram, modules: str) -> None:
    assert driver.ended(driver.start(DRIVER_MODULES=modules), DRIVER_MODULES=modules) == 0
    assert driver.loaded() == SEVERAL.split()
    assert driver.state.read_text() == "new\n"


@pytest.mark.parametrize("driver", ["sample", "rebellions"], indirect=True)
@pytest.mark.parametrize(("status", "expected"), [(1, "cannot be loaded; see the kernel log"), (0, "is not loaded")])
def test_a_driver_that_does_not_load_is_neither_recorded_nor_ready(
    driver: EntryProgram, status: int, expected: str
) -> None:
    driver.record("old")
    driver.marker.parent.mkdir(parents=True)
    driver.marker.write_text("of a container that died\n")
    driver.tool("modprobe", f"exit {status}\n")
    refused(driver, f"module rebellions {expected}")
    assert (driver.state.exists(), driver.marker.exists()) == (False, False)
    assert driver.run("ready").returncode == 1


@pytest.mark.parametrize("driver", ["sample", "rebellions"], indirect=True)
def test_a_tree_for_other_kernels_changes_nothing(driver: EntryProgram) -> None:
    driver.record("old")
    refused(driver, f"no modules for kernel {KERNEL}; use a package", DRIVER_TREE=str(driver.folder / "absent"))
    assert driver.state.read_text() == "old\n"
    assert not (driver.folder / "mounts").exists()


@pytest.mark.parametrize(
    ("driver", "env", "expected"),
    [
        ("sample", {"DRIVER_MODULES": "npu_core"}, "DRIVER_MODULES has no rebellions; add it"),
        ("sample", {"DRIVER_MODULES": "rebellions_core npu_rebellions"}, "DRIVER_MODULES has no rebellions; add it"),
        ("sample", {"DRIVER_CONFIG_DIGEST": ""}, "DRIVER_CONFIG_DIGEST is not set"),
        ("rebellions", {"DRIVER_LOAD": "kubelet"}, "set it to container or manager"),
        ("rebellions", {"DRIVER_LOAD": "manager"}, "see the log of its init container"),
    ],
    indirect=["driver"],
)
def test_a_wrong_setting_is_refused_before_anything_is_done(
    driver: EntryProgram, env: dict[str, str], expected: str
) -> None:
    refused(driver, expected, **env)
    assert not driver.root.exists()


def test_the_sample_installs_loads_records_and_stays_until_it_is_asked_to_end(sample: EntryProgram) -> None:
    assert sample.ended(sample.start()) == 0
    assert (sample.root / "lib/modules" / KERNEL / "modules.dep").exists()
    assert sample.state.read_text() == "new\n"
    assert sample.marker.read_text() == "2.0.1\n"
    assert sorted(path.name for path in sample.state.parent.iterdir()) == ["driver", "driver.state", "validations"]


def test_one_of_several_modules_that_does_not_load_is_a_failure_and_the_next_start_goes_on(
    sample: EntryProgram,
) -> None:
    works = sample.folder / "bin/modprobe"
    complete = works.read_text()
    works.write_text(complete.replace("done\n", "done\n[ $name != npu_net ] || exit 1\n", 1))
    refused(sample, "module npu_net cannot be loaded", DRIVER_MODULES=SEVERAL)
    assert not sample.state.exists()
    works.write_text(complete)
    assert sample.ended(sample.start(DRIVER_MODULES=SEVERAL), DRIVER_MODULES=SEVERAL) == 0
    assert sample.loaded() == SEVERAL.split()


def test_a_current_driver_is_left_alone_and_another_version_that_is_still_loaded_is_a_failure(
    sample: EntryProgram,
) -> None:
    sample.load("2.0.1", "new")
    assert sample.ended(sample.start()) == 0
    assert not sample.root.exists()
    sample.state.unlink()
    (sample.module / "version").write_text("1.2.92\n")
    refused(sample, "is loaded in version 1.2.92, wanted is 2.0.1")
    assert not sample.state.exists()


def test_a_driver_is_ready_with_all_its_modules_and_stop_removes_only_the_marker(sample: EntryProgram) -> None:
    sample.load("2.0.1", "new")
    assert sample.run("ready", READY_MARKER="").returncode == 0
    assert not sample.marker.exists(), "where only the state file is given there is none"
    refused(sample, "module npu_net is not loaded", "ready", DRIVER_MODULES="rebellions npu_net")
    assert sample.run("ready").returncode == 0
    assert sample.marker.exists()
    for _ in range(2):
        assert sample.run("stop").returncode == 0
        assert (sample.marker.exists(), sample.state.exists(), sample.module.exists()) == (False, True, True)


def test_an_unknown_word_is_refused_with_the_usage(sample: EntryProgram) -> None:
    assert sample.run("install").returncode == 2
    assert sample.run("help").stdout.startswith("usage: sample-driver")


def test_the_tree_is_mounted_loaded_and_recorded_and_stays_so_after_sigterm(rebellions: EntryProgram) -> None:
    assert rebellions.ended(rebellions.start()) == 0
    mounted = (rebellions.folder / "mounts").read_text()
    assert mounted == f"{rebellions.folder / 'tree'} {rebellions.root}\n"
    assert rebellions.state.read_text() == "new\n"
    assert rebellions.module.is_dir(), "unloading is driver-manager's"
    assert not rebellions.marker.exists(), "a driver whose container is gone is not ready"


def test_a_current_driver_is_mounted_again_and_not_loaded(rebellions: EntryProgram) -> None:
    rebellions.load("2.0.1", "new")
    (rebellions.folder / "mounts").write_text("of a container that died\n")
    rebellions.tool("modprobe", "exit 1\n")
    assert rebellions.ended(rebellions.start()) == 0
    mounted = (rebellions.folder / "mounts").read_text()
    assert mounted == f"{rebellions.folder / 'tree'} {rebellions.root}\n", "one mount, of this container"


def test_left_to_the_manager_it_mounts_and_loads_nothing_and_install_copies_the_tree_for_stage(
    rebellions: EntryProgram,
) -> None:
    rebellions.tool("modprobe", "exit 1\n")
    rebellions.load("2.0.1", "new")
    assert rebellions.ended(rebellions.start(DRIVER_LOAD="manager")) == 0
    assert not (rebellions.folder / "mounts").exists()
    done = rebellions.run("install", INSTALL_TO=str(rebellions.folder / "into"), DRIVER_CONFIG_DIGEST="")
    assert done.returncode == 0, done.stderr
    assert (rebellions.folder / "into/lib/modules" / KERNEL / "modules.dep").exists()


def test_a_root_that_leads_to_a_slot_is_not_mounted_over(rebellions: EntryProgram) -> None:
    (rebellions.folder / "slot").mkdir()
    rebellions.root.parent.mkdir()
    rebellions.root.symlink_to(rebellions.folder / "slot")
    refused(rebellions, "is a link to a staged slot")


def test_the_run_is_unpacked_once_and_loaded_at_each_boot(ascend: EntryProgram) -> None:
    left = ascend.root.with_name("driver.unpacked")
    left.mkdir(parents=True)
    (left / "half").touch()
    assert ascend.ended(ascend.start()) == 0
    assert not (ascend.root / "half").exists(), "what was half unpacked is unpacked again"
    assert (ascend.root / "lib/modules" / KERNEL / "modules.dep").exists()
    assert ascend.state.read_text() == "new\n"
    assert not (ascend.folder / "reboot-required").exists()
    # A boot: module and state are gone, the disk stays.
    shutil.rmtree(ascend.module)
    ascend.state.unlink()
    assert ascend.ended(ascend.start()) == 0
    assert (ascend.folder / "count").read_text() == "\n", "unpacked once"


def test_a_running_kernel_keeps_its_driver_and_a_reboot_is_asked_for(ascend: EntryProgram) -> None:
    ascend.load("1.0.0", "old")
    ascend.root.mkdir(parents=True)
    (ascend.root / "of-the-old-driver").touch()
    ascend.tool("modprobe", f"touch {ascend.folder}/touched\n")
    marker, process = ascend.folder / "reboot-required", ascend.start()
    ascend.wait(process, marker.exists)
    assert ascend.run("ready").returncode == 1
    assert ascend.end(process) == 0
    read = decode_marker(marker.read_text())
    asked = (read.reason, read.boot_id, read.node, read.from_driver, read.to_driver)
    assert asked == (UPGRADE_REASON, BOOT, "node-1", "old", "new")
    assert (ascend.root / "of-the-old-driver").exists(), "the driver that runs keeps its files"
    assert (ascend.root.with_name("driver.next") / "lib/modules" / KERNEL).is_dir(), "the new one is there"
    assert not (ascend.folder / "touched").exists()
    assert ascend.state.read_text() == "old\n"


def test_a_load_that_was_not_completed_is_loaded_again_and_asks_for_no_reboot(ascend: EntryProgram) -> None:
    works = ascend.folder / "bin/modprobe"
    complete = works.read_text()
    ascend.tool("modprobe", f"mkdir -p {ascend.module}; echo live > {ascend.module}/initstate; exit 1\n")
    refused(ascend, "cannot be loaded")
    assert not ascend.state.exists()
    works.write_text(complete)
    assert ascend.ended(ascend.start()) == 0
    assert ascend.state.read_text() == "new\n"
    assert not (ascend.folder / "reboot-required").exists()
    assert [one.name for one in ascend.state.parent.glob("driver.state*")] == ["driver.state"]


MARKERS = {
    "of this boot": encode_marker(Marker("recovery", BOOT)),
    "of an older operator": "driver upgrade\n",
    "of an earlier boot": encode_marker(Marker(UPGRADE_REASON, "of-an-earlier-boot")),
}


@pytest.mark.parametrize("kind", MARKERS)
def test_a_marker_that_is_there_is_replaced_only_if_it_is_stale(ascend: EntryProgram, kind: str) -> None:
    there, stays = MARKERS[kind], kind != "of an earlier boot"
    ascend.load("1.0.0")
    marker, prepared = ascend.folder / "reboot-required", ascend.root.with_name("driver.next")
    marker.write_text(there)
    process = ascend.start()
    ascend.wait(process, lambda: prepared.exists() and (stays or marker.read_text() != there))
    ascend.end(process)
    assert (marker.read_text() == there) is stays


def test_a_package_that_cannot_be_unpacked_changes_nothing(ascend: EntryProgram) -> None:
    (ascend.folder / "package.run").write_text("exit 1\n")
    refused(ascend, "check that the file is complete")
    assert not ascend.root.exists()


def test_a_folder_of_the_package_may_be_the_driver_root(ascend: EntryProgram) -> None:
    (ascend.folder / "unpacked").rename(ascend.folder / "driver")
    (ascend.folder / "unpacked").mkdir()
    (ascend.folder / "driver").rename(ascend.folder / "unpacked/driver")
    assert ascend.ended(ascend.start(PACKAGE_FOLDER="driver"), PACKAGE_FOLDER="driver") == 0
    assert (ascend.root / "lib/modules" / KERNEL).is_dir()
