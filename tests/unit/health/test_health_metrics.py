"""What is published is what Prometheus reads, and a hung loop is late whatever it reported last."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.adapters.report.http import Endpoint, Heartbeat
from driver_manager.adapters.report.publish import AliveFile, ReadyFile, ServiceNotifier, Textfile
from driver_manager.domain.health.metrics import NO_ATTEMPTS, HealthReport, families
from driver_manager.domain.health.watch import HealthState, History
from driver_manager.domain.host import DeviceVerdict, Health, ProbeResult
from driver_manager.domain.metrics import exposition
from driver_manager.domain.node_state import Recovery, RecoveryState
from driver_manager.domain.recovery import LIMITS, RecoveryOutcome
from driver_manager.domain.text import shown
from tests.support.exposition import samples
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.pace import patient

DEVICES = (
    DeviceVerdict("npu 0 chip 0", Health.HEALTHY, "OK", "0000:c1:00.0"),
    DeviceVerdict("npu 1 chip 0", Health.UNHEALTHY, "Critical", "0000:01:00.0"),
)
WAITING = Recovery("reload", RecoveryState.WAITING, counts={"reset.failed": 2})
REPORT = HealthReport(
    History(HealthState.SUSPECT, failures=2, is_flapping=True, recovery=WAITING),
    ProbeResult(Health.UNHEALTHY, "npu 1 chip 0 is Critical", DEVICES),
    probe_s=0.25,
    last_success_wall_s=1_700_000_000.5,
    samples={Health.HEALTHY: 7, Health.UNHEALTHY: 2},
    abandoned=1,
    is_stuck=True,
    turn_wall_s=1_700_000_060,
)


def read(text: str) -> dict[str, float]:
    """Every sample of an exposition by its name and the values of its labels."""
    return {
        " ".join([name.removeprefix("driver_manager_"), *(labels[key] for key in sorted(labels))]): value
        for name, labels, value in samples(text)
    }


def test_every_figure_of_a_report_is_there() -> None:
    attempts = ("failed reset", "healed reset", "failed reload", "healed reload")
    assert read(exposition(families(REPORT))) == {
        **{f"health_state {state.value}": float(state is HealthState.SUSPECT) for state in HealthState},
        **{f"device_health {one.name} {word.value}": float(word is one.health) for one in DEVICES for word in Health},
        "health_consecutive_failures": 2,
        "health_flapping": 1,
        "probe_abandoned_total": 1,
        "probe_stuck": 1,
        **{f"recovery_state {state.value}": float(state is RecoveryState.WAITING) for state in RecoveryState},
        **{f"recovery_attempts_total {name}": 2.0 if name == "failed reset" else 0.0 for name in attempts},
        **{f"probe_samples_total {word}": count for word, count in (("healthy", 7), ("unhealthy", 2), ("unknown", 0))},
        "probe_duration_seconds": 0.25,
        "probe_last_success_timestamp_seconds": 1_700_000_000.5,
        "watch_last_turn_timestamp_seconds": 1_700_000_060,
    }


def test_every_step_with_a_limit_has_all_its_outcomes_from_the_start() -> None:
    assert NO_ATTEMPTS.keys() == {f"{step.value}.{outcome.value}" for step in LIMITS for outcome in RecoveryOutcome}
    text = exposition(families(HealthReport(History(recovery=Recovery(counts={"reboot.healed": 1})))))
    assert read(text)["recovery_attempts_total healed reboot"] == 1


@given(st.text(max_size=20))
def test_no_device_name_breaks_the_exposition(name: str) -> None:
    devices = (DeviceVerdict(name, Health.HEALTHY, "OK"),)
    text = exposition(families(HealthReport(History(), ProbeResult(Health.HEALTHY, "", devices))))
    assert f"device_health {shown(name)} healthy" in read(text)


def endpoint(report: HealthReport | None = REPORT) -> Endpoint:
    made = Endpoint(Heartbeat(FakeClock(), 93.0))
    if report is not None:
        made.publish(report)
    return made


def test_the_endpoint_and_the_textfile_say_the_same_and_before_the_first_turn_nothing_is_ready() -> None:
    answer = endpoint().respond("/metrics")
    assert (answer.status, answer.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert answer.body.decode() == exposition(families(REPORT))
    muted = endpoint(HealthReport(History(HealthState.MUTED)))
    assert b'health_state{state="muted"} 1.0' in muted.respond("/metrics").body
    assert [endpoint(None).respond(path).status for path in ("/metrics", "/readyz")] == [200, 503]


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


@pytest.mark.parametrize("task_s", [0.0, 400.0])
def test_healthz_and_the_liveness_file_wait_for_the_turn_and_its_task(tmp_path: Path, task_s: float) -> None:
    clock, path = FakeClock(), tmp_path / "alive"
    begun = clock.now
    heartbeat, file = Heartbeat(clock, 93.0), AliveFile(path, RecordingReporter(), 93.0)
    probe = ["test", str(path), "-nt", "/proc/self"]
    assert subprocess.run(probe, check=False).returncode == 1, "no turn yet"
    for one in (heartbeat, file):
        one.expect(task_s)
    assert path.stat().st_mtime - time.time() == pytest.approx(93.0 + task_s, abs=patient(1.0))
    for age_s, is_late in ((93.0 + task_s, False), (93.1 + task_s, True)):
        clock.now = begun + age_s
        assert heartbeat.is_late is is_late
    for one in (heartbeat, file):
        one.beat()
    assert path.stat().st_mtime - time.time() == pytest.approx(93.0, abs=patient(1.0))
    for left_s, status in ((60.0, 0), (-60.0, 1)):
        os.utime(path, (time.time() + left_s,) * 2)
        assert subprocess.run(probe, check=False).returncode == status


@pytest.mark.parametrize("is_ready", [True, False])
def test_readyz_and_the_ready_file_say_the_same(tmp_path: Path, is_ready: bool) -> None:
    report = HealthReport(History(HealthState.SUSPECT, failures=1), is_ready=is_ready)
    answer = endpoint(report).respond("/readyz")
    assert (answer.status, answer.body) == (200 if is_ready else 503, b"suspect(1)\n")
    reporter = RecordingReporter()
    ready_file = ReadyFile(tmp_path / "ready", reporter)
    for one in (replace(report, is_ready=not is_ready), report, report):
        ready_file.publish(one)
    assert ((tmp_path / "ready").exists(), reporter.warnings) == (is_ready, [])


@pytest.mark.parametrize("kind", [ReadyFile, Textfile])
def test_a_file_that_cannot_be_written_is_logged_once_until_it_can(tmp_path: Path, kind: type) -> None:
    reporter, folder = RecordingReporter(), tmp_path / "folder"
    folder.write_text("a file")
    file = kind(folder / "npu.prom", reporter)
    report = HealthReport(History(HealthState.HEALTHY), is_ready=True) if kind is ReadyFile else families(REPORT)
    for _ in range(3):
        file.publish(report)
    (warning,) = reporter.warnings
    assert "Not a directory" in warning
    folder.unlink()
    folder.mkdir()
    file.publish(report)
    assert (folder / "npu.prom").exists()


def test_a_textfile_can_be_read_by_anyone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "npu.prom"
    Textfile(path, RecordingReporter()).publish(families(REPORT))
    assert read(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o644


def test_systemd_gets_the_state_in_one_line_and_its_absence_is_accepted(tmp_path: Path) -> None:
    report = HealthReport(History(HealthState.SUSPECT, failures=2, reason="two\nlines"))
    ServiceNotifier(str(tmp_path / "absent")).publish(report)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0driver-manager-test")
        systemd.settimeout(25.0)
        ServiceNotifier("@driver-manager-test").publish(report)
        assert systemd.recv(4096) == b"READY=1\nWATCHDOG=1\nSTATUS=suspect(2) two lines"
