"""The one retry policy: what an answer means, how often a request is repeated, how long that takes, what 401 does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kube_client
from urllib3 import HTTPResponse
from urllib3.exceptions import NewConnectionError

from driver_manager.adapters.kube import api as own_client
from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.kube.api import (
    AGAIN,
    ASKED_MOST_S,
    END_SHARE,
    PROMPT_S,
    KubeApi,
    Retries,
    load_client,
    retry_after_s,
    unauthenticated,
)
from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.domain.deadline import retry_s
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError, ExitCode, WatchExpired
from driver_manager.domain.node import NodeChange
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables
from tests.support.fakes.scripted_api import BUDGET_S, IN_POD, Answer, Scripted

MOST_ATTEMPTS_IN_60_S = 29
"""Five pauses of at least 0.1, 0.2, 0.4, 0.8 and 1.6 s, then one each 2.5 s."""

LONGEST_PAUSE_S = 60.1
"""A Retry-After is believed up to 30 s, and spread over as much again."""

NOW = datetime(2026, 11, 22, 1, 0, tzinfo=UTC)


def status(message: str) -> dict[str, str]:
    return {"kind": "Status", "message": message}


def is_renewing(api: Scripted, code: int) -> bool:
    """Whether the credentials come from somewhere, to be read again after this status."""
    return (api.kind, code) == (IN_POD, 401)


# what each status means


REPEATED, REFUSED = (ExitCode.API_UNAVAILABLE, True), (ExitCode.API_REFUSED, False)
MEANINGS = {
    "redirects are not followed": (REFUSED, (300, 301, 302, 303, 307, 308)),
    "not modified": (REFUSED, (304,)),
    "a malformed request": (REFUSED, (400, 411, 414, 415, 428, 431)),
    "no credentials that count": (REFUSED, (401,)),
    "no right": (REFUSED, (403,)),
    "an object, a path or a verb that does not exist": (REFUSED, (404, 405, 406)),
    "timeouts": (REPEATED, (408, 504)),
    "conflicts and what admission refuses": (REFUSED, (409, 412, 413, 422, 423)),
    "a version that is too old": (REPEATED, (410,)),
    "too early or too much": (REPEATED, (425, 429)),
    "a server that fails": (REPEATED, (500, 502, 503)),
    "a server that cannot": (REFUSED, (501, 505, 507, 511)),
    "statuses that no server of Kubernetes gives": (REFUSED, (399, 418, 451, 499, 520, 599)),
}
"""Exit code, and whether the request is repeated, by what the statuses mean."""


def ends(api: Scripted, code: int) -> tuple[ExitCode, bool]:
    """The exit code of a request that is always answered with `code`, and whether it was repeated."""
    api.start_over()
    api.cluster.limit_retries(1.0 if code in AGAIN else 60.0)  # long: an answer that is late must not look repeated
    api.answer(Answer(code, status("why")))
    with pytest.raises((ApiRefused, ApiUnavailable)) as caught:
        api.cluster.pods()
    assert "list pods" in caught.value.what
    assert caught.value.remedy
    return caught.value.exit_code, len(api.requests) > (2 if is_renewing(api, code) else 1)


@pytest.mark.parametrize(("meaning", "codes"), MEANINGS.values(), ids=MEANINGS)
def test_a_status_means_what_the_table_has(
    api: Scripted, meaning: tuple[ExitCode, bool], codes: tuple[int, ...]
) -> None:
    assert {code: ends(api, code) for code in codes} == dict.fromkeys(codes, meaning)


@pytest.mark.submission
def test_every_status_ends_in_a_documented_exit_code_and_only_those_of_the_table_are_repeated(api: Scripted) -> None:
    repeated = {code for meaning, codes in MEANINGS.values() for code in codes if meaning == REPEATED}
    assert repeated == AGAIN
    found = {code: ends(api, code) for code in range(300, 600)}
    assert found == {code: REPEATED if code in repeated else REFUSED for code in range(300, 600)}


def test_410_for_a_watch_is_no_reason_to_repeat_it_from_the_same_version(api: Scripted) -> None:
    api.answer(Answer(410, status("too old")))
    with pytest.raises(WatchExpired):
        next(api.cluster.watch_pods("1", 5))
    assert len(api.requests) == 1


@pytest.mark.parametrize("code", [401, 403, 422, 503])
def test_a_refusal_names_verb_resource_and_namespace(api: Scripted, code: int) -> None:
    api.answer(Answer(code, status("why")))
    api.cluster.post_event("X", "y", warning=False)
    (warning,) = api.reporter.warnings
    assert "create events in namespace default" in warning
    assert len(api.requests) == (2 if is_renewing(api, code) else 1)


def test_a_conflict_means_something_for_a_patch_only(api: Scripted) -> None:
    api.answer(Answer(409, status("odd")))
    with pytest.raises(ApiRefused, match=r"rejected get nodes \(409\)"):
        api.cluster.node()


# how often, and how long


class Away:
    """A connection pool of a server that is away until `back_at` on the clock, and then gives the Node."""

    def __init__(self, clock: FakeClock, back_s: float) -> None:
        self.rest_client = self.pool_manager = self
        self.configuration = kube_client.Configuration(host="http://away.invalid")
        self.asked_at_s: list[float] = []
        self._clock, self._back_at_s = clock, clock.now + back_s

    def request(self, *_: Any, **__: Any) -> Any:
        self.asked_at_s.append(self._clock.now)
        if self._clock.now < self._back_at_s:
            raise NewConnectionError(None, "refused: [Errno 111] Connection refused")  # type: ignore[arg-type]
        return given()


def given() -> HTTPResponse:
    """The Node, as urllib3 gives it."""
    body = b'{"kind": "Node", "metadata": {"name": "n", "uid": "u"}}'
    return HTTPResponse(BytesIO(body), status=200, preload_content=False)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_a_server_that_is_gone_for_30_s_is_waited_for_with_a_bounded_number_of_requests(jitter: float) -> None:
    clock, reporter = Jittered(jitter), RecordingReporter()
    away = Away(clock, 30.0)
    begun = clock.now
    assert KubeCluster(Library(away), "n", clock, reporter, 60.0).node().uid == "u"
    assert 30.0 <= clock.now - begun <= 35.0
    assert len(away.asked_at_s) <= MOST_ATTEMPTS_IN_60_S / 2 + 3
    assert len(reporter.warnings) <= 3


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_a_server_that_stays_away_costs_the_budget_and_no_more(jitter: float) -> None:
    clock = Jittered(jitter)
    away = Away(clock, 3600.0)
    with pytest.raises(ApiUnavailable, match="within 60 s: cannot connect"):
        KubeCluster(Library(away), "n", clock, RecordingReporter(), 60.0).node()
    assert clock.now == pytest.approx(1_000.0 + 60.0 * (1.0 - END_SHARE * jitter))
    assert len(away.asked_at_s) <= MOST_ATTEMPTS_IN_60_S + 1


class Jittered(FakeClock):
    """A clock whose random number is given."""

    def __init__(self, jitter: float) -> None:
        super().__init__()
        self._jitter = jitter

    def random(self) -> float:
        return self._jitter


def test_the_pauses_of_two_nodes_differ(api: Scripted) -> None:
    paused: list[list[float]] = []
    for jitter in (0.0, 0.999):
        clock = Jittered(jitter)
        with pytest.raises(ApiUnavailable):
            KubeCluster(Library(Away(clock, 99.0)), "n", clock, RecordingReporter(), 10.0).node()
        paused.append(clock.slept[:5])
    assert paused[0] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert [round(pause, 1) for pause in paused[1]] == [1.1, 2.2, 2.9, 2.8]


# Retry-After


def dated(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": " 7.5 "}, 7.5),
        ({"Retry-After": "-7"}, 0),
        ({"Retry-After": "nan"}, 0),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "Mon, 99 Foo 2026 25:61:61 GMT"}, 0),
        ({"Retry-After": f"Wed, 21 Oct {10**20} 07:28:00 GMT"}, 0),
        ({"Retry-After": f"Wed, 21 Oct 2026 07:28:00 +{10**20}"}, 0),
        ({"Retry-After": dated(NOW + timedelta(seconds=9))}, 9),
        ({"Retry-After": dated(NOW - timedelta(days=9))}, 0),
        ({"Retry-After": dated(NOW + timedelta(hours=1, seconds=4)), "Date": dated(NOW + timedelta(hours=1))}, 4),
        ({"Retry-After": dated(NOW + timedelta(seconds=9)), "Date": "now"}, 9),
        ({"Retry-After": "Sun, 22 Nov 2026 01:00:09 -0000"}, 9),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_servers_own_clock(headers: dict[str, str], seconds: float) -> None:
    assert retry_after_s(headers, NOW.timestamp()) == seconds


@pytest.mark.parametrize("absurd", ["1e9", "inf", "99999999999999999999", dated(NOW + timedelta(days=3650))])
def test_an_absurd_retry_after_is_bounded(api: Scripted, absurd: str) -> None:
    api.cluster = KubeCluster(api.api, "n", api.clock, api.reporter, 100.0)
    api.answer(Answer(429, status("later"), {"Retry-After": absurd}), Answer())
    api.cluster.node()
    assert api.clock.slept == [retry_s(1, ASKED_MOST_S, api.clock.random())]
    assert api.clock.slept <= [LONGEST_PAUSE_S]


@pytest.mark.parametrize(("said", "asked_s"), [("7", 7.0), ("1e9", ASKED_MOST_S)])
def test_whoever_asks_once_is_told_for_how_long_to_leave_it_alone(api: Scripted, said: str, asked_s: float) -> None:
    api.answer(Answer(429, status("later"), {"Retry-After": said}))
    asking = KubeApi(api.api, api.clock, api.reporter, 8.0)
    with pytest.raises(ApiUnavailable) as caught:
        asking.call("PATCH", "/api/v1/nodes/n", "patch nodes", {}, only_once=True)
    assert caught.value.asked_s == asked_s
    assert len(api.requests) == 1


# 401: credentials are read anew


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file with the token, which kubeconfig and service account name."""
    path = tmp_path / "token"
    path.write_text("old")
    return path


