"""Every kind of request of the controller meets every fault, on its way through a rollout that fails and goes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import cycle, islice

import pytest

from tests.support.control_plane.api import Api, gone, wait_until
from tests.support.control_plane.faults import Action, Answer, CutLine, Drop, ErrorEvent, Fault, Gone, Hold
from tests.support.control_plane.processes import FLEET, Orders
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import FleetFactory, RolloutFleet, Witness
from tests.support.control_plane.servers import NAMESPACE

NODES = 3
ATTEMPT_S = 2.0
"""What the controller waits for an answer that hangs."""

FOLLOWED = ("driverrollouts", "daemonsets", "controllerrevisions", "nodes", "pods")
LISTS = tuple(("list", resource) for resource in FOLLOWED)
WATCHES = tuple(("watch", resource) for resource in FOLLOWED)
LEASES = (("get", "leases"), ("create", "leases"), ("patch", "leases"))
WRITES = (
    ("patch", "nodes"),
    ("create", "pods"),
    ("delete", "pods"),
    ("patch", "driverrollouts/status"),
    ("patch", "daemonsets"),
    ("create", "events"),
)
FOLLOWING = (*LISTS, *WATCHES)
EVERY = (*FOLLOWING, *LEASES, *WRITES)
BUSY = (Answer(500), Answer(503), Answer(429, retry_after_s=1))
CUT = (Drop(), Drop(applied=True))
"""What the server has done is not asked for again, so that is the last fault of a request."""

ENDED = (Answer(410), ErrorEvent(), ErrorEvent(Answer(500)))
"""Of a watch; where lines come soon, it is cut in one, too."""

Cells = Mapping[tuple[str, str], tuple[Action, ...]]

MATRIX: dict[str, Cells] = {
    "busy": {**dict.fromkeys((*FOLLOWING, *WRITES), BUSY), **dict.fromkeys(LEASES, (Answer(503),))},
    "cut": {**dict.fromkeys(EVERY, CUT), **dict.fromkeys(WRITES, (Drop(), Gone(0.1), Drop(applied=True)))},
    "other": {
        **dict.fromkeys(LISTS, (Answer(410), Answer(504))),
        **dict.fromkeys(WATCHES, ENDED),
        **dict.fromkeys((("watch", "nodes"), ("watch", "pods")), (*ENDED, CutLine(), CutLine(clean=True))),
        **dict.fromkeys((*LEASES, *WRITES), (Answer(409), Answer(504))),
        ("delete", "pods"): (Answer(504),),  # a 409 says that the pod of that uid is gone, and is believed
    },
    "hanging": {**dict.fromkeys(EVERY, (Hold(),)), **dict.fromkeys(WRITES, (Hold(applied=True),))},
}
"""Each kind of request with the faults that meet it one after the other: one of it each."""


@pytest.fixture
def fleet(rollout_fleet: FleetFactory, admin_api: Api) -> RolloutFleet:
    """Nodes that serve the first driver, as a complete rollout says; the second will not serve on the second node."""
    made = rollout_fleet(NODES)
    made.kubelets.wedging.add((made.nodes[1], "driver:2"))
    controller = made.start()
    waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
    made.make_complete(waves=waves, maxParallel=1, maxUnavailable=2, onHalt="undo", preflight="require")
    assert controller.terminate().code == 0
    gone(lambda: admin_api.delete(made.lease_path))
    return made


def faults_of(cells: Cells) -> list[Fault]:
    """All of them, for the requests in their order; the first look at the Lease is left to find that there is none."""
    return [
        Fault(action, verb, resource, nth=2 if (verb, resource) == LEASES[0] else 1)
        for (verb, resource), actions in cells.items()
        for action in actions
    ]


@pytest.mark.shares(4)
@pytest.mark.parametrize("group", MATRIX)
def test_every_kind_of_request_meets_every_fault_and_the_rollout_ends(
    fleet: RolloutFleet, admin_api: Api, group: str
) -> None:
    (good,) = set(fleet.serving().values())
    faults = faults_of(MATRIX[group])
    with Witness(admin_api, fleet.name) as witness, Proxy.before(fleet.plane, *faults) as proxy:
        bad = fleet.set_driver("driver:2")
        run = fleet.fork(proxy.url, orders=Orders(attempt_s=ATTEMPT_S if group == "hanging" else None))
        try:
            for fault in faults:
                proxy.script.wait_fired(fault, limit_s=240)
            wait_until(lambda: fleet.is_complete(good), "the rollout ends", 240, every_s=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{fleet.status()}\n{run.log}\n{proxy.report()}") from error
        assert run.terminate().code == 0, run.log
        witness.caught_up()
    check_went_back(fleet, witness, good, bad)


def check_went_back(fleet: RolloutFleet, witness: Witness, good: str, bad: str) -> None:
    """The canary got the bad driver, and so did the node on which it does not serve; one node at a time."""
    canary, broken, last = fleet.nodes
    assert witness.served() == {canary: [good, bad, good], broken: [good, bad, good], last: [good]}
    assert fleet.serving() == dict.fromkeys(fleet.nodes, good)
    assert witness.labels_lost({"fleet": fleet.name}) == []
    assert witness.most_under_way() == 1
    assert witness.most_unavailable() <= 2


RESTART = "pod-restart-required"
MOST_KILLS = 200
"""Three times as many as it takes."""

BUT_EVENTS = tuple(name for name in FLEET if name != "post_event")
"""All effects except the Events."""

TURNS = (("before", FLEET), ("after", FLEET), ("before", BUT_EVENTS), ("after", BUT_EVENTS))
"""At which first write one controller after the other is killed. An Event may be posted again by each."""


def kill_at_each(fleet: RolloutFleet, good: str, bad: str) -> Counter[str]:
    """Kill one controller after the other at its first write until none is left; at which writes, before or after."""
    killed: Counter[str] = Counter()
    for when, names in islice(cycle(TURNS), MOST_KILLS):
        fleet.free_lease()
        mark = fleet.plane.audit_mark()
        run = fleet.fork(orders=Orders(stops=tuple(f"{name} {when}" for name in names)))
        run.wait_log("leading")
        wait_until(
            lambda run=run, mark=mark: (
                run.has_stopped  # type: ignore[misc]
                or run.has_ended
                or (fleet.is_complete(good) and bad in str(fleet.status()) and fleet.renewals(mark) > 1)
            ),
            f"a write, or the end: {run.log}",
            240,
        )
        is_over = not run.has_stopped
        assert run.kill().code == -9, run.log
        if is_over:
            return killed
        killed[f"{when} {run.calls[-1]}"] += 1
    raise AssertionError(f"no end after {killed.total()} kills: {dict(killed)}")


def reports(fleet: RolloutFleet) -> Counter[str]:
    """The Events about the object so far: how often each text."""
    path, about = f"/api/v1/namespaces/{NAMESPACE}/events", f"involvedObject.name={fleet.name}"
    return Counter(one["message"] for one in fleet.api.list(path, fieldSelector=about))


@pytest.mark.shares(6)
def test_killed_before_and_after_every_write_the_next_one_goes_on(fleet: RolloutFleet, admin_api: Api) -> None:
    (good,) = set(fleet.serving().values())
    before = reports(fleet)
    with Witness(admin_api, fleet.name) as witness:
        bad = fleet.set_driver("driver:2")
        killed = kill_at_each(fleet, good, bad)
        witness.caught_up()
    print(f"killed {killed.total()} times: {dict(killed)}")
    assert {f"{when} {name}" for when in ("before", "after") for name in FLEET} == set(killed)
    check_went_back(fleet, witness, good, bad)
    canary, broken, _ = fleet.nodes
    assert witness.words() == {
        canary: [RESTART, "upgrade-done", RESTART, "upgrade-done"],
        broken: [RESTART, "upgrade-failed", RESTART, "upgrade-done"],
    }
    added = reports(fleet) - before
    assert added.total() == len(added), f"reported twice: {added}"
