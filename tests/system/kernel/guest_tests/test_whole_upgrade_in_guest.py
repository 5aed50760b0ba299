"""A whole upgrade by the real command line on a real kernel: undisturbed, with a busy device, and rolled back."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import create_operands
from tests.support.kernel.guest_command import RUN_TIMEOUT_S, STATE, Command, assert_given_back, old_driver
from tests.support.kernel.guest_fixtures import DriverRoots, holding_open, module_fact

pytestmark = pytest.mark.usefixtures("guest_kernel")


def test_an_upgrade_swaps_the_real_modules_and_gives_every_label_back(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    with contextlib.ExitStack() as stack:
        create_operands(stack, command.api, command.node, ("device-plugin", "metrics-exporter"))
        labels = command.node.labels()
        done = subprocess.run(
            [sys.executable, "-m", "driver_manager", "reconcile-driver-state"],
            env=command.environment(DRIVER_ROOT=str(roots["v2"])),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert command.node.labels() == labels
        assert command.node.shown() == ("ready", 0)
    assert (module_fact("rebellions", "version"), module_fact("rebellions_core", "version")) == ("2.0.1", "2.0.1")
    assert STATE.read_text() == "new-digest\n"
    assert_given_back(command)
    again = command.reconcile(roots["v2"])
    assert (again.code, "nothing to do" in again.err) == (0, True)


def test_a_held_device_is_reported_with_its_holder_and_waited_for(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    with holding_open() as pid:
        busy = command.reconcile(roots["v2"], DEVICE_FREE_TIMEOUT="1s")
        assert busy.code == 4
        assert f"sleep (pid {pid}) has /dev/rbln0 open" in busy.err
        assert module_fact("rebellions", "version") == "1.2.92"
        assert_given_back(command)
        version = command.node.read()["metadata"]["resourceVersion"]
        waiting = command.start("reconcile-driver-state", DRIVER_ROOT=str(roots["v2"]), DEVICE_FREE_TIMEOUT="4m")
        wait_until(lambda: "before anything is changed" in waiting.output(), "the run waits", RUN_TIMEOUT_S)
        assert command.node.read()["metadata"]["resourceVersion"] == version, "it disturbed the node meanwhile"
    assert waiting.end().code == 0
    assert module_fact("rebellions", "version") == "2.0.1"
    assert_given_back(command)


def test_a_module_whose_init_fails_is_rolled_back(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    failed = command.reconcile(roots["bad-init"])
    assert failed.code == 5
    assert "the old driver 1.2.92 is loaded again" in failed.err
    assert (module_fact("rebellions", "version"), module_fact("rebellions_core", "version")) == ("1.2.92", "1.2.92")
    assert STATE.read_text() == "old-digest\n"
    assert_given_back(command)
