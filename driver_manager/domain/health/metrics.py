"""What health-watch publishes after each turn, as families of metrics and as Prometheus' text format. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driver_manager.domain.health.machine import HealthState, History
from driver_manager.domain.model import Health, ProbeResult

PREFIX = "driver_manager_"


@dataclass(frozen=True)
class HealthReport:
    """What is known after one turn. `result` is None while muted; durations in seconds."""

    history: History
    result: ProbeResult | None = None
    probe_s: float = 0.0
    last_success_wall_s: float = 0.0
    samples: Mapping[Health, int] = field(default_factory=dict)
    abandoned: int = 0
    is_stuck: bool = False


@dataclass(frozen=True)
class Family:
    """One metric: full name, `gauge` or `counter`, help, and its values by labels."""

    name: str
    kind: str
    help: str
    values: tuple[tuple[Mapping[str, str], float], ...]


def families(report: HealthReport) -> tuple[Family, ...]:
    """All metrics of a report."""
    history = report.history
    devices = report.result.devices if report.result is not None else ()
    return (
        Family(
            f"{PREFIX}health_state",
            "gauge",
            "What is held of the driver: 1 for the state it is in.",
            tuple(({"state": state.value}, float(state is history.state)) for state in HealthState),
        ),
        _gauge("health_consecutive_failures", "Failed probes in a row; unknown ones are left out.", history.failures),
        _gauge("health_flapping", "Whether the driver changes between healthy and failing.", history.is_flapping),
        Family(
            f"{PREFIX}device_health",
            "gauge",
            "What the last probe said of each device: 1 for the health it has.",
            tuple(
                ({"device": device.name, "health": health.value}, float(health is device.health))
                for device in devices
                for health in Health
            ),
        ),
        _gauge("probe_duration_seconds", "How long the last probe took.", report.probe_s),
        _gauge(
            "probe_last_success_timestamp_seconds",
            "When the last probe said healthy, 0 if none did since the start.",
            report.last_success_wall_s,
        ),
        Family(
            f"{PREFIX}probe_samples_total",
            "counter",
            "Probes by what they said.",
            tuple(({"health": health.value}, float(report.samples.get(health, 0))) for health in Health),
        ),
        Family(
            f"{PREFIX}probe_abandoned_total",
            "counter",
            "Probes that could not be killed.",
            (({}, float(report.abandoned)),),
        ),
        _gauge("probe_stuck", "Whether a probe that could not be killed still lives.", report.is_stuck),
    )


def exposition(found: tuple[Family, ...]) -> str:
    """The families in Prometheus' text format, version 0.0.4."""
    lines = []
    for family in found:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{_labels(labels)} {value!r}" for labels, value in family.values]
    return "\n".join(lines) + "\n"


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(PREFIX + name, "gauge", text, (({}, float(value)),))


def _labels(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
