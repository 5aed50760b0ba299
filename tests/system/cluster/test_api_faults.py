"""Every request of every route meets every fault, once and for ever: real adapters, real API server, real command."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from driver_manager.adapters.kube import api as kube_retries
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.core.rebooter import MAX_ACTS
from driver_manager.domain.errors import Conflict
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.reboot.state import RebootPolicy
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.fault_kinds import SHARES, Asked, Cell, Family, cells
from tests.support.control_plane.fault_matrix import (
    ROUTES,
    Bench,
    FaultSetup,
    Verdict,
    enumerate_requests,
    judge,
    record,
    set_up,
)
from tests.support.control_plane.faults import Certificate, Fault, Hold
from tests.support.control_plane.kubelet import NEVER, OperandsFactory
from tests.support.control_plane.pod_transport import pod_transport
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.reboot_fleet import KEYS, RealFleet, RealSite, real_fleet
from tests.support.control_plane.runner import (
    JOURNAL,
    NEW,
    PREFIX,
    CommandRunner,
    RunnerFactory,
    assert_untouched,
    start_and_take,
)
from tests.support.control_plane.servers import ControlPlane, all_certificates
from tests.support.fakes.pace import patient
from tests.support.selection import Share, share

PROCESSES = 6
"""More than processors: many a cell waits for an answer that does not come."""

ONLY = "FAULT_CELLS"
"""Names an environment variable: a regular expression for the cells to run, to look into one."""


@pytest.fixture(scope="module")
def fault_setup(control_plane: ControlPlane, dra: None, tmp_path_factory: pytest.TempPathFactory) -> FaultSetup:
    certificates = all_certificates(control_plane.authority, tmp_path_factory.mktemp("certificates"))
    admin, agent = control_plane.admin.token, control_plane.agent_for_workloads.token
    return FaultSetup(control_plane.url, control_plane.ca, admin, agent, certificates)


@contextmanager
def pool(fault_setup: FaultSetup, processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes with a bench each, forked from one that has its imports: a command wants the main thread's signals."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([set_up.__module__])
    with ProcessPoolExecutor(processes, context, set_up, (fault_setup,)) as executor:
        yield executor


def shown(verdicts: Sequence[Verdict]) -> str:
    """What went wrong, cell by cell."""
    wrong = [verdict for verdict in verdicts if verdict.problems]
    lines = [f"{one.cell}\n    " + "\n    ".join(one.problems) for one in wrong]
    return f"{len(wrong)} of {len(verdicts)} cells:\n" + "\n".join(lines)


def matrix(executor: ProcessPoolExecutor) -> list[Verdict]:
    """The cells of this run's share, judged."""
    records = dict(zip(ROUTES, executor.map(record, ROUTES), strict=True))
    asked = {route: record.asked for route, record in records.items()}
    only = re.compile(os.environ.get(ONLY, ""))
    part = share(SHARES)
    chosen = [cell for cell in cells(asked, part) if only.search(str(cell))]
    requests, every = sum(map(len, asked.values())), len(cells(asked, Share()))
    print(f"{requests} requests of {len(ROUTES)} routes; share {part}: {len(chosen)} of {every} cells")
    verdicts: list[Verdict] = []
    for verdict in executor.map(judge, chosen, [records[cell.route] for cell in chosen]):
        verdicts.append(verdict)
        if verdict.problems:  # at once: a run that is stopped has printed what it found
            print("\n    ".join([str(verdict.cell), *verdict.problems]), flush=True)
    return verdicts


def test_every_request_of_every_route_meets_every_fault(fault_setup: FaultSetup) -> None:
    with pool(fault_setup, PROCESSES) as executor:
        verdicts = matrix(executor)
    codes = sorted(Counter(verdict.code for verdict in verdicts).items())
    most = max(verdict.requests for verdict in verdicts)
    print(f"{len(verdicts)} cells: exit codes {dict(codes)}; at most {most} requests of a kind in one run")
    assert not any(verdict.problems for verdict in verdicts), shown(verdicts)


# mutants that the matrix once caught, each with a cell that does


def no_retries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kube_retries, "AGAIN", frozenset())


def conflicts_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    plain = KubeCluster.patch_node

    def patch_node(self: KubeCluster, change: NodeChange, resource_version: str | None) -> Node:
        try:
            return plain(self, change, resource_version)
        except Conflict:
            return self.node()

    patch.setattr(KubeCluster, "patch_node", patch_node)


