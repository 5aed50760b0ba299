"""`upgrade NODE` on the real API server: evictions, the run that is followed, and the plan by a short-lived pod."""

from __future__ import annotations

import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.cli import upgrade
from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.profiles import builtin
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import ROLLOUTS, FleetFactory, RolloutFleet
from tests.support.control_plane.servers import NAMESPACE, ControlPlane
from tests.support.fakes.schemas import conforms

BUDGETS = f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets"
PLAN = {"schemaVersion": 1, "decision": "nothing"}
LOG = f"12:00:00 info: a line of the log\n{json.dumps(PLAN, indent=2)}\nlast line\n"


@dataclass
class Person:
    """A person with a kubeconfig, and a fleet of one node."""

    fleet: RolloutFleet
    proxy: Proxy
    capfd: pytest.CaptureFixture[str]

    @property
    def node(self) -> str:
        return self.fleet.nodes[0]

    def upgrade(self, *argv: str) -> tuple[int, str, str]:
        code = run(["upgrade", self.node, *argv])
        captured = self.capfd.readouterr()
        return code, captured.out, captured.err

    def pods(self) -> list[str]:
        return [pod["metadata"]["uid"] for pod in self.fleet.pods()]


@pytest.fixture
def person(
    rollout_fleet: FleetFactory,
    control_plane: ControlPlane,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Person:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig(control_plane.admin.token, proxy.url)))
    monkeypatch.setenv("LOG_FORMAT", "text")
    return Person(rollout_fleet(1), proxy, capfd)


def once(check: Callable[[], object], act: Callable[[], object]) -> None:
    """Call `act` in a thread when `check` is true."""

    def wait() -> None:
        wait_until(check, "the moment to act")
        act()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.shares(4)
def test_an_upgrade_evicts_the_pod_follows_its_run_and_then_finds_nothing_newer(person: Person) -> None:
    new, before = person.fleet.set_driver("driver:2"), person.pods()
    code, out, err = person.upgrade("--wait", "--timeout", "2m")
    assert code == ExitCode.DONE, err
    assert out.startswith(f"node {person.node}: upgraded\nresult   the driver pod is ready\n")
    assert "is evicted\n" in err
    assert person.fleet.serving() == {person.node: new}
    after = person.pods()
    assert not set(before) & set(after)
    code, out, _ = person.upgrade("--wait", "-o", "json")
    found = conforms("upgrade", out)
    assert (code, found["exitCode"], found["evicted"], found["revision"]) == (0, None, False, new)
    assert found["what"].startswith("nothing newer")
    assert person.pods() == after


@pytest.mark.shares(4)
def test_an_upgrade_ends_with_the_code_of_the_run_that_fails(person: Person) -> None:
    person.fleet.set_driver("driver:2")
    person.fleet.kubelets.failing[person.node] = (4, "exit 4: the device is in use: train (pid 7)")
    code, out, _ = person.upgrade("--wait", "--timeout", "2m", "-o", "json")
    found = conforms("upgrade", out)
    assert (code, found["exitCode"]) == (ExitCode.DRIVER_BUSY, 4)
    assert found["what"] == "exit 4: the device is in use: train (pid 7)"
    code, out, _ = person.upgrade("--wait", "--timeout", "2m")
    assert code == ExitCode.DRIVER_BUSY, "the run that has failed is followed, not started once more"
    assert "exit 4" in out


