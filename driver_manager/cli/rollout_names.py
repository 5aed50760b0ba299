"""Completion of the names of rollouts and nodes: asked of the cluster, within the patience of who presses the tab key.

A completion that cannot be had is none: nothing is said of why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import click

from driver_manager import settings
from driver_manager.adapters.kube.fleet_feed import SilentReporter
from driver_manager.cli.rollout_session import RolloutSession, open_rollouts
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.fleet.model import FleetNode, UpgradeState
from driver_manager.domain.setting import Values
from driver_manager.ports.fleet import FactKind, Subject

VERB = (settings.ROLLOUT_NAMESPACE, settings.KUBECONFIG, settings.DRIVER_PROFILE, settings.PROFILE_FILE)
"""The settings of every verb."""

PATIENCE_S = 3.0


def complete_rollouts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The rollouts of the namespace that begin so."""
    return _beginning(incomplete, lambda: _rollouts(context))


def complete_failed_nodes(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The nodes that begin so and whose upgrade has failed; those that were named already left out."""
    named = context.params.get("nodes") or ()
    return [name for name in _beginning(incomplete, lambda: _failed(context)) if name not in named]


def _beginning(incomplete: str, read: Callable[[], Iterable[str]]) -> list[str]:
    with contextlib.suppress(ManagerError):
        return sorted(name for name in read() if name.startswith(incomplete) and name.isprintable())
    return []


def _rollouts(context: click.Context) -> Iterable[str]:
    session = _session(context)
    return [item.name for item in session.desk.listed(Subject(FactKind.ROLLOUTS, session.namespace)).items]


def _failed(context: click.Context) -> Iterable[str]:
    nodes = [item.fact for item in _session(context).desk.listed(Subject(FactKind.NODES)).items]
    return [one.name for one in nodes if isinstance(one, FleetNode) and one.upgrade == UpgradeState.FAILED.value]


def _session(context: click.Context) -> RolloutSession:
    values = Values({setting: context.params.get(setting.name) for setting in VERB})
    return open_rollouts(values, log=SilentReporter(), budget_s=PATIENCE_S)