@pytest.fixture(scope="module")
def bench(fault_setup: FaultSetup) -> Iterator[Bench]:
    """A bench in this process, whose code can be changed."""
    with ExitStack() as stack:
        yield Bench(fault_setup, stack)


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    ("mutate", "cell"),
    [
        (no_retries, Cell("current", Asked("get", "nodes", 1), "503", is_lasting=False)),
        (conflicts_taken_for_success, Cell("full", Asked("patch", "nodes", 1), "409", is_lasting=False)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_matrix_can_fail(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], cell: Cell
) -> None:
    record = bench.record(cell.route)
    assert bench.judge(cell, record).problems == ()
    mutate(monkeypatch)
    assert bench.judge(cell, record).problems != ()


POLICY = RebootPolicy("", KEYS, cordon=True, max_attempts=1000)
ROUNDS_DISTURBED, ROUNDS = 5, 10
MOST_REQUESTS = ROUNDS_DISTURBED * 2 * MAX_ACTS
"""Of one verb and resource in the disturbed rounds: a round ends after `MAX_ACTS` acts, each with a look."""


def rounds(driver_node: RealSite, most: int) -> None:
    """`most` rounds at most, until its reboot is behind it."""
    for _ in range(most):
        if not driver_node.is_done:
            driver_node.round()


class Track:
    """A fleet that grows by a node for each cell, before the real API server."""

    def __init__(self, plane: ControlPlane, fleet: RealFleet, folder: Path) -> None:
        """`folder` is for the proxy's certificates: a pod speaks TLS only."""
        self._certificates = all_certificates(plane.authority, folder)
        self._plane = plane
        self._fleet = fleet
        self._good = fleet.client

    def run(self, *faults: Fault) -> tuple[RealSite, Proxy]:
        """A node asks for its reboot, is disturbed for some rounds, and then left alone until it is done."""
        driver_node = RealSite(self._fleet, len(self._fleet.sites))
        self._fleet.sites.append(driver_node)
        driver_node.request()
        with Proxy(self._plane.url, self._plane.ca, self._certificates, faults=faults) as proxy:
            self._fleet.client = pod_transport(self._plane, self._plane.rebooter.token, proxy.url)
            rounds(driver_node, ROUNDS_DISTURBED if faults else ROUNDS)
        self._fleet.client = self._good
        rounds(driver_node, ROUNDS)
        return driver_node, proxy

    def problems(self, cell: Cell) -> list[str]:
        """What is not as undisturbed after the cell."""
        fault = cell.fault("")
        self._fleet.api.delete(self._fleet.lease_path)  # as where it was recorded: the first one makes it
        driver_node, proxy = self.run(fault)
        node = driver_node.fleet.api.get(driver_node.path)
        asked = [one for one in proxy.exchanges(cell.asked.verb) if one.request.target.resource == cell.asked.resource]
        seen = {
            "rebooted once": len(driver_node.reboots) == 1 and driver_node.is_done,
            "nothing left on the Node": driver_node.notes() == {},
            "shown as ready": driver_node.state() == "ready",
            "not cordoned": "unschedulable" not in node["spec"],
            "no slot kept": self._fleet.holders() == [],
            "the fault met a request": proxy.script.fired(fault) > 0,
            "few requests": len(asked) <= MOST_REQUESTS,
        }
        wrong = [what for what, is_so in seen.items() if not is_so]
        return [f"{cell}: not {', not '.join(wrong)}\n  {fault}"] if wrong else []


def is_quick(cell: Cell) -> bool:
    """Whether its fault needs neither TLS nor a token on disk, nor real time to pass."""
    return not cell.by.needs and cell.by.family is not Family.WATCH and cell.kind not in ("mute", "away", "slow")


def test_every_request_of_the_rebooter_meets_every_fault(
    control_plane: ControlPlane, admin_api: Api, tmp_path: Path
) -> None:
    with real_fleet(control_plane, admin_api, 0, POLICY) as fleet:
        track = Track(control_plane, fleet, tmp_path)
        driver_node, proxy = track.run()
        assert driver_node.is_done
        asked = enumerate_requests(proxy.exchanges())
        assert {"leases", "nodes", "events"} == {one.resource for one in asked}
        part = share(SHARES)
        chosen = [cell for cell in cells({"rebooter": asked}, part) if is_quick(cell)]
        every = sum(map(is_quick, cells({"rebooter": asked}, Share())))
        print(f"rebooter: {len(asked)} requests; share {part}: {len(chosen)} of {every} cells")
        only = re.compile(os.environ.get(ONLY, ""))
        problems = [problem for cell in chosen if only.search(str(cell)) for problem in track.problems(cell)]
        for left in fleet.sites:
            admin_api.delete(left.path)
    assert problems == [], "\n".join(problems)


@pytest.fixture
def proxy(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Proxy]:
    certificates = all_certificates(control_plane.authority, tmp_path)
    with Proxy(control_plane.url, control_plane.ca, certificates) as running:
        yield running
    print(running.report())


@pytest.fixture
def command_runner(
    runner_for: RunnerFactory, proxy: Proxy, control_plane: ControlPlane, operands: OperandsFactory
) -> CommandRunner:
    made = runner_for({f"{PREFIX}driver": "true"}, user=control_plane.agent_with_events, proxy=proxy)
    operands(made.node, ("device-plugin",))
    return made


@pytest.mark.shares(6)
def test_a_server_that_is_gone_for_3_s_while_pods_are_waited_for_is_back_in_time(
    command_runner: CommandRunner, proxy: Proxy, operands: OperandsFactory
) -> None:
    node = command_runner.node
    operands(node, ("metrics-exporter",))
    labels = node.labels()
    for name in ("device-plugin", "metrics-exporter"):
        node.kubelet.stop_after(name, NEVER)
    run = start_and_take(command_runner)
    wait_until(lambda: any(one.status for one in proxy.exchanges("watch", "pods")), "the watch was answered")
    node.kubelet.release("metrics-exporter")
    wait_until(lambda: ", 1 left" in run.output(), "the run reads the watch: an answer that is lost breaks off nothing")
    proxy.go_away(3.0)
    node.kubelet.release("device-plugin")
    ended = run.end()
    assert ended.code == 0, ended.err
    assert "the watch was interrupted" in ended.err
    assert_untouched(command_runner, labels)
    assert command_runner.tree.driver_version == NEW
    assert len(proxy.exchanges("watch", "pods")) <= 5


def test_an_unknown_ca_is_a_configuration_error_at_once(command_runner: CommandRunner, proxy: Proxy) -> None:
    proxy.identity.present("strange", handshakes=1000)
    ended = command_runner.reconcile(API_TIMEOUT="1h")
    assert ended.code == 2, ended.err
    assert "certificate is not trusted: unable to get local issuer certificate" in ended.last_line
    assert "certificate-authority" in ended.last_line
    assert ended.took_s < patient(10.0), "the budget is not spent on it"
    assert proxy.exchanges() == []


@pytest.mark.shares(6)
def test_a_certificate_that_stays_expired_leaves_the_node_to_the_next_run(
    command_runner: CommandRunner, proxy: Proxy
) -> None:
    node, labels = command_runner.node, command_runner.node.labels()
    proxy.script.add(Fault(Certificate("expired", handshakes=1000), "watch", "pods"))
    ended = command_runner.reconcile(API_TIMEOUT="5s")
    assert ended.code == 8, ended.err
    assert "certificate is out of date: certificate has expired" in ended.err
    assert "Renew the API server's certificate, or set this node's clock" in ended.err
    assert "the node is still paused; the next run releases it from the journal" in ended.last_line
    assert JOURNAL in node.annotations()
    proxy.identity.present("good", handshakes=0)
    again = command_runner.reconcile()
    assert again.code == 0, again.err
    assert_untouched(command_runner, labels)


def test_a_token_is_rotated_while_a_watch_is_open_and_the_run_goes_on_with_the_new_one(
    command_runner: CommandRunner, proxy: Proxy, control_plane: ControlPlane, tmp_path: Path
) -> None:
    node, labels, token = command_runner.node, command_runner.node.labels(), tmp_path / "token"
    token.write_text(control_plane.agent_with_events.token)
    path = control_plane.kubeconfig("", proxy.url)
    config = json.loads(path.read_text())
    config["users"][0]["user"] = {"tokenFile": str(token)}  # as a kubelet's
    path.write_text(json.dumps(config))
    node.kubelet.stop_after("device-plugin", NEVER)
    cut = Fault(Hold(), "patch", "nodes", nth=2)
    proxy.script.add(cut)
    run = start_and_take(command_runner, KUBECONFIG=str(path))
    wait_until(lambda: proxy.exchanges("watch", "pods"), "the pods are watched")
    token.write_text("rotated")
    proxy.identity.rotate(control_plane.agent_with_events.token, "rotated")
    node.kubelet.release("device-plugin")  # seen by the watch that the old token has opened
    proxy.script.wait_fired(cut)
    proxy.script.release()
    ended = run.end()
    assert ended.code == 0, ended.err
    assert "the credentials were read again" in ended.err
    assert_untouched(command_runner, labels)
    assert len(proxy.exchanges("watch", "pods")) == 1
    assert [exchange.status for exchange in proxy.exchanges("get", "nodes")] == [200, 401, 200, 200]
    assert [exchange.status for exchange in proxy.exchanges("patch", "nodes")] == [200, 200]
