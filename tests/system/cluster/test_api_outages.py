"""The real command, in its own process, through a server that goes away, rotates its certificate or its tokens."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.control_plane.api import wait_until
from tests.support.control_plane.faults import Certificate, Fault, Gone, Hold
from tests.support.control_plane.kubelet import NEVER, NodeFactory, OperandsFactory
from tests.support.control_plane.processes import Ended
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import (
    JOURNAL,
    NEW,
    OLD,
    PREFIX,
    CommandRunner,
    assert_untouched,
    node_of,
    start_and_take,
)
from tests.support.control_plane.servers import ControlPlane, User, all_certificates
from tests.support.fakes.pace import patient

Build = Callable[..., CommandRunner]


@pytest.fixture
def proxy(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path) -> Iterator[Proxy]:
    """A proxy with every certificate."""
    certificates = all_certificates(control_plane.authority, tmp_path)
    users = {agent_with_events.token: agent_with_events.name}
    with Proxy(control_plane.url, control_plane.ca, certificates, users) as running:
        yield running
    print(running.report())


@pytest.fixture
def command_runner(
    control_plane: ControlPlane,
    agent_with_events: User,
    tmp_path: Path,
    proxy: Proxy,
    node: NodeFactory,
    operands: OperandsFactory,
) -> CommandRunner:
    """A node with an old driver and one operand."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path, proxy=proxy).with_upgrade()
    made.node = node({f"{PREFIX}driver": "true"}, boot_id=made.tree.boot_id)
    operands(made.node, ("device-plugin",))
    return made


@pytest.mark.shares(6)
def test_a_server_that_is_gone_for_3_s_while_pods_are_waited_for_is_back_in_time(
    command_runner: CommandRunner, proxy: Proxy, operands: OperandsFactory
) -> None:
    node = node_of(command_runner)
    operands(node, ("metrics-exporter",))
    labels = node.labels()
    for name in ("device-plugin", "metrics-exporter"):
        node.kubelet.stop_after(name, NEVER)
    run = start_and_take(command_runner)
    wait_until(lambda: any(one.status for one in proxy.exchanges("watch", "pods")), "the watch was answered")
    node.kubelet.release("metrics-exporter")
    wait_until(lambda: ", 1 left" in run.said(), "the run reads the watch: an answer that is lost breaks off nothing")
    proxy.go_away(3.0)
    node.kubelet.release("device-plugin")
    ended = run.end()
    assert ended.code == 0, ended.err
    assert "the watch was interrupted" in ended.err
    assert_untouched(command_runner, labels)
    assert command_runner.tree.driver_version == NEW
    assert len(proxy.exchanges("watch", "pods")) <= 5


@pytest.mark.shares(6)
def test_a_server_that_is_gone_for_longer_than_told_leaves_the_node_to_the_next_run(
    command_runner: CommandRunner, proxy: Proxy
) -> None:
    labels = node_of(command_runner).labels()
    proxy.add(Fault(Gone(60.0), "watch", "pods"))
    ended = command_runner.reconcile(API_TIMEOUT="5s")
    assert ended.code == 8, ended.err
    assert "the node is still paused; the next run releases it from the journal" in ended.last_line
    assert JOURNAL in node_of(command_runner).annotations()
    wait_until(lambda: refuses(proxy.url), "the server is gone, also where the run was done with it before")
    proxy.go_away(0.0)
    again = command_runner.reconcile()
    assert again.code == 0, again.err
    assert_untouched(command_runner, labels)


@pytest.mark.shares(6)
def test_an_expired_certificate_is_named_and_waited_for(command_runner: CommandRunner, proxy: Proxy) -> None:
    proxy.identity.present("expired", handshakes=3)
    ended = command_runner.reconcile()
    assert ended.code == 0, ended.err
    assert "certificate is out of date: certificate has expired" in ended.err


@pytest.mark.shares(6)
def test_a_certificate_that_stays_expired_ends_with_exit_code_8_and_its_own_remedy(
    command_runner: CommandRunner, proxy: Proxy
) -> None:
    proxy.identity.present("expired", handshakes=1000)
    ended = command_runner.reconcile(API_TIMEOUT="5s")
    assert ended.code == 8, ended.err
    assert "Renew the API server's certificate, or set this node's clock" in ended.last_line
    assert command_runner.tree.driver_version == OLD


