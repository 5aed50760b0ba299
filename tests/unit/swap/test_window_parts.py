"""Every step is some part of the window, and what makes somebody leave opens it."""

from __future__ import annotations

from typing import get_args

import pytest

from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import NodeChange
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.swap.steps import (
    AnyStep,
    EvictWorkloads,
    GiveBack,
    PauseLast,
    Step,
    TakeNode,
    UnloadModules,
    WaitForDevice,
    WaitForOperands,
    earlier,
)
from driver_manager.domain.wire import written_time

PAUSING, CORDONING = (Journal(Owner(), "boot", labels) for labels in ({"deploy.plugin": "true"}, {}))


def test_every_step_is_some_part() -> None:
    assert {kind.part for kind in get_args(AnyStep)} == set(OutagePart) - {OutagePart.PROBE}, (
        "which begins within a step"
    )


@pytest.mark.parametrize(
    ("step", "is_opening"),
    [
        (TakeNode(PAUSING, NodeChange(), "1"), True),
        (TakeNode(CORDONING, NodeChange(), "1"), False),
        (EvictWorkloads(("a/b",), (), 1.0), True),
        (EvictWorkloads((), ("a/b",), 1.0), False),
        (EvictWorkloads((), (), 1.0, drains=True), True),
        (PauseLast(("deploy.plugin",)), True),
        (WaitForOperands(("deploy.plugin",), ("a/b",), 1.0), False),
        (WaitForDevice(1.0), False),
        (UnloadModules(("a",)), True),
        (GiveBack(PAUSING), False),
    ],
)
def test_what_makes_somebody_leave_opens_it(step: Step, is_opening: bool) -> None:
    assert step.disturbs is is_opening


def test_the_journal_tells_since_when() -> None:
    noted = Outage(5.0, 1.0, {OutagePart.EVICT: 1.0}, is_open=True)
    assert earlier(None) is None
    assert earlier(CORDONING) is None
    assert earlier(Journal(Owner(), "boot", {"a": "true"}, window=noted)) == noted
    older = Journal(Owner(), "boot", {"a": "true"}, begin=written_time(1_700_000_000.0))
    assert earlier(older) == Outage(1_700_000_000.0, 0.0), "a version that measured nothing wrote it"
    assert earlier(Journal(Owner(), "boot", {"a": "true"})) is None
