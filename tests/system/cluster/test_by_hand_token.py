"""The token of docs/operate.md on a real API server: its commands in their order, with kubectl.

The laptop's credentials come from a plugin. The pod is a process that has neither the plugin nor a kubeconfig.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver_manager.domain.errors import ExitCode
from scripts.releasing.kustomize import render_with_namespace
from tests.support.control_plane.api import Api
from tests.support.control_plane.fixtures import skip_or_fail
from tests.support.control_plane.kubelet import NodeFactory
from tests.support.control_plane.processes import RUN_TIMEOUT_S
from tests.support.control_plane.runner import PREFIX, CommandRunner, node_of
from tests.support.control_plane.servers import NAMESPACE, ControlPlane
from tests.support.deploy.apply import applied
from tests.support.docs.console import commands
from tests.support.docs.markdown import DOCS

FILE = "by-hand.kubeconfig"
ACCOUNT = "rebellions-driver"
POD = "driver-pod"
CREATE_TOKEN = f"kubectl -n {NAMESPACE} create token {ACCOUNT} --bound-object-kind=Pod --bound-object-name={POD}"
IN_POD = f"kubectl -n {NAMESPACE} exec -i D -- "


def recipe() -> tuple[str, ...]:
    """The commands of the page from the first to the last that has the file."""
    found = [one.text for one in commands(DOCS / "operate.md")]
    mine = [number for number, text in enumerate(found) if FILE in text]
    assert mine == list(range(mine[0], mine[-1] + 1)), "they are one block"
    return tuple(found[mine[0] : mine[-1] + 1])


@dataclass
class Laptop:
    """A person with kubectl and a plugin, and a debug pod on the node that has neither."""

    folder: Path
    runner: CommandRunner
    api: Api

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type one line of the page."""
        pod = self.runner.environment(DRIVER_PROFILE="rebellions")
        inside = " ".join(f"{name}={pod[name]}" for name in ("PATH", "HOST_ROOT", "TERMINATION_LOG", "DRIVER_PROFILE"))
        line = line.replace(IN_POD, f"env -i {inside} ").replace(
            "--node-name=N", f"--node-name={node_of(self.runner).name}"
        )
        line = line.replace("--bound-object-name=P)", f"--bound-object-name={POD})")
        if "token" not in self._run("kubectl create --help").stdout:  # kubectl before 1.24: what the newer one asks for
            line = line.replace(CREATE_TOKEN, f"echo {self._token()}")
        return self._run(line)

    def _token(self) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": POD}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
        return str(self.api.post(path, body)["status"]["token"])

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        plugin = self.folder / "plugin"
        env = {
            "PATH": os.pathsep.join([str(plugin), os.environ["PATH"]]),
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "config"),
        }
        return subprocess.run(
            ["bash", "--norc", "--noprofile", "-o", "pipefail", "-c", line],
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture
def laptop(control_plane: ControlPlane, admin_api: Api, tmp_path: Path, node: NodeFactory) -> Iterator[Laptop]:
    """The overlay's account and its rights are there, and a node whose driver is loaded."""
    if shutil.which("kubectl") is None:
        skip_or_fail("kubectl is not on PATH")
    home, plugin = tmp_path / "home", tmp_path / "home/plugin"
    plugin.mkdir(parents=True)
    version = "client.authentication.k8s.io/v1beta1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": control_plane.admin.token}}
    script = plugin / "cloud-login"
    script.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    script.chmod(0o700)
    config = json.loads(control_plane.kubeconfig("unused").read_text())
    config["users"][0]["user"] = {"exec": {"apiVersion": version, "command": script.name}}
    (home / "config").write_text(json.dumps(config))
    runner = CommandRunner(control_plane, control_plane.nobody, tmp_path).with_upgrade()
    (runner.tree.bin / "driver-manager").symlink_to(Path(sys.executable).parent / "driver-manager")
    runner.node = node({f"{PREFIX}driver": "true"}, boot_id=runner.tree.boot_id)
    objects = [one for one in render_with_namespace("rebellions") if one["kind"] != "DaemonSet"]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    with applied(admin_api, objects):
        containers = [{"name": "c", "image": "i"}]
        spec = {
            "serviceAccountName": ACCOUNT,
            "nodeName": runner.node.name,
            "containers": containers,
            "terminationGracePeriodSeconds": 0,
        }
        admin_api.post(pods, {"metadata": {"name": POD}, "spec": spec})
        yield Laptop(home, runner, admin_api)


def test_a_token_by_the_page_does_what_the_plugins_kubeconfig_cannot(laptop: Laptop) -> None:
    view, credentials, context, status, remove = recipe()
    without = status.replace(f"--kubeconfig={FILE} ", "")
    ended = laptop.types(without)
    assert ended.returncode == ExitCode.USAGE, ended.stdout + ended.stderr
    assert "the API server requires credentials, and the kubeconfig has none" in ended.stderr
    assert "kubectl create token" in ended.stderr

    for line in (view, credentials, context):
        done = laptop.types(line)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    assert (laptop.folder / FILE).stat().st_mode & 0o077 == 0
    shown = laptop.types(status)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.startswith("ready: ")
    assert "access" not in shown.stdout, "nothing is out of sight"
    assert node_of(laptop.runner).name in shown.stdout
    assert laptop.types(status.replace("status", "restore --dry-run")).returncode == 0
    assert laptop.types(remove).returncode == 0
    assert not (laptop.folder / FILE).exists()
