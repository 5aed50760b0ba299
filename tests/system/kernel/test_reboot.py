"""The guest reboots for real, by the real rebooter, and is not rebooted again by the marker it left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.kernel import tools
from tests.support.kernel.guest import GuestReport


@pytest.fixture
def outcome(guest_report: GuestReport) -> dict[str, Any]:
    """What the guest found after its reboot."""
    if "outcome.json" not in guest_report.disk:
        pytest.fail(f"the guest did not come back; console:\n{tools.tail(guest_report.console, 60)}", pytrace=False)
    found: dict[str, Any] = json.loads(guest_report.disk["outcome.json"])
    assert "failed" not in found, found["failed"]
    return found


def test_the_reboot_command_reboots_the_machine_once(guest_report: GuestReport, outcome: dict[str, Any]) -> None:
    before, after = outcome["bootIds"]
    assert before != after
    assert guest_report.disk["boots"].strip() == "2"
    assert len(outcome["record"]["attempts"]) == 1


def test_the_marker_of_the_old_boot_is_cleared_and_not_acted_on_again(outcome: dict[str, Any]) -> None:
    assert outcome["hadMarker"]
    assert not outcome["hasMarker"]
    assert outcome["isIdle"], outcome["log"]
    assert any("is of an earlier boot" in line for line in outcome["log"])


def test_after_the_reboot_nothing_is_left_but_events_and_evidence(outcome: dict[str, Any]) -> None:
    assert outcome["notes"] == {}
    assert outcome["shown"] == ["ready", None], "no reconcile ran"
    assert outcome["events"] == ["RebootCompleted", "RebootRequired"]
    assert outcome["record"]["pending"] is None
    assert len(outcome["evidence"]) == 1


def test_what_a_kernel_never_does_is_known_before_it_is_tried(outcome: dict[str, Any]) -> None:
    ordinary, permanent, frozen, tried = outcome["refusals"]
    assert ordinary["problems"] == []
    (problem,) = permanent["problems"]
    assert problem.startswith("module rebellions cannot be unloaded: it has no exit function")
    assert len(frozen["problems"]) == 2
    assert frozen["problems"][0].startswith("kernel.modules_disabled is 1")
    assert (permanent["version"], frozen["version"]) == ("2.0.1", "2.0.1")
    assert tried["rmmod"] != 0, tried["stderr"]


def test_devices_on_their_way_to_virtual_machines_get_there_over_a_reboot(outcome: dict[str, Any]) -> None:
    found = outcome["vfio"]
    before = found.pop("before")
    assert set(before["had"].values()) == {"rebellions"}
    assert (before["code"], before["isTaken"], set(before["kept"])) == (-9, True, {"vfio-pci"})
    assert found == {"code": 0, "isOnVfio": True, "hasLabels": True, "isTaken": False}
