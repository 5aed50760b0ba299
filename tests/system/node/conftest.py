"""The fixtures of the node tier: one node for the session, the driver on it, and the table of what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import machine as machines
from tests.support.node.drivers import OPERANDS, STOP_S, STOPPING_AT_GATE, Drivers, stopping_after
from tests.support.node.machine import Machine
from tests.support.node.measured import Action, Table
from tests.support.node.releases import Release
from tests.support.tiers import skip_or_fail


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.node)


@pytest.fixture(scope="session")
def able() -> None:
    if lacking := machines.missing():
        skip_or_fail(f"node tier: missing {'; '.join(lacking)}")


@pytest.fixture(scope="session")
def table(able: None) -> Iterator[Table]:
    """What the tests measure; written to build/node."""
    made = Table(str(Release.of(machines.kubelet_program())))
    yield made
    made.write()


@pytest.fixture(scope="session")
def machine(table: Table) -> Iterator[Machine]:
    """The session's node; the table comes first, because it tells how busy the machine is without one."""
    with Machine() as running:
        yield running


@pytest.fixture(scope="session")
def installed(machine: Machine, table: Table) -> Drivers:
    """The driver, installed once."""
    made = Drivers(machine)
    with table.row(Action.FIRST_INSTALL) as row:
        made.install()
        row.end = "driver ready"
    return made


@pytest.fixture
def drivers(installed: Drivers) -> Iterator[Drivers]:
    """The driver, ready, without operands; a test that leaves it otherwise is put right."""
    installed.remove_operands()
    yield installed
    installed.put_right()
    installed.remove_users()
    installed.remove_operands()


@pytest.fixture
def with_operands(drivers: Drivers) -> Drivers:
    for name in OPERANDS:
        drivers.add_operand(name, stopping_after(STOP_S))
    return drivers


@pytest.fixture
def held(installed: Drivers) -> Iterator[Drivers]:
    """A run under way that waits for an operand, until `drivers.open_gate()`.

    Its two operands stay for the next test: one leaves when it is deleted, the other when the gate is open.
    """
    installed.add_operand("device-plugin", stopping_after(0))
    installed.add_operand("gated", STOPPING_AT_GATE, grace_s=3600)
    installed.wait_serving()
    installed.close_gate()
    installed.want(installed.other_version())
    installed.replace_pod()
    installed.wait_paused()
    yield installed
    installed.put_right()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of what was measured."""
    if Table.last:
        terminalreporter.section("node")
        terminalreporter.write_line(Table.last)
