"""In a pod, the API server is reached with the standard library alone: what that imports, and how it connects."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.kube.api import load_client
from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import InPod, is_in_pod
from driver_manager.domain.errors import ApiUnavailable, ConfigError, WatchBroken
from driver_manager.domain.node import NodeChange
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables
from tests.support.fakes.scripted_api import IN_POD, Answer, Scripted

HEAVY = {"kubernetes", "oauthlib", "psutil", "pydantic", "pyudev", "requests", "urllib3", "websocket", "yaml"}
RUN = """
import json, sys
from pathlib import Path
from driver_manager.adapters.kube import transport
transport.SERVICE_ACCOUNT = Path(sys.argv[1])
from driver_manager.cli import main
code = main.run(["reconcile-driver-state", "--api-timeout", "0s", "--termination-log", ""])
print(json.dumps({"code": code, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


@pytest.fixture
def api() -> Iterator[Scripted]:
    scripted = Scripted(IN_POD)
    scripted.keeps_connections = True
    yield scripted
    scripted.close()


def junk_free(folder: Path) -> Path:
    """A service account whose CA can be read: whose it is does not matter."""
    made = folder / "ca.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ca", "-days", "1"]
    subprocess.run([*argv, "-keyout", "/dev/null", "-out", str(made)], check=True, capture_output=True, timeout=60)
    return make_account(folder / "account", "t", made.read_bytes())


@pytest.mark.submission
def test_a_reconcile_in_a_pod_imports_no_library_for_its_requests(tmp_path: Path) -> None:
    env = {**variables(1), "NODE_NAME": "n", "HOST_ROOT": str(tmp_path)}
    argv = [sys.executable, "-c", RUN, str(junk_free(tmp_path))]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["code"], "Connection refused" in done.stderr) == (8, True), done.stderr
    assert "http" in said["modules"]
    assert not HEAVY & set(said["modules"])


def test_calls_share_a_connection_and_a_watch_has_its_own(api: Scripted) -> None:
    api.answer(Answer(), Answer(), Answer(body=b""), Answer())
    api.cluster.node()
    api.cluster.node()
    assert list(api.cluster.watch_pods("1", 5)) == []
    api.cluster.patch_node(NodeChange(labels={"a": "b"}), None)
    first, second, watch, last = api.connections
    assert first == second == last != watch


def test_a_connection_that_the_server_ended_is_not_used_again(api: Scripted) -> None:
    api.cluster.node()
    api.keeps_connections = False
    api.cluster.node()
    api.cluster.node()
    assert len(api.requests) == 3
    assert api.clock.slept == []
    assert len(set(api.connections)) == 2


def test_a_watch_that_is_cut_before_its_length_is_broken(api: Scripted) -> None:
    api.answer(Answer(body=b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n', cut=True))
    watch = api.cluster.watch_pods("1", 5)
    assert next(watch).resource_version == "7"
    with pytest.raises(WatchBroken, match="IncompleteRead"):
        next(watch)


@pytest.mark.parametrize("name", in_pod.PROXIES)
def test_where_a_proxy_is_to_be_asked_the_library_is_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = junk_free(tmp_path)
    monkeypatch.setattr(in_pod, "SERVICE_ACCOUNT", account)
    for key, value in variables(1).items():
        monkeypatch.setenv(key, value)
    for proxy in in_pod.PROXIES:
        monkeypatch.delenv(proxy, raising=False)
    assert isinstance(load_client(None), InPod)
    monkeypatch.setenv(name, "http://127.0.0.1:3128")
    assert not is_in_pod(account, {name: "http://127.0.0.1:3128"})
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(account / "ca.crt"))
    assert isinstance(load_client(None), Library)


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("environ", "lost", "said"),
    [
        ({}, "", "do not name the API server"),
        ({"KUBERNETES_SERVICE_HOST": "h"}, "", "do not name the API server"),
        ({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "x"}, "", "do not name the API server"),
        (variables(1), "token", "token"),
        (variables(1), "ca.crt", "its CA certificate cannot be read"),
    ],
)
def test_an_account_that_cannot_be_used_is_a_configuration_error(
    environ: dict[str, str], lost: str, said: str, tmp_path: Path
) -> None:
    account = junk_free(tmp_path)
    if lost:
        (account / lost).unlink()
    with pytest.raises(ConfigError, match="cannot connect to the cluster") as caught:
        InPod(account, environ)
    assert said in caught.value.what


@pytest.mark.parametrize("content", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_junk_ca_is_a_configuration_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its CA certificate cannot be read"):
        InPod(make_account(tmp_path, "t", content), variables(1))


def test_a_newline_behind_the_token_is_not_sent(api: Scripted, tmp_path: Path) -> None:
    transport = PlainInPod(make_account(tmp_path, "t\n"), variables(api.server.server_port))
    assert KubeCluster(transport, "n", FakeClock(), RecordingReporter(), 60.0).node().uid == "u"
    assert api.requests[0].headers["authorization"] == "Bearer t"
    transport.renew()


def test_a_name_that_does_not_resolve_is_api_unavailable(tmp_path: Path) -> None:
    environ = {**variables(1), "KUBERNETES_SERVICE_HOST": "no-such-host.invalid"}
    transport = PlainInPod(make_account(tmp_path, "t"), environ)
    with pytest.raises(ApiUnavailable, match="cannot connect"):
        KubeCluster(transport, "n", FakeClock(), RecordingReporter(), 1.0).node()
