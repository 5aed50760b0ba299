"""Every request of every route meets every fault, once and for ever: real adapters, real API server, real command."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from driver_manager.adapters.kube import api as kube_retries
from driver_manager.adapters.kube.api import ApiRejected, KubeApi, Retries
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.core.ports_base import Clock, Reporter
from driver_manager.domain.errors import Conflict
from driver_manager.domain.node import Claim, Node, NodeChange
from tests.support.control_plane.fault_kinds import SHARES, Asked, Cell, cells
from tests.support.control_plane.fault_matrix import ROUTES, Bench, FaultSetup, Verdict, judge, record, set_up
from tests.support.control_plane.servers import ControlPlane, User, all_certificates
from tests.support.selection import Share, share

PROCESSES = 6
"""More than processors: many a cell waits for an answer that does not come."""

ONLY = "FAULT_CELLS"
"""Names an environment variable: a regular expression for the cells to run, to look into one."""


@pytest.fixture(scope="module")
def fault_setup(
    control_plane: ControlPlane, agent_for_workloads: User, dra: None, tmp_path_factory: pytest.TempPathFactory
) -> FaultSetup:
    """What a process has to know of the control plane."""
    certificates = all_certificates(control_plane.authority, tmp_path_factory.mktemp("certificates"))
    admin, agent = control_plane.admin.token, agent_for_workloads.token
    return FaultSetup(control_plane.url, control_plane.ca, admin, agent, certificates)


@contextmanager
def pool(fault_setup: FaultSetup, processes: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, each with a bench of its own: a command wants the main thread, for its signals."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, set_up, (fault_setup,)) as executor:
        yield executor


def told(verdicts: Sequence[Verdict]) -> str:
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
        if verdict.problems:  # at once: a run that is stopped has told what it found
            print("\n    ".join([str(verdict.cell), *verdict.problems]), flush=True)
    return verdicts


def test_every_request_of_every_route_meets_every_fault(fault_setup: FaultSetup) -> None:
    with pool(fault_setup, PROCESSES) as executor:
        verdicts = matrix(executor)
    codes = sorted(Counter(verdict.code for verdict in verdicts).items())
    most = max(verdict.requests for verdict in verdicts)
    print(f"{len(verdicts)} cells: exit codes {dict(codes)}; at most {most} requests of a kind in one run")
    assert not any(verdict.problems for verdict in verdicts), told(verdicts)


# mutants that the matrix once caught, each with a cell that does


def no_retries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kube_retries, "AGAIN", frozenset())


def no_fresh_credentials(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KubeApi, "_renewed", lambda _: False)


def refusals_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kube_retries, "FORBIDDEN", 0)
    patch.setattr(kube_retries, "AGAIN", frozenset({403}))


def conflicts_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    plain = KubeCluster.patch_node

    def patch_node(self: KubeCluster, change: NodeChange, resource_version: str | None) -> Node:
        try:
            return plain(self, change, resource_version)
        except Conflict:
            return self.node()

    patch.setattr(KubeCluster, "patch_node", patch_node)


def pauses_without_end(patch: pytest.MonkeyPatch) -> None:
    plain = Retries.__init__

    def init(self: Retries, clock: Clock, reporter: Reporter, budget_s: float) -> None:
        plain(self, clock, reporter, 100 * budget_s)

    patch.setattr(Retries, "__init__", init)


def claims_denied_are_none(patch: pytest.MonkeyPatch) -> None:
    plain = KubeCluster.claims

    def claims(self: KubeCluster, *asked: Any) -> tuple[Claim, ...]:
        try:
            return plain(self, *asked)
        except ApiRejected:
            return ()

    patch.setattr(KubeCluster, "claims", claims)


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
        (no_fresh_credentials, Cell("current", Asked("list", "pods", 1), "401", is_lasting=False)),
        (refusals_repeated, Cell("full", Asked("patch", "nodes", 1), "403", is_lasting=True)),
        (conflicts_taken_for_success, Cell("full", Asked("patch", "nodes", 1), "409", is_lasting=False)),
        (pauses_without_end, Cell("current", Asked("list", "pods", 1), "500", is_lasting=True)),
        (claims_denied_are_none, Cell("evict", Asked("list", "resourceclaims", 2), "404", is_lasting=True)),
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
