"""A fleet in memory behind the API server of the sandbox, and the verbs of a rollout as a person types them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.apiserver import ApiServer
from tests.support.fakes.fleet_scene import NAMESPACE, ControllerRun, FleetScene, fleet
from tests.support.fakes.schemas import conforms

APPROVED_WAVES = [{"name": "canary", "count": 1, "approval": True}, {"name": "rest"}]


@dataclass
class Laptop:
    """A person with a kubeconfig; `controller` is what does what is asked for, when a test lets it."""

    scene: FleetScene
    controller: ControllerRun
    server: ApiServer
    capfd: pytest.CaptureFixture[str]

    def says(self, *argv: str) -> tuple[int, str, str]:
        code = run(["rollout", *argv])
        captured = self.capfd.readouterr()
        return code, captured.out, captured.err

    def does(self, *argv: str, code: ExitCode = ExitCode.DONE) -> str:
        """The standard output of a command that ends with this code."""
        ended, out, err = self.says(*argv)
        assert ended == code, (argv, err)
        return out

    def fails(self, *argv: str, code: ExitCode = ExitCode.USAGE) -> str:
        """The error of a command that ends with this code, and prints nothing else."""
        ended, out, err = self.says(*argv)
        assert (ended, out, "what to do: " in err) == (code, "", True), (argv, err)
        return err

    def shows(self, form: str, *argv: str) -> Any:
        _, out, _ = self.says(*argv, "-o", "json")
        return conforms(form, out)

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.scene.rollout()["metadata"].get("annotations") or {})

    def writes(self) -> list[tuple[str, str]]:
        return [(one.verb, one.resource) for one in self.server.requests if one.verb not in ("get", "list", "watch")]

    def add_lease(self, holder: str, renewed: str) -> None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
        body = {"metadata": {"name": "driver-manager-rollout-rebellions", "namespace": NAMESPACE}, "spec": spec}
        self.scene.store.create("leases", body)

    def add_user(self, node: str, name: str, resource: str = "rebellions.ai/ATOM") -> None:
        limits = {"limits": {resource: "1"}}
        spec = {"nodeName": node, "containers": [{"name": "job", "resources": limits}]}
        self.scene.store.create("pods", {"metadata": {"name": name, "namespace": "jobs"}, "spec": spec})


@contextlib.contextmanager
def laptop(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    nodes: int = 4,
    namespace: str = NAMESPACE,
    **spec: Any,
) -> Generator[Laptop, None, None]:
    scene = fleet(nodes, **spec)
    monkeypatch.setattr(SystemClock, "wall", lambda _: scene.clock.wall())
    controller = ControllerRun(scene)
    controller.until_complete("r1")
    with ApiServer(scene.store) as server:
        config = server.kubeconfig()
        if namespace:
            config["contexts"][0]["context"]["namespace"] = namespace
        (folder / "kubeconfig").write_text(json.dumps(config))
        for name, value in {"KUBECONFIG": f"{folder}/kubeconfig", "LOG_FORMAT": "text", "HOME": f"{folder}"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DRIVER_PROFILE", "rebellions")
        yield Laptop(scene, controller, server, capfd)
