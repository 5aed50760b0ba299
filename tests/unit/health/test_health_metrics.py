"""What is published is what Prometheus reads, and a hung loop is late whatever it last said."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.adapters.report.http import Endpoint, Heartbeat
from driver_manager.adapters.report.publish import ReadyFile, ServiceNotifier, Textfile
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.health.watch import HealthState, History
from driver_manager.domain.host import DeviceVerdict, Health, ProbeResult
from driver_manager.domain.metrics import exposition
from driver_manager.domain.text import shown
from tests.support.exposition import samples
from tests.support.fakes.clock import FakeClock, RecordingReporter

DEVICES = (
    DeviceVerdict("npu 0 chip 0", Health.HEALTHY, "OK", "0000:c1:00.0"),
    DeviceVerdict("npu 1 chip 0", Health.UNHEALTHY, "Critical", "0000:01:00.0"),
)
REPORT = HealthReport(
    History(HealthState.SUSPECT, failures=2, is_flapping=True),
    ProbeResult(Health.UNHEALTHY, "npu 1 chip 0 is Critical", DEVICES),
    probe_s=0.25,
    last_success_wall_s=1_700_000_000.5,
    samples={Health.HEALTHY: 7, Health.UNHEALTHY: 2},
    abandoned=1,
    is_stuck=True,
    turn_wall_s=1_700_000_060,
)


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of an exposition, as Prometheus' own client reads it."""
    return {
        (name.removeprefix("driver_manager_"), tuple(sorted(labels.items()))): value
        for name, labels, value in samples(text)
    }


def test_every_figure_of_a_report_is_there() -> None:
    found = read(exposition(families(REPORT)))
    states = {labels[0][1]: value for (name, labels), value in found.items() if name == "health_state"}
    assert states == {"starting": 0, "healthy": 0, "suspect": 1, "wedged": 0, "muted": 0}
    devices = {labels: value for (name, labels), value in found.items() if name == "device_health"}
    assert devices[("device", "npu 1 chip 0"), ("health", "unhealthy")] == 1
    assert devices[("device", "npu 1 chip 0"), ("health", "healthy")] == 0
    assert len(devices) == 6
    plain = {name: value for (name, labels), value in found.items() if not labels}
    assert plain == {
        "health_consecutive_failures": 2,
        "health_flapping": 1,
        "probe_duration_seconds": 0.25,
        "probe_last_success_timestamp_seconds": 1_700_000_000.5,
        "probe_abandoned_total": 1,
        "probe_stuck": 1,
        "watch_last_turn_timestamp_seconds": 1_700_000_060,
    }
    samples = {labels[0][1]: value for (name, labels), value in found.items() if name == "probe_samples_total"}
    assert samples == {"healthy": 7, "unhealthy": 2, "unknown": 0}


@given(st.text(max_size=20))
def test_no_device_name_breaks_the_exposition(name: str) -> None:
    devices = (DeviceVerdict(name, Health.HEALTHY, "OK"),)
    text = exposition(families(HealthReport(History(), ProbeResult(Health.HEALTHY, "", devices))))
    assert ("device_health", (("device", shown(name)), ("health", "healthy"))) in read(text)


def endpoint(clock: FakeClock, report: HealthReport = REPORT) -> Endpoint:
    made = Endpoint(Heartbeat(clock, 93.0))
    made.publish(report)
    return made


def test_the_endpoint_and_the_textfile_say_the_same() -> None:
    answer = endpoint(FakeClock()).respond("/metrics")
    assert (answer.status, answer.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert answer.body.decode() == exposition(families(REPORT))


def test_metrics_before_the_first_turn_and_while_muted_are_fine() -> None:
    muted = endpoint(FakeClock(), HealthReport(History(HealthState.MUTED)))
    assert b'health_state{state="muted"} 1.0' in muted.respond("/metrics").body
    assert Endpoint(Heartbeat(FakeClock(), 1.0)).respond("/metrics").status == 200


@pytest.mark.parametrize(("age_s", "status"), [(0.0, 200), (93.0, 200), (93.1, 503), (10_000.0, 503)])
def test_healthz_is_about_the_loop_and_not_about_the_driver(age_s: float, status: int) -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock, 93.0)
    made = Endpoint(heartbeat)
    wedged = HealthReport(History(HealthState.WEDGED, 3))
    heartbeat.beat(wedged)
    made.publish(wedged)
    clock.now += age_s
    answer = made.respond("/healthz")
    assert (answer.status, answer.body) == (status, f"last turn {age_s:.0f} s ago, wedged\n".encode())


@pytest.mark.parametrize("is_ready", [True, False])
def test_readyz_and_the_ready_file_say_the_same(tmp_path: Path, is_ready: bool) -> None:
    report = HealthReport(History(HealthState.SUSPECT, failures=1), is_ready=is_ready)
    answer = endpoint(FakeClock(), report).respond("/readyz")
    assert (answer.status, answer.body) == (200 if is_ready else 503, b"suspect(1)\n")
    reporter = RecordingReporter()
    ready_file = ReadyFile(tmp_path / "ready", reporter)
    ready_file.publish(replace(report, is_ready=not is_ready))
    ready_file.publish(report)
    ready_file.publish(report)
    assert ((tmp_path / "ready").exists(), reporter.warnings) == (is_ready, [])


def test_before_the_first_turn_nothing_is_ready() -> None:
    assert Endpoint(Heartbeat(FakeClock(), 1.0)).respond("/readyz").status == 503


def test_a_ready_file_that_cannot_be_changed_is_said_once_until_it_can(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    ready_file = ReadyFile(tmp_path / "folder/ready", reporter)
    ready = HealthReport(History(HealthState.HEALTHY), is_ready=True)
    for _ in range(3):
        ready_file.publish(ready)
    assert len(reporter.warnings) == 1
    assert "No such file or directory" in reporter.warnings[0]
    (tmp_path / "folder").mkdir()
    ready_file.publish(ready)
    assert (tmp_path / "folder/ready").exists()


def test_a_textfile_that_cannot_be_written_is_said_once_until_it_can(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    (tmp_path / "folder").write_text("a file")
    textfile = Textfile(tmp_path / "folder/npu.prom", reporter)
    for _ in range(3):
        textfile.publish(families(REPORT))
    assert len(reporter.warnings) == 1
    (tmp_path / "folder").unlink()
    textfile.publish(families(REPORT))
    assert read((tmp_path / "folder/npu.prom").read_text())
    assert (tmp_path / "folder/npu.prom").stat().st_mode & 0o777 == 0o644


def test_a_systemd_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    ServiceNotifier(str(tmp_path / "absent")).publish(REPORT)


def test_the_state_that_systemd_is_told_is_one_line(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0driver-manager-test")
        systemd.settimeout(25.0)
        report = HealthReport(History(HealthState.SUSPECT, failures=2, reason="two\nlines"))
        ServiceNotifier("@driver-manager-test").publish(report)
        assert systemd.recv(4096) == b"READY=1\nWATCHDOG=1\nSTATUS=suspect(2) two lines"
