"""The verbs of a rollout as they are typed, against an API server; what is asked for is done by the real controller."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import APPROVED, RETRY, UNDO
from driver_manager.sandbox.apiserver import Deny
from tests.support.fakes.fleet_scene import KEYS, NAMESPACE
from tests.support.fakes.rollout_desk import APPROVED_WAVES, Laptop, laptop

Open = Callable[..., Laptop]


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Generator[Open, None, None]:
    """Makes the one laptop of a test."""
    opened: list[Any] = []

    def make(**said: Any) -> Laptop:
        opened.append(laptop(tmp_path, monkeypatch, capfd, **said))
        found: Laptop = opened[-1].__enter__()
        return found

    yield make
    for one in opened:
        one.__exit__(None, None, None)


def halted(place: Open, **said: Any) -> Laptop:
    """A rollout of r2 that stopped at node-1."""
    found = place(**said)
    found.scene.broken.add("node-1")
    found.scene.set_driver("driver:2")
    found.controller.until_phase("Halted")
    return found


# pause and resume


def test_a_paused_rollout_starts_nothing_until_it_is_resumed(place: Open) -> None:
    desk = place()
    code, out, _ = desk.says("pause")
    assert code == ExitCode.DONE
    assert out.startswith("rollout rbln-system/driver: paused; no more nodes start")
    desk.scene.set_driver("driver:2")
    desk.controller.idle_for(300)
    assert set(desk.scene.serving().values()) == {"r1"}
    code, out, _ = desk.says("resume")
    assert (code, "next        Progressing" in out) == (ExitCode.DONE, True)
    desk.controller.until_complete("r2")


# approve


def test_an_approved_wave_begins(place: Open) -> None:
    desk = place(waves=APPROVED_WAVES)
    desk.scene.set_driver("driver:2")
    desk.controller.until_phase("WaitingForApproval")
    code, out, _ = desk.says("approve")
    assert (code, desk.annotations[APPROVED]) == (ExitCode.DONE, "r2:2")
    assert "next        Progressing (UnderWay): under way: node-1, node-2" in out
    desk.controller.until_complete("r2")


def test_a_wave_is_approved_ahead_of_time(place: Open) -> None:
    desk = place(waves=APPROVED_WAVES)
    desk.says("pause")
    desk.scene.set_driver("driver:2")
    desk.controller.until_phase("Paused")
    assert desk.says("approve", "--wave", "2")[0] == ExitCode.DONE
    desk.says("resume")
    desk.controller.until_complete("r2")


# retry


@pytest.mark.submission
def test_a_failed_node_is_tried_once_more_and_the_rollout_goes_on(place: Open) -> None:
    desk = halted(place)
    desk.scene.broken.clear()
    code, out, _ = desk.says("retry", "node-1")
    assert code == ExitCode.DONE
    assert out.startswith("rollout rbln-system/driver: node node-1 is retried: starts now\n")
    assert desk.scene.node("node-1")["metadata"]["annotations"][KEYS.upgrade_requested] == "true"
    desk.controller.until_complete("r2")
    assert desk.scene.restarts["node-1", "r2"] == 2


@pytest.mark.submission
def test_of_several_nodes_all_are_retried_or_none(place: Open) -> None:
    desk = halted(place)
    code, _, err = desk.says("retry", "node-1", "node-2", "elsewhere")
    assert code == ExitCode.USAGE
    assert "node-2: it has not failed" in err
    assert "elsewhere: it is not in this rollout" in err
    assert desk.writes() == []


@pytest.mark.submission
def test_a_revision_that_was_undone_is_tried_again_only_when_asked_for(place: Open) -> None:
    desk = halted(place, onHalt="undo")
    desk.scene.broken.clear()
    desk.controller.until_complete("r1")
    desk.scene.set_driver("driver:2")
    desk.controller.until_phase("Halted")
    assert desk.shows("rollout", "status")["reason"] == "FailedBefore"
    code, out, _ = desk.says("retry", "--revision")
    assert (code, desk.annotations[RETRY]) == (ExitCode.DONE, "r2")
    assert "revision r2 may be retried" in out
    desk.controller.until_complete("r2")


# undo


@pytest.mark.submission
def test_undo_brings_the_last_good_revision_back_to_every_node(place: Open) -> None:
    desk = halted(place)
    code, out, _ = desk.says("undo")
    assert code == ExitCode.DONE
    assert "goes back from revision r2 to r1 by the same rules; 4 nodes run another revision now" in out
    assert "next        Halted (Undoing): goes back from revision r2 to r1" in out
    desk.scene.broken.clear()
    desk.controller.until_complete("r1")
    assert set(desk.scene.serving().values()) == {"r1"}


@pytest.mark.submission
def test_undo_takes_a_revision_by_its_number(place: Open) -> None:
    desk = place()
    desk.scene.set_driver("driver:2")
    desk.controller.until_complete("r2")
    desk.scene.set_driver("driver:3")
    desk.controller.until_complete("r3")
    assert desk.says("undo", "--to", "1")[0] == ExitCode.DONE
    assert desk.annotations[UNDO].endswith(":r1")
    desk.controller.until_complete("r1")


def test_each_undo_is_a_wish_of_its_own(place: Open) -> None:
    desk = place()
    for image, back in (("driver:2", "r2"), ("driver:2", "r2")):
        desk.scene.set_driver(image)
        desk.controller.until(lambda: desk.scene.phase() in ("Complete", "Halted"), "an end")
        if desk.scene.phase() == "Halted":
            desk.says("retry", "--revision")
        desk.controller.until_complete(back)
        desk.says("undo")
        desk.controller.until_complete("r1")
    assert set(desk.scene.serving().values()) == {"r1"}


# what is refused


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("resume",), "the rollout is not paused"),
        (("approve",), "nothing waits for an approval now"),
        (("approve", "--wave", "7"), "there is no wave 7"),
        (("retry",), "either nodes or --revision is needed"),
        (("retry", "--revision"), "revision r1 was not halted or undone before"),
        (("retry", "node-0"), "node-0: it has not failed, it is done"),
        (("undo",), "no earlier revision is known to be good on all nodes"),
        (("undo", "--to", "9"), "there is no revision 9"),
        (("undo", "--to", "r1"), "revision r1 is the target already"),
        (("status", "other"), "there is no DriverRollout other in namespace rbln-system"),
        (("pause", "-n", "Bad_Name"), "'Bad_Name' is not the name of a namespace"),
        (("pause", "-n", "elsewhere"), "there is no DriverRollout in namespace elsewhere"),
        (("status", "--profile", "acme"), "there is no profile 'acme'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_would_change_nothing_is_refused_with_one_line_why(place: Open, words: tuple[str, ...], what: str) -> None:
    desk = place(nodes=2)
    code, out, err = desk.says(*words)
    assert (code, out) == (ExitCode.USAGE, "")
    assert what in err
    assert "what to do: " in err
    assert desk.writes() == []


def test_what_is_paused_is_not_paused_again(place: Open) -> None:
    desk = place(nodes=1, paused=True)
    assert "is paused already" in desk.says("pause")[2]


def test_an_object_that_cannot_be_read_is_shown_and_not_changed(place: Open) -> None:
    desk = place(nodes=1)
    desk.scene.edit_rollout(windows="Sat 26:00-27:00")
    found = desk.shows("rollout", "status")
    assert (found["phase"], found["reason"]) == ("Stalled", "InvalidSpec")
    assert found["hints"][-1]["command"] == "kubectl -n rbln-system edit driverrollout driver"
    code, _, err = desk.says("pause")
    assert code == ExitCode.USAGE
    assert "spec.windows" in err


# dry runs


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("words", [("pause",), ("undo",), ("retry", "node-1")], ids=" ".join)
def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(place: Open, words: tuple[str, ...]) -> None:
    desk = halted(place)
    before = desk.scene.store.list_objects("nodes")[0], desk.scene.rollout()
    code, out, _ = desk.says(*words, "--dry-run")
    assert (code, "dry run: nothing was changed" in out) == (ExitCode.DONE, True)
    assert [verb for verb, _ in desk.writes()] == ["patch"]
    assert (desk.scene.store.list_objects("nodes")[0], desk.scene.rollout()) == before


def test_who_may_not_patch_is_told_so_by_a_dry_run_too(place: Open) -> None:
    desk = place(nodes=1)
    desk.server.deny = [Deny("patch", "driverrollouts")]
    code, _, err = desk.says("pause", "--dry-run")
    assert code == ExitCode.API_REFUSED
    assert "patch driverrollouts" in err


# the JSON of what was asked


def test_what_was_asked_is_printed_as_documented(place: Open) -> None:
    desk = place(nodes=1)
    desk.scene.set_driver("driver:2")
    found = desk.shows("rollout-request", "pause")
    assert (found["next"]["phase"], found["dryRun"], found["hasController"]) == ("Paused", False, False)
    assert desk.scene.rollout()["spec"]["paused"] is True


# which object


def test_the_only_rollout_needs_no_name_and_one_of_two_does(place: Open) -> None:
    desk = place(nodes=1)
    desk.scene.add_rollout("second")
    code, _, err = desk.says("pause")
    assert code == ExitCode.USAGE
    assert "namespace rbln-system has 2 rollouts" in err
    assert "Use one of: driver, second." in err
    assert desk.says("pause", "driver")[0] == ExitCode.DONE
    assert "paused" not in desk.scene.rollout("second")["spec"]


@pytest.mark.parametrize("namespace", ["rbln-system", ""], ids=["of-the-context", "of-the-profile"])
def test_the_namespace_is_that_of_the_context_else_of_the_profile(place: Open, namespace: str) -> None:
    assert place(nodes=1, namespace=namespace).shows("rollout", "status")["rollout"] == f"{NAMESPACE}/driver"


def test_without_a_profile_the_labels_of_the_nodes_tell_it(place: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = place(nodes=1)
    monkeypatch.delenv("DRIVER_PROFILE")
    code, _, err = desk.says("status")
    assert code == ExitCode.USAGE
    assert "the profile cannot be determined from the labels of the Nodes" in err
    desk.scene.edit_node("node-0", {"metadata": {"labels": {"rebellions.ai/npu.deploy.driver": "true"}}})
    assert desk.shows("rollout", "status")["profile"] == "rebellions"


# history


@pytest.mark.submission
def test_the_history_shows_how_each_rollout_went(place: Open) -> None:
    desk = halted(place)
    found = desk.shows("rollout-history", "history")
    assert [(one["revision"], one["number"], one["outcome"]) for one in found["history"]] == [
        ("r1", 1, "complete"),
        ("r2", 2, "halted"),
    ]
    assert found["history"][1]["images"] == ["driver:2", "manager"]
    out = desk.says("history")[1].splitlines()
    assert out[0].split() == ["REVISION", "NUMBER", "OUTCOME", "BEGAN", "TOOK", "IMAGES"]
    assert out[2].split()[:3] == ["r2*", "2", "halted"]
