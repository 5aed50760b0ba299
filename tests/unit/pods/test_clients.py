"""Which pods are clients of the driver, and which of them have run since before it was ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.node import Pod
from driver_manager.domain.node_state import Generation
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import Client, ClientRecord, ClientState
from driver_manager.domain.pods.workloads import LAG_S, ClientAge, ClientRules, is_client, standing
from tests.support.fakes.builders import DRIVER, PROFILE, PROFILES, pod, workload

READY_S = 1_700_000_100.5
CREATED = "2023-11-14T00:00:00Z"
GENERATION = Generation("boot-1", "17", "digest", READY_S)
RULES = ClientRules.of(PROFILE, selectors.parse("app in (exporter, toolkit)"), "around-us")


def client(name: str = "exporter-x", **fields: Any) -> Pod:
    """A pod of somebody's DaemonSet that matches, started long before the driver."""
    known = {"namespace": "monitoring", "labels": {"app": "exporter"}, "started_s": READY_S - 100, "created": CREATED}
    return pod(name, **{**known, **fields})


@pytest.mark.parametrize(
    ("fields", "is_one"),
    [
        ({}, True),
        ({"owner_kind": "ReplicaSet"}, True),
        ({"owner_kind": "StatefulSet"}, True),
        ({"owner_kind": "Job"}, False),
        ({"owner_kind": ""}, False),
        ({"owner_kind": "Node", "is_mirror": True}, False),
        ({"is_mirror": True}, False),
        ({"labels": {"app": "toolkit"}}, True),
        ({"labels": {"app": "web"}}, False),
        ({"labels": {}}, False),
        ({"labels": {"rebellions.ai/npu-driver-manager.client": "true"}}, True),
        ({"resources": ("rebellions.ai/ATOM",)}, False),
        ({"resources": ("example.com/other",)}, True),
        ({"claims": ("claim",)}, False),
        ({"uid": "around-us"}, False),
        ({"config_digest": "digest"}, False),
        ({"phase": "Succeeded"}, False),
        ({"deleting": True}, True),
    ],
)
def test_a_client_matches_is_made_again_and_is_no_users_pod(fields: dict[str, Any], is_one: bool) -> None:
    assert is_client(client(**fields), RULES) is is_one


def test_a_drivers_pod_is_never_one() -> None:
    assert not is_client(replace(client(), selector_keys=frozenset({DRIVER})), RULES)


def test_a_users_pod_is_never_one_whatever_its_labels() -> None:
    assert not is_client(workload("web", labels={"app": "exporter"}), RULES)


def test_without_a_selector_only_the_profiles_list_counts() -> None:
    rules = ClientRules.of(PROFILE, selectors.Selector())
    assert not is_client(client(), rules)
    assert is_client(client(labels={"rebellions.ai/npu-driver-manager.client": "true"}), rules)
    assert ClientRules.of(replace(PROFILE, clients=()), selectors.Selector()).selectors == ()


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia-dra-driver-gpu-component": "kubelet-plugin"},
        {"app": "nvidia-dcgm"},
        {"app": "nvidia-dcgm-exporter"},
        {"app.kubernetes.io/name": "dcgm-exporter"},
        {"nvidia.com/gpu-driver-manager.client": "true"},
    ],
    ids=str,
)
def test_nvidias_own_clients_are_known_by_their_public_labels(labels: dict[str, str]) -> None:
    assert is_client(client(labels=labels), ClientRules.of(PROFILES["nvidia"], selectors.Selector()))


@pytest.mark.parametrize(
    ("started_s", "how"),
    [
        (READY_S - 100.0, ClientAge.STALE),
        (READY_S - 1.5, ClientAge.STALE),
        (READY_S - 0.5, ClientAge.CURRENT),
        (READY_S, ClientAge.CURRENT),
        (READY_S + 100.0, ClientAge.CURRENT),
    ],
)
def test_who_ran_before_the_second_in_which_the_driver_got_ready_is_stale(started_s: float, how: ClientAge) -> None:
    assert standing(client(started_s=started_s), GENERATION, READY_S + 10) is how


@pytest.mark.parametrize(
    ("created", "later_s", "how"),
    [
        (CREATED, 1.0, ClientAge.UNKNOWN),
        (CREATED, LAG_S, ClientAge.CURRENT),
        (CREATED, -3_600.0, ClientAge.CURRENT),
        ("2023-11-14T22:15:01Z", 1.0, ClientAge.CURRENT),
        ("", 1.0, ClientAge.CURRENT),
    ],
    ids=["a kubelet may be late", "not for long", "a clock set back", "created later", "no time"],
)
def test_of_a_pod_without_a_running_container_its_kubelet_may_be_late_to_tell(
    created: str, later_s: float, how: ClientAge
) -> None:
    assert standing(client(started_s=None, created=created), GENERATION, READY_S + later_s) is how


