"""No secret of ours is in a log, output, file or Event, also when the API or the kubeconfig fail."""

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
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.kube.kubeconfig import load_kubeconfig
from driver_manager.adapters.kube.transport import WireRequest
from driver_manager.domain.errors import ExitCode
from driver_manager.profiles import builtin
from driver_manager.sandbox import scenarios as runner
from driver_manager.sandbox.cluster import SandboxCluster
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.scenarios import SCENARIOS
from tests.support.control_plane.servers import Authority
from tests.support.fakes.plain_pod import kubeconfig
from tests.support.fakes.scripted_api import NODE, Answer, Scripted
from tests.support.fakes.typed import Prompt, slow
from tests.support.selection import current

TOKEN, PASSWORD, VARIABLE, KEY = "geheim-token-4711", "geheim-password-4712", "geheim-variable-4713", "geheim-key-4714"
SECRETS = (TOKEN, PASSWORD, VARIABLE, KEY)
ENVIRONMENT = {"AWS_SECRET_ACCESS_KEY": VARIABLE, "DB_PASSWORD": VARIABLE, "GITHUB_TOKEN": VARIABLE}
COMMANDS = ("status", "status -o json", "plan", "preflight -o json", "holders", "restore", "reconcile-driver-state")
FAILURES = {
    "taken": Answer(),
    "unauthorised": Answer(401, {"message": "Unauthorized"}),
    "forbidden": Answer(403, {"message": 'User "u" cannot get resource "nodes"'}),
    "broken": Answer(500, b"<html>oops</html>"),
    "no JSON": Answer(200, b"hello"),
    "no Node": Answer(200, {"kind": "Status"}),
    "cut": Answer(200, NODE, cut=True),
}


def lines_of(*texts: str) -> list[str]:
    return [secret for secret in SECRETS if any(secret in text for text in texts)]


def files_below(folder: Path, *but: Path) -> list[str]:
    """The content of every file, and its name."""
    regular = (path for path in folder.rglob("*") if path.is_file() and path not in but)
    return [f"{path} {path.read_text(errors='replace')}" for path in regular]


CLOSED, TLS = "http://127.0.0.1:9", "https://127.0.0.1:9"
BUDGETS = ("100ms", "10s")
"""What an answer that is tried again may take in all; the longer one where a slow machine sent no request in time."""


def config(server: str = CLOSED, user: Any = None, **cluster: str) -> dict[str, Any]:
    """A kubeconfig with a token, unless it has another `user`."""
    found: dict[str, Any] = json.loads(kubeconfig(server, {"token": TOKEN} if user is None else user, **cluster))
    return found


@pytest.fixture(scope="module")
def api() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    """A host, and an environment with secrets in it."""
    tree = HostTree(tmp_path / "host", tmp_path / "bin", builtin()["rebellions"])
    tree.build()
    (tmp_path / "termination-log").touch()
    paths = {"KUBECONFIG": tmp_path / "kubeconfig", "HOST_ROOT": tree.root, "PATH": tree.bin}
    chosen = {"NODE_NAME": "n", "DRIVER_PROFILE": "rebellions", "DRIVER_CONFIG_DIGEST": "f" * 64, "LOG_LEVEL": "debug"}
    chosen |= {"API_TIMEOUT": BUDGETS[0], "TERMINATION_LOG": str(tmp_path / "termination-log")}
    for name, value in {**ENVIRONMENT, **paths, **chosen}.items():
        monkeypatch.setenv(name, str(value))
    return tree


@slow
@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_says_a_secret_whatever_the_api_server_answers(
    words: str, api: Scripted, host: HostTree, tmp_path: Path, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config(f"http://127.0.0.1:{api.server.server_port}")))
    for failure, answer in FAILURES.items():
        for budget in BUDGETS:
            monkeypatch.setenv("API_TIMEOUT", budget)
            api.start_over()
            api.answer(answer)
            _, out, err = prompt(words)
            if api.requests:
                break
        assert out + err
        tokens = [request.headers["authorization"] for request in api.requests]
        assert tokens[:1] == [f"Bearer {TOKEN}"], f"no test of {failure}"
        bodies = [json.dumps(request.body) + request.path + str(request.query) for request in api.requests]
        assert lines_of(out, err, *bodies, *files_below(tmp_path, path)) == [], failure


def with_plugin(command: str, *arguments: str) -> dict[str, Any]:
    """A kubeconfig whose credentials come from a program."""
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": command, "args": arguments, "interactiveMode": "Never"}
    return config(user={"exec": plugin})


