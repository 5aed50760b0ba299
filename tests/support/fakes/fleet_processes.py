"""Controllers of rollouts as real processes, on a server of the sandbox whose kubelets are played."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from driver_manager.sandbox.apiserver import ApiServer
from tests.support.fakes.fleet_scene import NAMESPACE, FleetScene
from tests.support.fakes.pace import patient

REPOSITORY = Path(__file__).parents[3]
WAIT_S = 60.0


@dataclass
class Processes:
    """Controllers on one server. Their logs are JSON lines in files."""

    server: ApiServer
    scene: FleetScene
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """One more; `log` of its number is what it says."""
        number = len(self.started)
        kubeconfig = self.folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(self.server.kubeconfig()))
        env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "LOG_FORMAT": "json"}
        argv = [sys.executable, "-m", "driver_manager", "rollout", "controller"]
        argv += ["--profile", "rebellions", "--namespace", NAMESPACE, *options]
        with (self.folder / f"log-{number}").open("wb") as out:
            process = subprocess.Popen(argv, cwd=REPOSITORY, env=env, stderr=out, stdin=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def said(self, number: int) -> list[str]:
        """What a controller has said so far."""
        lines = (self.folder / f"log-{number}").read_text().splitlines()
        return [json.loads(line)["message"] for line in lines if line.endswith("}")]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Kubelets do what they have to until `holds`. Raises AssertionError after a while."""
        end_s = time.monotonic() + patient(WAIT_S)
        while not holds():
            assert time.monotonic() < end_s, (what, [self.said(number) for number in range(len(self.started))])
            self.scene.catch_up()
            time.sleep(0.02)

    def holder(self) -> str:
        """Who has the Lease."""
        found, _ = self.server.store.list_objects("leases")
        return str(found[0]["spec"]["holderIdentity"]) if found else ""

    def stop(self) -> None:
        """End all of them."""
        for process in self.started:
            process.kill()
            process.wait(30)
