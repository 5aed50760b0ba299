"""`rollout status` and `rollout plan` as they are typed: facts, exit codes, what it takes and what it does without."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from driver_manager.adapters.kube.fleet import _COLLECTIONS, KubeDesk
from driver_manager.core.fleet_ports import FactKind
from driver_manager.domain.errors import ApiRefused, ExitCode
from driver_manager.domain.wire import written_time
from driver_manager.sandbox.apiserver import Deny
from tests.support.fakes.rollout_desk import APPROVED_WAVES, Laptop, laptop


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Generator[Laptop, None, None]:
    """Four nodes, of which the first is a canary."""
    with laptop(tmp_path, monkeypatch, capfd, waves=APPROVED_WAVES) as found:
        yield found


def test_a_complete_rollout_ends_with_0(desk: Laptop) -> None:
    code, out, _ = desk.says("status")
    assert (code, out.splitlines()[0]) == (ExitCode.DONE, "Complete: 4 nodes are on revision r1")


def test_as_long_as_a_nodes_pod_is_not_seen_nothing_is_complete(desk: Laptop) -> None:
    pod = desk.scene.pods()["node-1"]["metadata"]
    desk.scene.store.delete("pods", pod["name"], namespace=pod["namespace"], grace_s=0, uid=pod["uid"])
    headline = desk.says("status")[1].splitlines()[0]
    assert headline.endswith("1 node is without a driver pod that the DaemonSet wants"), headline


@pytest.mark.submission
def test_one_on_its_way_ends_with_0_and_a_halted_one_does_not(desk: Laptop) -> None:
    desk.scene.broken.add("node-0")
    desk.scene.set_driver("driver:2")
    desk.controller.until_phase("Progressing")
    assert desk.says("status")[0] == ExitCode.DONE
    desk.controller.until_phase("Halted")
    assert desk.says("status")[0] == ExitCode.ROLLOUT_STUCK
    assert desk.says("plan")[0] == ExitCode.ROLLOUT_STUCK
    assert desk.shows("rollout", "status")["counts"]["failed"] == 1


def test_a_look_changes_nothing_and_opens_no_watch(desk: Laptop) -> None:
    desk.says("status")
    desk.says("plan")
    desk.says("history")
    assert {verb for verb, _, _ in desk.server.counts()} <= {"get", "list"}
    looks = [one.resource for one in desk.server.requests]
    assert looks.count("nodes") == 3, "one list for each of them"


def test_who_leads_is_shown_and_that_nobody_does(desk: Laptop) -> None:
    assert desk.shows("rollout", "status")["hints"][0]["what"].startswith("no controller leads, so nothing happens")
    desk.add_lease("controller-1_ab", written_time(desk.scene.clock.wall() - 5))
    found = desk.shows("rollout", "status")
    assert (found["controller"]["isLeading"], found["hints"]) == (True, [])
    assert "controller  controller-1_ab leads" in desk.says("status")[1]
    desk.scene.clock.now += 600
    assert desk.shows("rollout", "status")["controller"]["isLeading"] is False


def test_what_may_not_be_read_is_unknown_and_costs_no_more_than_that(desk: Laptop) -> None:
    desk.scene.set_driver("driver:2")
    desk.server.deny = [Deny("get", "leases")]
    code, out, err = desk.says("status")
    assert (code, "controller  unknown" in out) == (ExitCode.DONE, True)
    assert "which controller leads cannot be shown" in err


def test_without_the_right_to_list_nodes_it_ends_with_that(desk: Laptop) -> None:
    desk.server.deny = [Deny("list", "nodes")]
    code, out, err = desk.says("status")
    assert (code, out) == (ExitCode.API_REFUSED, "")
    assert "list nodes" in err


def test_a_cluster_without_the_definition_is_told_so(desk: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driver_manager.adapters.kube.fleet._COLLECTIONS", _without_rollouts())
    code, _, err = desk.says("status")
    assert code == ExitCode.USAGE
    assert "the API server does not serve driverrollouts.driver-manager.rebellions.ai" in err


def _without_rollouts() -> dict[FactKind, tuple[str, str, str]]:
    """Paths of which that of rollouts leads nowhere, as before the definition is installed."""
    return {
        **_COLLECTIONS,
        FactKind.ROLLOUTS: ("/apis/nowhere.example/v1", "driverrollouts", "driverrollouts"),
    }


# the plan


def test_the_plan_names_who_goes_when_and_counts_whom_that_disturbs(desk: Laptop) -> None:
    desk.scene.set_driver("driver:2")
    desk.add_user("node-0", "train-0")
    desk.add_user("node-2", "train-1")
    desk.add_user("node-2", "train-2")
    desk.add_user("node-3", "other", resource="example.com/fpga")
    shown = desk.shows("rollout", "plan")
    found = shown["plan"]
    assert [[one["node"] for one in wave["nodes"]] for wave in found["waves"]] == [
        ["node-0"],
        ["node-1", "node-2", "node-3"],
    ]
    assert [wave["pods"] for wave in found["waves"]] == [1, 2]
    assert (found["toGo"], found["pods"]) == (4, 3)
    going = [(one["order"], one["reason"]) for wave in found["waves"] for one in wave["nodes"]]
    assert going == [(1, "starts now"), *((number, "waits for wave 1 (canary) to end") for number in (2, 3, 4))]
    assert shown["pace"] == {"typicalSeconds": None, "windowSeconds": None, "ends": None}
    assert found["waves"][1]["approvalAfter"] == 1
    for verb in ("plan", "status"):
        assert "pace        no estimate before the first node is done" in desk.says(verb)[1]


def test_once_a_node_is_done_there_is_an_estimate(desk: Laptop) -> None:
    desk.scene.set_driver("driver:2")
    desk.controller.until_phase("WaitingForApproval")
    assert desk.shows("rollout", "plan")["pace"]["ends"] is None, "the approval may come at any time"
    desk.says("approve")
    ends = written_time(desk.scene.clock.wall() + 2 * 23)  # three nodes, two at a time
    for verb in ("plan", "status"):
        found = desk.shows("rollout", verb)
        assert found["pace"] == {"typicalSeconds": 23, "windowSeconds": None, "ends": ends}
        assert f"pace        a node takes about 23 s; done by {ends} (in " in desk.says(verb)[1]
    assert desk.shows("rollout", "plan")["plan"]["waves"][1]["approvalAfter"] is None


def test_pods_of_other_namespaces_that_may_not_be_listed_are_unknown(
    desk: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ApiRefused("the API server refused to list pods", "Ask for the right.")

    desk.scene.set_driver("driver:2")
    monkeypatch.setattr(KubeDesk, "users_by_node", refuse)
    found = desk.shows("rollout", "plan")["plan"]
    assert (found["pods"], found["waves"][0]["pods"], found["toGo"]) == (None, None, 4)
    _, out, err = desk.says("plan")
    assert "disturbs    unknown: the pods on these nodes cannot be listed" in out
    assert "the pods that use the accelerator cannot be shown: the API server refused to list pods" in err


def test_a_complete_rollout_has_nothing_to_go(desk: Laptop) -> None:
    code, out, _ = desk.says("plan")
    assert (code, "to go       no node" in out) == (ExitCode.DONE, True)
    assert "disturbs" not in out
