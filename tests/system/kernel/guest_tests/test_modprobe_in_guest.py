"""The real modprobe and what a host configures it with: links of weak-updates, options and install lines."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel.guest_command import JOURNAL, Command, assert_given_back, old_driver
from tests.support.kernel.guest_fixtures import DriverRoots, module_fact, run

pytestmark = pytest.mark.usefixtures("guest_kernel")

EARLIER = "0.0.1-earlier"
OWN_CONFIG = Path("/etc/modprobe.d/zz-of-this-test.conf")


class MountedHost:
    """A host whose root is mounted elsewhere, as in a container: its links and its modprobe.d lead to its own files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("etc/modprobe.d", "run/rbln"):
            (root / folder).mkdir(parents=True)
        (root / "etc/machine-id").write_text("guest\n")
        (root / "run/rbln/rbln-driver.state").write_text("old-digest\n")

    @property
    def environment(self) -> dict[str, str]:
        """The command's settings for it."""
        return {"HOST_ROOT": str(self.root), "PROC_ROOT": "/proc", "SYS_ROOT": "/sys", "DEV_ROOT": "/dev"}

    def add_driver(self, roots: DriverRoots, variant: str) -> None:
        """A driver built for an earlier kernel, and linked for this one, as weak-modules(8) does."""
        release = os.uname().release
        extra, weak = self.root / f"lib/modules/{EARLIER}/extra", self.root / f"lib/modules/{release}/weak-updates"
        extra.mkdir(parents=True)
        weak.mkdir(parents=True)
        for module in ("rebellions_core", "rebellions"):
            shutil.copy(roots.module_file(variant, module), extra)
            (weak / f"{module}.ko").symlink_to(extra / f"{module}.ko")
        assert run("depmod", "-b", self.root, release).status == 0  # on the host itself these links lead somewhere
        for link in weak.iterdir():
            link.unlink()
            link.symlink_to(f"/lib/modules/{EARLIER}/extra/{link.name}")


@pytest.fixture
def mounted(tmp_path: Path) -> MountedHost:
    return MountedHost(tmp_path / "host")


@pytest.fixture
def own_config() -> Iterator[Path]:
    OWN_CONFIG.parent.mkdir(exist_ok=True)
    yield OWN_CONFIG
    OWN_CONFIG.unlink(missing_ok=True)


def old_driver_with(roots: DriverRoots, *options: str) -> None:
    assert run("modprobe", "-d", roots["v1"], "rebellions", *options).status == 0


@pytest.mark.shares(3)
def test_a_driver_behind_absolute_links_of_the_host_is_loaded_with_the_hosts_options(
    command: Command, roots: DriverRoots, mounted: MountedHost
) -> None:
    old_driver_with(roots, "queue_depth=9")
    mounted.add_driver(roots, "v2")
    (mounted.root / "etc/modprobe.d/npu.conf").write_text(
        "options rebellions queue_depth=7\noptions rebellions-core trace=1\n"
    )
    checked = command.run("preflight", "-o", "json", DRIVER_ROOT="/", **mounted.environment)
    assert checked.code == 0, checked.err
    checks = {check["name"]: check["what"] for check in json.loads(checked.out)["checks"]}
    assert "rebellions queue_depth=7" in checks["module options"]
    done = command.reconcile(Path("/"), **mounted.environment)
    assert done.code == 0
    assert module_fact("rebellions", "version") == "2.0.1"
    assert module_fact("rebellions", "parameters/queue_depth") == "7"
    assert module_fact("rebellions_core", "parameters/trace") == "Y"
    assert "rebellions.queue_depth was 9 and is 7" in done.err
    assert_given_back(command)


def test_a_driver_tree_is_loaded_with_the_hosts_options_too(
    command: Command, roots: DriverRoots, mounted: MountedHost
) -> None:
    old_driver_with(roots)
    shutil.copytree(roots["v2"], mounted.root / "opt/driver")
    (mounted.root / "etc/modprobe.d/npu.conf").write_text(
        "options rebellions queue_depth=7\noptions rebellions_core trace=1\n"
    )
    assert command.reconcile(Path("/opt/driver"), **mounted.environment).code == 0
    assert module_fact("rebellions", "parameters/queue_depth") == "7"
    assert module_fact("rebellions_core", "parameters/trace") == "Y"


