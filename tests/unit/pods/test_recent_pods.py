"""A first list of pods that is a moment old: what it lacks is waited for all the same, and nothing is lost."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from driver_manager.cli.session import Session
from driver_manager.core.ports import Cluster
from driver_manager.core.swap.run import Identity
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.node import Node, PodList
from driver_manager.domain.observation import Observation
from tests.support.fakes.builders import PROFILE, driver_pod, node
from tests.support.fakes.scenarios import TAKING, made, settle_in, undisturbed
from tests.support.fakes.scripted_api import Answer, Scripted


@pytest.mark.parametrize("name", TAKING)
def test_a_run_whose_first_list_shows_no_operand_yet_ends_like_any_other(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    world = made(name)
    observe, old = world.observe, [PodList((driver_pod(),), "0")]

    def observe_old() -> Observation:
        obs = observe()
        return replace(obs, pods=old.pop()) if old else obs

    monkeypatch.setattr(world, "observe", observe_old)  # what an API server's memory may still hold
    world.ended()
    assert world.is_released
    assert settle_in(world) == undisturbed(name)[1]


def test_a_pod_that_took_anothers_place_before_the_pause_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = made("replace_with_claims")
    observe, unload, placed = world.observe, world.host.unload, list[list[str]]()

    def operands() -> list[str]:
        return [uid for uid in world.cluster.listed if uid in world.cluster.owner_of]

    def observe_and_restart() -> Observation:
        obs = observe()
        for uid in operands():
            world.cluster.remove_pod(uid)
        return obs

    def unload_among(name: str, deadline: Deadline) -> None:
        placed.append(operands())
        unload(name, deadline)

    monkeypatch.setattr(world, "observe", observe_and_restart)
    monkeypatch.setattr(world.host, "unload", unload_among)
    world.ended()
    assert placed == [[], []]


class Lists:
    """A cluster that notes how its pods are listed; the recent ones lack our own pod where it `lags`."""

    def __init__(self, *, lags: bool = False) -> None:
        self.lags = lags
        self.asked: list[bool] = []

    def pods(self, *, recent: bool = False) -> PodList:
        self.asked.append(recent)
        return PodList(() if recent and self.lags else (driver_pod(),), "7")


@pytest.mark.parametrize(
    ("lags", "annotations", "recent", "asked"),
    [
        (False, {}, True, [True]),
        (True, {}, True, [True, False]),
        (False, {PROFILE.keys.journal: "{}"}, True, [False]),
        (False, {}, False, [False]),
    ],
    ids=["a run begins", "it lacks ourselves", "a journal's owner is looked for", "shown to people"],
)
def test_the_owner_of_a_journal_is_looked_for_among_the_pods_as_they_are_now(
    lags: bool, annotations: dict[str, str], recent: bool, asked: list[bool]
) -> None:
    none: Any = None
    cluster, one = Lists(lags=lags), node(annotations=annotations)
    session = Session(none, none, none, cast(Cluster, cluster), none, one, PROFILE)
    session._pods(one, Identity("driver-a", True, "rbln-system"), recent=recent)
    assert cluster.asked == asked


def test_only_the_first_look_of_a_run_may_be_a_moment_old(monkeypatch: pytest.MonkeyPatch) -> None:
    none: Any = None
    asked: list[tuple[Node | None, bool]] = []
    session = Session(none, none, none, none, none, node(), PROFILE)
    monkeypatch.setattr(Session, "observe", lambda _, one=None, *, recent=False: asked.append((one, recent)))
    look = session.observer()
    for _ in range(3):
        look()
    assert asked == [(session.node, True), (None, False), (None, False)]


def test_a_recent_list_comes_from_the_servers_memory_and_any_other_does_not() -> None:
    scripted = Scripted()
    try:
        scripted.answer(Answer(body={"metadata": {"resourceVersion": "9"}, "items": []}))
        scripted.cluster.pods(recent=True)
        scripted.cluster.pods()
        assert [one.query.get("resourceVersion") for one in scripted.requests] == [["0"], None]
    finally:
        scripted.close()
