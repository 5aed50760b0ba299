"""Metrics of health-watch."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from driver_manager.domain.health.watch import HealthState, History
from driver_manager.domain.host import Health, ProbeResult
from driver_manager.domain.metrics import PREFIX, Family, by_label, counter, gauge
from driver_manager.domain.node_state import RecoveryState
from driver_manager.domain.profile import RecoveryStep

STEPS = (RecoveryStep.RESET, RecoveryStep.RELOAD)
NO_ATTEMPTS = {f"{step.value}.{outcome}": 0 for step in STEPS for outcome in ("healed", "failed")}
"""The counts before the first attempt, with the outcomes of recovery.Outcome, which health-watch does not import."""


class HealthReport(Struct, frozen=True):
    """The state after a turn, at `turn_wall_s`. `result` is None while muted; `is_ready` answers a readiness probe."""

    history: History
    result: ProbeResult | None = None
    probe_s: float = 0.0
    last_success_wall_s: float = 0.0
    samples: Mapping[Health, int] = field(default_factory=dict)
    abandoned: int = 0
    is_stuck: bool = False
    is_ready: bool = False
    turn_wall_s: float = 0.0


def families(report: HealthReport) -> tuple[Family, ...]:
    history = report.history
    devices = report.result.devices if report.result is not None else ()
    return (
        by_label(
            "gauge",
            "health_state",
            "The driver's health: 1 for the state it is in.",
            "state",
            {state.value: float(state is history.state) for state in HealthState},
        ),
        gauge(
            "health_consecutive_failures", "Consecutive failed probes; unknown ones are not counted.", history.failures
        ),
        gauge("health_flapping", "Whether driver health is flapping.", history.is_flapping),
        by_label(
            "gauge",
            "recovery_state",
            "What is done about a wedge: 1 for the state it is in.",
            "state",
            {state.value: float(state is history.recovery.state) for state in RecoveryState},
        ),
        Family(
            f"{PREFIX}recovery_attempts_total",
            "counter",
            "Steps that were tried to end a wedge, on this node. Reboots are in reboots_total.",
            tuple(
                ({"step": name.partition(".")[0], "outcome": name.partition(".")[2]}, float(count))
                for name, count in (NO_ATTEMPTS | dict(history.recovery.counts)).items()
            ),
        ),
        Family(
            f"{PREFIX}device_health",
            "gauge",
            "The health of each device in the last probe: 1 for the health it has.",
            tuple(
                ({"device": device.name, "health": health.value}, float(health is device.health))
                for device in devices
                for health in Health
            ),
        ),
        gauge("probe_duration_seconds", "How long the last probe took.", report.probe_s),
        gauge(
            "probe_last_success_timestamp_seconds",
            "When the last healthy probe ended, 0 if there was none since the start.",
            report.last_success_wall_s,
        ),
        by_label(
            "counter",
            "probe_samples_total",
            "Probes by result.",
            "health",
            {health.value: float(report.samples.get(health, 0)) for health in Health},
        ),
        counter("probe_abandoned_total", "Probes that could not be killed.", report.abandoned),
        gauge("probe_stuck", "Whether a probe that could not be killed is still running.", report.is_stuck),
        gauge("watch_last_turn_timestamp_seconds", "When the loop of health-watch last ran.", report.turn_wall_s),
    )
