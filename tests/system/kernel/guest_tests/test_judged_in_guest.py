"""A swap on a real kernel is judged by what got worse, and a module that the kernel still holds disturbs no pod."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.control_plane.api import wait_until
from tests.support.kernel.guest_command import (
    EDU_PCI_VENDOR,
    RUN_TIMEOUT_S,
    STATE,
    Command,
    assert_given_back,
    old_driver,
)
from tests.support.kernel.guest_fixtures import DEVICE, DriverRoots, module_fact

pytestmark = [pytest.mark.usefixtures("guest_kernel"), pytest.mark.release]

SLOW_INIT_S = 30


@pytest.fixture
def edu(command: Command) -> Command:
    """The command line on this node, whose accelerators are the PCI functions that the stand-in driver serves."""
    return command.by_profile(pci_vendor=EDU_PCI_VENDOR)


def answer(words: dict[str, str]) -> str:
    """What the vendor's tool prints about devices, by address."""
    devices = [{"name": f"rbln-{at}", "status": word, "pci": {"bus_id": at}} for at, word in words.items()]
    return json.dumps({"devices": devices, "contexts": []})


def with_tool(root: Path, folder: Path, words: dict[str, str]) -> Path:
    """A copy of the driver root `root` with a tool that prints this answer."""
    tree = folder / root.name
    shutil.copytree(root, tree)
    tool = tree / "usr/bin/rbln-smi"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.write_text(f"#!/bin/sh\necho '{answer(words)}'\n")
    tool.chmod(0o755)
    return tree


def addresses(edu: Command) -> list[str]:
    found: list[str] = json.loads(edu.run("status", "-o", "json").out)["host"]["pciDevices"]
    return found


def loaded_from(tree: Path) -> None:
    """The old driver was loaded from there."""
    record = STATE.parent / "driver-manager.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "root": str(tree)}))


@pytest.mark.parametrize(
    ("after", "code", "version"),
    [
        (lambda good, bad: {**dict.fromkeys(good, "normal"), bad: "error"}, 0, "2.0.1"),
        (lambda good, bad: {**dict.fromkeys(good[1:], "normal"), bad: "error"}, 5, "1.2.92"),
    ],
    ids=["bad-before", "lost"],
)
def test_a_new_driver_is_judged_by_what_got_worse(
    edu: Command,
    roots: DriverRoots,
    tmp_path: Path,
    after: Callable[[list[str], str], dict[str, str]],
    code: int,
    version: str,
) -> None:
    old_driver(roots)
    *good, bad = addresses(edu)
    old = with_tool(roots["v1"], tmp_path, {**dict.fromkeys(good, "normal"), bad: "error"})
    loaded_from(old)
    ended = edu.reconcile(with_tool(roots["v2"], tmp_path, after(good, bad)))
    assert (ended.code, module_fact("rebellions", "version")) == (code, version), ended.err
    message = f"rbln-{bad} is error, as before the swap" if not code else f"{good[0]} is missing"
    assert message in ended.err
    assert_given_back(edu)


def test_a_module_that_is_still_in_its_init_function_is_waited_for_and_disturbs_no_pod(
    command: Command, roots: DriverRoots
) -> None:
    before = command.node.labels()
    with subprocess.Popen(["modprobe", "-d", str(roots["v1"]), "rebellions", f"init_seconds={SLOW_INIT_S}"]) as loads:
        state = Path("/sys/module/rebellions/initstate")
        wait_until(lambda: state.exists() and state.read_text() == "coming\n", "it is in its init function", 60.0)
        begun = time.monotonic()
        busy = command.reconcile(roots["v2"], DEVICE_FREE_TIMEOUT="1s")
        assert busy.code == 4, busy.err
        assert "module rebellions is still being loaded: its init function has not returned" in busy.err
        assert (command.node.labels(), "no pod was disturbed" in busy.err) == (before, True)
        assert time.monotonic() - begun < SLOW_INIT_S, "it was in its init function all the time"
        done = command.reconcile(roots["v2"], DEVICE_FREE_TIMEOUT=f"{SLOW_INIT_S + 60}s")
        assert loads.wait(RUN_TIMEOUT_S) == 0
    assert (done.code, module_fact("rebellions", "version")) == (0, "2.0.1"), done.err
    assert_given_back(command)


def test_a_reference_that_no_process_explains_is_waited_for_and_disturbs_no_pod(
    command: Command, roots: DriverRoots
) -> None:
    """An open file on its way through a socket: no folder /proc/PID/fd has it (unix(7), SCM_RIGHTS)."""
    old_driver(roots)
    before, (here, there) = command.node.labels(), socket.socketpair()
    with here, there:
        with Path(DEVICE).open("rb") as device:
            socket.send_fds(here, [b"."], [device.fileno()])
        assert module_fact("rebellions", "refcnt") == "1"
        busy = command.reconcile(roots["v2"], DEVICE_FREE_TIMEOUT="1s")
        assert (busy.code, command.node.labels()) == (4, before), busy.err
        assert "the kernel uses the driver, and no process has a device open: rebellions (1 user(s))" in busy.err
        assert "no pod was disturbed" in busy.err
        assert module_fact("rebellions", "version") == "1.2.92"
    done = command.reconcile(roots["v2"])
    assert (done.code, module_fact("rebellions", "version")) == (0, "2.0.1"), done.err
    assert_given_back(command)
