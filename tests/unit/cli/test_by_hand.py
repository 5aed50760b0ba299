"""Commands typed in a node debug pod: the host at /host, the host's name, no driver pod, and few rights of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.cli import session as wiring
from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.settings import HEADINGS
from driver_manager.sandbox.apiserver import Deny
from driver_manager.sandbox.cluster import NODE
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.schemas import conforms
from tests.support.fakes.signals import signals_kept

HOLDERS_POD = "0d9b1c0e-6d0f-4e0b-9a53-0b8d6c1f2a77"
DEFAULT_ACCOUNT = "system:serviceaccount:default:default"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Generator[ByHand, None, None]:
    """A node with an old driver; what is tested here changes nothing on it."""
    with by_hand(tmp_path_factory.mktemp("by-hand")) as found:
        yield found


@pytest.fixture
def pod(node: ByHand, monkeypatch: pytest.MonkeyPatch) -> Generator[ByHand, None, None]:
    """What `kubectl debug node/N --profile=sysadmin` gives a process: the host's tree at /host, the host's network and
    so its name, the variables of the service, and nothing of ours.
    """
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wiring, "CONTAINER_HOST_ROOT", node.tree.root)
    monkeypatch.setattr(socket, "gethostname", lambda: NODE)
    monkeypatch.setenv("HOME", str(node.tree.root / "nobody"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with signals_kept():
        yield node


def failure(captured: str) -> list[str]:
    """The two lines of a failure."""
    return [json.loads(line)["message"] for line in captured.splitlines()]


def test_without_credentials_status_says_what_to_set(pod: ByHand, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == ExitCode.USAGE
    what, remedy = failure(capfd.readouterr().err)
    assert what == "cannot connect to the cluster: no kubeconfig and no service account token"
    assert "KUBECONFIG" in remedy


def test_with_the_debug_pods_own_account_status_names_the_right_and_the_way_out(
    pod: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = pod.cluster.server
    monkeypatch.setattr(server, "tokens", {**server.tokens, "its-own": DEFAULT_ACCOUNT})
    monkeypatch.setattr(server, "deny", [Deny("get", "nodes", DEFAULT_ACCOUNT)])
    config = tmp_path / "config"
    config.write_text(json.dumps(server.kubeconfig("its-own")))
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert run(["status"]) == ExitCode.API_REFUSED
    what, remedy = failure(capfd.readouterr().err)
    assert f'User "{DEFAULT_ACCOUNT}" cannot get resource "nodes"' in what
    assert "KUBECONFIG" in remedy


def test_with_a_kubeconfig_status_shows_this_very_node(
    pod: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(pod.kubeconfig))
    assert run(["status"]) == ExitCode.DONE
    text = capfd.readouterr().out
    assert text.startswith("ready: driver 1.2.92 is loaded; the next run replaces it: recorded digest ")
    assert f"\nnode      {NODE} (profile rebellions, mode container)" in text
    assert "rebellions 1.2.92" in text, "the host's modules are not seen"
    assert "replace: recorded digest" in text
    assert len(text.splitlines()) <= 40


def test_where_pods_may_not_be_listed_status_says_which_right_is_missing_and_shows_the_rest(
    pod: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = pod.cluster.server
    monkeypatch.setattr(server, "tokens", {**server.tokens, "its-own": DEFAULT_ACCOUNT})
    monkeypatch.setattr(server, "deny", [Deny("list", "pods", DEFAULT_ACCOUNT)])
    config = tmp_path / "config"
    config.write_text(json.dumps(server.kubeconfig("its-own")))
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setenv("POD_NAME", "of-the-rebooter")
    assert run(["status"]) == ExitCode.DONE
    text = capfd.readouterr().out
    assert "operands  unknown" in text
    assert "rebellions 1.2.92" in text, "the host's modules are shown all the same"
    assert "next      refused: " in text
    assert run(["status", "-o", "json"]) == ExitCode.DONE
    body = json.loads(capfd.readouterr().out)
    (missing,) = [one["what"] for one in body["attention"] if one["kind"] == "access"]
    assert 'cannot list resource "pods"' in missing
    assert (body["next"]["exitCode"], body["next"]["decision"]) == (ExitCode.API_REFUSED, "refused")
    assert run(["plan"]) == ExitCode.API_REFUSED, "what a run would do, only the pods tell"


def test_whether_an_owner_lives_is_unknown_where_no_pod_is_seen(
    pod: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = pod.cluster.server
    taken = encode(Journal(Owner(pod="rbln-system/driver-b", pod_uid="driver-b"), "boot"))
    monkeypatch.setattr(server, "tokens", {**server.tokens, "its-own": DEFAULT_ACCOUNT})
    config = tmp_path / "config"
    config.write_text(json.dumps(server.kubeconfig("its-own")))
    monkeypatch.setenv("KUBECONFIG", str(config))

    def annotate(annotations: dict[str, str]) -> None:
        def change(node: dict[str, Any]) -> dict[str, Any]:
            return {**node, "metadata": {**node["metadata"], "annotations": annotations}}

        pod.cluster.store.patch("nodes", NODE, change)

    annotate({PROFILE.keys.journal: taken})
    try:
        for deny, lives in (([], False), ([Deny("list", "pods", DEFAULT_ACCOUNT)], None)):
            monkeypatch.setattr(server, "deny", deny)
            assert run(["status", "-o", "json"]) == ExitCode.DONE
            assert json.loads(capfd.readouterr().out)["journal"]["ownerLives"] is lives
    finally:
        annotate({})


@pytest.fixture
def held(pod: ByHand) -> Generator[ByHand, None, None]:
    """The device is open in a process of a pod."""
    pod.tree.hold_device_by(4242, "trainer", pod_uid=HOLDERS_POD)
    yield pod
    pod.tree.end_process(4242)


def test_without_an_api_server_holders_says_that_pods_are_unknown(
    held: ByHand, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["holders"]) == ExitCode.DONE
    out, err = capfd.readouterr()
    heading, row = out.splitlines()
    assert heading.split() == ["PID", "PROCESS", "NODE", "HOW", "POD", "CONTAINER"]
    assert row.split()[:4] == ["4242", "trainer", "/dev/rbln0", "open"]
    assert f"unknown (uid {HOLDERS_POD})" in row
    (warning,) = failure(err)
    assert warning.startswith("the names of pods are unknown: cannot connect to the cluster: ")
    assert "KUBECONFIG" in warning
    assert run(["holders", "-o", "json"]) == ExitCode.DONE
    body = conforms("holders", capfd.readouterr().out)
    assert [(one["pid"], one["pod"], one["pod_uid"]) for one in body["holders"]] == [(4242, "", HOLDERS_POD)]
    assert body["podsUnknown"].startswith("cannot connect to the cluster: ")


def test_without_the_right_to_list_pods_holders_shows_the_rest(
    held: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held.cluster.server, "deny", [Deny("list", "pods")])
    monkeypatch.setenv("KUBECONFIG", str(held.kubeconfig))
    assert run(["holders", "-o", "json"]) == ExitCode.DONE
    body = conforms("holders", capfd.readouterr().out)
    assert [one["process"] for one in body["holders"]] == ["trainer"]
    assert "refused to list pods" in body["podsUnknown"]


def test_with_an_api_server_no_pod_is_unknown(
    held: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(held.kubeconfig))
    assert run(["holders", "-o", "json"]) == ExitCode.DONE
    out, err = capfd.readouterr()
    assert conforms("holders", out)["podsUnknown"] is None
    assert err == ""


def test_on_another_machine_holders_shows_nothing_as_ever(
    held: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(held.kubeconfig))
    monkeypatch.setattr(wiring, "is_this_host", lambda *_: False)
    assert run(["holders"]) == ExitCode.USAGE
    assert f"this is not node {NODE}" in failure(capfd.readouterr().err)[0]


@pytest.mark.parametrize(
    "command", ["plan", "holders", "preflight", "restore --dry-run", "reconcile-driver-state --dry-run"]
)
def test_the_other_commands_that_look_work_there_too(
    pod: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(pod.kubeconfig))
    before = pod.cluster.node()
    assert run(command.split()) in (ExitCode.DONE, ExitCode.PREFLIGHT_FAILED)
    assert capfd.readouterr().out
    assert pod.cluster.node() == before


def test_a_debug_pod_is_not_taken_for_the_driver_pod(
    pod: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(pod.kubeconfig))
    run(["plan"])
    assert "run by hand with DRIVER_LOAD=container" in capfd.readouterr().out
    monkeypatch.setattr(socket, "gethostname", pod.cluster.driver_pod)
    run(["plan"])
    assert "run by hand" not in capfd.readouterr().out


def test_where_no_host_is_mounted_the_node_has_to_be_named(
    pod: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(wiring, "CONTAINER_HOST_ROOT", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(pod.kubeconfig))
    assert run(["status"]) == ExitCode.USAGE
    assert "NODE_NAME" in failure(capfd.readouterr().err)[1]