def by_kubeconfig(api: Scripted, token: Path, _: pytest.MonkeyPatch) -> str:
    path = token.with_name("kubeconfig")
    path.write_text(f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{api.server.server_port}"}}}}]
users: [{{name: u, user: {{tokenFile: {token}}}}}]
""")
    return str(path)


def by_service_account(api: Scripted, token: Path, patch: pytest.MonkeyPatch) -> str:
    """As in a pod, but for TLS."""
    make_account(token.parent, token.read_text())
    patch.setattr(in_pod, "SERVICE_ACCOUNT", token.parent)
    patch.setattr(in_pod, "InPod", PlainInPod)
    for name, value in variables(api.server.server_port).items():
        patch.setenv(name, value)
    return ""


@pytest.fixture(params=[by_kubeconfig, by_service_account])
def cluster(request: pytest.FixtureRequest, api: Scripted, token: Path, monkeypatch: pytest.MonkeyPatch) -> KubeCluster:
    """The port, with credentials from disk."""
    client = load_client(request.param(api, token, monkeypatch))
    return KubeCluster(client, "n", api.clock, api.reporter, BUDGET_S)


def is_in_pod(cluster: KubeCluster) -> bool:
    return isinstance(cluster.api._transport, PlainInPod)


def presented(api: Scripted) -> list[str]:
    return [request.headers["authorization"].split()[1] for request in api.requests]


def test_a_rotated_token_is_read_anew_at_once(cluster: KubeCluster, api: Scripted, token: Path) -> None:
    cluster.node()
    token.write_text("new")
    api.answer(Answer(401, status("expired")), Answer())
    assert cluster.patch_node(NodeChange(labels={"a": "b"}), None).uid == "u"
    cluster.node()
    # In a pod each request has the token that is on the disk.
    assert presented(api) == ["old", "new" if is_in_pod(cluster) else "old", "new", "new"]
    assert api.clock.slept == []


@pytest.mark.parametrize(("took_s", "sent"), [(0.0, 2), (PROMPT_S + 0.1, 1)])
def test_what_is_asked_once_is_sent_again_after_a_401_that_came_promptly_and_not_after_a_late_one(
    took_s: float, sent: int
) -> None:
    clock, asked = FakeClock(), list[float]()

    def attempt() -> str:
        asked.append(clock.monotonic())
        clock.sleep(took_s)
        if len(asked) == 1:
            raise unauthenticated("patch nodes", "expired")
        return "done"

    retries = Retries(clock, RecordingReporter(), 8.0)
    with contextlib.nullcontext() if sent == 2 else pytest.raises(ApiRefused):
        assert retries.run(attempt, lambda: True, only_once=True) == "done"
    assert len(asked) == sent


def test_a_watch_is_opened_again_with_the_rotated_token(cluster: KubeCluster, api: Scripted, token: Path) -> None:
    token.write_text("new")
    api.answer(Answer(401, status("expired")), Answer(body=b""))
    assert list(cluster.watch_pods("1", 5)) == []
    assert presented(api) == ["new" if is_in_pod(cluster) else "old", "new"]


def test_a_second_401_is_final_and_named(cluster: KubeCluster, api: Scripted) -> None:
    api.answer(Answer(401, status("Unauthorized")))
    with pytest.raises(ApiRefused, match=r"refused to list pods \(401\): Unauthorized") as caught:
        cluster.pods()
    assert (caught.value.exit_code, caught.value.remedy) == (ExitCode.API_REFUSED, "Renew the credentials.")
    assert len(api.requests) == 2


def test_each_attempt_may_meet_a_rotation(cluster: KubeCluster, api: Scripted) -> None:
    api.answer(Answer(401), Answer(503), Answer(401), Answer())
    assert cluster.node().uid == "u"
    assert len(api.requests) == 4


def test_credentials_that_are_gone_from_the_disk_are_said(cluster: KubeCluster, api: Scripted, token: Path) -> None:
    api.keeps_connections = is_in_pod(cluster)  # which need no CA
    cluster.node()
    (token.with_name(in_pod.AUTHORITY) if is_in_pod(cluster) else token).unlink()
    api.answer(Answer(401, status("expired")))
    with pytest.raises(ApiRefused, match=r"\(401\)"):
        cluster.node()
    assert "cannot connect to the cluster" in api.reporter.warnings[0]
    assert len(api.requests) == 2


@pytest.fixture
def reading(api: Scripted, token: Path, monkeypatch: pytest.MonkeyPatch) -> KubeCluster:
    """The port of a pod, whose token is read for every request."""
    by_service_account(api, token, monkeypatch)
    return KubeCluster(load_client(None), "n", api.clock, api.reporter, BUDGET_S)


@pytest.mark.parametrize("lost", [Path.unlink, lambda path: path.write_text("")], ids=["gone", "empty"])
def test_a_token_that_cannot_be_read_is_waited_for(
    reading: KubeCluster, api: Scripted, token: Path, lost: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost(token)
    with pytest.raises(ApiUnavailable, match="the credentials cannot be read") as caught:
        reading.node()
    assert "the token comes from" in caught.value.remedy
    assert api.requests == []
    monkeypatch.setattr(api.clock, "sleep", lambda _: token.write_text("new"))
    assert reading.node().uid == "u"
    assert presented(api) == ["new"]


# certificates that are junk


@pytest.mark.parametrize("field", ["certificate-authority-data", "client-certificate-data"])
@pytest.mark.parametrize(
    "junk", ["anVuaw==", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="]
)
def test_a_junk_certificate_in_a_kubeconfig_is_a_configuration_error_at_once(
    tmp_path: Path, field: str, junk: str
) -> None:
    authority, user = (f"{field}: {junk}", "token: t") if "authority" in field else ("", f"{field}: {junk}")
    path = tmp_path / "kubeconfig"
    path.write_text(f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:1", {authority}}}}}]
users: [{{name: u, user: {{{user}, client-key-data: {junk}}}}}]
""")
    with pytest.raises(ConfigError, match=r"its (CA certificate|client certificate and key) cannot be read") as caught:
        load_client(str(path))
    assert str(path) in caught.value.what


# mutants that these tests once caught


def test_without_the_renewal_a_rotation_would_be_noticed(
    cluster: KubeCluster, api: Scripted, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_client.KubeApi, "_renewed", lambda _: False)
    with pytest.raises(ApiRefused):
        test_a_rotated_token_is_read_anew_at_once(cluster, api, token)


def test_a_policy_without_a_bound_for_retry_after_would_be_noticed(
    api: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver_manager.adapters.kube.api.ASKED_MOST_S", 1e12)
    with pytest.raises(AssertionError):
        test_an_absurd_retry_after_is_bounded(api, "1e9")