def test_of_a_driver_of_which_nobody_knows_since_when_it_is_ready_nobody_is_stale() -> None:
    assert standing(client(started_s=5.0), replace(GENERATION, ready_s=0.0), READY_S) is ClientAge.CURRENT


# the record


NEW = ClientRecord(GENERATION)


def looked(record: ClientRecord, *pods: Pod, later_s: float = 1.0) -> ClientRecord:
    return record.looked(pods, RULES, READY_S + later_s)


def test_who_is_a_client_is_decided_at_the_first_look() -> None:
    record = looked(NEW, client("a"), client("b", started_s=READY_S + 50), client("c", deleting=True))
    assert [(one.pod, one.state) for one in record.clients] == [("monitoring/a", ClientState.FOUND)]
    assert looked(record, client("a"), client("later"), later_s=90.0) == record


def test_one_that_is_not_told_of_yet_is_looked_at_again() -> None:
    record = looked(NEW, client("late", started_s=None), client("other", started_s=None))
    assert (record.clients, record.unknown) == ((), ("late", "other"))
    assert not replace(record, is_shown=True).is_settled(RULES)
    told = looked(record, client("late"), client("other", started_s=READY_S + 2), client("new"), later_s=2.0)
    assert ([one.uid for one in told.clients], told.unknown) == (["late"], ())


def test_it_is_settled_once_everybody_is_restarted_and_the_node_shows_it() -> None:
    record = replace(looked(NEW, client("a"), client("b")), is_shown=True)
    assert not replace(NEW, is_shown=True).is_settled(RULES), "nobody has looked"
    for state in (ClientState.FOUND, ClientState.ASKED):
        assert not record.with_state("a", ClientState.LEFT).with_state("b", state).is_settled(RULES)
    done = record.with_state("a", ClientState.LEFT).with_state("b", ClientState.RESTARTED)
    assert done.is_settled(RULES)
    assert not replace(done, is_shown=False).is_settled(RULES)


def test_the_next_generation_begins_with_nobody() -> None:
    record = looked(NEW, client("a"))
    assert client_record.of(record, replace(GENERATION, load="18")) == ClientRecord(replace(GENERATION, load="18"))
    assert client_record.of(record, GENERATION) == record
    assert client_record.of(None, GENERATION) == NEW


uids = st.text("abc-0123", min_size=1, max_size=12)
records = st.builds(
    ClientRecord,
    st.builds(Generation, uids, uids, st.sampled_from(["", "digest"]), st.floats(0, 2e9)),
    st.lists(st.builds(Client, uids, uids, uids, st.sampled_from(ClientState)), max_size=4).map(tuple),
    st.lists(uids, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    selectors=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: ClientRecord) -> None:
    again = client_record.decode(client_record.encode(record))
    assert again == record
    assert again.generation.ready_s == record.generation.ready_s


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"schema": 2}', '{"schema": 1, "bootId": 7}'])
def test_what_cannot_be_read_is_no_record(text: str) -> None:
    assert client_record.recorded(text) is None
    with pytest.raises(ConfigError):
        client_record.decode(text)


pods = st.lists(
    st.builds(
        client,
        st.sampled_from("abcdef"),
        uid=st.uuids().map(str),
        started_s=st.none() | st.floats(READY_S - 50, READY_S + 50),
        deleting=st.booleans(),
        owner_kind=st.sampled_from(["DaemonSet", "ReplicaSet", ""]),
        resources=st.sampled_from([(), ("rebellions.ai/ATOM",)]),
    ),
    max_size=6,
)


@given(st.lists(pods, min_size=1, max_size=4))
def test_no_look_but_the_first_makes_a_client_of_a_pod_that_it_had_not_seen(looks: list[list[Pod]]) -> None:
    """However clocks step and whatever keeps dying.

    Mutants: `if pod.uid in self.unknown or …` left out; `selectors=…` left out.
    """
    record = NEW
    for number, listed in enumerate(looks):
        record = record.looked(listed, RULES, READY_S + number)
    first = {one.uid for one in looks[0]}
    assert {one.uid for one in record.clients} | set(record.unknown) <= first
    assert len({one.uid for one in record.clients}) == len(record.clients)
    users = {one.uid for listed in looks for one in listed if one.resources or not one.owner_kind}
    assert not users & {one.uid for one in record.clients}


def test_every_record_ever_written_is_read_and_written_again_the_same() -> None:
    for path in sorted((Path(__file__).parents[1] / "golden").glob("clients-v*.json")):
        text = path.read_text()
        assert client_record.encode(client_record.decode(text)) == text
