"""The sandbox's cluster and host as a person meets them who works by hand on the node."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from driver_manager.profiles import builtin
from driver_manager.sandbox.cluster import NODE, SandboxCluster
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.scenarios import NEW, NEW_DIGEST, NEW_ROOT, OLD, OLD_DIGEST, OLD_ROOT
from tests.support.fakes.typed import called

OWN_ROOT = "/opt/driver-new"
"""The tree of a new driver, for tests that prepare one."""


@dataclass(frozen=True)
class ByHand:
    """A node to work on; `kubeconfig` is an administrator's."""

    cluster: SandboxCluster
    tree: HostTree

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.kubeconfig

    def environment(self, **more: str) -> dict[str, str]:
        """What a debug pod's process has, and the kubeconfig; the host's tree stands for what is mounted at /host."""
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(self.tree.bin), os.defpath]),
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.tree.root),
            "HOST_ROOT": str(self.tree.root),
            "KUBECONFIG": str(self.kubeconfig),
            "TERMINATION_LOG": str(self.tree.root / "termination-log"),
            **more,
        }

    def run_environment(self, **more: str) -> dict[str, str]:
        """The same for a run that loads the new driver itself."""
        known = {"DRIVER_PROFILE": self.tree.profile.name, "DRIVER_CONFIG_DIGEST": NEW_DIGEST, "LOG_FORMAT": "text"}
        return self.environment(**{**known, "DRIVER_LOAD": "manager", "DRIVER_ROOT": OWN_ROOT, **more})

    def called(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command in a process of its own."""
        return called(self.environment(**env), *words)

    def call(self, *words: str, **env: str) -> tuple[int, str]:
        """The exit code and what a command printed."""
        done = called(self.run_environment(**env), *words)
        return done.returncode, done.stdout + done.stderr


def upgradable(tree: HostTree) -> None:
    tree.add_driver(OLD_ROOT, OLD)
    tree.load(OLD_ROOT)
    tree.record(OLD_DIGEST, OLD_ROOT, OLD)
    tree.add_driver(NEW_ROOT, NEW)


@contextlib.contextmanager
def by_hand(
    folder: Path, prepare: Callable[[HostTree], None] = upgradable, vendor: str = "rebellions"
) -> Generator[ByHand, None, None]:
    profile = builtin()[vendor]
    tree = HostTree(folder / "host", folder / "bin", profile)
    tree.build()
    (tree.root / "etc/hostname").write_text(f"{NODE}\n")
    prepare(tree)
    with SandboxCluster(profile, tree, folder, digest=NEW_DIGEST, stop_s=0.2) as cluster:
        yield ByHand(cluster, tree)
