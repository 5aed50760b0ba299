"""A controller's rollouts under the names that a vendor's operator has for the same, so that its dashboards work. Pure.

The names are the profile's, their meanings those of the operators:

- NVIDIA/gpu-operator, controllers/operator_metrics.go and upgrade_controller.go: one number each, over all that it
  upgrades. Its documentation calls `driver_auto_upgrade_enabled` only `auto_upgrade_enabled`; the code counts.
  "In progress" contains failed nodes there (k8s-operator-libs, GetUpgradesInProgress), as they hold a slot; here they
  hold none, and it is what its documentation says: nodes whose driver pod is being upgraded.
- RBLN-SW/rbln-npu-operator, internal/metrics/metrics.go: one gauge by the word of the upgrade-state label, `unknown`
  for nodes without one, zeros included.

They collide with nothing where the operator runs too: its series have the labels of its own job. Nor is a node counted
twice by a sum over both, as nodes that an operator manages are not in these numbers. Only who leads has them: the zeros
of a controller that stands by would be a second opinion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from driver_manager.domain.fleet.acts import Phase
from driver_manager.domain.fleet.figures import REQUIRED, WORDS
from driver_manager.domain.fleet.metrics import FleetReport
from driver_manager.domain.fleet.model import UNDER_WAY, UpgradeState
from driver_manager.domain.metrics import Family
from driver_manager.domain.profile import UpgradeMetrics

_STARTING = frozenset({Phase.PROGRESSING, Phase.WAITING_FOR_NODES})
"""Phases in which a node begins as soon as there is room."""


def operator_families(report: FleetReport, names: UpgradeMetrics) -> tuple[Family, ...]:
    """The metrics that have a name in `names`, while this controller leads."""
    return tuple(_families(report, names)) if report.leads else ()


def _families(report: FleetReport, names: UpgradeMetrics) -> Iterator[Family]:
    words: Counter[str] = Counter()
    for one in report.rollouts.values():
        words.update(one.words)
    under_way = sum(words[state.value] for state in UNDER_WAY)
    for name, meaning, value in (
        (names.enabled, "1 if there is a rollout that is not paused, else 0.", _is_enabled(report)),
        (names.in_progress, "Nodes whose driver pod is being upgraded.", under_way),
        (names.done, "Nodes whose driver pod was upgraded.", words[UpgradeState.DONE.value]),
        (names.failed, "Nodes whose upgrade failed.", words[UpgradeState.FAILED.value]),
        (names.available, "Nodes whose upgrade can start now.", _available(report)),
        (names.pending, "Nodes whose upgrade is pending.", words[REQUIRED]),
    ):
        if name:
            yield Family(name, "gauge", meaning, (({}, float(value)),))
    if names.by_state:
        values = tuple(({"state": word}, float(words[word])) for word in WORDS)
        yield Family(names.by_state, "gauge", "Nodes by the state of their driver's upgrade.", values)


def _is_enabled(report: FleetReport) -> bool:
    return any(not one.is_paused for one in report.rollouts.values())


def _available(report: FleetReport) -> int:
    """For how many of the nodes that wait there is room."""
    return sum(
        min(one.pace.free, one.words.get(REQUIRED, 0)) for one in report.rollouts.values() if one.phase in _STARTING
    )
