"""`stage`, and the run that swaps to what it staged: real commands on the sandbox's cluster and host."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.host import RECORD
from driver_manager.sandbox.host import KERNEL, HostTree
from driver_manager.sandbox.scenarios import NEW, NEW_DIGEST, OLD, OLD_DIGEST
from tests.support.control_plane.container import unshare
from tests.support.fakes.sandboxed import ByHand, by_hand

ROOT = "/var/lib/rbln/driver"
RUN = {"DRIVER_PROFILE": "rebellions", "DRIVER_LOAD": "manager", "DRIVER_ROOT": ROOT, "NODE_NAME": ""}
RUN |= {"LOG_FORMAT": "text", "DRIVER_CONFIG_DIGEST": NEW_DIGEST}


def old_driver_in_a_folder(tree: HostTree) -> None:
    """As a container's installer left it, before anything was staged."""
    tree.add_driver(ROOT, OLD)
    tree.load(ROOT)
    tree.record(OLD_DIGEST, ROOT, OLD)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ByHand]:
    with by_hand(tmp_path, old_driver_in_a_folder) as made:
        yield made


def call(node: ByHand, *words: str, **env: str) -> tuple[int, str, str]:
    done = node.called(*words, **{**RUN, **env})
    return done.returncode, done.stdout, done.stderr


def image(node: ByHand) -> Path:
    """The tree that the init container of a driver image installs into a volume of the pod."""
    node.tree.add_driver("/image", NEW)
    folder = node.tree.root.parent / f"install-{len(list(node.tree.root.parent.iterdir()))}"
    shutil.move(node.tree.root / "image", folder)
    return folder


def stage(node: ByHand) -> tuple[int, str, str]:
    return call(node, "stage", "--from", str(image(node)), KUBECONFIG="/nowhere")


def staged_version(folder: Path) -> Any:
    """The version in the record of the driver tree."""
    return json.loads((folder / RECORD).read_text())["version"]


@pytest.mark.shares(3)
@pytest.mark.submission
def test_a_driver_is_staged_swapped_to_and_swapped_back(node: ByHand) -> None:
    root = node.tree.root / ROOT.lstrip("/")
    code, _, output = stage(node)
    assert (code, f"staged: {NEW_DIGEST}, driver {NEW} in {ROOT}.next" in output) == (0, True), output
    assert node.tree.driver_version == OLD, "what runs is untouched"
    code, out, _ = call(node, "plan")
    assert (code, f"flip {ROOT} to the staged slot {NEW_DIGEST}, driver {NEW}" in out) == (0, True), out
    assert f"staged slot {NEW_DIGEST}, driver {NEW}" in call(node, "preflight")[1]

    code, _, output = call(node, "reconcile-driver-state")
    assert (code, node.tree.driver_version, node.tree.digest) == (0, NEW, NEW_DIGEST), output
    assert staged_version(root) == NEW
    _, out, _ = call(node, "status", "-o", "json")
    kept = {one["digest"]: one for one in json.loads(out)["host"]["slots"]}
    assert [kept[digest]["version"] for digest in (OLD_DIGEST, NEW_DIGEST)] == [OLD, NEW]
    assert (kept[NEW_DIGEST]["current"], kept[OLD_DIGEST]["previous"]) == (True, True)
    assert f"{OLD_DIGEST} driver {OLD} (before the current one, for kernel {KERNEL})" in call(node, "status")[1]
    assert "nothing to do" in call(node, "reconcile-driver-state")[2]

    code, _, output = call(node, "reconcile-driver-state", DRIVER_CONFIG_DIGEST="third")
    assert (code, node.tree.driver_version) == (6, NEW)
    assert f"no slot is staged for the wanted driver: {ROOT} has the staged driver {NEW_DIGEST}" in output

    code, _, output = call(node, "reconcile-driver-state", DRIVER_CONFIG_DIGEST=OLD_DIGEST)
    assert (code, node.tree.driver_version, node.tree.digest) == (0, OLD, OLD_DIGEST), output
    assert [staged_version(root.with_name(name)) for name in ("driver", "driver.previous")] == [OLD, NEW]