BROKEN: dict[str, dict[str, Any] | str] = {
    "no server": config(),
    "a password in the server's address": config(f"http://u:{PASSWORD}@127.0.0.1:9"),
    "a password in the proxy's address": config(
        "https://a.invalid", **{"proxy-url": f"http://u:{PASSWORD}@127.0.0.1:9"}
    ),
    "a certificate that is none": config(TLS, **{"certificate-authority-data": "Z2VoZWlt"}),
    "a key that is none": config(TLS, {"token": TOKEN, "client-key-data": KEY, "client-certificate-data": KEY}),
    "a token with a line feed": config(user={"token": f"{TOKEN}\nX: y"}),
    "a token that is no header": config(user={"token": f"{TOKEN}\u2713"}),
    "users that are a text": {**config(), "users": TOKEN},
    "a user that is a text": config(user=TOKEN),
    "no YAML": f"users: [{{token: {TOKEN}",
    "a text": TOKEN,
    "no context": {**config(), "current-context": "other"},
    "a plugin that is not there": with_plugin("/absent"),
    "a plugin that fails and says a secret": with_plugin("/bin/sh", "-c", f"echo {TOKEN} >&2; exit 1"),
    "no token beside the plugin": config(user={"token": None, "exec": {"args": [TOKEN], "command": "false"}}),
    "a key that is null": config(user={"token": TOKEN, "client-key": None, "password": PASSWORD}),
}


@pytest.mark.shares(3)
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_no_secret_of_a_broken_kubeconfig_is_shown(
    content: Any, host: HostTree, tmp_path: Path, prompt: Prompt
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    code, out, err = prompt("status -o json")
    assert code in (ExitCode.USAGE, ExitCode.API_UNAVAILABLE, ExitCode.API_REFUSED)
    assert lines_of(out, err, *files_below(tmp_path, path)) == []


@slow
@pytest.mark.parametrize("name", ["bad-module-with-rollback", "ascend-reboot"])
def test_a_whole_run_leaves_no_secret_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[name]
    clusters: list[SandboxCluster] = []

    def add_pods(cluster: SandboxCluster) -> None:
        clusters.append(cluster)
        scenario.add_pods(cluster)

    def prepare(tree: HostTree) -> None:
        scenario.prepare(tree)
        (tree.root / "termination-log").touch()

    env = {**scenario.env, **ENVIRONMENT, "LOG_LEVEL": "debug"}
    kept = SimpleNamespace(TemporaryDirectory=lambda **_: contextlib.nullcontext(str(tmp_path)))
    monkeypatch.setattr(runner, "tempfile", kept)
    lines = list[str]()
    show: Any = SimpleNamespace(line=lines.append, chapter=lambda _: None)  # a chapter's title has the environment
    assert runner.run_scenario(replace(scenario, env=env, prepare=prepare, add_pods=add_pods), show).problems == []
    (cluster,) = clusters
    token = json.loads(cluster.kubeconfig.read_text())["users"][0]["user"]["token"]
    objects = [json.dumps(cluster.server.store.list_objects(kind)) for kind in ("nodes", "events")]
    texts = [*objects, *lines, *files_below(tmp_path, cluster.kubeconfig, cluster.kubectl_config)]
    assert any("termination-log exit " in text for text in texts), "else this looks at nothing"
    assert lines_of(*texts) == []
    assert not [text for text in texts if token in text]


REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 150.0
ENDS = (None, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
"""How a run ends: by itself with an error, or by a signal while the API server lets it wait."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.establish()
    return made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(TIMEOUT_S)
        yield made


def mutual_tls(keys: Authority, folder: Path, port: int) -> Path:
    """A kubeconfig with everything inline, for a server on loopback."""
    certificate, key = keys.sign("client")
    ca, chain, secret = (base64.b64encode(path.read_bytes()).decode() for path in (keys.certificate, certificate, key))
    user, path = {"client-certificate-data": chain, "client-key-data": secret}, folder / "kubeconfig"
    path.write_text(kubeconfig(f"https://127.0.0.1:{port}", user, **{"certificate-authority-data": ca}))
    return path


@slow
@pytest.mark.parametrize("command", ["status", "rollout status", "reconcile-driver-state"])
def test_no_run_leaves_a_file(command: str, keys: Authority, listener: socket.socket, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"PATH": os.defpath, "TMPDIR": str(temporary), "HOST_ROOT": str(tmp_path), "NODE_NAME": "n"}
    environment |= {"KUBECONFIG": str(mutual_tls(keys, tmp_path, listener.getsockname()[1]))}
    environment |= {"DRIVER_PROFILE": "rebellions", "API_TIMEOUT": "2s"}
    argv = [sys.executable, "-m", "driver_manager", *command.split()]
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for how in ENDS * (9 if current().run == "release" else 1):  # more than a hundred runs in all
        with subprocess.Popen(argv, cwd=REPOSITORY, env=environment, **streams) as run, listener.accept()[0]:
            # It waits for the server's part of the handshake, with all credentials read.
            if how is not None:
                run.send_signal(how)
            assert run.wait(TIMEOUT_S)
        assert list(temporary.iterdir()) == []
        listener.settimeout(0)  # the connections of this run that have no answer yet
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
    way = load_kubeconfig(str(mutual_tls(keys, tmp_path, listener.getsockname()[1])))
    for _ in range(2):
        assert way.send(WireRequest("GET", "/", None, {}, False), connect_s=TIMEOUT_S, read_s=TIMEOUT_S).status == 200
        assert way.renew()
    server.join(TIMEOUT_S)
    assert shown == [ssl.PEM_cert_to_DER_cert((keys.folder / "client.crt").read_text())] * 2
