"""`collect`: what is in the archive, what is not, and what happens where a part cannot be read."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from driver_manager.cli import collect
from driver_manager.cli import session as wiring
from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import APPROVED, PLURAL
from driver_manager.domain.profile import RUN_RECORD
from driver_manager.domain.redaction import REDACTED, redacted, redacted_values
from driver_manager.sandbox.apiserver import Deny, apply_merge_patch
from driver_manager.sandbox.cluster import NODE
from tests.support.fakes.sandboxed import ByHand
from tests.support.fakes.typed import Prompt

SPOKEN = "geheim-4711"
TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6Ik5vIn0.eyJzdWIiOiJzeXN0ZW06c2EifQ.c2lnbmF0dXJl-of_it"
BLOB = base64.b64encode(bytes(range(7, 120))).decode()
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BLOB[:64]}\n{BLOB[64:128]}\nshort4712==\n-----END RSA PRIVATE KEY-----"
SECRETS = (SPOKEN, TOKEN, BLOB[:64], BLOB[64:128], "short4712", "c2lnbmF0dXJl-of_it")
LINES = f"loading\nAuthorization: Bearer {SPOKEN}-xyz\n{PEM}\nsa {TOKEN}\npassword={SPOKEN} of https://u:{SPOKEN}@h/x\nend\n"


class Archive:
    """The texts of an archive by name, without its folder."""

    def __init__(self, data: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            members = tar.getmembers()
            assert {one.mode for one in members} == {0o600}
            self.folder = members[0].name.partition("/")[0]
            texts = {one.name.removeprefix(f"{self.folder}/"): tar.extractfile(one) for one in members}
            self.texts = {name: file.read().decode() for name, file in texts.items() if file}
        self.manifest = json.loads(self.texts["manifest.json"])
        self.left = {one["name"]: one["reason"] for one in self.manifest["notCollected"]}
        wanted = [(one["name"], one["bytes"]) for one in self.manifest["files"]]
        assert wanted == [(name, len(text.encode())) for name, text in self.texts.items() if name != "manifest.json"]

    def __getitem__(self, name: str) -> Any:
        return json.loads(self.texts[name])


@pytest.fixture
def node(debug: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ByHand:
    monkeypatch.chdir(tmp_path)
    return debug


def collected(*words: str) -> Archive:
    """The archive of a command that ends well and writes one file, for its owner only."""
    before = set(Path.cwd().iterdir())
    assert run(["collect", *words]) == ExitCode.DONE
    (file,) = set(Path.cwd().iterdir()) - before
    assert file.stat().st_mode & 0o777 == 0o600
    found = Archive(file.read_bytes())
    assert file.name == f"{found.folder}.tar.gz"
    file.unlink()
    return found


def merge(node: ByHand, plural: str, name: str, namespace: str = "", **parts: Any) -> None:
    node.cluster.store.patch(plural, name, lambda there: apply_merge_patch(there, parts), namespace=namespace)


def put(node: ByHand, path: str, text: str) -> None:
    file = node.tree.root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def pod_and_logs(node: ByHand, text: str) -> str:
    """The driver pod, whose init container was restarted; its logs have `text`."""
    pod = node.cluster.driver_pod()
    ended = {"terminated": {"exitCode": 3, "message": f"exit 3: token: {SPOKEN}"}}
    states = [{"name": "k8s-driver-manager", "restartCount": 1, "lastState": ended}]
    body = {"status": {"initContainerStatuses": states}}
    node.cluster.store.merge("pods", pod, body, namespace=node.cluster.namespace, status=True)
    for is_previous in (False, True):
        node.cluster.server.logs[pod, "k8s-driver-manager", is_previous] = text
    return pod


def test_no_planted_secret_is_in_the_archive_and_the_rest_is(node: ByHand) -> None:
    profile, namespace = node.tree.profile, node.cluster.namespace
    applied = {"kubectl.kubernetes.io/last-applied-configuration": SPOKEN, "example.com/note": SPOKEN}
    journal = json.dumps({"v": 1, "note": TOKEN})
    notes = {"annotations": applied}
    merge(node, "nodes", NODE, metadata={"annotations": {**applied, profile.keys.journal: journal}})
    values = {"NGC_KEY": SPOKEN, "DRIVER_ROOT": "/opt/driver", "REBOOT_COMMAND": f"reboot --token {SPOKEN}"}
    variables: list[Any] = [{"name": name, "value": value} for name, value in values.items()]
    variables.append({"name": "FROM", "valueFrom": {"secretKeyRef": {"name": SPOKEN, "key": "k"}}})
    args = ["reconcile-driver-state", f"--password={SPOKEN}"]
    run_of = {"name": "k8s-driver-manager", "args": args, "env": variables}
    other = {"name": "main", "image": "x", "args": [SPOKEN], "env": variables[:1]}
    volumes = [{"name": "v", "secret": {"secretName": SPOKEN}}, {"name": "h", "hostPath": {"path": "/run/x"}}]
    spec = {"initContainers": [run_of], "containers": [other], "volumes": volumes}
    pod = pod_and_logs(node, LINES)
    merge(node, "pods", pod, namespace, metadata=notes, spec=spec)
    own = {"template": {"metadata": notes, "spec": spec}}
    merge(node, "daemonsets", "rbln-driver", namespace, metadata=notes, spec=own)
    about = {"kind": "Pod", "name": pod, "namespace": namespace}
    event = {"metadata": {"name": "e", "namespace": namespace, **notes}, "involvedObject": about, "reason": "Failed"}
    node.cluster.store.create("events", {**event, "message": f"pull with password: {SPOKEN}"})
    user = {"metadata": {"name": "user", "namespace": "team", **notes}}
    node.cluster.store.create("pods", {**user, "spec": {"nodeName": NODE, "containers": [other]}})
    paths = profile.paths
    for path in (paths.failure_note, f"{paths.evidence}/1700000000-x.txt", paths.recovery_record):
        put(node, path, LINES)
    put(node, "/dev/kmsg", f"6,1,1500000,-;rebellions 0000:c1:00.0: key token={SPOKEN}\n")
    for path in ("/var/run/secrets/kubernetes.io/serviceaccount/token", "/var/lib/kubelet/pods/a/volumes/t/token"):
        put(node, path, TOKEN)
    (node.tree.root / profile.paths.owner_note.lstrip("/")).symlink_to("/var/lib/kubelet/pods/a/volumes/t/token")
    found = collected()
    hidden = (*SECRETS, *node.cluster.server.tokens)
    assert [(secret, name) for secret in hidden for name, text in found.texts.items() if secret in text] == []
    assert [found[name] for name in found.texts if name.endswith(".json") and not name.startswith("host/")]
    assert ("last-applied" in "\n".join(found.texts.values()), "pods/team/user.json" in found.texts) == (False, False)
    (container,) = found[f"pods/{namespace}/{pod}.json"]["spec"]["initContainers"]
    assert container["env"] == [
        {"name": "NGC_KEY", "value": REDACTED},
        {"name": "DRIVER_ROOT", "value": "/opt/driver"},
        {"name": "REBOOT_COMMAND", "value": f"reboot --token {REDACTED}"},
        {"name": "FROM", "valueFrom": ["secretKeyRef"]},
    ]
    for which in ("", ".previous"):
        lines = found.texts[f"logs/{namespace}/{pod}/k8s-driver-manager{which}.log"].splitlines()
        assert (lines[0], lines[-1]) == ("loading", "end")
    assert "rebellions 0000:c1:00.0: key token=REDACTED" in found.texts["kernel.log"]


def test_an_archive_of_a_node_has_what_the_commands_print_and_what_they_read(node: ByHand, prompt: Prompt) -> None:
    paths, namespace = node.tree.profile.paths, node.cluster.namespace
    pod = pod_and_logs(node, "hello\n")
    own = f"{paths.run_record('r').rpartition('/')[0]}/{RUN_RECORD}abc.json"
    for number in range(5):
        put(node, f"{paths.evidence}/170000000{number}-rebellions-unload.txt", f"evidence {number}\n")
    for path in (own, paths.health_record, paths.rebooter_record, paths.failure_note, paths.recovery_record):
        put(node, path, '{"schema": 1}\n')
    kernel = [f"6,1,{second}000000,-;{text}\n" for second, text in enumerate(("usb 1-1: new", "Rebellions: hello"))]
    put(node, "/dev/kmsg", kernel[1])
    shown, planned = (prompt(command).out for command in ("status", "plan"))
    found = collected()
    assert found.texts["status.txt"].splitlines()[0] in shown
    assert found.texts["plan.txt"].splitlines()[-1] in planned
    assert found["status.json"]["node"] == found["node.json"]["metadata"]["name"] == found.manifest["node"] == NODE
    assert found["versions.json"]["node"]["kubeletVersion"].startswith("v1.")
    assert f"logs/{namespace}/{pod}/k8s-driver-manager.previous.log" in found.texts
    assert f"daemonsets/{namespace}/rbln-driver.json" in found.texts
    wanted = {own, paths.health_record, paths.rebooter_record, paths.failure_note, paths.recovery_record}
    assert {f"host{path}" for path in wanted} <= found.texts.keys()
    assert [text for name, text in found.texts.items() if "evidence" in name] == [f"evidence {n}\n" for n in (4, 3, 2)]
    assert found.texts["kernel.log"] == "[1.000000] Rebellions: hello\n"
    put(node, "/dev/kmsg", kernel[0])
    assert collected().texts["kernel.log"] == ""
    assert f"{len(found.manifest['files'])} file(s)" in prompt.capfd.readouterr().err


REFUSED = {
    "pods/log": ("logs/rbln-system/{pod}/k8s-driver-manager.log",),
    "pods": ("pods", "pods of all namespaces"),
    "events": ("events.jsonl",),
    "daemonsets": ("daemonsets/rbln-system",),
    "nodes": ("node.json", "plan.txt"),
    "driverrollouts": ("rollouts",),
}


@pytest.mark.parametrize("resource", REFUSED)
def test_a_part_that_is_forbidden_is_named_and_the_others_are_collected(resource: str, node: ByHand) -> None:
    pod = pod_and_logs(node, "hello\n")
    node.cluster.server.deny.append(Deny("*", resource))
    found = collected()
    names = {name.format(pod=pod) for name in REFUSED[resource]}
    assert {name: found.left.get(name) for name in names} == dict.fromkeys(names, "forbidden")
    assert {"status.txt", "status.json", "versions.json"} <= found.texts.keys()
    assert {name for name, reason in found.left.items() if reason not in ("missing", "forbidden")} == set()


@pytest.mark.parametrize("config", ["absent", pytest.param("silent", marks=pytest.mark.submission)])
def test_without_a_cluster_the_host_is_collected(
    config: str, node: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(node, node.tree.profile.paths.health_record, '{"schema": 1}')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        known = json.loads(node.kubeconfig.read_text())
        known["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("API_TIMEOUT", "1s")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / config))
        if config == "silent":
            (tmp_path / config).write_text(json.dumps(known))
        found = collected()
    assert {"status.txt", f"host{node.tree.profile.paths.health_record}"} <= found.texts.keys()
    assert found.left["pods"] == {"absent": "unreadable", "silent": "timeout"}[config]
    assert ("as the API server does not answer" in found.texts["manifest.json"]) == (config == "silent")


def test_a_laptop_collects_a_node_without_its_host_or_a_cluster_with_the_logs_of_what_is_not_ready(
    node: ByHand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompt: Prompt
) -> None:
    monkeypatch.setattr(wiring, "CONTAINER_HOST_ROOT", tmp_path / "none")
    notes = {"annotations": {APPROVED: "r1", "example.com/x": SPOKEN}}
    node.cluster.store.create(PLURAL, {"metadata": {"name": "driver", "namespace": "other", **notes}, "spec": {"a": 1}})
    pod, well = pod_and_logs(node, "hello\n"), {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    log = f"logs/rbln-system/{pod}/k8s-driver-manager.log"
    found = collected(NODE)
    assert (found.left["host"], log in found.texts) == ("missing", True)
    assert not [name for name in found.texts if name.startswith("host/") or name == "kernel.log"]
    found = collected()
    assert (found.manifest["node"], found["status.json"]["total"], found.texts[log]) == ("cluster", 1, "hello\n")
    assert found["rollouts/other/driver.json"]["metadata"]["annotations"] == {APPROVED: "r1"}
    node.cluster.store.merge("pods", pod, well, namespace="rbln-system", status=True)
    assert log not in collected().texts
    assert "does not exist" in prompt.errors("collect node-of-no-one")
    assert not list(tmp_path.glob("*.tar.gz")) + list(tmp_path.glob(".*tar*"))


def test_of_a_large_log_the_newest_part_is_kept_up_to_a_limit(node: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "FILE_BYTES", 4000)
    pod = pod_and_logs(node, "".join(f"line {number}\n" for number in range(1000)))
    name = f"logs/rbln-system/{pod}/k8s-driver-manager.log"
    found = collected()
    lines = found.texts[name].splitlines()
    assert (lines[-1], len(found.texts[name]) <= 4000, lines[0].startswith("line ")) == ("line 999", True, True)
    assert [one["cut"] for one in found.manifest["files"] if one["name"] == name] == [True]
    monkeypatch.setattr(collect, "TOTAL_BYTES", 9000)
    small = collected()
    assert sum(len(text) for file, text in small.texts.items() if file != "manifest.json") <= 9000
    assert "limit" in small.left.values()


def test_standard_output_has_the_whole_archive_and_what_cannot_be_written_is_an_error(
    node: ByHand, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["collect", "-f", "-"]) == ExitCode.DONE
    assert Archive(capfdbinary.readouterr().out)["status.json"]["node"] == NODE
    (tmp_path / "x.tar.gz").write_text("mine")
    too_long = ("a" * 300, "cannot be written: File name too long")
    for path, what in (("x.tar.gz", "x.tar.gz exists"), ("none/x", "none/x cannot be written"), too_long):
        assert run(["collect", "--output", path]) == ExitCode.USAGE
        assert what in capfdbinary.readouterr().err.decode()
    assert (tmp_path / "x.tar.gz").read_text() == "mine"
    with Path("/dev/full").open("w", encoding="utf-8") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        assert run(["collect", "-f", "-"]) == ExitCode.USAGE
        with contextlib.suppress(OSError):
            full.close()


def test_a_record_is_not_read_through_a_symlink_and_the_names_of_files_are_plain(node: ByHand) -> None:
    paths, root = node.tree.profile.paths, node.tree.root
    put(node, "/etc/shadow", "root:$6$salt$hash:1::::::\n")
    put(node, f"{paths.evidence}/1700000000-\udcff\n\x1b[31m.txt", "evidence")
    put(node, paths.rebooter_record, "x" * (collect.FILE_BYTES + 2))
    (root / paths.failure_note.lstrip("/")).symlink_to("/etc/shadow")
    found = collected()
    assert [name for name, text in found.texts.items() if "$6$" in text] == []
    assert found.left[f"host{paths.failure_note}"] == "unreadable"
    assert found.left[f"host{paths.rebooter_record}"] == "limit"
    assert found.texts[f"host{paths.evidence}/1700000000-____31m.txt"] == "evidence\n"
    with collect.Bundle(io.BytesIO(), "a", 0.0) as forged:
        forged.add("pods/../..a/x.json", "")
    assert forged.files[0]["name"] == "pods/_/..a/x.json"


def test_a_bug_in_one_part_leaves_the_others(node: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "plan_text", lambda *_: 1 / 0)
    found = collected()
    assert (found.left["plan.txt"], "ZeroDivisionError" in found.texts["manifest.json"]) == ("error", True)
    assert "status.txt" in found.texts


SAME = (
    f"image sha256:{'0123456789abcdef' * 4} of driver_manager.v1 in /usr/lib/x86_64-linux-gnu/module",
    "rbln-driver-daemonset-7bx9s is not Ready: token was renewed; password policy",
    "0000:c1:00.0: 38ca3a0f-f33a-47ad-9862-6564b7c4c785 uid, basic information, bearer of news",
)


@pytest.mark.parametrize(
    "text",
    [
        *(f"Authorization: Basic {SPOKEN}", f'{{"authorization": "Bearer {SPOKEN}"}}', f"curl -H bearer {SPOKEN}-long"),
        *(
            f'"msg": "got \\"api_key\\": \\"{SPOKEN} and more\\""',
            f"NGC_API_KEY={SPOKEN}",
            f"client-key-data: {SPOKEN}",
        ),
        *(f"--db-password {SPOKEN} --x", f"https://user:{SPOKEN}@host/path?token={SPOKEN}&x=1", TOKEN, f"x={BLOB}"),
        *(PEM.replace("\n", "\\n"), PEM.partition("-----END")[0], f"Proc-Type: 4\n{PEM}"),
        *(f'Authorization: Digest username="x", response="{SPOKEN}"', f"Cookie: session={SPOKEN}"),
        *(f"git clone https://{SPOKEN}@host/x", f"https://user:a@b/{SPOKEN}@host/"),
        *(f"curl -u admin:{SPOKEN} https://host", f"token=true-{SPOKEN}", "\0".join(f"token={SPOKEN}")),
        f'"tokens": ["{SPOKEN}"], "secret": {{"of": {{"a": "{SPOKEN}"}}}}',
        *(f'"name": "DB_PASSWORD", "value": "{SPOKEN}"', f"- name: DB_PASSWORD\n  value: {SPOKEN}"),
        *(f"password: |\n  {SPOKEN}", f'password="ab {SPOKEN}', f"password=ab,{SPOKEN};{SPOKEN}"),
        *(f"ghp_{SPOKEN}{'a' * 16}".replace("-", ""), f"eyJhbGciOiJkaXIifQ..{SPOKEN}.x"),
    ],
)
def test_secrets_in_texts_are_redacted_once(text: str) -> None:
    found = redacted(text)
    assert REDACTED in found
    assert [secret for secret in SECRETS if secret in found] == []
    assert redacted(found) == found
    line = redacted(json.dumps({"message": text, "token": text, "level": "info"}))
    assert [secret for secret in SECRETS if secret in line] == []
    assert json.loads(line)["level"] == "info"


@pytest.mark.parametrize("value", [4711, [SPOKEN], {"of": [{"a": SPOKEN}]}, SPOKEN])
def test_json_is_whole_and_has_no_value_of_a_name_of_a_secret(value: Any) -> None:
    found = redacted(json.dumps({"apiToken": value, "level": "info"}))
    assert json.loads(found) == {"apiToken": REDACTED, "level": "info"} or isinstance(value, dict)
    assert (SPOKEN in found, SPOKEN in str(redacted_values({"apiToken": value}))) == (False, False)
    message = {"message": "no token: ", "a": f"Authorization: \n{PEM} ", "token": ["[}]"], "level": "info"}
    assert json.loads(redacted(json.dumps(message)))["level"] == "info"


RUNS = (
    *("eyJ" + "a-" * 100, "-eyJ", "token" + "\\" * 1000, "token=" + " " * 500),
    *("--token", "token={a{}", "://a:", "AAAA\n"),
)


@pytest.mark.parametrize("run_of", RUNS)
def test_the_time_of_a_long_text_grows_with_its_length(run_of: str) -> None:
    began_s = time.process_time()
    redacted(run_of * (200_000 // len(run_of)))
    assert time.process_time() - began_s < 3.0  # 0.5 s, or a minute where a pattern looks again at each letter


def test_values_of_names_of_secrets_and_the_rest_of_a_pem_block_that_a_limit_cut_are_redacted() -> None:
    assert [redacted(text) for text in SAME] == [*SAME], "words and digests stay"
    found = redacted_values(
        {"apiToken": SPOKEN, "token": True, "list": [{"password": SPOKEN, "name": f"token={SPOKEN}"}]}
    )
    assert found == {"apiToken": REDACTED, "token": True, "list": [{"password": REDACTED, "name": f"token={REDACTED}"}]}
    assert redacted(f"{PEM.partition(chr(10))[2]}\nend") == f"{REDACTED}\nend"
