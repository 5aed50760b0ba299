"""Policies, facts and looks at a plan that the tests of the planner share."""

from __future__ import annotations

from typing import Any

from driver_manager.domain.host import Module
from driver_manager.domain.observation import Loader, Policy
from driver_manager.domain.swap.steps import Plan
from tests.support.fakes.builders import DRIVER, EXPORTER, PAUSED, PLUGIN, PROFILE

CONTAINER, MANAGER = Policy(), Policy(loader=Loader.MANAGER)


STATE, READY, WITHDRAWN = PROFILE.paths.state_file, PROFILE.paths.ready_marker, PROFILE.paths.ready_withdrawn


TAKEN = {PLUGIN: PAUSED, EXPORTER: PAUSED, DRIVER: "true"}


def one(found: Plan, kind: type) -> Any:
    (step,) = [step for step in found.steps if type(step) is kind]
    return step


ASCEND_LOADED = {"modules": {"drv_pcie_host": Module("drv_pcie_host", "23.0", 3)}}
