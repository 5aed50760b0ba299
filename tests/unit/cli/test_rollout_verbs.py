"""The verbs of a rollout as they are typed, against an API server; what is asked for is done by the real controller."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.kube.fleet import _COLLECTIONS, KubeDesk
from driver_manager.adapters.report.steps import LiveScreen
from driver_manager.cli import rollout_verbs, start
from driver_manager.cli.main import NO_FILES, offers
from driver_manager.cli.rollout_verbs import Changes, Redrawn
from driver_manager.core.fleet_ports import FactKind
from driver_manager.domain.errors import ApiRefused, ExitCode
from driver_manager.domain.fleet.spec import APPROVED
from driver_manager.domain.wire import written_time
from driver_manager.sandbox.apiserver import Deny
from tests.support.control_plane.api import wait_until
from tests.support.fakes.fleet_scene import KEYS, NAMESPACE
from tests.support.fakes.rollout_desk import APPROVED_WAVES, Laptop, laptop
from tests.support.fakes.schemas import conforms
from tests.support.fakes.terminal import on_terminal

Open = Callable[..., Laptop]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Open]:
    """Makes the one laptop of a test."""
    with contextlib.ExitStack() as stack:
        yield lambda **fields: stack.enter_context(laptop(tmp_path, monkeypatch, capfd, **fields))


@pytest.fixture
def desk(place: Open) -> Laptop:
    """Four nodes, of which the first is a canary."""
    return place(waves=APPROVED_WAVES)


def halted(place: Open, **fields: Any) -> Laptop:
    """A rollout of r2 that stopped at node-1."""
    found = place(**fields)
    found.scene.broken.add("node-1")
    found.scene.set_driver("driver:2")
    found.controller.until_phase("Halted")
    return found


def test_a_paused_rollout_starts_nothing_until_it_is_resumed(place: Open) -> None:
    desk = place()
    assert desk.does("pause").startswith("rollout rbln-system/driver: paused; no more nodes start")
    assert "is paused already" in desk.says("pause")[2]
    desk.scene.set_driver("driver:2")
    desk.controller.idle_for(300)
    assert set(desk.scene.serving().values()) == {"r1"}
    assert "next        Progressing" in desk.does("resume")
    desk.controller.until_complete("r2")


def test_of_several_nodes_all_are_retried_or_none_and_the_rollout_goes_on_with_a_failed_one(place: Open) -> None:
    desk = halted(place)
    err = desk.fails("retry", "node-1", "node-2", "elsewhere")
    assert "node-2: it has not failed" in err
    assert "elsewhere: it is not in this rollout" in err
    assert desk.writes() == []
    desk.scene.broken.clear()
    assert desk.does("retry", "node-1").startswith("rollout rbln-system/driver: node node-1 is retried: starts now\n")
    assert desk.scene.node("node-1")["metadata"]["annotations"][KEYS.upgrade_requested] == "true"
    desk.controller.until_complete("r2")
    assert desk.scene.restarts["node-1", "r2"] == 2


def test_undo_brings_the_last_good_revision_back_to_every_node_and_the_history_shows_it(place: Open) -> None:
    desk = halted(place)
    past = desk.shows("rollout-history", "history")["history"]
    shown = [(one["revision"], one["number"], one["outcome"]) for one in past]
    assert (shown, past[1]["images"]) == ([("r1", 1, "complete"), ("r2", 2, "halted")], ["driver:2", "manager"])
    head, _, last = desk.does("history").splitlines()
    assert head.split() == ["REVISION", "NUMBER", "OUTCOME", "BEGAN", "TOOK", "IMAGES"]
    assert last.split()[:3] == ["r2*", "2", "halted"]
    out = desk.does("undo")
    assert "goes back from revision r2 to r1 by the same rules; 4 nodes run another revision now" in out
    assert "next        Halted (Undoing): goes back from revision r2 to r1" in out
    desk.scene.broken.clear()
    desk.controller.until_complete("r1")
    assert set(desk.scene.serving().values()) == {"r1"}


UNDO = (sys.executable, "-m", "driver_manager", "rollout", "undo")
DONE, NOT_DONE = ExitCode.DONE, ExitCode.STANDING_DOWN


@pytest.mark.parametrize(
    ("words", "typed", "code"),
    [((), "Y\n", DONE), (("-y",), "", DONE), (("--dry-run",), "", DONE), ((), "\n", NOT_DONE), ((), "\x04", NOT_DONE)],
)
def test_undo_asks_on_a_terminal(place: Open, words: tuple[str, ...], typed: str, code: ExitCode) -> None:
    desk = halted(place)
    env = {name: os.environ[name] for name in ("KUBECONFIG", "HOME", "DRIVER_PROFILE", "LOG_FORMAT")}
    shown = on_terminal([*UNDO, *words], env, Path(__file__).parents[3], typed, columns=1_000)
    question = "rollout rbln-system/driver goes back from revision r2 to r1 by the same rules; 4 nodes run another "
    assert (shown.status, f"{question}revision now. Continue? [y/N]" in shown.text) == (code, not words), shown.text
    assert ("Nothing was changed" in shown.text) == (code is NOT_DONE)
    assert any(name.endswith("/undo") for name in desk.annotations) == (code is DONE and words != ("--dry-run",))


def test_each_undo_is_a_wish_of_its_own(place: Open) -> None:
    desk = place()
    for undo in (("undo",), ("undo", "--to", "r1")):
        desk.scene.set_driver("driver:2")
        desk.controller.until(lambda: desk.scene.phase() in ("Complete", "Halted"), "an end")
        if desk.scene.phase() == "Halted":
            desk.says("retry", "--revision")
        desk.controller.until_complete("r2")
        desk.says(*undo)
        desk.controller.until_complete("r1")
    assert set(desk.scene.serving().values()) == {"r1"}


def test_what_would_change_nothing_is_refused_with_one_line_why(place: Open) -> None:
    desk = place(nodes=2)
    for words, what in {
        ("resume",): "the rollout is not paused",
        ("approve",): "nothing waits for an approval now",
        ("approve", "--wave", "7"): "there is no wave 7",
        ("retry",): "either nodes or --revision is needed",
        ("retry", "--revision"): "revision r1 was not halted or undone before",
        ("retry", "node-0"): "node-0: it has not failed, it is done",
        ("undo",): "no earlier revision is known to be good on all nodes",
        ("undo", "--to", "9"): "there is no revision 9",
        ("undo", "--to", "r1"): "revision r1 is the target already",
        ("status", "other"): "there is no DriverRollout other in namespace rbln-system",
        ("pause", "-n", "Bad_Name"): "'Bad_Name' is not the name of a namespace",
        ("pause", "-n", "elsewhere"): "there is no DriverRollout in namespace elsewhere",
        ("status", "--profile", "acme"): "there is no profile 'acme'",
    }.items():
        assert what in desk.fails(*words), words
    assert desk.writes() == []


def test_an_object_that_cannot_be_read_is_shown_and_not_changed(place: Open) -> None:
    desk = place(nodes=1)
    desk.scene.edit_rollout(windows="Sat 26:00-27:00")
    found = desk.shows("rollout", "status")
    assert (found["phase"], found["reason"]) == ("Stalled", "InvalidSpec")
    assert found["hints"][-1]["command"] == "kubectl -n rbln-system edit driverrollout driver"
    assert "spec.windows" in desk.fails("pause")


@pytest.mark.shares(3)
def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(place: Open) -> None:
    desk = halted(place)
    before = desk.scene.store.list_objects("nodes")[0], desk.scene.rollout()
    for words in (("pause",), ("undo",), ("retry", "node-1")):
        assert "dry run: nothing was changed" in desk.does(*words, "--dry-run")
        assert (desk.scene.store.list_objects("nodes")[0], desk.scene.rollout()) == before
    assert [verb for verb, _ in desk.writes()] == ["patch"] * 3


def test_what_was_asked_is_printed_as_documented_and_refused_by_a_dry_run_too(place: Open) -> None:
    desk = place(nodes=1)
    desk.server.deny = [Deny("patch", "driverrollouts")]
    assert "patch driverrollouts" in desk.fails("pause", "--dry-run", code=ExitCode.API_REFUSED)
    desk.server.deny = []
    desk.scene.set_driver("driver:2")
    found = desk.shows("rollout-request", "pause")
    assert (found["next"]["phase"], found["dryRun"], found["hasController"]) == ("Paused", False, False)
    assert desk.scene.rollout()["spec"]["paused"] is True


def test_the_only_rollout_needs_no_name_and_one_of_two_does(place: Open) -> None:
    desk = place(nodes=1)
    desk.scene.add_rollout("second")
    err = desk.fails("pause")
    assert ("namespace rbln-system has 2 rollouts" in err, "Use one of: driver, second." in err) == (True, True)
    desk.does("pause", "driver")
    assert "paused" not in desk.scene.rollout("second")["spec"]


@pytest.mark.parametrize("namespace", ["rbln-system", ""], ids=["of-the-context", "of-the-profile"])
def test_the_namespace_is_that_of_the_context_else_of_the_profile_which_the_labels_of_nodes_tell(
    place: Open, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = place(nodes=1, namespace=namespace)
    assert desk.shows("rollout", "status")["rollout"] == f"{NAMESPACE}/driver"
    monkeypatch.delenv("DRIVER_PROFILE")
    assert "the profile cannot be determined from the labels of the Nodes" in desk.fails("status")
    desk.scene.edit_node("node-0", {"metadata": {"labels": {"rebellions.ai/npu.deploy.driver": "true"}}})
    assert desk.shows("rollout", "status")["profile"] == "rebellions"


def test_a_look_changes_nothing_opens_no_watch_and_finds_nothing_complete_without_a_nodes_pod(desk: Laptop) -> None:
    assert desk.does("status").splitlines()[0] == "Complete: 4 nodes are on revision r1"
    out = desk.does("plan")
    assert ("to go       no node" in out, "disturbs" in out) == (True, False)
    desk.does("history")
    assert {one.verb for one in desk.server.requests} <= {"get", "list"}
    assert [one.resource for one in desk.server.requests].count("nodes") == 3, "one list for each of them"
    pod = desk.scene.pods()["node-1"]["metadata"]
    desk.scene.store.delete("pods", pod["name"], namespace=pod["namespace"], grace_s=0, uid=pod["uid"])
    headline, *_ = desk.says("status")[1].splitlines()
    assert headline.endswith("1 node is without a driver pod that the DaemonSet wants: node-1"), headline


def test_one_on_its_way_ends_with_0_and_a_halted_one_does_not(desk: Laptop) -> None:
    desk.scene.broken.add("node-0")
    desk.scene.set_driver("driver:2")
    desk.controller.until_phase("Progressing")
    desk.does("status")
    desk.controller.until_phase("Halted")
    for verb in ("status", "plan"):
        desk.does(verb, code=ExitCode.ROLLOUT_STUCK)
    assert desk.shows("rollout", "status")["counts"]["failed"] == 1


def test_the_leader_is_shown_and_its_absence_too(desk: Laptop) -> None:
    assert desk.shows("rollout", "status")["hints"][0]["what"].startswith("no controller leads, so nothing happens")
    desk.add_lease("controller-1_ab", written_time(desk.scene.clock.wall() - 5))
    found = desk.shows("rollout", "status")
    assert (found["controller"]["isLeading"], found["hints"]) == (True, [])
    assert "controller  controller-1_ab leads" in desk.says("status")[1]
    desk.scene.clock.now += 600
    assert desk.shows("rollout", "status")["controller"]["isLeading"] is False


def test_what_may_not_be_read_is_unknown_or_an_error(desk: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.scene.set_driver("driver:2")
    desk.server.deny = [Deny("get", "leases")]
    code, out, err = desk.says("status")
    assert (code, "controller  unknown" in out) == (ExitCode.DONE, True)
    assert "which controller leads cannot be shown" in err
    desk.server.deny = [Deny("list", "nodes")]
    assert "list nodes" in desk.fails("status", code=ExitCode.API_REFUSED)
    paths = {**_COLLECTIONS, FactKind.ROLLOUTS: ("/apis/nowhere.example/v1", "driverrollouts", "driverrollouts")}
    monkeypatch.setattr("driver_manager.adapters.kube.fleet._COLLECTIONS", paths)
    assert "the API server does not serve driverrollouts.driver-manager.rebellions.ai" in desk.fails("status")


def test_the_plan_names_who_goes_when_and_counts_the_disturbed(desk: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ApiRefused("the API server refused to list pods", "Ask for the right.")

    desk.scene.set_driver("driver:2")
    for node, name in (("node-0", "train-0"), ("node-2", "train-1"), ("node-2", "train-2")):
        desk.add_user(node, name)
    desk.add_user("node-3", "other", resource="example.com/fpga")
    shown = desk.shows("rollout", "plan")
    found = shown["plan"]
    waits = "waits for wave 1 (canary) to end"
    going = [[(one["order"], one["node"], one["reason"]) for one in wave["nodes"]] for wave in found["waves"]]
    assert going == [[(1, "node-0", "starts now")], [(at, f"node-{at - 1}", waits) for at in (2, 3, 4)]]
    assert [wave["pods"] for wave in found["waves"]] == [1, 2]
    assert (found["toGo"], found["pods"], found["waves"][1]["approvalAfter"]) == (4, 3, 1)
    assert shown["pace"] == {"typicalSeconds": None, "windowSeconds": None, "ends": None}
    for verb in ("plan", "status"):
        assert "pace        no estimate before the first node is done" in desk.says(verb)[1]
    monkeypatch.setattr(KubeDesk, "users_by_node", refuse)
    found = desk.shows("rollout", "plan")["plan"]
    assert (found["pods"], found["waves"][0]["pods"], found["toGo"]) == (None, None, 4)
    _, out, err = desk.says("plan")
    assert "disturbs    unknown: the pods on these nodes cannot be listed" in out
    assert "the pods that use the accelerator cannot be shown: the API server refused to list pods" in err


def test_an_approved_wave_begins_and_once_a_node_is_done_there_is_an_estimate(desk: Laptop) -> None:
    desk.scene.set_driver("driver:2")
    desk.controller.until_phase("WaitingForApproval")
    assert desk.shows("rollout", "plan")["pace"]["ends"] is None, "the approval may come at any time"
    assert "next        Progressing (UnderWay): under way: node-1, node-2" in desk.does("approve")
    assert desk.annotations[APPROVED] == "r2:2"
    ends = written_time(desk.scene.clock.wall() + 2 * 23)  # three nodes, two at a time
    for verb in ("plan", "status"):
        assert desk.shows("rollout", verb)["pace"] == {"typicalSeconds": 23, "windowSeconds": None, "ends": ends}
        assert f"pace        a node takes about 23 s; done by {ends} (in " in desk.does(verb)
    assert desk.shows("rollout", "plan")["plan"]["waves"][1]["approvalAfter"] is None
    desk.controller.until_complete("r2")


def test_the_commands_of_hints_are_for_the_cluster_that_the_command_line_names(place: Open) -> None:
    desk = halted(place)
    assert desk.shows("rollout", "status")["hints"][-1]["command"].endswith(f" undo -n {NAMESPACE} driver")
    hints = desk.shows("rollout", "status", "--context", "sandbox")["hints"]
    assert {one["command"].partition(" -n ")[0].partition(" --")[2] for one in hints[1:]} == {"context sandbox"}
    desk.scene.edit_rollout(daemonSet=7)
    hints = desk.shows("rollout", "status", "--kubeconfig", os.environ["KUBECONFIG"])["hints"]
    assert hints[-1]["command"].startswith(f"kubectl --kubeconfig {os.environ['KUBECONFIG']} -n {NAMESPACE} edit ")


def test_a_list_has_the_rollouts_of_a_namespace_or_of_all_and_names_a_namespace_without_any(place: Open) -> None:
    desk = halted(place)
    copy = {"metadata": {"name": "new", "namespace": "other"}, "spec": {"daemonSet": 7}}
    desk.scene.store.create("driverrollouts", copy)
    desk.server.requests.clear()
    found = desk.shows("rollout-list", "list", "-A")["rollouts"]
    assert {(one.verb, one.resource) for one in desk.server.requests} == {("list", "driverrollouts")}
    names = [(one["namespace"], one["name"], one["phase"]) for one in found]
    assert names == [("other", "new", None), (NAMESPACE, "driver", "Halted")]
    mine = found[1]
    assert (mine["daemonSet"], mine["target"], mine["reason"]) == ("driver", "r2", "NodesFailed")
    assert (mine["counts"]["total"], mine["counts"]["failed"]) == (4, 1)
    assert found[0]["message"].startswith("the spec is not valid: spec.daemonSet")
    assert desk.shows("rollout-list", "list")["rollouts"] == [mine]
    head, *rows = desk.says("list", "-A")[1].splitlines()
    assert head.split() == ["NAMESPACE", "NAME", "TARGET", "PHASE", "WAVE", "UPDATED", "FAILED", "AGE", "MESSAGE"]
    assert [row.split()[:2] for row in rows] == [["other", "new"], [NAMESPACE, "driver"]]
    head, row = desk.says("list")[1].splitlines()
    assert (head.split()[0], row.split()[:3]) == ("NAME", ["driver", "r2", "Halted"])
    none = "there is no rollout in namespace elsewhere; -A lists those of all namespaces\n"
    assert desk.does("list", "-n", "elsewhere") == none
    assert "`driver-manager rollout list -A` lists all" in desk.fails("status", "-n", "elsewhere")
    desk.server.deny = [Deny("list", "driverrollouts")]
    assert "list driverrollouts" in desk.fails("list", "-A", code=ExitCode.API_REFUSED)


def values(*words: str) -> list[str]:
    """What kubectl is offered, without the descriptions."""
    *found, directive = offers(list(words))
    assert directive == NO_FILES
    return [line.partition("\t")[0] for line in found]


def test_verbs_names_and_failed_nodes_are_offered_and_what_cannot_be_read_is_not(place: Open) -> None:
    desk = halted(place, nodes=3)
    desk.scene.add_rollout("second")
    assert {"status", "plan", "undo"} <= set(values())
    assert (values("re"), values("status", "")) == (["resume", "retry"], ["driver", "second"])
    assert (values("undo", "dr"), values("undo", "--context", "s")) == (["driver"], ["sandbox"])
    assert (values("retry", "--rollout", "s"), values("retry", "")) == (["second"], ["node-1"])
    assert values("retry", "node-1", "") == values("status", "-n", "elsewhere", "") == []
    desk.server.deny = [Deny("list", "driverrollouts"), Deny("list", "nodes")]
    assert values("status", "") == values("retry", "") == []
    assert desk.capfd.readouterr() == ("", "")


def test_the_plugin_has_the_verbs_at_its_top(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["kubectl-driver_rollout", "status", "-w"])
    monkeypatch.setattr(start, "entry", lambda: seen.append(sys.argv[1:]))
    start.plugin_entry()
    assert seen == [["rollout", "status", "-w"]]


@pytest.fixture
def watched(place: Open, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    """Two nodes with a new revision to come; looked at every few hundredths of a second."""
    monkeypatch.setattr(rollout_verbs, "PACE_S", 0.02)
    monkeypatch.setattr(rollout_verbs, "TICK_S", 0.1)
    found = place(nodes=2)
    found.scene.set_driver("driver:2")
    return found


def watch(desk: Laptop, act: Callable[[], object], *options: str) -> tuple[int, str, str]:
    """What `status --watch` prints. `act` is done in a thread once it watches."""

    def follow() -> None:
        seen = desk.server.requests
        wait_until(lambda: ("watch", "nodes") in {(one.verb, one.resource) for one in list(seen)}, "a watch")
        act()

    thread = threading.Thread(target=follow)
    thread.start()
    found = desk.says("status", "--watch", *options)
    thread.join()
    return found


def test_each_change_is_a_line_and_the_last_one_says_that_it_is_complete(watched: Laptop) -> None:
    code, out, _ = watch(watched, lambda: watched.controller.until_complete("r2"))
    lines = out.splitlines()
    assert (code, len(lines)) == (ExitCode.DONE, len(set(lines)))
    assert "Progressing (UnderWay): under way: node-0" in lines[0]
    assert lines[-1].endswith("Complete: 2 nodes are on revision r2 [2 in all: 2 updated]")


def test_a_halt_ends_a_watch_with_its_exit_code(watched: Laptop) -> None:
    watched.scene.broken.add("node-0")
    code, out, _ = watch(watched, lambda: watched.controller.until_phase("Halted"))
    assert (code, "Halted (NodesFailed)" in out.splitlines()[-1]) == (ExitCode.ROLLOUT_STUCK, True)


def test_for_machines_each_change_is_one_line_of_json(watched: Laptop) -> None:
    code, out, _ = watch(watched, lambda: watched.controller.until_complete("r2"), "-o", "json")
    phases = [conforms("rollout", line)["phase"] for line in out.splitlines()]
    assert (code, phases[0], phases[-1]) == (ExitCode.DONE, "Progressing", "Complete")


def test_a_watch_that_is_interrupted_says_nothing_of_it(watched: Laptop) -> None:
    code, out, err = watch(watched, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert (code, err, len(out.splitlines())) == (ExitCode.STANDING_DOWN, "", 1)


def test_a_rollout_that_is_deleted_meanwhile_ends_a_watch_with_that(watched: Laptop) -> None:
    code, _, err = watch(watched, partial(watched.scene.store.delete, "driverrollouts", "driver", namespace=NAMESPACE))
    assert (code, "there is no DriverRollout in namespace rbln-system" in err) == (ExitCode.USAGE, True)


def test_what_says_nothing_new_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    counts = {"total": 1, **dict.fromkeys(("updated", "underWay", "waiting", "failed", "leftOut"), 0)}
    lines = Changes("text")
    for now_s in (0.0, 9.0):
        lines.show({"phase": "Paused", "reason": "Paused", "message": "it is", "counts": counts}, now_s, False)
    assert capfd.readouterr().out == "1970-01-01T00:00:00Z Paused: it is [1 in all]\n"
    of_json = Changes("json")
    for pace, phase in (("a", "Progressing"), ("b", "Progressing"), ("c", "Complete")):
        of_json.show({"phase": phase, "pace": pace}, 0.0, False)
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert shown == [{"phase": "Progressing", "pace": "a"}, {"phase": "Complete", "pace": "c"}]
    Changes("yaml").show({"phase": "Complete", "pace": None}, 0.0, True)
    assert capfd.readouterr().out == "---\nphase: Complete\npace: null\n"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 20 columns and 4 lines."""
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((20, 4)))
    monkeypatch.setattr(made := io.StringIO(), "fileno", lambda: -1, raising=False)
    return made


