"""The image's own command line at work: alone, and against the real API server as an init container would run it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from driver_manager.cli.main import COMMANDS
from driver_manager.sandbox import fake_tools
from scripts.releasing.kustomize import only, render
from tests.support.control_plane.kubelet import NodeFactory, OperandsFactory
from tests.support.control_plane.runner import JOURNAL, NEW, NEW_DIGEST, PREFIX, CommandRunner
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.image.builder import CommandResult, Container

TREE = "/opt/driver-manager"
SERVICE_ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"  # a symlink in Debian: /var/run leads to /run
LABELS = {f"{PREFIX}device-plugin": "true", f"{PREFIX}metrics-exporter": "team-a"}


def test_what_a_command_says_arrives_though_the_reader_is_late(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(argv: list[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {name: value for name, value in options.items() if name in ("env", "text", "cwd")}
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
            time.sleep(3.0)  # a command that has ended by now has lost what does not fit into a pipe
            out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    for number, name in ((1, "out"), (2, "err")):
        with monkeypatch.context() as slow:
            slow.setattr(subprocess, "run", late)
            done = container.run("sh", "-c", f"head -c 120000 /dev/zero | tr '\\0' x >&{number}")
        assert (done.status, len(getattr(done, name))) == (0, 120_000)


@pytest.mark.parametrize("scenario", ["upgrade", "wedge-to-reboot"])
def test_the_sandbox_plays_in_it(container: Container, scenario: str) -> None:
    done = container.run("driver-manager", "sandbox", scenario)
    assert done.status == 0, done.out + done.err
    assert "as expected: " in done.out


def test_every_command_can_be_imported(container: Container) -> None:
    words = " && ".join(f"driver-manager {command} --help >/dev/null" for command in COMMANDS)
    done = container.run("sh", "-ec", words)
    assert (done.status, done.err) == (0, "")


def test_the_kernels_device_events_are_there(container: Container) -> None:
    code = "import pyudev; pyudev.Monitor.from_netlink(pyudev.Context(), source='kernel').start()"
    done = container.run(f"{TREE}/bin/python3", "-c", code)
    assert (done.status, done.err) == (0, "")


def test_the_readiness_probe_of_the_manifests_runs_in_it(container: Container) -> None:
    spec = only(render("rebellions"), "DaemonSet")["spec"]["template"]["spec"]
    (watch,) = [one for one in spec["containers"] if one["name"] == "health-watch"]
    *words, path = watch["readinessProbe"]["exec"]["command"]
    assert container.run(*words, path).status == 1
    assert container.run(*words, "/etc/os-release").status == 0


class ImageRig(CommandRunner):
    """A command runner whose stand-in tools run with the image's interpreter; the image's command line works on it."""

    def use(self, container: Container, plane: ControlPlane, user: User) -> ImageRig:
        """Let the command line be that of `container`, with a service account's mount."""
        self._container = container
        self._address = plane.url.removeprefix("https://").rpartition(":")
        self._account = self.tree.root.parent / "serviceaccount"
        self._account.mkdir()
        (self._account / "ca.crt").write_bytes(plane.ca.read_bytes())
        (self._account / "token").write_text(user.token)
        (self._account / "namespace").write_text("rbln-system")
        place = f"{TREE}/lib/python3.11/site-packages/driver_manager/sandbox/fake_tools.py"
        for tool in [*self.tree.bin.iterdir(), *self.tree.root.rglob("rbln-smi")]:
            text = tool.read_text().replace(sys.executable, f"{TREE}/bin/python3").replace(fake_tools.__file__, place)
            tool.write_text(text)
        return self

    def run_inside(self, *arguments: str, **env: str) -> CommandResult:
        """Run `driver-manager` in the container, with an init container's environment and mounts."""
        assert self.node is not None
        host, _, port = self._address
        environment = {
            "PATH": f"{self.tree.bin}:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin",
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "NODE_NAME": self.node.name,
            "OPERATOR_NAMESPACE": "rbln-system",
            "DRIVER_LOAD": "manager",
            "DRIVER_CONFIG_DIGEST": NEW_DIGEST,
            "LOG_FORMAT": "text",
            **env,
        }
        folder = self.tree.root.parent
        volumes = (f"{folder}:{folder}", f"{self.tree.root}:/host", f"{self._account}:{SERVICE_ACCOUNT}:ro")
        return self._container.run("driver-manager", *arguments, env=environment, volumes=volumes)


