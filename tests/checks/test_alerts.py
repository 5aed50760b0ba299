"""The shipped alerts and dashboard, as files and in a real Prometheus that has scraped the real endpoints."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import RunFiguresFile
from driver_manager.domain.fleet.spec import PLURAL, NodeRecord, UpgradeState
from driver_manager.domain.fleet.spec import encode_node_record as encode_record
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.health.watch import History
from driver_manager.domain.metrics import exposition
from driver_manager.domain.node_state import NodeState, Recovery, RecoveryState
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.reboot.state import Attempt, RebootRequest, Record, encode_reboot_record
from driver_manager.domain.run_report import RunReport
from driver_manager.domain.wire import written_time
from driver_manager.profiles import builtin
from driver_manager.sandbox.apiserver import ApiServer
from scripts.releasing.kustomize import OVERLAYS, only, render
from tests.support.control_plane.api import wait_until
from tests.support.deploy.prometheus import BOUND_S, COMPONENT, Prometheus, free_port, prometheus, tool
from tests.support.docs.markdown import ROOT, anchors
from tests.support.docs.reference import every_family
from tests.support.fakes.ascend_tree import AscendTree
from tests.support.fakes.fleet_scene import DRIVER, KEYS, NAMESPACE, FleetScene, Processes

pytestmark = pytest.mark.shares(3)

RULES = yaml.safe_load((COMPONENT / "rules.yaml").read_text())
DASHBOARD = json.loads((COMPONENT / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
OURS = {family.name for found in every_family().values() for family in found}
SCRAPED = OURS - {*builtin()["nvidia"].upgrade_metrics.names}
"""What there is in the cluster of the test, whose controller has another profile than that one."""

NAME = re.compile(r"\bdriver_manager_\w+")


def queries() -> list[tuple[str, str]]:
    """Title and expression of every query of the dashboard, with Grafana's variables as Grafana fills them in."""
    found = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    return [(title, text.replace("$__rate_interval", "1m").replace("$node", ".*")) for title, text in found]