def test_an_unknown_ca_is_a_configuration_error_at_once(command_runner: CommandRunner, proxy: Proxy) -> None:
    proxy.identity.present("strange", handshakes=1000)
    ended = command_runner.reconcile(API_TIMEOUT="1h")
    assert ended.code == 2, ended.err
    assert "certificate is not trusted: unable to get local issuer certificate" in ended.last_line
    assert "certificate-authority" in ended.last_line
    assert ended.took_s < patient(10.0), "the budget is not spent on it"
    assert proxy.exchanges() == []


@pytest.mark.shares(6)
def test_a_server_that_was_trusted_once_may_be_so_again(command_runner: CommandRunner, proxy: Proxy) -> None:
    proxy.add(Fault(Certificate("strange", handshakes=2), "patch", "nodes"))
    ended = command_runner.reconcile()
    assert ended.code == 0, ended.err
    proxy.assert_all_fired()


def test_a_junk_ca_in_a_kubeconfig_is_a_configuration_error_at_once(
    command_runner: CommandRunner, tmp_path: Path
) -> None:
    authority = tmp_path / "junk.crt"
    authority.write_bytes(b"junk")  # empty would be none: then the system's are trusted
    ended = command_runner.reconcile(
        KUBECONFIG=str(kubeconfig(tmp_path, "https://127.0.0.1:9", authority, tmp_path / "token"))
    )
    assert ended.code == 2, ended.err
    assert "its CA certificate cannot be read" in ended.last_line
    assert ended.took_s < patient(10.0)


def test_a_token_is_rotated_while_a_watch_is_open_and_the_run_goes_on_with_the_new_one(
    command_runner: CommandRunner, proxy: Proxy, control_plane: ControlPlane, agent_with_events: User, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(agent_with_events.token)
    path = kubeconfig(tmp_path, proxy.url, control_plane.ca, token)
    ended = rotated(command_runner, proxy, agent_with_events, token, KUBECONFIG=str(path))
    assert "the credentials were read again" in ended.err
    assert [exchange.status for exchange in proxy.exchanges("patch", "nodes")] == [200, 401, 200]


def test_a_pod_whose_token_is_rotated_sends_the_new_one_at_once(
    command_runner: CommandRunner, proxy: Proxy, control_plane: ControlPlane, agent_with_events: User
) -> None:
    account = control_plane.service_account(agent_with_events.token, proxy.url)
    rotated(command_runner, proxy, agent_with_events, Path(account["TEST_SERVICE_ACCOUNT"]) / "token", **account)
    assert [exchange.status for exchange in proxy.exchanges("patch", "nodes")] == [200, 200]


def rotated(command_runner: CommandRunner, proxy: Proxy, user: User, token: Path, **env: str) -> Ended:
    """How a run ended whose token, in the file `token`, was replaced while it watched."""
    node, labels = node_of(command_runner), node_of(command_runner).labels()
    node.kubelet.stop_after("device-plugin", NEVER)
    cut = Fault(Hold(), "patch", "nodes", nth=2)
    proxy.add(cut)
    run = start_and_take(command_runner, **env)
    wait_until(lambda: proxy.exchanges("watch", "pods"), "the pods are watched")
    token.write_text("rotated")
    proxy.identity.rotate(user.token, "rotated")
    node.kubelet.release("device-plugin")  # said by the watch that the old token has opened
    proxy.wait_fired(cut)
    proxy.release()
    ended = run.end()
    assert ended.code == 0, ended.err
    assert_untouched(command_runner, labels)
    assert len(proxy.exchanges("watch", "pods")) == 1
    return ended


def refuses(url: str) -> bool:
    """Whether nobody listens there."""
    where = urlsplit(url)
    try:
        socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=25.0).close()
    except ConnectionRefusedError:
        return True
    return False


def kubeconfig(folder: Path, server: str, authority: Path, token: Path) -> Path:
    """Written as a kubelet's is: with the token in a file."""
    ca = base64.b64encode(authority.read_bytes()).decode()
    if not token.exists():
        token.write_text("t")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": "test", "user": {"tokenFile": str(token)}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