@pytest.fixture
def command_runner(control_plane: ControlPlane, tmp_path: Path, node: NodeFactory, container: Container) -> ImageRig:
    made = ImageRig(control_plane, control_plane.agent_with_events, tmp_path)
    made.with_upgrade()
    made.node = node(LABELS, boot_id=made.tree.boot_id)
    return made.use(container, control_plane, control_plane.agent_with_events)


def test_a_reconcile_from_inside_swaps_the_driver_and_gives_every_label_back(
    command_runner: ImageRig, operands: OperandsFactory
) -> None:
    made = operands(command_runner.node, ("device-plugin",))
    before = command_runner.node.labels()
    done = command_runner.run_inside("reconcile-driver-state")
    assert done.status == 0, done.err
    assert (command_runner.tree.driver_version, command_runner.tree.digest) == (NEW, NEW_DIGEST)
    assert command_runner.node.labels() == before
    assert command_runner.node.shown() == ("ready", 0)
    assert JOURNAL not in command_runner.node.annotations()
    made.wait_running()


def test_every_way_to_the_cluster_works_with_what_is_kept(
    command_runner: ImageRig, control_plane: ControlPlane
) -> None:
    plain = json.loads(control_plane.kubeconfig(control_plane.agent_with_events.token).read_text())
    folder = command_runner.tree.root.parent
    (folder / "token").write_text(control_plane.agent_with_events.token)
    status = {"token": control_plane.agent_with_events.token}
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    (folder / "credential.json").write_text(json.dumps(credential))
    plugin = {"apiVersion": credential["apiVersion"], "command": "cat", "args": [f"{folder}/credential.json"]}
    ways: dict[str, dict[str, Any]] = {
        "token": {"token": control_plane.agent_with_events.token},
        "file": {"tokenFile": str(folder / "token")},
        "plugin": {"exec": {**plugin, "interactiveMode": "Never"}},
    }
    for name, user in ways.items():
        done = _status(command_runner, name, {**plain, "users": [{"name": "test", "user": user}]})
        assert done.status == 0, f"{name}: {done.err}"


def test_a_kubeconfig_without_an_authority_trusts_the_public_ones(
    command_runner: ImageRig, control_plane: ControlPlane
) -> None:
    config = json.loads(control_plane.kubeconfig(control_plane.agent_with_events.token).read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    done = _status(command_runner, "public", config)
    assert done.status == 2, "this server's authority is none of them"
    assert "certificate is not trusted" in done.out
    trusted = _status(command_runner, "public", config, SSL_CERT_FILE=f"{SERVICE_ACCOUNT}/ca.crt")
    assert trusted.status == 0, trusted.err


def test_an_expired_openid_token_is_renewed_or_its_failure_is_not_for_want_of_a_module(
    command_runner: ImageRig, control_plane: ControlPlane
) -> None:
    plain = json.loads(control_plane.kubeconfig("unused").read_text())
    parts: tuple[dict[str, Any], ...] = ({"alg": "none"}, {"exp": 1}, {})
    expired = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    config = {"id-token": expired, "refresh-token": "r", "client-id": "c", "idp-issuer-url": "https://127.0.0.1:1"}
    user = {"auth-provider": {"name": "oidc", "config": config}}
    done = _status(command_runner, "openid", {**plain, "users": [{"name": "test", "user": user}]}, API_TIMEOUT="1s")
    assert done.status in (2, 7, 8), done.err
    assert "127.0.0.1" in done.out
    assert "No module named" not in done.out + done.err
    assert "Traceback" not in done.out + done.err


def _status(command_runner: ImageRig, name: str, kubeconfig: dict[str, Any], **env: str) -> CommandResult:
    path = command_runner.tree.root.parent / f"kubeconfig-{name}"
    path.write_text(json.dumps(kubeconfig))
    return command_runner.run_inside("status", **{"KUBECONFIG": str(path), "API_TIMEOUT": "10s", **env})
