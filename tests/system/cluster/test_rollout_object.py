"""The definition of DriverRollout on the real API server: what it refuses in which words, fills in, shows and keeps."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from driver_manager.domain.fleet.spec import (
    GROUP,
    PLURAL,
    VERSION,
    RevisionHistory,
    RolloutPolicy,
    RolloutState,
    memory_of,
    read,
)
from driver_manager.domain.fleet.state import FleetDecision, NodePhase, NodeView, Outlook, Phase, WaveView
from driver_manager.domain.fleet.status import status_of
from driver_manager.domain.wire import merge_patch, without_blanks
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, only, render
from tests.support.control_plane.api import Api, Json, gone, refusal, wait_until
from tests.support.control_plane.servers import NAMESPACE
from tests.support.deploy.apply import applied, apply
from tests.support.fakes.rollout_objects import BAD, BLANK, FULL, SPEC, Bad, rollout, zones

ROLLOUTS = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{PLURAL}"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
NOW_S = 1_767_323_045.0

Make = Callable[..., Json]


@pytest.fixture(scope="module")
def defined(admin_api: Api) -> Iterator[None]:
    """The server knows DriverRollouts, as deploy/ defines them."""
    with applied(admin_api, [only(render("rebellions/rollout"), "CustomResourceDefinition")]):
        wait_until(lambda: admin_api.answers(ROLLOUTS), "DriverRollouts are served")
        yield


@pytest.fixture
def make(admin_api: Api, defined: None) -> Iterator[Make]:
    """Makes rollouts with the API server as judge; they are gone afterwards."""
    names = (f"rollout-{number}" for number in itertools.count())
    made: list[str] = []

    def create(spec: Any) -> Json:
        name = next(names)
        found = admin_api.post(ROLLOUTS, rollout(spec, name))
        made.append(name)
        return found

    yield create
    for name in made:
        gone(lambda name=name: admin_api.delete(f"{ROLLOUTS}/{name}"))  # type: ignore[misc]


def column(api: Api, name: str) -> dict[str, Any]:
    """What `kubectl get` shows of an object: its table comes from the server."""
    table = api.request("GET", f"{ROLLOUTS}/{name}", accept=TABLE)
    (row,) = table["rows"]
    return dict(zip((one["name"] for one in table["columnDefinitions"]), row["cells"], strict=True))


def wide(api: Api, name: str) -> set[str]:
    """The columns that `kubectl get` shows with `-o wide` only."""
    table = api.request("GET", f"{ROLLOUTS}/{name}", accept=TABLE)
    return {one["name"] for one in table["columnDefinitions"] if one["priority"]}


def decision(nodes: int) -> FleetDecision:
    """One about so many nodes, in all places, with reasons of all lengths."""
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


def shows(api: Api, name: str, old: Json, made: FleetDecision) -> Json:
    """The status as the server has it, which is as it was written."""
    status = without_blanks(status_of(made, {}, 1, NOW_S))
    stored: Json = api.patch(f"{ROLLOUTS}/{name}/status", {"status": merge_patch(old, status)})["status"]
    assert stored == status
    return stored


@pytest.mark.shares(6)
@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.server], ids=lambda bad: bad.name)
def test_a_bad_value_is_refused_by_name(make: Make, bad: Bad) -> None:
    refused = refusal(lambda: make(bad.spec))
    assert refused.status == 422
    assert bad.server in refused.body["message"]


@pytest.mark.parametrize("bad", [bad for bad in BAD if not bad.server], ids=lambda bad: bad.name)
def test_what_the_server_cannot_check_the_reader_finds_in_what_it_stored(admin_api: Api, make: Make, bad: Bad) -> None:
    stored = make(bad.spec)
    if bad.name == "field-unknown":
        assert "maxParralel" not in stored["spec"], "the server drops what it does not know"
    else:
        assert read(stored, zones).problems == (bad.reader,)


def test_the_shortest_object_is_stored_with_all_defaults(make: Make) -> None:
    stored = make(SPEC)
    assert stored["spec"].keys() - SPEC.keys() == {
        "paused",
        "maxParallel",
        "waves",
        "timezone",
        "failureThreshold",
        "onHalt",
        "nodeTimeout",
        "validationTimeout",
        "approveReboots",
        "preflight",
    }
    assert read(stored, zones).policy == RolloutPolicy("driver")


def test_the_longest_object_is_stored_as_it_was_meant(make: Make) -> None:
    assert read(make(FULL), zones).policy == read(rollout(FULL), zones).policy


def test_what_is_blank_or_null_is_as_if_it_were_not_said(make: Make) -> None:
    assert read(make(BLANK), zones).policy == read(make({**SPEC, "waves": [{"name": "rest"}]}), zones).policy


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_example_of_an_overlay_is_taken(admin_api: Api, defined: None, overlay: str) -> None:
    body = yaml.safe_load((DEPLOY / "overlays" / overlay / "rollout/driverrollout.yaml").read_text())
    with applied(admin_api, [*render(f"{overlay}/namespace"), body]):
        stored = apply(admin_api, body)
    assert read(stored, zones).policy == read(body, zones).policy


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_knows_every_field_of_the_controller(admin_api: Api, defined: None, overlay: str) -> None:
    objects = copy.deepcopy(render(f"{overlay}/rollout"))
    # The server of these tests is older than policy/v1, which has the same fields.
    only(objects, "PodDisruptionBudget")["apiVersion"] = "policy/v1beta1"
    rest = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
    with applied(admin_api, [*render(f"{overlay}/namespace"), *rest]):
        deployment = apply(admin_api, only(objects, "Deployment"))
    assert deployment["spec"]["replicas"] == 2


def test_kubectl_shows_how_it_stands(admin_api: Api, make: Make) -> None:
    name = make(SPEC)["metadata"]["name"]
    before = column(admin_api, name)
    assert list(before) == [
        "Name",
        "Target",
        "Phase",
        "Wave",
        "Updated",
        "Total",
        "Failed",
        "Left out",
        "Age",
        "Message",
    ]
    assert wide(admin_api, name) == {"Left out", "Message"}
    shows(admin_api, name, {}, decision(10))
    shown = column(admin_api, name)
    assert {key: shown[key] for key in shown.keys() - {"Name", "Age"}} == {
        "Target": "new",
        "Phase": "Progressing",
        "Wave": 2,
        "Updated": 2,
        "Total": 10,
        "Failed": 2,
        "Left out": 2,
        "Message": "it goes on",
    }


def test_the_status_of_five_thousand_nodes_is_kept_whole(admin_api: Api, make: Make) -> None:
    stored = shows(admin_api, make(SPEC)["metadata"]["name"], {}, decision(5_000))
    assert memory_of(stored) == decision(0).memory


def test_nothing_is_left_of_an_earlier_status(admin_api: Api, make: Make) -> None:
    name = make(SPEC)["metadata"]["name"]
    stored = shows(admin_api, name, {}, decision(500))
    empty = FleetDecision((), RolloutState(), Outlook(Phase.COMPLETE, "Complete", "", "", 0, (), ()))
    assert memory_of(shows(admin_api, name, stored, empty)) == RolloutState()


def test_spec_and_status_are_written_apart(admin_api: Api, make: Make) -> None:
    made = make(SPEC)
    path = f"{ROLLOUTS}/{made['metadata']['name']}"
    both = {"spec": {"paused": True}, "status": {"phase": "Complete"}}
    by_status = admin_api.patch(f"{path}/status", both)
    assert (by_status["spec"]["paused"], by_status["status"]["phase"]) == (False, "Complete")
    by_spec = admin_api.patch(path, {"spec": {"paused": True}, "status": {"phase": "Halted"}})
    assert (by_spec["spec"]["paused"], by_spec["status"]["phase"]) == (True, "Complete")
    generations = [one["metadata"]["generation"] for one in (made, by_status, by_spec)]
    assert generations == [1, 1, 2], "a status is about a generation of the spec"


def test_a_status_that_is_none_is_refused(admin_api: Api, make: Make) -> None:
    path = f"{ROLLOUTS}/{make(SPEC)['metadata']['name']}/status"
    assert refusal(lambda: admin_api.patch(path, {"status": {"wave": "two"}})).status == 422
    assert refusal(lambda: admin_api.patch(path, {"status": {"conditions": [{"status": "True"}]}})).status == 422
