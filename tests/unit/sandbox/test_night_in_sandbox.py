"""The night's table, played in the sandbox: what an SRE sees first is what happened."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.health import HostMarks
from driver_manager.adapters.kube.api import load_client
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.core.node import announce
from driver_manager.domain.health.watch import decode_watch_record, notice_due
from driver_manager.sandbox.apiserver import Deny
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.scenarios import NEW_DIGEST, NEW_ROOT, SCENARIOS
from tests.support.control_plane.api import wait_until
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.night import NIGHTS, Night, check, textfile
from tests.support.fakes.sandboxed import ByHand, by_hand, upgradable

pytestmark = [pytest.mark.submission, pytest.mark.shares(3)]  # each is a night of whole processes, three seconds


@dataclass(frozen=True)
class SandboxPlace:
    """See `tests.support.fakes.night.Place`."""

    by_hand: ByHand

    @property
    def tree(self) -> HostTree:
        return self.by_hand.tree

    def run(self, *argv: str, **env: str) -> tuple[int, str]:
        cluster = self.by_hand.cluster
        loads = {"DRIVER_LOAD": "manager", "DRIVER_ROOT": NEW_ROOT} if cluster.profile.name == "rebellions" else {}
        pod = {"POD_NAME": cluster.driver_pod(), "POD_NAMESPACE": cluster.namespace}
        own = {"DRIVER_CONFIG_DIGEST": NEW_DIGEST, "LOG_FORMAT": "text", "METRICS_TEXTFILE": str(textfile(self))}
        done = self.by_hand.called(*argv, **{**own, **loads, **pod, **env})
        return done.returncode, done.stdout

    def node(self) -> dict[str, Any]:
        return self.by_hand.cluster.node()

    def events(self) -> list[tuple[str, str]]:
        found, _ = self.by_hand.cluster.store.list_objects("events")
        return [(event["reason"], event["message"]) for event in found]

    def pin(self, component: str, finalizer: str) -> None:
        self.by_hand.cluster.pin_pod(f"rbln-{component}", finalizer)

    def watch(self, is_over: Callable[[], bool], **env: str) -> None:
        """The sandbox has no tokens for pods, so this test reports to the Node as the watch's child does."""
        env = self.by_hand.environment(NODE_NAME=NODE, METRICS_TEXTFILE=str(textfile(self)), **env)
        with subprocess.Popen([sys.executable, "-m", "driver_manager", "health-watch"], env=env) as process:
            try:
                wait_until(is_over, "health-watch is done", 120.0)
            finally:
                process.terminate()
        profile, roots = self.by_hand.cluster.profile, HostRoots(self.tree.root, *(self.tree.root,) * 3)
        text = HostMarks(roots, profile, FakeClock()).recall()
        notice = notice_due(decode_watch_record(text, self.tree.boot_id), self.tree.boot_id)
        assert notice is not None
        client, log = load_client(str(self.by_hand.kubeconfig)), RecordingReporter()
        announce(KubeCluster(client, NODE, SystemClock(), log, 60.0), log, profile.keys, notice)

    def without_pods(self) -> dict[str, str]:
        self.by_hand.cluster.server.deny = [Deny("list", "pods")]
        return {}


@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.name)
def test_what_happens_at_night_is_the_first_thing_that_is_seen(night: Night, tmp_path: Path) -> None:
    prepare = upgradable if night.profile == "rebellions" else SCENARIOS["ascend-reboot"].prepare
    with by_hand(tmp_path, prepare, night.profile) as found:
        check(night, SandboxPlace(found))