@pytest.mark.shares(4)
def test_a_refused_eviction_is_repeated_until_the_budget_allows_it(person: Person) -> None:
    new, name = person.fleet.set_driver("driver:2"), person.fleet.name
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}}
    person.fleet.api.post(BUDGETS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    try:
        before = person.pods()
        code, _, err = person.upgrade("--wait", "--timeout", "1s")
        assert code == ExitCode.PODS_REMAIN
        assert "disruption budget" in err
        assert person.pods() == before
        asked = partial(person.proxy.exchanges, "create", "pods/eviction", since=person.proxy.mark())
        once(lambda: any(one.status for one in asked()), lambda: person.fleet.api.delete(f"{BUDGETS}/{name}"))
        code, _, err = person.upgrade("--wait", "--timeout", "2m")
    finally:
        gone(lambda: person.fleet.api.delete(f"{BUDGETS}/{name}"))
    assert code == ExitCode.DONE, err
    assert "trying again" in err
    assert person.fleet.serving() == {person.node: new}


@pytest.mark.shares(4)
def test_a_rollout_that_would_fight_has_to_be_paused(person: Person) -> None:
    new, before = person.fleet.set_driver("driver:2"), person.pods()
    person.fleet.make_rollout()
    code, _, err = person.upgrade()
    assert (code, person.pods()) == (ExitCode.STANDING_DOWN, before)
    assert f"driver-manager rollout pause -n {NAMESPACE} {person.fleet.name}" in err
    person.fleet.api.patch(f"{ROLLOUTS}/{person.fleet.name}", {"spec": {"paused": True}})
    code, out, err = person.upgrade("--timeout", "1m")
    assert code == ExitCode.DONE, err
    assert "--wait` follows it" in out
    wait_until(lambda: person.fleet.serving() == {person.node: new}, "the new driver runs")


class Logs:
    """The part of a kubelet that gives logs, at a port that Nodes name."""

    def __init__(self, plane: ControlPlane, text: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*plane.server_certificate)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self, api: Api, node: str) -> None:
        endpoint = {"kubeletEndpoint": {"Port": self.server.server_address[1]}}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        api.patch(f"/api/v1/nodes/{node}/status", {"status": {"addresses": addresses, "daemonEndpoints": endpoint}})


@pytest.fixture
def logs(control_plane: ControlPlane) -> Iterator[Logs]:
    found = Logs(control_plane, LOG)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.shares(4)
def test_a_dry_run_prints_the_plan_of_a_pod_that_is_deleted_and_ends_with_its_code(person: Person, logs: Logs) -> None:
    new, before = person.fleet.set_driver("driver:2"), person.pods()
    logs.serve(person.fleet.api, person.node)
    person.fleet.kubelets.ends[person.node] = (6, "no module")
    code, out, err = person.upgrade("--dry-run", "-o", "json")
    assert code == ExitCode.PREFLIGHT_FAILED, err
    assert json.loads(out) == PLAN
    assert person.upgrade("--dry-run")[:2] == (
        6,
        f"12:00:00 info: a line of the log\n{json.dumps(PLAN, indent=2)}\nlast line\n",
    )
    wait_until(lambda: not person.fleet.looks(), "no pod is left")
    assert (person.pods(), new in person.fleet.serving().values()) == (before, False)
    spec = person.fleet.kubelets.bodies[person.node]["spec"]
    (container,) = spec["containers"]
    assert (container["image"], spec["nodeName"]) == ("manager:1", person.node)
    assert container["args"] == ["reconcile-driver-state", "--dry-run", "--output", "text"]


@pytest.mark.shares(4)
def test_the_pod_of_a_dry_run_is_deleted_if_it_is_interrupted(person: Person) -> None:
    person.fleet.set_driver("driver:2")
    person.fleet.kubelets.stuck.add(person.node)
    once(person.fleet.looks, lambda: os.kill(os.getpid(), signal.SIGINT))
    began_s = time.monotonic()
    code, _, err = person.upgrade("--dry-run")
    assert (code, time.monotonic() - began_s < 60) == (ExitCode.STANDING_DOWN, True)
    left: list[Any] = person.fleet.looks()
    assert [pod for pod in left if "deletionTimestamp" not in pod["metadata"]] == []
    assert "Nothing was changed." in err


@pytest.mark.shares(4)
@pytest.mark.parametrize("ending", ["timeout", "SIGINT", "SIGHUP"])
def test_the_pod_that_clears_a_node_is_deleted_however_the_command_ends(
    person: Person, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unloads = {name: replace(one, container_unloads=True) for name, one in builtin().items()}
    monkeypatch.setattr(upgrade, "named_profile", lambda _: (None, unloads))
    person.fleet.set_driver("driver:2")
    before = person.pods()
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=driver-manager.rebellions.ai/task"

    def clearing() -> list[Json]:
        return [pod for pod in person.fleet.api.list(path) if "deletionTimestamp" not in pod["metadata"]]

    if ending != "timeout":
        once(clearing, lambda: os.kill(os.getpid(), getattr(signal, ending)))
    code, _, err = person.upgrade("--timeout", "3s" if ending == "timeout" else "1m")
    assert (code, person.pods()) == (ExitCode.ROLLOUT_STUCK if ending == "timeout" else ExitCode.STANDING_DOWN, before)
    assert clearing() == [], err
    assert ending != "timeout" or "which clears the node" in err
