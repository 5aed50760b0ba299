"""The built image with its own kmod, and the sample driver, do their job on a real kernel."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import create_operands
from tests.support.kernel.containers import HOST, WITHOUT_IMAGE_VARIABLE, image_root, run_in_image
from tests.support.kernel.guest_command import DRIVER_ROOT, STATE, Command, assert_given_back, old_driver
from tests.support.kernel.guest_fixtures import DriverRoots, module_fact

pytestmark = pytest.mark.usefixtures("guest_kernel")

SAMPLE_DRIVER = str(Path("images/sample-driver/sample-driver").resolve())
READY = Path("/run/rbln/validations/.driver-ctr-ready")


@pytest.mark.shares(3)
def test_the_image_swaps_the_real_modules_of_the_host_and_gives_every_label_back(
    command: Command, roots: DriverRoots
) -> None:
    root = image_root()
    if root is None:
        pytest.skip(os.environ[WITHOUT_IMAGE_VARIABLE])
    old_driver(roots)
    env = command.environment(DRIVER_ROOT=str(roots["v2"]))
    del env["HOST_ROOT"]  # the contract's own place is found by itself
    env |= {name: HOST + env[name] for name in ("KUBECONFIG", "PROFILE_FILE")}
    with contextlib.ExitStack() as stack:
        create_operands(stack, command.api, command.node, ("device-plugin", "metrics-exporter"))
        labels = command.node.labels()
        done = run_in_image(root, ["driver-manager", "reconcile-driver-state"], env)
        assert done.returncode == 0, done.stderr
        assert command.node.labels() == labels
    assert (module_fact("rebellions", "version"), module_fact("rebellions_core", "version")) == ("2.0.1", "2.0.1")
    assert STATE.read_text() == "new-digest\n"
    assert_given_back(command)


@pytest.mark.shares(3)
def test_the_sample_driver_container_follows_an_upgrade(command: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    cleared = command.run("reconcile-driver-state", DRIVER_LOAD="container")
    assert cleared.code == 0, cleared.err
    assert not STATE.exists()
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DRIVER_TREE": str(roots["v2"]), "DRIVER_VERSION": "2.0.1"}
    env |= {"DRIVER_CONFIG_DIGEST": "new-digest"}
    with subprocess.Popen([SAMPLE_DRIVER], env=env, start_new_session=True) as container:
        try:
            wait_until(
                lambda: subprocess.run([SAMPLE_DRIVER, "ready"], env=env, timeout=150, check=False).returncode == 0,
                "the sample driver is ready",
                every_s=0.5,
            )
        finally:
            os.killpg(container.pid, signal.SIGTERM)
    assert container.returncode == 0
    assert (module_fact("rebellions", "version"), STATE.read_text()) == ("2.0.1", "new-digest\n")
    assert READY.exists()
    again = command.run("reconcile-driver-state", DRIVER_LOAD="container")
    assert (again.code, "nothing to do" in again.err) == (0, True), again.err
    subprocess.run([SAMPLE_DRIVER, "stop"], env=env, timeout=150, check=True)
    assert not READY.exists()
    shutil.rmtree(DRIVER_ROOT)
