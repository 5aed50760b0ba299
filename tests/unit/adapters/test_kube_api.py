"""Requests to an API server: what an answer means, when and how often a request is repeated, lists and their limits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver_manager.adapters.kube import api as client
from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.kube.api import AGAIN, ASKED_MOST_S, ATTEMPT_S, END_SHARE, STARTING_S, KubeApi
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.objects import other_object
from driver_manager.adapters.kube.transport import Response, Unreachable, WireRequest
from driver_manager.domain.deadline import LAST_S, LEAST_S, around_s, retry_s
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, Conflict, ExitCode, NodeMissing, Terminated
from driver_manager.domain.node import NodeChange
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.plain_pod import PlainInPod, kubeconfig, make_account, variables
from tests.support.fakes.scripted_api import BUDGET_S, IN_POD, NODE, Answer, Scripted, status
from tests.support.fakes.storm import Outage, RandomClock, own_numbers, peak, requests_s
from tests.support.selection import examples

MOST_ATTEMPTS_IN_60_S = 29
"""Five pauses of at least 0.1, 0.2, 0.4, 0.8 and 1.6 s, then one each 2.5 s."""

NOW = datetime(2026, 11, 22, 1, 0, tzinfo=UTC)

Ask = Callable[[KubeCluster], object]


def is_renewing(api: Scripted, code: int) -> bool:
    """Whether the credentials come from somewhere, to be read again after this status."""
    return (api.kind, code) == (IN_POD, 401)


# what each answer means


def patched(cluster: KubeCluster) -> object:
    return cluster.patch_node(NodeChange(labels={"a": "b"}), "6")


def watched(cluster: KubeCluster) -> object:
    return next(cluster.watch_pods("1", 5))


RIGHT, POLICY, ANY = "Grant this account the verb", "an admission policy or webhook", "Check for an admission webhook"
REFUSALS: dict[str, tuple[int, Ask, Any, str, str]] = {
    "get": (401, KubeCluster.node, ApiRefused, "refused to get nodes (401): no: why", "Renew the credentials."),
    "list": (403, KubeCluster.pods, ApiRefused, "refused to list pods (403): no: why", RIGHT),
    "patch": (401, patched, ApiRefused, "refused to patch nodes (401): no: why", "Renew the credentials."),
    "watch": (403, watched, ApiRefused, "refused to watch pods (403): no: why", RIGHT),
    "policy": (403, patched, ApiRefused, f"VAP '{'p' * 400}' denied request: why", POLICY),
    "webhook": (403, patched, ApiRefused, 'webhook "w" denied the request: why', POLICY),
    "missing": (404, KubeCluster.node, NodeMissing, "node n does not exist", "Set NODE_NAME"),
    "conflict": (409, patched, Conflict, "node n changed since it was read", "Run again."),
    "odd-conflict": (409, KubeCluster.node, ApiRefused, "rejected get nodes (409): no: why", ANY),
    "invalid": (422, patched, ApiRefused, "rejected patch nodes (422): no: why", ANY),
}


@pytest.mark.parametrize(("code", "ask", "error", "what", "remedy"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_names_verb_resource_reason_and_remedy_and_is_not_repeated(
    api: Scripted, code: int, ask: Ask, error: Any, what: str, remedy: str
) -> None:
    api.answer(Answer(code, status(what if "denied" in what else "no: why")))
    with pytest.raises(error) as caught:
        ask(api.cluster)
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert len(api.requests) == (2 if is_renewing(api, code) else 1)


PODS = Answer(body={"metadata": {"resourceVersion": "9"}, "items": []})
LACKING = Answer(403, status('nodes "n" is forbidden: User "u" cannot get resource "nodes" in API group ""'))
DENIED = Answer(403, status('nodes "n" is forbidden: it is denied'))
QUOTED = Answer(403, status('admission webhook "v" denied the request: u cannot get resource "nodes"'))
UNREADY = Answer(403, status('nodes "n" is forbidden: not yet ready to handle request'))

STARTING: dict[str, tuple[list[Answer], Answer, bool]] = {
    "never allowed": ([], LACKING, False),
    "allowed before": ([Answer()], LACKING, True),
    "allowed, missing": ([Answer(404, status("gone"))], LACKING, True),
    "admission": ([Answer()], DENIED, False),
    "a webhook that quotes": ([Answer()], QUOTED, False),
    "admission starts": ([], UNREADY, True),
    "busy": ([Answer(503)], LACKING, True),
    "cut": ([Answer(cut=True)], LACKING, True),
}


@pytest.mark.parametrize(("before", "answer", "is_repeated"), STARTING.values(), ids=STARTING)
def test_a_403_of_a_starting_server_is_repeated(api: Scripted, before: Any, answer: Answer, is_repeated: bool) -> None:
    api.answer(*before, answer, answer, Answer())
    if before and before[0].status in (200, 404) and not before[0].cut:
        with contextlib.suppress(NodeMissing):
            api.cluster.node()
    if is_repeated:
        assert api.cluster.node().uid == "u"
        assert api.reporter.warnings != []
    else:
        with pytest.raises(ApiRefused):
            api.cluster.node()
    assert len(api.requests) == len(before) + (3 if is_repeated else 1)


def test_a_right_that_is_taken_away_is_refused_in_the_end_and_then_at_once(api: Scripted) -> None:
    api.cluster.node()
    api.answer(LACKING)
    begun = api.clock.now
    with pytest.raises(ApiRefused, match="refused to get nodes") as caught:
        api.cluster.node()
    assert RIGHT in caught.value.remedy
    assert BUDGET_S * (1.0 - END_SHARE) <= api.clock.now - begun <= BUDGET_S
    api.clock.now = begun + STARTING_S
    api.requests.clear()
    for _ in range(2):  # what another object is allowed in between changes nothing
        with pytest.raises(ApiRefused):
            api.cluster.node()
        assert len(api.requests) == 1
        api.answer(Answer(), LACKING)
        api.cluster.node()
        api.requests.clear()


def test_after_rights_were_taken_away_other_refusals_are_final_at_once(api: Scripted) -> None:
    api.answer(Answer(), PODS)
    api.cluster.node()
    api.cluster.pods()
    api.cluster.limit_retries(1.0)
    api.answer(LACKING)
    for _ in range(int(STARTING_S) + 2):
        with pytest.raises(ApiRefused):
            api.cluster.node()
        api.clock.now += 1.0
    api.requests.clear()
    with pytest.raises(ApiRefused):
        api.cluster.pods()
    assert len(api.requests) == 1


def test_a_write_that_is_sent_once_says_that_the_server_gives_no_answer_while_it_starts(api: Scripted) -> None:
    patched(api.cluster)
    api.answer(LACKING)
    with pytest.raises(ApiUnavailable, match="cannot get resource"):
        api.cluster.api.call("PATCH", "/api/v1/nodes/n", "patch nodes", {}, only_once=True)


REPEATED = {408, 410, 425, 429, 500, 502, 503, 504}
SOME = (300, 304, 307, 400, 401, 403, 404, 405, 409, 422, 499, 501, 505, 520, 599, *REPEATED)
ALL = pytest.param(range(300, 600), marks=pytest.mark.submission)


@pytest.mark.parametrize("codes", [SOME, ALL], ids=["some", "all"])
def test_every_status_has_its_exit_code_and_only_these_are_repeated(api: Scripted, codes: tuple[int, ...]) -> None:
    assert AGAIN == REPEATED
    for code in codes:
        api.start_over()
        api.cluster.limit_retries(1.0 if code in AGAIN else 60.0)  # long: a late answer must not look repeated
        api.answer(Answer(code, status("why")))
        with pytest.raises((ApiRefused, ApiUnavailable), match="list pods") as caught:
            api.cluster.pods()
        is_repeated = len(api.requests) > (2 if is_renewing(api, code) else 1)
        wanted = ExitCode.API_UNAVAILABLE if code in REPEATED else ExitCode.API_REFUSED
        assert (caught.value.exit_code, is_repeated) == (wanted, code in REPEATED), code
        assert caught.value.remedy


JUNK = (b"", b"<html>", b"[]", b'"x"', b"\xff", b'{"metadata":')


@pytest.mark.parametrize("answer", [*(Answer(body=body) for body in JUNK), Answer(cut=True), Answer(503, b"junk")])
def test_an_answer_that_is_no_object_is_tried_again(api: Scripted, answer: Answer) -> None:
    api.answer(answer, answer, Answer())
    assert api.cluster.node().uid == "u"
    assert (len(api.requests), len(api.clock.slept), len(api.reporter.warnings)) == (3, 2, 1)


# how often, and how long


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_a_server_that_is_away_costs_the_budget_and_a_bounded_number_of_requests(api: Scripted, jitter: float) -> None:
    clock = RandomClock(lambda: jitter)
    for headers, limits, within_s in (({}, (), 60), ({"Retry-After": "3600"}, (), 60), ({}, (4.0, 60.0), 4)):
        api.start_over()
        cluster, begun_s = KubeCluster(api.api, "n", clock, api.reporter, 60.0), clock.now
        for limit_s in limits:
            cluster.limit_retries(limit_s)
        api.answer(Answer(503, status("etcd is away"), headers))
        with pytest.raises(ApiUnavailable, match=rf"within {within_s} s: get nodes: 503 etcd is away"):
            cluster.node()
        assert clock.now - begun_s == pytest.approx(within_s * (1.0 - END_SHARE * jitter))
        assert len(api.requests) <= MOST_ATTEMPTS_IN_60_S + 1
        assert len(api.reporter.warnings) <= 3


OUTAGES = [Outage(429, 5.0, 1), Outage(429, 5.0), Outage(503, 30.0), Outage(503, 30.0, 10), Outage(503, 120.0)]
"""The status, for how many seconds, and the seconds in Retry-After."""

CLIENTS, FEW = examples(1_000), 20


@pytest.mark.shares(3)
@pytest.mark.parametrize("outage", OUTAGES, ids=str)
def test_a_thousand_nodes_that_were_refused_together_do_not_come_back_together(outage: Outage) -> None:
    assert peak(requests_s(outage, own_numbers(CLIENTS))) <= CLIENTS // 5, "in 100 ms"


@pytest.mark.parametrize("outage", OUTAGES[:4], ids=str)
def test_all_get_their_answer_soon_after_the_server_is_back(outage: Outage) -> None:
    asked_s = requests_s(outage, own_numbers(FEW))
    last_s = max(moments[-1] for moments in asked_s)
    assert outage.seconds <= last_s <= outage.seconds + 2 * max(outage.retry_after_s, 2 * LAST_S)
    assert max(map(len, asked_s)) <= MOST_ATTEMPTS_IN_60_S / 2 + 3


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_the_servers_wish_is_a_floor_and_the_pauses_grow_up_to_a_bound(random: float) -> None:
    for asked_s in (0.0, 0.5):
        grown = [retry_s(attempt, asked_s, random) for attempt in range(1, 200)]
        assert grown == sorted(grown)
        assert grown[0] >= max(asked_s, LEAST_S)
        assert asked_s < grown[-1] <= asked_s + 2 * LAST_S
    assert 7.0 < retry_s(1, 7.0, random) <= 14.0 + LEAST_S
    assert [retry_s(attempt, 0.0, 0.0) for attempt in range(1, 6)] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert (around_s(10.0, 0.0), around_s(10.0, 0.5), around_s(10.0, 1.0)) == (5.0, 10.0, 15.0)
    assert around_s(10.0, 0.0, 0.1) == 9.0


# Retry-After

HUGE_DATES = (f"Wed, 21 Oct {10**20} 07:28:00 GMT", f"Wed, 21 Oct 2026 07:28:00 +{10**20}")


def dated(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


def test_retry_after_is_seconds_or_a_date_by_the_servers_own_clock() -> None:
    for headers, seconds in (
        ({}, 0),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": " 7.5 "}, 7.5),
        *(({"Retry-After": text}, 0) for text in ("-7", "nan", "soon", "Mon, 99 Foo 2026 25:61:61 GMT", *HUGE_DATES)),
        ({"Retry-After": dated(NOW + timedelta(seconds=9))}, 9),
        ({"Retry-After": dated(NOW - timedelta(days=9))}, 0),
        ({"Retry-After": dated(NOW + timedelta(hours=1, seconds=4)), "Date": dated(NOW + timedelta(hours=1))}, 4),
        ({"Retry-After": dated(NOW + timedelta(seconds=9)), "Date": "now"}, 9),
        ({"Retry-After": "Sun, 22 Nov 2026 01:00:09 -0000"}, 9),
    ):
        assert client.retry_after_s(headers, NOW.timestamp()) == seconds


@pytest.mark.parametrize(
    ("text", "asked_s"),
    [("7", 7.0), *((absurd, ASKED_MOST_S) for absurd in ("1e9", "inf", "9" * 20, dated(NOW + timedelta(days=3650))))],
)
def test_retry_after_is_honoured_and_named_up_to_a_bound(api: Scripted, text: str, asked_s: float) -> None:
    later = Answer(429, status("later"), {"Retry-After": text})
    api.answer(later, Answer(), later)
    KubeCluster(api.api, "n", api.clock, api.reporter, 100.0).node()
    assert api.clock.slept == [retry_s(1, asked_s, api.clock.random())]
    with pytest.raises(ApiUnavailable) as caught:
        api.cluster.api.call("PATCH", "/api/v1/nodes/n", "patch nodes", {}, only_once=True)
    assert (caught.value.asked_s, len(api.requests)) == (asked_s, 3)
    assert ASKED_MOST_S <= 30.0


# limits of each request, and SIGTERM


class Silent(FakeClock):
    """A transport without an answer, and its clock: notes requests, their limits, and whether SIGTERM may end them."""

    def __init__(self) -> None:
        super().__init__()
        self.limits_s: set[tuple[float, float]] = set()
        self.requests: dict[tuple[str, bool], bool] = {}
        self.is_open = False

    def cluster(self, budget_s: float) -> KubeCluster:
        return KubeCluster(self, "n", self, RecordingReporter(), budget_s)

    def send(self, request: WireRequest, *, connect_s: float, read_s: float) -> Response:
        self.limits_s.add((connect_s, read_s))
        self.requests[f"{request.method} {request.path.partition('?')[0]}", request.stream] = self.is_open
        raise Unreachable("silent")

    def renew(self) -> bool:
        return False

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False


def test_a_budget_bounds_each_attempt_and_leaves_half_for_another() -> None:
    for budget_s, limits, read_s in (
        (60.0, (), ATTEMPT_S),
        (60.0, (1.5,), 1.5),
        (60.0, (1.5, 60.0), 1.5),
        (60.0, (99.0,), ATTEMPT_S),
        (5.0, (), 2.5),
        (2.0, (1.5,), 1.0),
        (0.0, (), client.SHORTEST_ATTEMPT_S),
    ):
        silent = Silent()
        cluster = silent.cluster(budget_s)
        for limit_s in limits:
            cluster.limit_retries(limit_s)
        with pytest.raises(ApiUnavailable):
            cluster.node()
        cluster.post_event("X", "y", warning=False)
        assert silent.limits_s == {(min(client.CONNECT_S, read_s / 2), read_s)}


def test_reads_end_with_sigterm_and_writes_do_not() -> None:
    silent = Silent()
    cluster = silent.cluster(0.0)
    for ask in (KubeCluster.node, KubeCluster.pods, patched, watched):
        with pytest.raises(ApiUnavailable):
            ask(cluster)
    cluster.post_event("X", "y", warning=False)
    assert silent.requests == {
        ("GET /api/v1/nodes/n", False): True,
        ("GET /api/v1/pods", False): True,
        ("PATCH /api/v1/nodes/n", False): False,
        ("GET /api/v1/pods", True): True,
        ("POST /api/v1/namespaces/default/events", False): False,
    }


def test_a_process_that_has_to_end_does_not_begin_to_read(api: Scripted) -> None:
    api.clock.ask_to_end()
    with pytest.raises(Terminated):
        api.cluster.node()
    assert api.requests == []
    with api.clock.shielded():
        assert api.cluster.node().uid == "u"


# 401: credentials are read again


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("old")
    return path


def by_kubeconfig(api: Scripted, token: Path, _: pytest.MonkeyPatch) -> str:
    path = token.with_name("kubeconfig")
    path.write_text(kubeconfig(f"http://127.0.0.1:{api.server.server_port}", {"tokenFile": str(token)}))
    return str(path)


def by_service_account(api: Scripted, token: Path, patch: pytest.MonkeyPatch) -> str:
    make_account(token.parent, token.read_text())
    patch.setattr(in_pod, "SERVICE_ACCOUNT", token.parent)
    patch.setattr(in_pod, "InPod", PlainInPod)
    for name, value in variables(api.server.server_port).items():
        patch.setenv(name, value)
    return ""


@pytest.fixture(params=[by_kubeconfig, by_service_account])
def cluster(request: pytest.FixtureRequest, api: Scripted, token: Path, monkeypatch: pytest.MonkeyPatch) -> KubeCluster:
    found = client.load_client(request.param(api, token, monkeypatch))
    return KubeCluster(found, "n", api.clock, api.reporter, BUDGET_S)


def is_in_pod(cluster: KubeCluster) -> bool:
    return isinstance(cluster.api._transport, PlainInPod)


def presented(api: Scripted) -> list[str]:
    return [request.headers["authorization"].split()[1] for request in api.requests]


def test_a_rotated_token_is_read_again_at_once(cluster: KubeCluster, api: Scripted, token: Path) -> None:
    cluster.node()
    token.write_text("new")
    api.answer(Answer(401, status("expired")), Answer())
    assert cluster.patch_node(NodeChange(labels={"a": "b"}), None).uid == "u"
    cluster.node()
    # In a pod each request has the token that is on the disk.
    assert presented(api) == ["old", "new" if is_in_pod(cluster) else "old", "new", "new"]
    token.write_text("newer")
    api.answer(Answer(401, status("expired")), Answer(body=b""))
    assert list(cluster.watch_pods("1", 5)) == []
    assert presented(api)[4:] == ["newer" if is_in_pod(cluster) else "new", "newer"]
    assert api.clock.slept == []


@pytest.mark.parametrize(("took_s", "sent"), [(0.0, 2), (client.PROMPT_S + 0.1, 1)])
def test_what_is_asked_once_is_sent_again_after_a_prompt_401_and_not_after_a_late_one(took_s: float, sent: int) -> None:
    clock, asked = FakeClock(), list[float]()

    def attempt() -> str:
        asked.append(clock.monotonic())
        clock.sleep(took_s)
        if len(asked) == 1:
            raise client.error_for(401, "patch nodes", "expired", 0.0, is_watch=False)
        return "done"

    retries = client.Retries(clock, RecordingReporter(), 8.0)
    with contextlib.nullcontext() if sent == 2 else pytest.raises(ApiRefused):
        assert retries.run(attempt, lambda: True, only_once=True) == "done"
    assert len(asked) == sent


def test_each_attempt_may_meet_a_rotation_and_a_second_401_is_final(cluster: KubeCluster, api: Scripted) -> None:
    api.answer(Answer(401), Answer(503), Answer(401), Answer())
    assert cluster.node().uid == "u"
    api.answer(Answer(401, status("Unauthorized")))
    with pytest.raises(ApiRefused, match=r"refused to list pods \(401\): Unauthorized"):
        cluster.pods()
    assert len(api.requests) == 4 + 2


def test_credentials_that_are_gone_from_the_disk_are_reported(cluster: KubeCluster, api: Scripted, token: Path) -> None:
    api.keeps_connections = is_in_pod(cluster)  # which need no CA
    cluster.node()
    (token.with_name(in_pod.AUTHORITY) if is_in_pod(cluster) else token).unlink()
    api.answer(Answer(401, status("expired")))
    with pytest.raises(ApiRefused, match=r"\(401\)"):
        cluster.node()
    assert "cannot connect to the cluster" in api.reporter.warnings[0]
    assert len(api.requests) == 2


@pytest.mark.parametrize("cluster", [by_service_account], indirect=True)
@pytest.mark.parametrize("lost", [Path.unlink, lambda path: path.write_text("")], ids=["gone", "empty"])
def test_a_token_that_cannot_be_read_is_waited_for(
    cluster: KubeCluster, api: Scripted, token: Path, lost: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost(token)
    with pytest.raises(ApiUnavailable, match="the credentials cannot be read") as caught:
        cluster.node()
    assert "the token comes from" in caught.value.remedy
    assert api.requests == []
    monkeypatch.setattr(api.clock, "sleep", lambda _: token.write_text("new"))
    assert cluster.node().uid == "u"
    assert presented(api) == ["new"]


# answers about another object

OTHER = {**NODE, "metadata": {**NODE["metadata"], "name": "other"}}


def test_another_object_is_refused_with_both_names(api: Scripted) -> None:
    for ask, body, expected in (
        (KubeCluster.node, OTHER, "get nodes: the API server was asked for Node n and answered with Node other"),
        (KubeCluster.node, json.dumps(NODE).encode(), "asked for Node n and answered with None n"),
        (patched, OTHER, "patch nodes: the API server was asked for Node n and answered with Node other"),
        (KubeCluster.pods, {**NODE, "kind": "NodeList"}, "asked for PodList and answered with NodeList"),
    ):
        api.start_over()
        api.answer(Answer(body=body))
        with pytest.raises(ApiUnavailable) as caught:
            ask(api.cluster)
        assert expected in caught.value.what
        assert len(api.requests) == 1


def named(kind: str, name: Any, namespace: Any = None) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}


LEASES = "/apis/coordination.k8s.io/v1/namespaces/a/leases"


def test_the_path_says_what_is_asked_for() -> None:
    for method, path, body, expected in (
        ("GET", "/api/v1/nodes/n?x=/y", named("Node", "n"), ""),
        ("GET", "/api/v1/nodes/a%2Fb", named("Node", "a/b"), ""),
        ("GET", f"{LEASES}/l", named("Lease", "l", "a"), ""),
        ("GET", f"{LEASES}/l", named("Lease", "l", "b"), "Lease b/l"),
        ("GET", f"{LEASES}/l", named("Lease", "m", "a"), "Lease a/m"),
        ("GET", f"{LEASES}/l", named("Lease", "l"), "Lease None/l"),
        ("PATCH", "/apis/x.io/v1/namespaces/a/driverrollouts/r/status", named("DriverRollout", "r", "a"), ""),
        ("PATCH", "/apis/x.io/v1/namespaces/a/driverrollouts/r/status", named("DriverRollout", "q", "a"), "a/q"),
        ("GET", "/apis/apps/v1/namespaces/a/daemonsets/d", named("Deployment", "d", "a"), "Deployment a/d"),
        ("GET", "/apis/apps/v1/daemonsets?limit=5", {"kind": "DaemonSetList", "metadata": []}, ""),
        ("GET", "/apis/apps/v1/daemonsets?limit=5", {"kind": ["DaemonSetList"]}, "['DaemonSetList']"),
        ("GET", "/api/v1/nodes/n", {"kind": "Node", "metadata": ["n"]}, "Node None"),
        ("GET", "/api/v1/nodes/n", named("Node", "n\n\x1b[2J"), "Node n\\n\\x1b[2J"),
        ("GET", "/apis/resource.k8s.io", {"kind": "APIGroup"}, ""),
        ("POST", "/api/v1/namespaces/a/pods", named("Pod", "made", "a"), ""),
    ):
        found = other_object(method, path, body)
        assert found.endswith(expected)
        assert bool(found) == bool(expected)


# lists


def page(name: str, token: str = "", size: int = 0) -> Answer:
    pod = {"metadata": {"name": name, "namespace": "a", "uid": name}, "spec": {"nodeName": "n" * size}}
    metadata = {"resourceVersion": "5", **({"continue": token} if token else {})}
    return Answer(body={"metadata": metadata, "items": [pod]})


GONE = Answer(410, status("too old"))


def test_a_list_that_expires_between_pages_begins_again(api: Scripted) -> None:
    api.answer(page("p1", "a&b"), GONE, page("p2", "a&b"), page("p3"))
    assert [one.name for one in api.cluster.pods().pods] == ["p2", "p3"]
    assert [request.query.get("continue") for request in api.requests] == [None, ["a&b"], None, ["a&b"]]
    assert {request.query["fieldSelector"][0] for request in api.requests} == {"spec.nodeName=n"}


@pytest.mark.parametrize(
    ("answers", "took_s", "requests", "why"),
    [
        ((page("p", "t"), GONE) * client.RESTARTS, 0.0, 2 * client.RESTARTS, "each list expired before its end"),
        ((page("p", "again"),), 0.0, client.WHOLE_PAGES, f"the list has more than {client.WHOLE_PAGES} pages"),
        ((page("p", "t", size=2**20),), 0.0, 3, "the list has more than 3 MiB"),
        ((page("p", "again"),), 20.0, 3, "the list did not end in time"),
    ],
    ids=["expires", "pages", "bytes", "seconds"],
)
def test_a_list_without_an_end_is_given_up(
    api: Scripted, answers: Any, took_s: float, requests: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = KubeApi.call

    def slow(self: KubeApi, *rest: Any, **options: Any) -> Any:
        api.clock.sleep(took_s)
        return real(self, *rest, **options)

    monkeypatch.setattr(KubeApi, "call", slow)
    monkeypatch.setattr(client, "MAX_BODY_BYTES", 3 * 2**20)
    api.answer(*answers)
    with pytest.raises(ApiUnavailable, match=f"list pods: {why}"):
        api.cluster.pods()
    assert len(api.requests) == requests


@given(st.lists(st.lists(st.integers(), max_size=4), min_size=1, max_size=6))
@settings(max_examples=examples(100), deadline=None)
def test_a_list_is_the_same_in_any_pages(pages: list[list[int]]) -> None:
    asked: list[str] = []

    class Paged(KubeApi):
        def __init__(self) -> None:
            pass

        def call(self, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
            asked.append(path)
            number = len(asked)
            more = {"continue": str(number)} if number < len(pages) else {}
            return {"kind": "PodList", "metadata": more, "items": pages[number - 1]}

    found = [one for body in Paged().pages("/api/v1/pods", "list pods") for one in body["items"]]
    assert found == [one for items in pages for one in items]
    assert asked[1:] == [f"/api/v1/pods?continue={number}" for number in range(1, len(pages))]
