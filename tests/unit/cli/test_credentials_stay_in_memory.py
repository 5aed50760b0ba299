"""No command leaves a credential of a kubeconfig in a file, however it ends."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.kube.kubeconfig import load_kubeconfig
from driver_manager.adapters.kube.transport import WireRequest
from tests.support.control_plane.servers import Authority
from tests.support.selection import current

REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 150.0
COMMANDS = ("status", "plan", "preflight", "restore", "rollout status", "holders", "reconcile-driver-state")
ENDS = (None, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
"""How a run ends: by itself with an error, or by a signal while the API server lets it wait."""

RELEASE_ROUNDS = 4
"""More than a hundred runs in all."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA."""
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.establish()
    return made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server's socket."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(TIMEOUT_S)
        yield made


def kubeconfig(keys: Authority, folder: Path, port: int) -> Path:
    """Everything inline, for a server on loopback."""
    certificate, key = keys.sign("client")
    ca, chain, secret = (base64.b64encode(path.read_bytes()).decode() for path in (keys.certificate, certificate, key))
    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": ca}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"client-certificate-data": chain, "client-key-data": secret}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(body))
    return path


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_run_leaves_a_file_however_it_ends(
    command: str, keys: Authority, listener: socket.socket, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {
        "PATH": os.defpath,
        "KUBECONFIG": str(kubeconfig(keys, tmp_path, listener.getsockname()[1])),
        "TMPDIR": str(temporary),
        "HOST_ROOT": str(tmp_path),
        "NODE_NAME": "n",
        "DRIVER_PROFILE": "rebellions",
        "API_TIMEOUT": "2s",
    }
    for how in ENDS * (RELEASE_ROUNDS if current().run == "release" else 1):
        with (
            subprocess.Popen(
                [sys.executable, "-m", "driver_manager", *command.split()],
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as run,
            listener.accept()[0],
        ):  # it waits for the server's part of the handshake, with all credentials read
            if how is not None:
                run.send_signal(how)
            assert run.wait(TIMEOUT_S)
        assert list(temporary.iterdir()) == []
        listener.settimeout(0)  # the connections of this run that nobody has answered
        with contextlib.suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
        listener.settimeout(TIMEOUT_S)


def test_a_server_is_reached_with_credentials_that_are_only_in_memory(
    keys: Authority, listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*keys.sign("server"))
    context.load_verify_locations(keys.certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    shown = []

    def serve() -> None:
        for _ in range(2):
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(4096)
                shown.append(connection.getpeercert(binary_form=True) or b"")
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    server = threading.Thread(target=serve)
    server.start()
    way = load_kubeconfig(str(kubeconfig(keys, tmp_path, listener.getsockname()[1])))
    for _ in range(2):
        assert way.send(WireRequest("GET", "/", None, {}, False), connect_s=TIMEOUT_S, read_s=TIMEOUT_S).status == 200
        assert way.renew()
    server.join(TIMEOUT_S)
    presented = ssl.PEM_cert_to_DER_cert((keys.folder / "client.crt").read_text())
    assert shown == [presented] * 2
