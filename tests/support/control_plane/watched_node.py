"""Owns a node whose driver a real health-watch watches while its chip is well or not, as the test says.

Must not import the product, but for its profiles.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from driver_manager.profiles import builtin
from tests.support.control_plane.api import Json, wait_until
from tests.support.control_plane.loops import END_S, Loop
from tests.support.control_plane.runner import OLD_ROOT
from tests.support.control_plane.scene import NodeScene, World, make_stage

PROFILE = builtin()["rebellions"]
STATE = PROFILE.keys.state
EVENTS = "/api/v1/namespaces/default/events"
TOOL = """#!/bin/sh
echo >> {folder}/samples
if [ -e {folder}/bad ]; then echo "npu 0 does not answer" >&2; exit 1; fi
exec {folder}/rbln-smi "$@"
"""


class WatchedNode:
    """A swappable driver, loaded and ready. `folder` is the test's own."""

    def __init__(self, scene: NodeScene, folder: Path) -> None:
        self.scene = scene
        self.folder = folder
        tool = self.on_host(OLD_ROOT) / "usr/bin/rbln-smi"
        tool.rename(folder / "rbln-smi")
        tool.write_text(TOOL.format(folder=folder))
        tool.chmod(0o755)
        self.ready = self.on_host(PROFILE.paths.ready_marker)
        self.be_ready()

    def on_host(self, path: str) -> Path:
        """A path of the host."""
        return self.scene.command_runner.tree.root / path.lstrip("/")

    def fail(self) -> None:
        """From now on every sample is a failure."""
        (self.folder / "bad").touch()

    def mend(self) -> None:
        """From now on every sample is well."""
        (self.folder / "bad").unlink()

    @property
    def samples(self) -> int:
        """How many there were."""
        path = self.folder / "samples"
        return path.read_text().count("\n") if path.exists() else 0

    def wait_samples(self, count: int) -> None:
        """Wait for so many more."""
        begun = self.samples
        wait_until(lambda: self.samples >= begun + count, f"{count} samples more")

    def environment(self, **env: str) -> dict[str, str]:
        """A sidecar's; "" unsets."""
        own = {"DRIVER_PROFILE": "rebellions", "DRIVER_ROOT": OLD_ROOT, "HEALTH_WATCH_INTERVAL": "100ms"}
        return self.scene.command_runner.environment(**own, **env)

    @contextlib.contextmanager
    def watch(self, name: str = "watch", **env: str) -> Iterator[Loop]:
        """health-watch, while the context lasts; its log has this name. It may be killed meanwhile."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            argv = [sys.executable, "-m", "driver_manager", "health-watch"]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=out, env=self.environment(**env))
        try:
            yield Loop(process, log)
        finally:
            process.kill()
            process.wait(END_S)
            print(f"{name}:\n{log.read_text()}")

    def reboot(self) -> None:
        """The host boots, and the driver is installed and ready again."""
        tree = self.scene.command_runner.tree
        tree.reboot()
        tree.load(OLD_ROOT)
        self.be_ready()

    def be_ready(self) -> None:
        """The driver container says that the driver serves."""
        self.ready.parent.mkdir(parents=True, exist_ok=True)
        self.ready.write_text("DRIVER=1\n")

    def record(self) -> str:
        """What the watch remembers of this boot, "" for nothing."""
        path = self.on_host(PROFILE.paths.health_record)
        return path.read_text() if path.exists() else ""

    def wait_told(self, kind: str) -> None:
        """Wait until the watch remembers that the Node knows; of a driver that serves, its generation, too."""
        wait_until(lambda: f'"told": "{kind}"' in self.record(), f"the Node was told: {kind}")
        clients = self.on_host(PROFILE.paths.client_record)
        if kind == "recovered":
            wait_until(lambda: clients.exists() and '"isShown": true' in clients.read_text(), "and the generation")

    @property
    def state(self) -> str | None:
        """What the Node shows."""
        return self.scene.node.shown()[0]

    def shows(self, state: str) -> None:
        """Wait until the Node shows this."""
        wait_until(lambda: self.state == state, f"the Node shows {state}")

    def events(self, reason: str) -> list[Json]:
        """The Events of this reason on the Node."""
        selector = f"involvedObject.name={self.scene.node.name},reason={reason}"
        return self.scene.world.api.list(EVENTS, fieldSelector=selector)


@contextlib.contextmanager
def watched_node(world: World, name: str = "watched") -> Iterator[WatchedNode]:
    """Such a node, while the context lasts."""
    with contextlib.ExitStack() as stack:
        scene = make_stage(stack, world, name)
        folder = world.folder / f"{name}-watch"
        folder.mkdir()
        yield WatchedNode(scene, folder)