@pytest.mark.shares(3)
def test_options_set_by_hand_and_not_set_again_are_reported(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    done = command.reconcile(roots["v2"])
    assert "module parameters differ" not in done.err
    assert run("rmmod", "rebellions").status == 0
    assert run("modprobe", "-d", roots["v2"], "rebellions", "queue_depth=9").status == 0
    again = command.reconcile(roots["v2"], FORCE_REINSTALL="true")
    assert again.code == 0
    assert "rebellions.queue_depth was 9 and is 64" in again.err


@pytest.mark.shares(3)
def test_on_the_host_itself_modprobe_reads_its_options_by_itself(
    command: Command, roots: DriverRoots, own_config: Path
) -> None:
    old_driver(roots)
    own_config.write_text("options rebellions queue_depth=5\n")
    assert command.reconcile(roots["v2"]).code == 0
    assert module_fact("rebellions", "parameters/queue_depth") == "5"


def test_an_install_line_that_would_run_instead_of_loading_is_found_before_anything_changes(
    command: Command, roots: DriverRoots, own_config: Path
) -> None:
    old_driver(roots)
    own_config.write_text("install rebellions_core /bin/false\n")
    refused = command.reconcile(roots["v2"])
    assert refused.code == 6
    assert "modprobe would run `/bin/false` instead of loading" in refused.err
    assert JOURNAL not in command.node.annotations()
    assert module_fact("rebellions", "version") == "1.2.92"


NAMED = "rebellions/rbln.bin"
CUSTOM_PATH = Path("/sys/module/firmware_class/parameters/path")


@pytest.fixture
def with_firmware(roots: DriverRoots, tmp_path: Path) -> Iterator[Path]:
    """A driver root that brings the firmware that its module asks for; the kernel's setting is empty in the end."""
    root = tmp_path / "needs-firmware"
    shutil.copytree(roots["needs-firmware"], root)
    (root / "lib/firmware/rebellions").mkdir(parents=True)
    (root / "lib/firmware" / NAMED).write_text("firmware")
    yield root
    CUSTOM_PATH.write_text("\n")


@pytest.mark.shares(3)
def test_the_kernel_does_not_look_for_firmware_in_the_driver_root_and_a_warning_precedes_the_load(
    command: Command, roots: DriverRoots, with_firmware: Path
) -> None:
    old_driver(roots)
    checked = command.run("preflight", "-o", "json", DRIVER_ROOT=str(with_firmware))
    assert checked.code == 0, "what a module names need not all be there"
    (check,) = [check for check in json.loads(checked.out)["checks"] if check["name"] == "firmware of rebellions"]
    assert check["ok"] is None
    assert NAMED in check["what"]
    assert "rebellions/of-a-card-that-is-not-here.bin" in check["what"]
    assert f"{with_firmware}/lib/firmware" in check["remedy"]
    failed = command.reconcile(with_firmware)
    assert failed.code == 5
    # So modprobe words ENOENT, which says nothing of firmware.
    assert "could not insert 'rebellions': Unknown symbol in module, or unknown parameter" in failed.err
    assert "the old driver 1.2.92 is loaded again" in failed.err
    assert failed.err.index("names firmware that this kernel would not find") < failed.err.index("take the node")


@pytest.mark.shares(3)
def test_firmware_in_the_configured_folder_is_found(command: Command, roots: DriverRoots, with_firmware: Path) -> None:
    old_driver(roots)
    CUSTOM_PATH.write_text(f"{with_firmware}/lib/firmware")
    done = command.reconcile(with_firmware)
    assert done.code == 0
    assert f"find: {NAMED}" not in done.err
    assert "find: rebellions/of-a-card-that-is-not-here.bin. It looks in" in done.err
    assert module_fact("rebellions", "version") == "2.0.1"


@pytest.mark.shares(3)
def test_a_list_without_its_index_is_found_before_anything_changes(
    command: Command, roots: DriverRoots, mounted: MountedHost
) -> None:
    old_driver_with(roots)
    tree = mounted.root / "opt/driver"
    shutil.copytree(roots["v2"], tree)
    (tree / f"lib/modules/{os.uname().release}/modules.dep.bin").unlink()
    refused = command.reconcile(Path("/opt/driver"), **mounted.environment)
    assert refused.code == 6
    assert "modprobe cannot find rebellions" in refused.err
    assert module_fact("rebellions", "version") == "1.2.92"