def test_the_alerts_are_those_that_are_promised_and_the_component_has_all_its_files() -> None:
    run = {"DriverWedged", "DriverNodeHeld", "DriverRunFailing", "DriverRebootWaiting", "DriverWatchDown"}
    run |= {"DriverNeedsService", "DriverRecoveryWaiting"}
    assert ALERTS.keys() == {*run, "RolloutHalted", "RolloutStuck", "RolloutSlow", "RolloutControllerDown"}
    assert only(render("rebellions", "metrics"), "PrometheusRule")["spec"] == RULES, "both files have the same"
    body = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())
    named = {*body["resources"], *(one["path"] for one in body["patches"])}
    assert {path.name for path in COMPONENT.iterdir()} == named | {"rules.yaml", "dashboard.json", "kustomization.yaml"}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_is_and_what_to_do_and_leads_to_the_page(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook"}
    assert all(text.strip().endswith((".", "=true")) for text in (notes["summary"], notes["description"]))
    page, _, anchor = notes["runbook"].partition("#")
    assert anchor == f"alert-{name.lower()}"
    assert anchor in anchors((ROOT / page).read_text(encoding="utf-8"))


def test_only_metrics_that_exist_are_asked_for() -> None:
    texts = [*(rule["expr"] for rule in ALERTS.values()), *(text for _, text in queries())]
    assert len(texts) > 30
    assert {text: unknown for text in texts if (unknown := set(NAME.findall(text)) - OURS)} == {}


def test_the_alert_for_a_target_that_does_not_answer_finds_those_of_the_pod_monitor() -> None:
    for part, alert, further in (("", "DriverWatchDown", ["node"]), ("-rollout", "RolloutControllerDown", [])):
        monitor = only(render("rebellions", "metrics"), "PodMonitor", f"rebellions-driver{part}")
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        labels = {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"]}
        assert labels.keys() == {"component", *further}
        assert f'up{{component="{labels["component"]}"}}' in ALERTS[alert]["expr"]


@pytest.mark.parametrize(("kind", "part"), [("DaemonSet", "driver"), ("Deployment", "driver-rollout")])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_monitor_selects_its_pods_and_a_port_that_they_have(overlay: str, kind: str, part: str) -> None:
    objects, name = render(overlay, "metrics"), f"{overlay}-{part}"
    monitor = only(objects, "PodMonitor", name)
    watched = only([*objects, *render(f"{overlay}/rollout")], kind, name)
    assert monitor["metadata"]["namespace"] == watched["metadata"]["namespace"]
    template = watched["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    ports = [port for one in template["spec"]["containers"] for port in one.get("ports", [])]
    assert endpoint["port"] in {port["name"] for port in ports}


def test_the_alert_for_a_controller_that_does_not_run_finds_its_deployment() -> None:
    (named,) = re.findall(r'deployment=~"([^"]+)"', ALERTS["RolloutControllerDown"]["expr"])
    for overlay in OVERLAYS:
        assert re.fullmatch(named, only(render(f"{overlay}/rollout"), "Deployment")["metadata"]["name"])


def test_the_figures_of_runs_go_where_a_collector_reads_them() -> None:
    template = only(render("rebellions", "metrics"), "DaemonSet")["spec"]["template"]["spec"]
    (init,) = template["initContainers"]
    path = next(one["value"] for one in init["env"] if one["name"] == "METRICS_TEXTFILE")
    assert path.endswith(".prom"), "the textfile collector reads no other files"
    (mount,) = [one for one in init["volumeMounts"] if path.startswith(one["mountPath"] + "/")]
    (volume,) = [one for one in template["volumes"] if one["name"] == mount["name"]]
    assert volume["hostPath"]["path"] == mount["mountPath"]


def test_grafana_takes_the_dashboard() -> None:
    assert all((DASHBOARD["uid"], DASHBOARD["title"], *(panel["description"] for panel in PANELS)))
    panels, cells = DASHBOARD["panels"], list[tuple[int, int]]()
    assert len({panel["id"] for panel in panels}) == len(panels)
    for x, y, width, height in ([panel["gridPos"][key] for key in "xywh"] for panel in panels):
        assert x + width <= 24
        cells += itertools.product(range(x, x + width), range(y, y + height))
    assert len(set(cells)) == len(cells), "no panel lies over another"
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {"${datasource}"}
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == {"datasource", "node"}


TAKES_TIME = {"RolloutSlow"}
"""Alerts that are about how things were hours ago."""


@contextlib.contextmanager
def stuck_rollouts(folder: Path, port: int) -> Iterator[None]:
    """A real controller of two rollouts, which answers on `port`.

    In one a node has waited for three hours for the approval of its reboot; the other one is for the same DaemonSet.
    """
    scene, long_ago_s = FleetScene(), float(int(time.time()) - 3 * 3600)
    scene.set_driver("driver:1")
    scene.add_nodes("c", "d")
    new = scene.set_driver("driver:2")
    scene.add_nodes("a", "b")
    rollout = f"{NAMESPACE}/{DRIVER}"
    for name, state in (("a", UpgradeState.DONE), ("b", UpgradeState.REBOOT)):
        record = NodeRecord(rollout, new, 1, "before", f"boot-{name}", long_ago_s - 100.0, long_ago_s)
        labels = {KEYS.upgrade_state: state.value, KEYS.state: NodeState.REBOOT_REQUIRED.value if name == "b" else None}
        scene.edit_node(name, {"metadata": {"labels": labels, "annotations": {KEYS.rollout: encode_record(record)}}})
    scene.add_rollout(DRIVER, waves=[{"name": "all"}], nodeTimeout="10m")
    began = {"targetRevision": new, "history": [{"revision": new, "began": written_time(long_ago_s)}]}
    scene.store.patch(PLURAL, DRIVER, lambda one: one | {"status": began}, namespace=NAMESPACE, status=True)
    time.sleep(1.1)  # of two objects of the same second, the uid says which one is older
    scene.add_rollout("second")
    with ApiServer(scene.store) as server:
        controllers = Processes(server, scene, folder)
        try:
            controllers.start("--status-addr", f"127.0.0.1:{port}")
            yield
        finally:
            controllers.stop()


@contextlib.contextmanager
def recoveries(**ports: int) -> Iterator[None]:
    """For each state of a recovery the metrics of a node in it, on that port."""

    texts = dict[int, bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(texts[self.request.getsockname()[1]])

        def log_message(self, *_: object) -> None: ...

    with contextlib.ExitStack() as stack:
        for name, port in ports.items():
            report = HealthReport(History(recovery=Recovery(state=RecoveryState[name])))
            texts[port] = exposition(one for one in families(report) if "recovery" in one.name).encode()
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", port), Handler))
            stack.callback(server.shutdown)
            Thread(target=server.serve_forever).start()
        yield


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A node that is wedged, held, and waits for a reboot; a stuck rollout; recoveries that wait or have no step."""
    tool("prometheus")
    folder = tmp_path_factory.mktemp("scraped")
    tree, port = AscendTree(folder), free_port()
    roots = HostRoots(tree.root, tree.root / "proc", tree.root / "sys", tree.root / "dev")
    paths = builtin()["ascend"].paths
    tree.tool.be("critical")
    argv = [sys.executable, "-m", "driver_manager", "health-watch", *tree.options, "--interval", "100ms"]
    argv += [f"--metrics-addr=127.0.0.1:{port}"]
    environment = {"PATH": os.environ["PATH"], "TERMINATION_LOG": "/absent", "PYTHONPATH": str(ROOT)}
    with (folder / "watch.log").open("wb") as log:
        watch = subprocess.Popen(argv, stderr=log, env=environment)
    try:
        at_work, status_port = {"component": "driver-rollout"}, free_port()
        targets = {
            "watch": (port, {"component": "driver-watch", "node": "node-1"}),
            "gone": (free_port(), {"component": "driver-watch", "node": "node-2"}),
            "rollout": (status_port, at_work),
            "rollout-gone": (free_port(), at_work),
            "waiting": (waiting := free_port(), {"node": "node-3"}),
            "service": (service := free_port(), {"node": "node-4"}),
        }
        with (
            recoveries(WAITING=waiting, NEEDS_SERVICE=service),
            stuck_rollouts(folder, status_port),
            prometheus(folder, targets) as running,
        ):
            wait_until(lambda: running.query('driver_manager_health_state{state="wedged"} == 1'), "the wedge", BOUND_S)
            window = Outage(time.time() - 12.5, 12.5, {OutagePart.UNLOAD: 2.0}, is_open=True)
            ended: dict[str, Any] = {"is_held": True, "requests": 7, "retries": 1, "window": window}
            run = RunReport(5, time.time(), 12.5, {"unload modules": 2.0}, **ended)
            for _ in range(3):
                RunFiguresFile(roots.files(), paths).add(run)
                time.sleep(0.5)  # some scrapes, so that a counter is seen to grow
            asked = RebootRequest("boot-1", "recovery", int(time.time()))
            record = Record(announced=asked, announced_s=int(time.time()) - 5 * 3600)
            tree.put(paths.rebooter_record.lstrip("/"), encode_reboot_record(record.counting(Attempt(1, "upgrade"))))
            wait_until(lambda: running.query("driver_manager_reboots_total == 1"), "the rebooter's record", BOUND_S)
            yield running
    finally:
        watch.terminate()
        watch.wait(BOUND_S)


@pytest.mark.submission
def test_every_query_of_the_dashboard_has_an_answer(scraped: Prometheus) -> None:
    assert len(queries()) > 20
    for title, text in queries():
        wait_until(lambda asked=text: scraped.query(asked), f"{title}: {text}", BOUND_S)  # type: ignore[misc]


@pytest.mark.submission
def test_the_stats_of_the_dashboard_say_what_is_so(scraped: Prometheus) -> None:
    def stat(title: str) -> float:
        (expression,) = [text for name, text in queries() if name == title]
        results = scraped.query(expression)  # none where the last scrape of it was too slow
        return float(results[0]["value"][1]) if len(results) == 1 else math.nan

    wanted = {"Wedged": 1, "Held": 1, "Runs that fail again and again": 1, "Reboots asked for": 1, "Muted": 0}
    wanted |= {"Halted or stalled": 1, "Waiting for approval": 0, "Failed nodes": 0, "Controllers at work": 1}
    wanted["What a node takes"] = 100
    wanted["Watches down"] = 1  # the one without an answer
    wait_until(lambda: {name: stat(name) for name in wanted} == wanted, "the stats", BOUND_S)


@pytest.mark.submission
def test_every_alert_that_is_due_is_raised_by_a_real_prometheus(scraped: Prometheus) -> None:
    due = ALERTS.keys() - TAKES_TIME
    wait_until(lambda: scraped.alerts() == due, "all alerts are pending or firing", BOUND_S)
    assert scraped.unhealthy_rules() == []


@pytest.mark.submission
def test_every_metric_of_the_reference_is_scraped(scraped: Prometheus) -> None:
    def names() -> set[str]:
        found: list[Any] = scraped.query('{__name__=~"(driver_manager|.+_operator)_.+"}')
        return {one["metric"]["__name__"] for one in found}

    wait_until(lambda: names() >= SCRAPED, f"{SCRAPED} are scraped", BOUND_S)
    assert names() <= SCRAPED, "and the reference knows all that there are"
