"""Rollouts on the real API server: their controller, and what the definition of DriverRollout refuses and shows."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from driver_manager import profiles
from driver_manager.adapters.kube.leases import rollout_lease
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import RevisionHistory, RolloutPolicy, RolloutState, memory_of, read
from driver_manager.domain.fleet.state import FleetDecision, NodePhase, NodeView, Outlook, Phase, WaveView
from driver_manager.domain.fleet.status import status_of
from driver_manager.domain.wire import merge_patch, without_blanks
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, only, render
from tests.support.control_plane.api import Api, ApiError, Json, gone, wait_until
from tests.support.control_plane.api import status_of as http_status_of
from tests.support.control_plane.faults import ALWAYS, Drop, Exchange, Fault
from tests.support.control_plane.kubelet import NEVER, OperandsFactory
from tests.support.control_plane.processes import RUN_TIMEOUT_S, Command, Orders, Running
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import (
    IDLE,
    PODS,
    ROLLOUTS,
    STATE,
    TASK,
    FleetFactory,
    Witness,
    ended,
    most_under_way,
    restarted,
    serve_rollouts,
    writes,
)
from tests.support.control_plane.runner import CORDON, JOURNAL, PAUSED, PREFIX, REQUESTED, RunnerFactory
from tests.support.control_plane.servers import NAMESPACE, ControlPlane
from tests.support.deploy.apply import applied, apply
from tests.support.fakes.rollout_objects import BAD, BLANK, FULL, SPEC, rollout, zones

SKIP = "rebellions.ai/npu-driver-upgrade.skip"
ROLLOUT, OPERAND = "clear-first", "device-plugin"
WAVES = [{"name": "canary", "count": 1, "soak": "2s"}, {"name": "tenth", "percent": 10}, {"name": "rest"}]


@pytest.mark.shares(6)
def test_a_rollout_goes_through_its_waves_in_few_writes_and_is_idle_afterwards(rollout_fleet: FleetFactory) -> None:
    fleet = rollout_fleet(10)
    controller = fleet.start()
    fleet.make_complete(waves=WAVES, maxParallel=3)
    mark = fleet.plane.audit_mark()
    new = fleet.set_driver("driver:2")
    fleet.wait_complete(new)
    assert fleet.serving() == dict.fromkeys(fleet.nodes, new)
    assert fleet.states() == dict.fromkeys(fleet.nodes, "upgrade-done")
    records = fleet.requests(mark)
    deleted = restarted(records)
    assert (len(deleted), set(deleted.values())) == (10, {1}), "each driver pod once"
    marked = [one.name for one in records if (one.verb, one.resource) == ("patch", "nodes")]
    assert marked[0] == marked[1], "the canary has ended before anybody else begins"
    assert 1 < most_under_way(records) <= 3
    found = writes(records)
    print(f"writes of 10 nodes: {dict(found)}")
    assert (found["nodes"], found["pods"]) == (20, 10)
    assert found["driverrollouts/status"] <= 10
    assert sum(found.values()) - found["events"] <= 40
    counts = fleet.status()["counts"]
    assert (counts["updated"], counts["total"]) == (10, 10)
    assert fleet.while_idle(renewals=3) <= IDLE
    over = controller.terminate()
    assert over.code == 0, over.err


def effects(proxy: Proxy, since: int = 0) -> list[Exchange]:
    """What the controller behind the proxy has changed, or tried to change, of the rollout."""
    verbs = ("patch", "delete", "create")
    return [
        one
        for one in proxy.exchanges(since=since)
        if one.request.target.verb in verbs and one.request.target.resource != "leases"
    ]


@pytest.mark.shares(6)
def test_a_leader_cut_off_from_its_lease_stops_before_another_begins(
    rollout_fleet: FleetFactory, admin_api: Api
) -> None:
    thirty = rollout_fleet(
        30
    )  # one after the other: as long as a leader may act without its Lease, and another after it
    cut = Fault(Drop(), resource="leases", times=ALWAYS)
    with Proxy.before(thirty.plane) as of_first, Proxy.before(thirty.plane) as of_second:
        first = thirty.fork(of_first.url)
        thirty.make_complete(waves=[{"name": "all"}])
        (good,) = set(thirty.serving().values())
        second = thirty.fork(of_second.url)
        second.wait_log("as ")
        with Witness(admin_api, thirty.name) as witness:
            new = thirty.set_driver("driver:2")
            wait_until(lambda: len(thirty.states()) > 1, "it is under way", 120)
            at_cut = of_first.mark()
            of_first.script.add(cut)
            second.wait_log("leading")
            wait_until(lambda: effects(of_second), "the second acts", 120)
            took_s = effects(of_second)[0].at_s
            of_first.script.lift(cut)
            first.wait_log("standing by")
            at_heal = of_first.mark()
            late = effects(of_first, at_cut)
            assert late, "its way to everything else was open"
            assert max(one.ended_at_s or took_s for one in late) < took_s
            assert second.terminate().code == 0
            handed = len(effects(of_second))
            wait_until(lambda: effects(of_first, at_heal), "the first acts again", 120)
            thirty.wait_complete(new)
            assert len(effects(of_second)) == handed
            witness.caught_up()
        assert first.terminate().code == 0
    last = max(one.ended_at_s or 0.0 for one in effects(of_second))
    assert last < effects(of_first, at_heal)[0].at_s
    assert witness.served() == {name: [good, new] for name in thirty.nodes}
    assert {tuple(words) for words in witness.words().values()} == {("pod-restart-required", "upgrade-done")}
    assert witness.most_under_way() == 1
    assert witness.labels_lost({"fleet": thirty.name}) == []


@pytest.mark.shares(6)
def test_the_controllers_of_two_vendors_lead_side_by_side_in_one_namespace(rollout_fleet: FleetFactory) -> None:
    fleets = [rollout_fleet(2, rollout_lease(one), one) for one in ("rebellions", "furiosa")]
    runs = [one.fork() for one in fleets]
    for one in fleets:
        one.make_complete(maxParallel=0, preflight="require")
    mark = fleets[0].plane.audit_mark()
    wanted = [one.set_driver("driver:2") for one in fleets]
    for one, new in zip(fleets, wanted, strict=True):
        one.wait_complete(new)
        assert one.serving() == dict.fromkeys(one.nodes, new)
    assert [one.status()["profile"] for one in fleets] == ["rebellions", "furiosa"]
    deleted = restarted(fleets[0].requests(mark))
    assert set(deleted.values()) == {1}
    assert len([name for name in deleted if "-preflight-" not in name]) == 4
    for run, foreign in zip(runs, fleets[::-1], strict=True):
        assert "leading" in run.log
        assert not [line for line in run.log.splitlines() if f"node {foreign.name}" in line]
    holders = [one.api.get(one.lease_path)["spec"]["holderIdentity"] for one in fleets]
    assert len(set(holders)) == 2
    assert fleets[0].while_idle(renewals=6) <= IDLE, "neither writes the status of the other's rollout"
    assert [run.terminate().code for run in runs] == [0, 0]


@pytest.mark.shares(6)
@pytest.mark.shares(6)
def test_a_failed_node_that_disappears_still_counts_for_this_controller_and_for_the_next(
    rollout_fleet: FleetFactory, admin_api: Api
) -> None:
    fleet = rollout_fleet(3)
    controller = fleet.start()
    fleet.make_complete(waves=[{"name": "all"}], maxParallel=1)
    fleet.kubelets.wedging |= {(node, "driver:2") for node in fleet.nodes}
    (old,) = set(fleet.serving().values())
    fleet.set_driver("driver:2")
    wait_until(lambda: "upgrade-failed" in fleet.states().values(), "the first node fails", 60.0)
    (failed,) = (node for node, state in fleet.states().items() if state == "upgrade-failed")
    admin_api.delete(f"/api/v1/nodes/{failed}")
    for pod in fleet.pods():
        if pod["spec"].get("nodeName") == failed:
            gone(partial(admin_api.delete, f"{PODS}/{pod['metadata']['name']}", grace_s=0))
    for _ in range(2):
        lost = wait_until(lambda: fleet.status().get("lost"), "the status has the node", 60.0)
        assert [(one["node"], one["failed"]) for one in lost] == [(failed, True)]
        fleet.while_idle(renewals=1)
        assert fleet.status()["phase"] == "Halted"
        assert fleet.serving() == {node: old for node in fleet.nodes if node != failed}
        controller.terminate()
        controller = fleet.start("next")
    fleet.nodes.remove(failed)


@pytest.mark.shares(6)
def test_a_wait_for_the_rebooter_fails_no_node(rollout_fleet: FleetFactory) -> None:
    fleet = rollout_fleet(2)
    fleet.start()
    fleet.make_complete(waves=[{"name": "all"}], maxParallel=1, approveReboots=True, nodeTimeout="4s")
    fleet.kubelets.word = "reboot-required"
    fleet.kubelets.wedging |= {(node, "driver:2") for node in fleet.nodes}
    new = fleet.set_driver("driver:2")
    wait_until(lambda: "reboot-required" in fleet.states().values(), "a node waits for its reboot", 60.0)
    fleet.while_idle(renewals=2)  # ten seconds
    status = fleet.status()
    assert (status["phase"], status["counts"]["failed"]) == ("Progressing", 0)
    assert status["underWay"][0]["reason"].startswith("waits for the rebooter")
    fleet.kubelets.wedging.clear()
    fleet.wait_complete(new)


@pytest.mark.shares(6)
def test_the_skip_label_takes_a_cordoned_node_out_of_the_budget(rollout_fleet: FleetFactory, admin_api: Api) -> None:
    fleet = rollout_fleet(3)
    fleet.start()
    fleet.make_complete(waves=[{"name": "all"}], maxParallel=2, maxUnavailable=1)
    path = f"/api/v1/nodes/{fleet.nodes[2]}"
    admin_api.patch(path, {"spec": {"unschedulable": True}})
    new = fleet.set_driver("driver:2")
    wait_until(lambda: fleet.status().get("phase") == "WaitingForNodes", "the budget is used up", 60.0)
    admin_api.patch(path, {"metadata": {"labels": {SKIP: "true"}}})
    fleet.wait_complete(new)
    assert list(fleet.serving().values()).count(new) == 2


def test_a_controller_refuses_a_daemonset_of_another_profile_and_deletes_nothing(rollout_fleet: FleetFactory) -> None:
    fleet = rollout_fleet(2)
    fleet.fork()
    fleet.make_complete(waves=[{"name": "all"}], preflight="require")
    mark = fleet.plane.audit_mark()
    new = fleet.set_driver("driver:2", "nvidia")
    wait_until(lambda: fleet.status().get("phase") == "Stalled", "it is refused", 60)
    (stalled,) = [one for one in fleet.status()["conditions"] if one["type"] == "Stalled"]
    why = f"DaemonSet {fleet.name} has profile nvidia, and this controller rebellions"
    assert (stalled["status"], stalled["reason"]) == ("True", "AnotherProfile")
    assert stalled["message"] == f"{why}: install the rollout controller of nvidia"
    assert fleet.while_idle(renewals=3) <= IDLE
    assert writes(fleet.requests(mark)).keys() == {"driverrollouts/status"}
    fleet.set_driver("driver:2")
    wait_until(lambda: fleet.status().get("phase") == "Complete", "its own profile again", 120)
    assert new not in fleet.serving().values()


@pytest.mark.shares(6)
@pytest.mark.parametrize("has_another", [False, True], ids=["alone", "beside another rollout"])
def test_the_next_leader_releases_the_nodes_of_a_rollout_that_was_deleted_after_the_leader_was_killed(
    rollout_fleet: FleetFactory, has_another: bool
) -> None:
    fleet = rollout_fleet(3)
    first = fleet.fork()
    fleet.make_complete(waves=[{"name": "all"}], maxParallel=2)
    assert first.terminate().code == 0
    before = {pod["metadata"]["uid"] for pod in fleet.pods()}
    fleet.set_driver("driver:2")
    leader = fleet.fork(orders=Orders(stops=("delete_pod before",)))
    wait_until(lambda: leader.has_stopped, f"it is about to delete a pod: {leader.log}", 120)
    assert leader.kill().code == -9
    left = [name for name, state in fleet.states().items() if state == "pod-restart-required"]
    assert len(left) == 2
    fleet.api.delete(f"{ROLLOUTS}/{fleet.name}")
    if has_another:
        fleet.api.post(ROLLOUTS, rollout({"daemonSet": "other"}, f"{fleet.name}-other"))
    mark = fleet.plane.audit_mark()
    fleet.fork()
    wait_until(lambda: not fleet.states().keys() & left, "its nodes are released", 120)
    assert {pod["metadata"]["uid"] for pod in fleet.pods()} == before
    assert fleet.while_idle(renewals=3) <= IDLE
    lists = [one for one in fleet.requests(mark) if (one.verb, one.resource) == ("list", "nodes")]
    assert len(lists) == 1
    if has_another:
        fleet.api.delete(f"{ROLLOUTS}/{fleet.name}-other")


@pytest.mark.shares(6)
def test_a_node_that_would_fail_is_left_out_until_it_passes(rollout_fleet: FleetFactory) -> None:
    four = rollout_fleet(4)
    four.start()
    waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
    four.make_complete(waves=waves, maxParallel=0, preflight="require")
    looks = four.kubelets
    assert looks.seen == {}
    canary = min(four.nodes)
    looks.ends[canary] = (6, "module: none for this kernel")
    mark = four.plane.audit_mark()
    new = four.set_driver("driver:2")
    wait_until(lambda: list(four.serving().values()).count(new) == 3, "the others go", 120)
    wait_until(lambda: four.status().get("phase") == "WaitingForNodes", "the rest waits", 60)
    assert four.serving()[canary] != new
    assert four.status()["leftOut"] == [
        {"reason": "its preflight fails: module: none for this kernel", "count": 1, "nodes": [canary]}
    ]
    wait_until(lambda: [pod["spec"]["nodeName"] for pod in four.looks()] == [canary], "only its pod is kept", 60)
    looks.ends.clear()
    four.api.patch(f"/api/v1/nodes/{canary}", {"metadata": {"annotations": {REQUESTED: "true"}}})
    four.wait_complete(new)
    wait_until(lambda: not four.looks(), "no pod is left", 60)
    assert looks.seen == {**dict.fromkeys(four.nodes, 1), canary: 2}
    records = four.requests(mark)
    made = [one for one in records if (one.verb, one.resource, one.code) == ("create", "pods", 201)]
    assert len(made) == 5
    assert writes(records)["pods"] == 14
    deleted = restarted(records)
    drivers = {name: times for name, times in deleted.items() if "-preflight-" not in name}
    assert (len(drivers), set(drivers.values())) == (4, {1})
    spec = looks.bodies[canary]["spec"]
    assert spec["containers"][0]["args"] == ["preflight", "--driver-pod-leaves", "--output", "json"]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 300)


@pytest.mark.shares(6)
def test_no_driver_pod_is_deleted_where_its_daemon_set_creates_no_other_one(rollout_fleet: FleetFactory) -> None:
    fleet = rollout_fleet(3)
    fleet.start()
    fleet.make_complete(waves=[{"name": "canary", "count": 1}, {"name": "rest"}])
    (old,) = set(fleet.serving().values())
    kept, lost, last = sorted(fleet.nodes)
    why = "0/3 nodes are available: 1 Insufficient cpu."
    fleet.kubelets.unschedulable[lost] = why
    fleet.api.patch(f"/api/v1/nodes/{kept}", {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}})
    term = {"matchExpressions": [{"key": "driver", "operator": "NotIn", "values": ["no"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    new = fleet.set_driver("driver:2", tolerations=[], affinity=affinity)

    def under_way() -> dict[str, str]:
        return {one["node"]: one["reason"] for one in fleet.status().get("underWay", [])}

    shown = {lost: f"waits for its driver to be ready: {why}"}
    wait_until(lambda: under_way() == shown, "the canary waits for its pod", 120)
    # While it is under way, the node gets a label with which the DaemonSet places no pod on it.
    fleet.api.patch(f"/api/v1/nodes/{lost}", {"metadata": {"labels": {"driver": "no"}}})
    wait_until(lambda: fleet.serving() == {kept: old, last: new}, "the other node is upgraded", 120)
    wait_until(lambda: fleet.status().get("phase") == "WaitingForNodes", "the rest waits", 60)
    assert fleet.status()["leftOut"] == [
        {
            "reason": "the DaemonSet would not create its pod again: its taint dedicated:NoSchedule is not tolerated",
            "count": 1,
            "nodes": [kept],
        }
    ]
    assert fleet.states() == {last: "upgrade-done"}
    fleet.api.patch(f"/api/v1/nodes/{kept}", {"spec": {"taints": None}})
    fleet.wait_complete(new)
    assert fleet.serving() == {kept: new, last: new}


@pytest.mark.shares(6)
def test_the_journal_carries_a_cleared_node_to_the_next_driver_pod_and_a_deleted_rollout_gives_it_back(
    control_plane: ControlPlane, admin_api: Api, runner_for: RunnerFactory, operands: OperandsFactory, tmp_path: Path
) -> None:
    serve_rollouts(admin_api)
    runner = runner_for()
    node, tree = runner.node, runner.tree
    (first,) = operands(node, (OPERAND, "driver")).pods()["driver"]
    driver, labels = first["metadata"]["ownerReferences"][0]["name"], node.labels()
    node.kubelet.start_by_hand(f"{ROLLOUT}-clear-", driver)
    manager = {"name": "manager", "image": "manager:1", "args": ["reconcile-driver-state"]}
    strategy = {"type": "OnDelete", "rollingUpdate": None}
    spec = {"updateStrategy": strategy, "template": {"spec": {"initContainers": [manager]}}}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{driver}"
    admin_api.patch(path, {"spec": spec})
    admin_api.post(ROLLOUTS, rollout({"daemonSet": driver, "waves": [{"name": "all"}]}, ROLLOUT))

    def clear_pods() -> list[Json]:
        return admin_api.list(PODS, labelSelector=f"{TASK}=clear")

    def driver_pod() -> Json | None:
        pods = [pod for pod in node.pods() if pod["metadata"]["name"].startswith(driver)]
        return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), None)

    def env(pod: Json) -> dict[str, str]:
        where = {"POD_NAME": pod["metadata"]["name"], "POD_NAMESPACE": NAMESPACE, "OPERATOR_NAMESPACE": NAMESPACE}
        return {**where, "DRIVER_LOAD": "container", "DEVICE_FREE_TIMEOUT": "2s"}

    def begun() -> tuple[Json, Command]:
        (pod,) = wait_until(clear_pods, "the node is to be cleared", 120)
        node.kubelet.report_running(pod)
        assert pod["spec"]["nodeName"] == node.name
        return pod, runner.start(*pod["spec"]["containers"][0]["args"], **env(pod))

    def check_given_back() -> None:
        assert not {JOURNAL, CORDON} & node.annotations().keys()
        assert "unschedulable" not in node.read()["spec"]

    with clearing_controller(control_plane, tmp_path):
        pod, clears = begun()
        wait_until(
            lambda: (found := driver_pod()) is None or found["metadata"]["uid"] != first["metadata"]["uid"],
            "the driver pod is deleted",
            120,
        )
        over = clears.end()
        assert over.code == 0, over.err
        gone(lambda: admin_api.patch(f"{PODS}/{pod['metadata']['name']}/status", ended(pod, 0)), 409)
        left = json.loads(node.annotations()[JOURNAL])
        assert left["cleared"] == pod["metadata"]["labels"]["driver-manager.rebellions.ai/revision"]
        assert left["owner"]["uid"] == pod["metadata"]["uid"]
        assert node.labels()[f"{PREFIX}{OPERAND}"] == PAUSED
        assert tree.driver_version, "nothing was unloaded by us"
        second = wait_until(driver_pod, "the next driver pod", 60)
        over = runner.reconcile(**env(second))
        assert over.code == 0, over.err
        node.kubelet.report_running(second)
        check_given_back()
        shown = f"{ROLLOUTS}/{ROLLOUT}"
        wait_until(lambda: admin_api.get(shown).get("status", {}).get("phase") == "Complete", "it is complete", 120)
        assert node.labels() == {**labels, STATE: "upgrade-done"}
        wait_until(lambda: not clear_pods(), "its pod is gone", 60)
        # The object is deleted while its next pod clears the node, and no controller runs.
        runner.with_upgrade()
        node.kubelet.stop_after(OPERAND, NEVER)
        container = {"name": "driver", "image": "driver:3"}
        admin_api.patch(path, {"spec": {"template": {"spec": {"containers": [container]}}}})
        _, clears = begun()
        wait_until(lambda: JOURNAL in node.annotations(), "the node is taken again", 60)
    node.kubelet.release(OPERAND)
    wait_until(lambda: "cleared" in node.annotations()[JOURNAL], "the node is cleared again", 60)
    admin_api.delete(shown)
    wait_until(
        lambda: all("deletionTimestamp" in one["metadata"] for one in clear_pods()), "its pod goes with the object", 120
    )
    assert clears.terminate().code == 10
    check_given_back()
    assert node.labels() == {**labels, STATE: "pod-restart-required"}


@contextlib.contextmanager
def clearing_controller(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """A controller of drivers whose container unloads, while the context lasts: it clears nodes first."""
    profile, shipped = folder / "unloading.toml", Path(profiles.__file__).parent / "rebellions.toml"
    text = shipped.read_text().replace('name = "rebellions"', 'name = "unloading"', 1)
    profile.write_text(text.replace("namespace = ", "container_unloads = true\nnamespace = ", 1))
    (folder / "controller").touch()
    argv = [sys.executable, "-m", "driver_manager", "rollout", "controller", "--profile", "unloading"]
    argv += ["--profile-file", str(profile), "--namespace", NAMESPACE, "--lease-name", ROLLOUT]
    env = {"PATH": "/usr/bin:/bin", "LOG_FORMAT": "text", **plane.service_account(plane.rollout.token)}
    controller = Running(argv, env, folder / "controller")
    try:
        yield
    finally:
        print(controller.kill().err)


# the definition


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
NOW_S = 1_767_323_045.0


@pytest.fixture(scope="module")
def defined(admin_api: Api) -> Iterator[None]:
    """The server knows DriverRollouts, as deploy/ defines them."""
    with applied(admin_api, [only(render("rebellions/rollout"), "CustomResourceDefinition")]):
        wait_until(lambda: admin_api.answers(ROLLOUTS), "DriverRollouts are served")
        yield
        for one in admin_api.list(ROLLOUTS):
            gone(lambda one=one: admin_api.delete(f"{ROLLOUTS}/{one['metadata']['name']}"))  # type: ignore[misc]


def decision(nodes: int) -> FleetDecision:
    """One about `nodes` nodes, in all places, with reasons of all lengths."""
    places = itertools.cycle(NodePhase)
    views = tuple(
        NodeView(f"node-{number:04}", next(places), 1, f"{number} {'why ' * (number % 90)}", NOW_S)
        for number in range(nodes)
    )
    waves = (WaveView(1, "canary", {NodePhase.DONE: 1}, NOW_S), WaveView(2, "rest", {NodePhase.WAITING: nodes}))
    memory = RolloutState(
        "new",
        "old",
        ("bad",),
        (RevisionHistory("bad", NOW_S - 60, NOW_S, "halted"), RevisionHistory("new", NOW_S)),
        "1",
    )
    return FleetDecision((), memory, Outlook(Phase.PROGRESSING, "UnderWay", "it goes on", "new", 2, views, waves))


@pytest.mark.usefixtures("defined")
def test_a_bad_value_is_refused_by_name(admin_api: Api) -> None:
    wrong = []
    for bad in (bad for bad in BAD if bad.server):
        try:
            admin_api.post(ROLLOUTS, rollout(bad.spec, f"bad-{bad.name}"))
            wrong.append(f"{bad.name} is taken")
        except ApiError as error:
            if error.status != 422 or bad.server not in error.body["message"]:
                wrong.append(f"{bad.name}: {error}")
    assert wrong == []


@pytest.mark.usefixtures("defined")
def test_an_object_is_stored_as_it_was_meant_with_all_defaults_and_without_unknown_fields(admin_api: Api) -> None:
    def stored(spec: Json) -> Json:
        return admin_api.post(ROLLOUTS, rollout(spec, f"stored-{next(numbers)}"))

    numbers = itertools.count()
    shortest = stored(SPEC)
    added = "paused maxParallel waves timezone failureThreshold onHalt nodeTimeout validationTimeout approveReboots"
    assert shortest["spec"].keys() - SPEC.keys() == {*added.split(), "preflight"}
    assert read(shortest, zones).policy == RolloutPolicy("driver")
    assert read(stored(FULL), zones).policy == read(rollout(FULL), zones).policy
    rest = {**SPEC, "waves": [{"name": "rest"}]}
    assert read(stored(BLANK), zones).policy == read(stored(rest), zones).policy
    for bad in (bad for bad in BAD if not bad.server):
        is_unknown = " has a field " in bad.reader  # which the server drops
        assert read(stored(bad.spec), zones).problems == (() if is_unknown else (bad.reader,))


@pytest.mark.usefixtures("defined")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_knows_every_field_of_an_overlays_controller_and_takes_its_example(
    admin_api: Api, overlay: str
) -> None:
    objects = copy.deepcopy(render(f"{overlay}/rollout"))
    # The server of these tests is older than policy/v1, which has the same fields.
    only(objects, "PodDisruptionBudget")["apiVersion"] = "policy/v1beta1"
    example = yaml.safe_load((DEPLOY / "overlays" / overlay / "rollout/driverrollout.yaml").read_text())
    rest = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
    with applied(admin_api, [*render(f"{overlay}/namespace"), *rest, example]):
        assert apply(admin_api, only(objects, "Deployment"))["spec"]["replicas"] == 2
        assert read(apply(admin_api, example), zones).policy == read(example, zones).policy


@pytest.mark.usefixtures("defined")
def test_the_status_of_five_thousand_nodes_is_kept_whole_and_shown_and_nothing_is_left_of_it(admin_api: Api) -> None:
    path = f"{ROLLOUTS}/{admin_api.post(ROLLOUTS, rollout(SPEC, 'large'))['metadata']['name']}"

    def write(old: Json, made: FleetDecision) -> Json:
        status = without_blanks(status_of(made, {}, 1, NOW_S))
        kept: Json = admin_api.patch(f"{path}/status", {"status": merge_patch(old, status)})["status"]
        assert kept == status
        return kept

    for wrong in ({"wave": "two"}, {"conditions": [{"status": "True"}]}):
        patch = {"status": wrong}
        assert http_status_of(lambda patch=patch: admin_api.patch(f"{path}/status", patch)) == 422  # type: ignore[misc]
    stored = write({}, decision(5_000))
    assert memory_of(stored) == decision(0).memory
    table = admin_api.request("GET", path, accept=TABLE)
    columns = table["columnDefinitions"]
    assert {one["name"] for one in columns if one["priority"]} == {"Left out", "Message"}, "with -o wide"
    shown = dict(zip((one["name"] for one in columns), table["rows"][0]["cells"], strict=True))
    names = ["Name", "Target", "Phase", "Wave", "Updated", "Total", "Failed", "Left out", "Age", "Message"]
    assert list(shown) == names
    cells = [shown[name] for name in names if name not in ("Name", "Age")]
    counts = [stored["counts"][key] for key in ("updated", "total", "failed", "leftOut")]
    assert cells == ["new", "Progressing", 2, *counts, "it goes on"]
    assert (counts[1], min(counts) > 0, len(set(counts)) > 1) == (5_000, True, True)
    empty = FleetDecision((), RolloutState(), Outlook(Phase.COMPLETE, "Complete", "", "", 0, (), ()))
    assert memory_of(write(stored, empty)) == RolloutState()


@pytest.mark.shares(6)
def test_list_and_status_ask_the_cluster_of_the_context(rollout_fleet: FleetFactory, tmp_path: Path) -> None:
    fleet = rollout_fleet(2)
    fleet.start()
    fleet.make_complete()
    config = json.loads(fleet.plane.kubeconfig(fleet.plane.admin.token).read_text())
    config["contexts"][0]["context"]["namespace"] = NAMESPACE
    config["contexts"].append({"name": "gone", "context": {"cluster": "gone", "user": "test"}})
    config["clusters"].append({"name": "gone", "cluster": {"server": "https://127.0.0.1:9"}})
    (tmp_path / "config").write_text(json.dumps({**config, "current-context": "gone"}))

    def typed(*words: str) -> tuple[int, Json]:
        argv = [sys.executable, "-m", "driver_manager", *words, "-o", "yaml", "--kubeconfig", f"{tmp_path}/config"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env={})
        return done.returncode, yaml.safe_load(done.stdout)

    code, found = typed("rollout", "list", "--context", "test")
    assert code == ExitCode.DONE
    mine = next(one for one in found["rollouts"] if one["name"] == fleet.name)
    assert (mine["namespace"], mine["daemonSet"], mine["phase"]) == (NAMESPACE, fleet.name, "Complete")
    assert (mine["counts"]["updated"], mine["counts"]["total"]) == (2, 2)
    assert typed("rollout", "list", "--context", "test", "-n", "default")[1]["rollouts"] == []
    assert mine in typed("rollout", "list", "--context", "test", "-n", "default", "-A")[1]["rollouts"]
    code, found = typed("status", fleet.nodes[1], "--context", "test", "--profile", "rebellions")
    assert (code, found["node"], found["host"]) == (ExitCode.DONE, fleet.nodes[1], {"problem": "not on the node"})
    assert typed("rollout", "list", "-A")[0] == typed("status", fleet.nodes[1])[0] == ExitCode.API_UNAVAILABLE
    code, found = typed("status", fleet.nodes[1], "--context", "tset")
    assert (code, "has no context 'tset'" in found["error"]) == (ExitCode.USAGE, True)
