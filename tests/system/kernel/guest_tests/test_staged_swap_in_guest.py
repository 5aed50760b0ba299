"""Staged drivers on a real kernel and real file systems: swaps between two trees, a full disk, a noexec mount."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.domain.host import RECORD, decode_staged
from tests.support.control_plane.kubelet import create_operands
from tests.support.kernel.driver_roots import NEW_VERSION, OLD_VERSION
from tests.support.kernel.guest_command import STATE, Command, assert_given_back, old_driver
from tests.support.kernel.guest_fixtures import DriverRoots, boot_id, modprobe, module_fact, say
from tests.support.kernel.inside import SHARE_VARIABLE
from tests.support.selection import Share, parsed

pytestmark = pytest.mark.usefixtures("guest_kernel")

SWAPS, FEWER_SWAPS = 10, 2
"""Eight seconds each: all in a release, fewer in a submission."""
DIGESTS = {OLD_VERSION: "sha256:" + "0" * 64, NEW_VERSION: "sha256:" + "f" * 64}
VARIANTS = {OLD_VERSION: "v1", NEW_VERSION: "v2"}
ROOT = Path("/run/rbln-staged/driver")
NEXT, PREVIOUS = ROOT.with_name("driver.next"), ROOT.with_name("driver.previous")


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RECORD
    }


@pytest.mark.shares(3)
def test_swaps_back_and_forth_keep_every_label_and_every_byte(command: Command, roots: DriverRoots) -> None:
    swaps = SWAPS if parsed(os.environ[SHARE_VARIABLE]) == Share() else FEWER_SWAPS
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, ROOT.parent, ignore_errors=True)
        # The old driver runs from a folder, as a container's installer left it.
        shutil.copytree(roots["v1"], ROOT, symlinks=True)
        assert modprobe(ROOT, "rebellions").status == 0
        STATE.parent.mkdir(exist_ok=True)
        STATE.write_text(f"{DIGESTS[OLD_VERSION]}\n")
        note = {"schema": 1, "bootId": boot_id(), "root": str(ROOT), "version": OLD_VERSION}
        (STATE.parent / "driver-manager.json").write_text(json.dumps(note))
        staged = command.run(
            "stage", "--from", str(roots["v2"]), DRIVER_ROOT=str(ROOT), DRIVER_CONFIG_DIGEST=DIGESTS[NEW_VERSION]
        )
        assert staged.code == 0, staged.err
        assert module_fact("rebellions", "version") == OLD_VERSION
        create_operands(stack, command.api, command.node, ("device-plugin",))
        labels = command.node.labels()
        for number in range(swaps):
            version = (NEW_VERSION, OLD_VERSION)[number % 2]
            say(f"swap {number + 1} of {swaps}")
            done = command.reconcile(ROOT, DRIVER_CONFIG_DIGEST=DIGESTS[version])
            assert done.code == 0, done.err
            assert module_fact("rebellions", "version") == version
            assert module_fact("rebellions_core", "version") == version
            assert STATE.read_text() == f"{DIGESTS[version]}\n"
            assert content(ROOT) == content(roots[VARIANTS[version]])
            assert command.node.labels() == labels
            assert_given_back(command)
        for version, folder in ((OLD_VERSION, ROOT), (NEW_VERSION, PREVIOUS)):
            record = decode_staged((folder / RECORD).read_text())
            assert (record.digest, record.version) == (DIGESTS[version], version)
        verified = command.run(
            "stage",
            *("--from", str(roots["v2"]), "--verify"),
            DRIVER_ROOT=str(ROOT),
            DRIVER_CONFIG_DIGEST=DIGESTS[NEW_VERSION],
        )
        assert (verified.code, "already staged" in verified.err) == (0, True), verified.err


@contextlib.contextmanager
def mounted(options: str) -> Iterator[None]:
    """The folder of the driver roots is a file system of its own, mounted with these options."""
    ROOT.parent.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(ROOT.parent)], check=True, timeout=150)
    try:
        yield
    finally:
        subprocess.run(["umount", str(ROOT.parent)], check=True, timeout=150)
        ROOT.parent.rmdir()


def test_a_full_disk_leaves_nothing_and_the_driver_as_it_is(command: Command, roots: DriverRoots) -> None:
    with mounted("size=2m"):
        (ROOT.parent / "filler").write_bytes(bytes(1536 * 1024))
        done = command.run(
            "stage", "--from", str(roots["v2"]), DRIVER_ROOT=str(ROOT), DRIVER_CONFIG_DIGEST=DIGESTS[NEW_VERSION]
        )
        assert (done.code, "not enough space for another driver" in done.err) == (6, True), done.err
        assert not NEXT.exists()
        assert {one.name for one in ROOT.parent.iterdir()} <= {"filler", "driver.lock"}


@pytest.mark.shares(3)
def test_a_noexec_mount_is_named_before_the_first_effect(command: Command, roots: DriverRoots) -> None:
    """As Debian and Ubuntu mount /run. The kernel loads modules from there, and executes no tool."""
    old_driver(roots)
    why = f"rbln-smi in {{}} cannot be executed: {ROOT.parent} is mounted noexec"
    remedy = "Set DRIVER_ROOT to a folder on another mount"
    with mounted("noexec"):
        shutil.copytree(roots["v2"], ROOT)
        tool = ROOT / "usr/bin/rbln-smi"
        tool.parent.mkdir(parents=True)
        shutil.copy("/bin/true", tool)
        with pytest.raises(PermissionError):
            subprocess.run([tool], check=True, timeout=150)
        staged = command.run(
            "stage", "--from", str(roots["v2"]), DRIVER_ROOT=str(ROOT), DRIVER_CONFIG_DIGEST=DIGESTS[NEW_VERSION]
        )
        assert (staged.code, why.format("the driver to stage") in staged.err, remedy in staged.err) == (6, True, True)
        assert not NEXT.exists()
        why = why.format(ROOT)
        planned = command.run("plan", DRIVER_ROOT=str(ROOT))
        assert (planned.code, f"? tools: {why}" in planned.out, remedy in planned.out) == (0, True, True), planned.out
        done = command.reconcile(ROOT)
        assert (done.code, module_fact("rebellions", "version")) == (0, NEW_VERSION), done.err
        assert done.err.index(why) < done.err.index(remedy) < done.err.index("take the node")
        assert f"not probed: rbln-smi cannot be executed: {ROOT.parent} is mounted noexec" in done.err
