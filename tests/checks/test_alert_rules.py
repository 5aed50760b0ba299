"""promtool understands the shipped alerts. They fire when they should, and its tests find what is broken in them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.deploy.prometheus import BOUND_S, COMPONENT, tool

pytestmark = pytest.mark.submission

RULES = yaml.safe_load((COMPONENT / "rules.yaml").read_text())
UNIT_TESTS = Path(__file__).parents[1] / "support/deploy/alert-tests.yaml"
ALERTS = {rule["alert"] for group in RULES["groups"] for rule in group["rules"]}


def promtool(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [tool("promtool"), *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=BOUND_S, check=False)


def unit_tested(folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    (folder / "rules.yaml").write_text(rules)
    shutil.copy(UNIT_TESTS, folder / "tests.yaml")
    return promtool(folder, "test", "rules", "tests.yaml")


def test_promtool_understands_the_rules_and_they_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    checked = promtool(COMPONENT, "check", "rules", "rules.yaml")
    assert f"SUCCESS: {len(ALERTS)} rules found" in checked.stdout
    for done in (checked, unit_tested(tmp_path, (COMPONENT / "rules.yaml").read_text())):
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    body = yaml.safe_load(UNIT_TESTS.read_text())
    cases = [case for one in body["tests"] for case in one["alert_rule_test"]]
    for name in ALERTS:
        fires = {bool(case["exp_alerts"]) for case in cases if case["alertname"] == name}
        assert fires == {True, False}, name


@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('state="wedged"} == 1', 'state="wedged"} == 0'),
        ('state="needs-service"} == 1', 'state="needs-service"} == 0'),
        ("or driver_manager_reboot_escalated == 1", "and driver_manager_reboot_escalated == 1"),
        ('{reason="recovery"} > 0', "> 0"),
        ('{state="waiting"}', '{state=~"waiting|under-way"}'),
        ("for: 30m", "for: 20m"),
        ("for: 30m", "for: 1h"),
        ("driver_manager_node_held == 1", "driver_manager_node_held == 0"),
        ("failures_in_a_row >= 3", "failures_in_a_row >= 2"),
        ("[1h]) >= 3", "[1h]) >= 30"),
        ("> 4 * 3600", "> 3600"),
        ("driver_manager_reboot_requested_timestamp_seconds > 0\n          and ", ""),
        ('up{component="driver-watch"} == 0', "up == 0"),
        ("last_turn_timestamp_seconds > 900", "last_turn_timestamp_seconds > 90000"),
        ("for: 10m", "for: 1m"),
        ('phase=~"Halted|Stalled"', 'phase="Halted"'),
        ('max without (instance, pod) (driver_manager_rollout_phase{phase=~"Halted', '({phase=~"Halted'),
        ("> 1800 + max", "> max"),
        ("without (instance, pod) (driver_manager_rollout_patience_seconds)", "() (1800)"),
        ('phase=~"Progressing|WaitingForNodes"', 'phase=~".+"'),
        ('phase=~"Progressing|WaitingForNodes"', 'phase="Progressing"'),
        ("[2h]) > 1800)", "[2h]) > 600)"),
        ("> 0.25 *", "> 0.01 *"),
        ("\n          and min_over_time(driver_manager_rollout_expected_end_timestamp_seconds[2h]) > 0)", ")"),
        ("max without (instance, pod) (\n", "max without (instance, pod, revision) (\n"),
        ("driver_manager_rollout_leader * driver_manager_rollout_ready", "driver_manager_rollout_leader"),
        ("driver_manager_rollout_leader * driver_manager_rollout_ready", "driver_manager_rollout_ready"),
        ('up{component="driver-rollout"}', "up"),
        ('{deployment=~"(.+-)?driver-rollout"}', ""),
    ],
)
def test_a_rule_that_is_broken_is_found(tmp_path: Path, old: str, new: str) -> None:
    text = (COMPONENT / "rules.yaml").read_text()
    assert old in text
    assert unit_tested(tmp_path, text.replace(old, new, 1)).returncode != 0
