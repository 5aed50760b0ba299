"""Commands on a node, as a person types them: the output of each scenario; and what scenarios cannot show."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import files
from driver_manager.adapters.host.files import OpenEntry
from driver_manager.cli.main import run
from driver_manager.cli.session import _home
from driver_manager.domain import settings
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.node_state import Recovery, RecoveryState, encode_note
from driver_manager.domain.settings import Values
from driver_manager.domain.text import spoken
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.scenarios import OLD_DIGEST
from driver_manager.schemas import NAMES, schema
from tests.support.fakes.builders import PLUGIN, PROFILE
from tests.support.fakes.command_scenarios import blocks, desk_for, happen, played, script_of, state
from tests.support.fakes.typed import Prompt

TITLES = list(blocks())
STATUS = blocks()[TITLES[0]].partition("$ status\n")[2].partition("\nexit 0")[0].split("\n")
"""The output of the first `status`, with which the others are compared."""

UPDATE = "read the new output, then run `python -m tests.support.fakes.command_scenarios`"
LOADS = "env=DRIVER_LOAD:manager env=DRIVER_ROOT:/run/rbln/driver"


@pytest.mark.shares(3)
@pytest.mark.parametrize("title", TITLES)
def test_a_scenario_gives_its_output(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = blocks()[title]
    assert played(script_of(block), monkeypatch, [] if title == TITLES[0] else [*STATUS]) == block, UPDATE


BLOCKERS = {
    "nothing, and the run replaces the driver": ("-", 0),
    "nothing to do": (f"env=DRIVER_CONFIG_DIGEST:{OLD_DIGEST}", 0),
    "a process of a pod": ("hold=pod", 4),
    "a process of the host": (f"hold {LOADS}", 4),
    "the kernel": ("hold-unnamed", 4),
    "a component that paused an operand": (f"label={PLUGIN}:paused-for-mig-change env=POD_TERMINATION_TIMEOUT:1s", 3),
    "a pod that may not be evicted": ("workload=dir env=ENABLE_NPU_POD_EVICTION:true", 3),
    "an eviction that is not enabled": ("workload", 3),
    "modules that are disabled": (f"{LOADS} modules-disabled", 6),
    "a file that cannot be written": ("folder=owner_note", 6),
    "a driver tree that is not there": ("env=DRIVER_LOAD:manager env=DRIVER_ROOT:/opt/none", 6),
    "a deadline that is too short": ("env=RECONCILE_DEADLINE:1s", 6),
    "a right that is missing": ("deny=patch:nodes", 6),
    "pods that may not be listed": ("deny=list:pods", 7),
    "an API server that does not answer": ("no-answer", 8),
    "a host that has to reboot": ("shipped image=2.0.1 env=DRIVER_VERSION:2.0.1", 9),
    "a host image that lacks the driver": ("shipped env=DRIVER_VERSION:2.0.1", 6),
    "a driver of the host": ("shipped env=DRIVER_LOAD:container", 10),
    "a node that is left out": ("label=rebellions.ai/npu-driver-upgrade.skip:true", 10),
    "another run": ("owned", 11),
    "a digest that is none": ("env=DRIVER_CONFIG_DIGEST:two_words", 2),
    "options that contradict each other": ("shipped env=FORCE_REINSTALL:true", 2),
}
QUESTIONS = ("plan", "plan -o json", "preflight", "reconcile-driver-state --dry-run")


@pytest.mark.shares(3)
@pytest.mark.parametrize("blocker", BLOCKERS)
def test_those_who_ask_before_a_run_get_its_exit_code(blocker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events, code = BLOCKERS[blocker]
    with desk_for(events, monkeypatch) as (desk, _):
        happen(desk, events)
        before = state(desk)
        found = {question: int(run(question.split())) for question in QUESTIONS}
        assert state(desk) == before
        found["the run"] = int(run(["reconcile-driver-state"]))
    assert found == dict.fromkeys((*QUESTIONS, "the run"), code)


def test_preflight_says_what_failed_in_the_termination_log_and_not_that_a_variable_is_mistyped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompt: Prompt
) -> None:
    (tmp_path / "log").touch()
    with desk_for(LOADS, monkeypatch) as (desk, _):
        happen(desk, f"{LOADS} env=ENABLE_NPU_POD_EVICTON:true")
        assert "did you mean ENABLE_NPU_POD_EVICTION?" in prompt.errors("preflight", code=ExitCode.DONE)
        assert prompt("plan").code == ExitCode.USAGE
        happen(desk, f"modules-disabled env=TERMINATION_LOG:{tmp_path / 'log'}")
        assert prompt("preflight").code == ExitCode.PREFLIGHT_FAILED
    assert (tmp_path / "log").read_text().startswith("exit 6: preflight: kernel.modules_disabled is 1")


@pytest.mark.submission
def test_a_run_that_cannot_write_its_files_changes_nothing(monkeypatch: pytest.MonkeyPatch, prompt: Prompt) -> None:
    real = files._written_beside
    with desk_for(LOADS, monkeypatch) as (desk, _):
        happen(desk, LOADS)

        def over_quota(where: OpenEntry, text: str, mode: int) -> contextlib.AbstractContextManager[str]:
            if str(where.path).startswith(f"{desk.tree.root}/run/rbln/"):
                raise OSError(122, "Disk quota exceeded")
            return real(where, text, mode)

        monkeypatch.setattr(files, "_written_beside", over_quota)
        assert {question: int(run(question.split())) for question in QUESTIONS} == dict.fromkeys(QUESTIONS, 0)
        assert "cannot be written: Disk quota exceeded" in prompt.errors(
            "reconcile-driver-state", code=ExitCode.PREFLIGHT_FAILED
        )
        assert "driver 1.2.92, device-plugin=true, not cordoned, no journal, 1 patch(es)" in state(desk)


def test_status_shows_the_window_of_the_last_run(monkeypatch: pytest.MonkeyPatch, prompt: Prompt) -> None:
    outcome = (Path(__file__).parents[1] / "golden/last-outcome-v1-window.json").read_text().strip()
    with desk_for(LOADS, monkeypatch) as (desk, _):
        desk.annotate(desk.tree.profile.keys.last_outcome, outcome)
        shown = prompt.shows("status", "status")["lastRun"]
        code, text, _ = prompt("status")
    assert (shown["exitCode"], shown["window"]["seconds"], shown["window"]["parts"]["operands back"]) == (0, 4.0, 0.031)
    assert (code, "window: 4.0 s" in text) == (ExitCode.DONE, True)


def test_status_shows_the_recovery_of_a_wedge(monkeypatch: pytest.MonkeyPatch, prompt: Prompt) -> None:
    keys = PROFILE.keys
    record = json.loads((Path(__file__).parents[1] / "golden/health-v1-recovery.json").read_text())
    with desk_for("-", monkeypatch) as (desk, _):
        desk.path(PROFILE.paths.health_record).write_text(json.dumps({**record, "bootId": desk.tree.boot_id}))
        shown = prompt.shows("status", "status")
        code, text, _ = prompt("status")
        desk.annotate(keys.recovery, encode_note(Recovery(state=RecoveryState.NEEDS_SERVICE, reason="nothing helped")))
        later = prompt.shows("status", "status")
    waits = f"waits for approval: annotate the Node with {keys.approve_recovery}=reload"
    command = f"kubectl annotate --overwrite node {NODE} {keys.approve_recovery}=reload"
    attempts = [{"step": "reload", "outcome": "healed", "count": 3}, {"step": "reset", "outcome": "failed", "count": 2}]
    wanted = {"state": "waiting", "step": "reload", "reason": waits, "since": "2026-01-02T03:04:05Z", "approved": None}
    assert shown["recovery"] == {**wanted, "approve": command, "attempts": attempts}
    assert shown["why"].endswith(f"; next step reload: {waits}")
    assert (code, f"do: Approve the reload ({command})." in " ".join(text.split())) == (ExitCode.DONE, True)
    assert "recovery as above attempts on this host: 3 reload healed, 2 reset failed" in " ".join(text.split())
    assert (later["recovery"]["state"], later["recovery"]["approve"]) == ("needs-service", None)
    assert later["why"].endswith("; needs service: nothing helped")
    assert later["recovery"]["attempts"] == shown["recovery"]["attempts"]


EVICTING = ("ENABLE_NPU_POD_EVICTION", "ENABLE_AUTO_DRAIN", "EVICT_HOLDERS", "RESTART_CLIENTS")


@pytest.mark.parametrize(
    ("given", "home"),
    [
        ({}, PROFILE.namespace),
        ({"POD_NAMESPACE": "mine"}, "mine"),
        ({"OPERATOR_NAMESPACE": "ops"}, "ops"),
        ({"OPERATOR_NAMESPACE": "ops", "POD_NAMESPACE": "mine"}, "mine"),
        *(({one: True, "OPERATOR_NAMESPACE": "ops"}, "") for one in EVICTING),
    ],
)
def test_only_a_run_that_evicts_no_pod_may_read_the_pods_of_one_namespace(given: dict[str, Any], home: str) -> None:
    known = (*settings.CLUSTER, *settings.WORKLOADS)
    assert _home(Values({one: given.get(one.env, one.unset) for one in known}), PROFILE) == home


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_every_form_has_its_description(name: str) -> None:
    def undescribed(part: Any, at: str) -> list[str]:
        match part:
            case {"properties": fields}:
                bare = [f"{at}.{key}" for key, one in fields.items() if not one.get("description")]
                return bare + [found for key, one in fields.items() for found in undescribed(one, f"{at}.{key}")]
            case dict():
                return [found for key, one in part.items() for found in undescribed(one, f"{at}/{key}")]
            case list():
                return [found for one in part for found in undescribed(one, at)]
        return []

    assert (undescribed(schema(name), name), schema(name)["properties"]["schemaVersion"]["const"]) == ([], 1)
    assert schema(name)["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "additionalProperties" not in json.dumps(schema("status")), "a later version may add fields"


def test_a_time_span_is_in_its_two_largest_units() -> None:
    words = {0.4: "0 s", 59: "59 s", 60: "1 min", 3599: "59 min", 3600: "1 h", 7500: "2 h 5 min", 273_600: "3 d 4 h"}
    assert {seconds: spoken(seconds) for seconds in words} == words