@pytest.mark.submission
def test_a_slot_that_does_not_match_its_record_is_replaced(node: ByHand) -> None:
    stage(node)
    (node.tree.root / f"{ROOT.lstrip('/')}.next/lib/modules/{KERNEL}/extra/rebellions.ko").unlink()
    code, _, output = stage(node)
    assert (code, "did not match its record and was replaced" in output) == (0, True)


@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("env", "words", "code", "why"),
    [
        ({"DRIVER_CONFIG_DIGEST": ""}, (), 2, "the digest of the driver to stage is not known"),
        ({"DRIVER_PROFILE": "ascend"}, (), 2, "cannot be staged: only a driver that is swapped in place"),
        ({"DRIVER_ROOT": "/usr/lib"}, (), 2, "cannot be staged"),
        ({}, ("--from", "/nowhere"), 2, "/nowhere is not a folder"),
        ({}, (), 6, "not staged: driver root the driver to stage has no lib/modules"),
    ],
)
def test_a_driver_that_cannot_be_staged_is_reported(
    node: ByHand, tmp_path: Path, env: dict[str, str], words: tuple[str, ...], code: int, why: str
) -> None:
    (tmp_path / "empty").mkdir()
    found, _, output = call(node, "stage", *(words or ("--from", str(tmp_path / "empty"))), **env)
    assert (found, why in output) == (code, True), output


NOEXEC = "mount -o remount,bind,noexec"


def among_mounts(node: ByHand, folder: Path, script: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command among mounts of its own, which `script` makes; its $0 is `folder`."""
    inside = [*unshare(), "sh", "-c", f'{script} && exec "$@"', str(folder), sys.executable, "-m", "driver_manager"]

    def ran(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        environment, argv = node.environment(**{**RUN, **env}), [*inside, *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)

    return ran


@pytest.mark.submission
def test_a_root_on_which_no_tool_can_be_executed_is_named_before_the_first_effect(node: ByHand) -> None:
    """On a real mount, as Debian and Ubuntu mount /run."""
    new, folder = image(node), node.tree.root / "var/lib/rbln"
    node.tree.add_driver(f"{ROOT}-2", NEW)
    ran = among_mounts(node, folder, f'mount --bind "$0" "$0" && {NOEXEC} "$0"')
    why = "rbln-smi in {} cannot be executed: /var/lib/rbln is mounted noexec"
    staged = ran("stage", "--from", str(new))
    assert (staged.returncode, why.format("the driver to stage") in staged.stderr) == (6, True), staged.stderr
    assert not (folder / "driver.next").exists()
    root = f"{ROOT}-2"
    planned = ran("plan", DRIVER_ROOT=root)
    assert (planned.returncode, why.format(root) in planned.stdout) == (0, True), planned.stdout
    checked = ran("preflight", DRIVER_ROOT=root)
    assert (checked.returncode, checked.stdout.count(why.format(root))) == (0, 1), checked.stdout
    found = ran("health-watch", "--once", DRIVER_ROOT=root, HEALTH_WATCH_FAILURES="1")
    assert "rbln-smi cannot be executed: /var/lib/rbln is mounted noexec" in found.stdout + found.stderr, found


@pytest.mark.submission
@pytest.mark.parametrize(
    ("script", "noexec"),
    [
        (f'mount --bind "$0/usr/bin" "$0/usr/bin" && {NOEXEC} "$0/usr/bin"', "/usr/bin is mounted noexec"),
        (f'mount --bind "$0" "$0" && mount --bind "$0/usr/bin" "$0/usr/bin" && {NOEXEC} "$0"', ""),
    ],
)
def test_the_mount_of_a_tool_counts_and_not_that_of_its_root(node: ByHand, script: str, noexec: str) -> None:
    root = f"{ROOT}-2"
    node.tree.add_driver(root, NEW)
    tool = node.tree.root / f"{root.lstrip('/')}/usr/bin/rbln-smi"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    ran = among_mounts(node, tool.parents[2], script)
    for words in (("plan",), ("preflight",), ("health-watch", "--once")):
        found = ran(*words, DRIVER_ROOT=root, HEALTH_WATCH_FAILURES="1")
        text = found.stdout + found.stderr
        assert ("cannot be executed" in text, f"{root}{noexec}" in text or not noexec) == (bool(noexec), True), text