def test_what_is_drawn_again_is_drawn_over_and_nothing_wraps_or_scrolls(terminal: io.StringIO) -> None:
    screen = LiveScreen(terminal)
    screen.draw("one\ntwo")
    assert terminal.getvalue().endswith("\x1b[H\x1b[2Jone\x1b[K\ntwo\x1b[K\x1b[J")
    screen.draw("three")
    assert terminal.getvalue().endswith("\x1b[Hthree\x1b[K\x1b[J")
    screen.draw("\n".join(["\x1b[1m" + "x" * 30 + "\x1b[0m", "2", "3", "4", "5"]))
    drawn = terminal.getvalue().rpartition("\x1b[H")[2]
    assert (drawn.count("\n"), drawn.splitlines()[0]) == (3, "\x1b[1m" + "x" * 19 + "\x1b[0m…\x1b[0m\x1b[K")
    assert "... and 2 more lines" in drawn


def test_the_last_screen_stays_whole(terminal: io.StringIO, watched: Laptop) -> None:
    found = watched.shows("rollout", "status")
    redrawn = Redrawn(LiveScreen(terminal))
    redrawn.show(found, 0.0, False)
    redrawn.show(found, 0.0, True)
    assert terminal.getvalue().endswith("\x1b[H\x1b[2J")
    assert watched.capfd.readouterr().out.startswith("Progressing (UnderWay)")
