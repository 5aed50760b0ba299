"""A process with many agents, one for each node: the real reconcile and adapter on simulated hosts."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from msgspec.structs import replace

from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.core.ports import Ports
from driver_manager.core.swap.run import Identity, observe, reconcile
from driver_manager.domain.host import Host
from driver_manager.domain.journal import Owner
from driver_manager.domain.observation import Observation, Policy
from driver_manager.domain.settings import API_TIMEOUT_S
from tests.support.control_plane.pod_transport import of_environment
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PROFILE
from tests.support.fakes.clock import RecordingReporter
from tests.support.fakes.host import FakeHost
from tests.support.fakes.killer import Killer

OLD = "1.0"
STACK_BYTES = 512 * 1024


class Agent:
    def __init__(self, transport: Transport, node: str) -> None:
        self._node = node
        self._clock = SystemClock()
        self._reporter = RecordingReporter()
        self._host = FakeHost(Killer(), PROFILE, machine_id=node)
        self._host.put_driver(OLD, OLD_DIGEST, peer=False)
        self._cluster = KubeCluster(transport, node, self._clock, self._reporter, API_TIMEOUT_S)

    def run(self) -> dict[str, Any]:
        """One reconcile; times are `time.monotonic()` in seconds, the same clock in every process."""
        begun_s = time.monotonic()
        ports = Ports(self._cluster, self._host, self._clock, self._reporter, self._host.slots, self._host.pci)
        outcome = reconcile(ports, self._observe, PROFILE, Policy())
        return {
            "node": self._node,
            "begun_s": begun_s,
            "ended_s": time.monotonic(),
            "code": int(outcome.exit_code),
            "what": outcome.what,
            "is_unloaded": not self._host.loaded,
        }

    def _observe(self) -> Observation:
        me = Identity(namespace="rbln-system", process=Owner(pid=1, start_ticks=1, boot_id=self._host.boot_id))
        return observe(
            self._cluster.node(),
            self._cluster.pods(recent=True),
            PROFILE,
            me,
            digest=NEW_DIGEST,
            read_host=lambda journal, _: self._facts(self._host.facts(journal, driver_root="", loads=False)),
            process_lives=lambda _: False,
        )

    def _facts(self, host: Host) -> Host:
        """Boots are distinguished by the node as well: all hosts here count theirs from 1."""
        return replace(host, boot_id=f"{self._node}-{host.boot_id}")


def run_all(agents: list[Agent]) -> list[dict[str, Any]]:
    ended: list[dict[str, Any]] = []
    threading.stack_size(STACK_BYTES)
    threads = [threading.Thread(target=lambda agent=agent: ended.append(agent.run())) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def main(environ: dict[str, str], nodes: list[str]) -> None:
    """All agents of `nodes`, each with a connection of its own, as pods of that environment."""
    agents = [Agent(of_environment(environ), node) for node in nodes]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run_all(agents)), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
