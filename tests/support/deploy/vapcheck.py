"""Owns vapcheck in tests: a program with the API server's own code for ValidatingAdmissionPolicies.

It compiles policies, answers AdmissionReviews, or stands as a webhook before an API server that knows no policies.
Must not import the product.
"""

from __future__ import annotations

import base64
import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.releasing.kustomize import Json
from tests.support.assets import tool
from tests.support.control_plane.api import Api, gone
from tests.support.control_plane.servers import ControlPlane
from tests.support.tiers import TierError, skip_or_fail

NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"
_HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_TIMEOUT_S = 100.0


def program() -> str:
    """Its path; skips without it, or fails where every tier is required."""
    try:
        return str(tool("vapcheck"))
    except TierError as error:
        skip_or_fail(str(error))


def write(objects: Iterable[Json], file: Path) -> Path:
    file.write_text("".join(f"---\n{json.dumps(one)}\n" for one in objects))
    return file


def compiled(file: Path) -> str:
    """What is wrong with the policies, "" if nothing is."""
    done = _ran("compile", file)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _ran(*words: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    argv = [program(), *map(str, words)]
    return subprocess.run(argv, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


@dataclass(frozen=True)
class Sender:
    """Who asks. `node` is that of the token's pod."""

    name: str
    node: str = ""

    @property
    def info(self) -> Json:
        """As the API server tells it; who has no extras has no field for them."""
        return {"username": self.name, **({"extra": {NODE_OF_TOKEN: [self.node]}} if self.node else {})}


def update(sender: Sender, old: Json | None, new: Json, subresource: str = "") -> Json:
    """The review of a Node that `sender` changes from `old` to `new`, or creates."""
    core = {"group": "", "version": "v1"}
    request: Json = {"uid": "1", "kind": {**core, "kind": "Node"}, "resource": {**core, "resource": "nodes"}}
    request |= {"subResource": subresource, "userInfo": sender.info}
    request |= {"name": new["metadata"]["name"], "operation": "UPDATE" if old is not None else "CREATE"}
    request |= {"object": new, "oldObject": old}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def reviewed(file: Path, reviews: Iterable[Json], may: Callable[[str, Json], bool]) -> list[str]:
    """Why each is denied, "" where it is allowed. `may` answers for a user whether RBAC allows some attributes."""
    with _authorizer(file.parent, may) as kubeconfig:
        done = _ran("review", "-kubeconfig", kubeconfig, file, given="\n".join(map(json.dumps, reviews)))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["response"] for line in done.stdout.splitlines()]
    return ["" if one["allowed"] else one["status"]["message"] for one in answers]


@contextmanager
def _authorizer(folder: Path, may: Callable[[str, Json], bool]) -> Iterator[Path]:
    """A kubeconfig for a server that answers SubjectAccessReviews and nothing else."""

    class Answers(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            user, attributes = _asked(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
            data = json.dumps({**answer, "status": {"allowed": may(user, attributes)}}).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's parameter name
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            config: Json = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
            config["contexts"] = [{"name": "test", "context": {"cluster": "test", "user": "test"}}]
            config["clusters"] = [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}]
            config["users"] = [{"name": "test", "user": {}}]
            file = folder / "authorizer.kubeconfig"
            file.write_text(json.dumps(config))  # JSON is YAML
            yield file
        finally:
            server.shutdown()
            thread.join()


_ATTRIBUTES = {1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"}


def _asked(body: bytes) -> tuple[str, Json]:
    """User and attributes of a SubjectAccessReview in protobuf (authorization/v1/generated.proto, runtime.Unknown)."""
    spec = _fields(_fields(_fields(body.removeprefix(b"k8s\0"))[2])[2])
    asked = _fields(spec[1])
    return spec[3].decode(), {name: asked.get(number, b"").decode() for number, name in _ATTRIBUTES.items()}


def _fields(message: bytes) -> dict[int, bytes]:
    """The last value of each field, all of which are messages or texts shorter than 16 KiB."""
    found, at = {}, 0
    while at < len(message):
        tag, size, at = message[at], message[at + 1], at + 2
        if size & 0x80:
            size, at = size & 0x7F | message[at] << 7, at + 1
        assert tag & 7 == 2, "a field of another type"
        found[tag >> 3], at = message[at : at + size], at + size
    return found


@dataclass
class Webhook:
    """Policies in force before an API server, for Nodes and their status."""

    policies: Path
    log: Path

    def reviews(self) -> list[tuple[Json, Json]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [(asked["request"], answer["response"]) for asked, answer in zip(lines[::2], lines[1::2], strict=True)]

    def denied(self) -> list[str]:
        """Who was denied what so far, and why."""
        denied = [(asked, answer["status"]["message"]) for asked, answer in self.reviews() if not answer["allowed"]]
        return [f"{asked['userInfo']['username']} {asked['name']}: {why}" for asked, why in denied]


@contextmanager
def enforced(plane: ControlPlane, api: Api, objects: Iterable[Json], folder: Path) -> Iterator[Webhook]:
    """The policies among the objects are in force on the control plane until the context ends.

    As a mutating webhook, which changes nothing: a validating one of 1.20.2 gets the new metadata as the old
    (CVE-2021-25735), so that no rule that compares the two would see a change.
    """
    certificate, key = plane.server_certificate
    folder.mkdir()
    file = write(objects, folder / "policies.yaml")
    log = folder / "reviews"
    log.touch()
    argv = [program(), "serve", "-cert", str(certificate), "-key", str(key), "-log", str(log)]
    argv += ["-kubeconfig", str(plane.kubeconfig(plane.admin.token)), str(file)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "vapcheck ended"
        api.post(_HOOKS, _configuration(address, plane.ca.read_bytes()))
        try:
            yield Webhook(file, log)
        finally:
            gone(lambda: api.delete(f"{_HOOKS}/vapcheck"))
    finally:
        process.kill()
        process.communicate()


def _configuration(address: str, ca: bytes) -> Json:
    client = {"url": f"https://{address}/validate", "caBundle": base64.b64encode(ca).decode()}
    rule = {"apiGroups": [""], "apiVersions": ["*"], "operations": ["*"], "resources": ["nodes", "nodes/status"]}
    hook: Json = {"name": "vapcheck.test.local", "admissionReviewVersions": ["v1"], "sideEffects": "None"}
    hook |= {"failurePolicy": "Fail", "timeoutSeconds": 30, "clientConfig": client, "rules": [rule]}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    return {**kind, "metadata": {"name": "vapcheck"}, "webhooks": [hook]}
