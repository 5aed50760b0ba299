"""`status` as it is typed: the headline first, each form as documented; what is out of sight costs its own lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import HostClientNotes
from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.health import watch as health_record
from driver_manager.domain.health.watch import HealthState, History, Wedge
from driver_manager.domain.host import DeviceVerdict, Health
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.node_state import Generation
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import Client, ClientRecord, ClientState
from driver_manager.domain.settings import HEADINGS
from driver_manager.domain.text import spoken
from driver_manager.sandbox.apiserver import Deny, apply_merge_patch
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.scenarios import OLD_DIGEST
from driver_manager.schemas import NAMES, schema
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.schemas import closed, conforms
from tests.support.fakes.signals import signals_kept


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[ByHand, None, None]:
    """A node with an old driver; nothing here changes the Node."""
    with by_hand(tmp_path_factory.mktemp("status")) as found:
        yield found


@pytest.fixture
def node(place: ByHand, monkeypatch: pytest.MonkeyPatch) -> Generator[ByHand, None, None]:
    """The same, with an administrator's kubeconfig and the host's tree."""
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        monkeypatch.delenv(name, raising=False)
    for name, value in place.environment(NODE_NAME=NODE, DRIVER_CONFIG_DIGEST="wanted").items():
        monkeypatch.setenv(name, value)
    with signals_kept():
        yield place


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Runs a command in this process: its exit code, and what it printed."""

    def said(*argv: str) -> tuple[int, str, str]:
        code = run(list(argv))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return said


def status(say: Say, *argv: str, code: int = ExitCode.DONE) -> dict[str, Any]:
    """The JSON form, which is as documented."""
    ended, out, err = say("status", "-o", "json", *argv)
    assert ended == code, err
    return dict(conforms("status", out))


def refuse(node: ByHand, monkeypatch: pytest.MonkeyPatch, *denied: tuple[str, str]) -> None:
    monkeypatch.setattr(node.cluster.server, "deny", [Deny(*one) for one in denied])


# the forms


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_every_form_has_its_description(name: str) -> None:
    def undescribed(part: Any, at: str) -> list[str]:
        match part:
            case {"properties": fields}:
                bare = [f"{at}.{key}" for key, one in fields.items() if not one.get("description")]
                return bare + [found for key, one in fields.items() for found in undescribed(one, f"{at}.{key}")]
            case dict():
                return [found for key, one in part.items() for found in undescribed(one, f"{at}/{key}")]
            case list():
                return [found for one in part for found in undescribed(one, at)]
        return []

    assert undescribed(schema(name), name) == []
    assert schema(name)["properties"]["schemaVersion"]["const"] == 1
    assert schema(name)["$schema"] == "http://json-schema.org/draft-07/schema#"


def test_a_field_that_no_form_names_is_found() -> None:
    with pytest.raises(AssertionError, match="flavour"):
        conforms("holders", json.dumps({"schemaVersion": 1, "holders": [], "flavour": "sweet"}))
    with pytest.raises(AssertionError):
        conforms("holders", json.dumps({"schemaVersion": 2, "holders": []}))
    assert "additionalProperties" not in json.dumps(schema("status")), "a later version may add some"
    assert closed({"properties": {}})["additionalProperties"] is False


@pytest.mark.parametrize("command", ["plan", "preflight", "holders"])
def test_what_other_commands_print_is_as_documented(node: ByHand, say: Say, command: str) -> None:
    _, out, _ = say(command, "-o", "json")
    assert conforms(command, out)["schemaVersion"] == 1


def test_a_command_that_fails_prints_the_documented_form(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(node, monkeypatch, ("list", "pods"))
    code, out, _ = say("plan", "-o", "json")
    body = conforms("failure", out)
    assert (code, body["exitCode"]) == (ExitCode.API_REFUSED, 7)


# the screen


def test_the_headline_comes_first_then_errors_devices_last_run_and_who_has_the_node(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(node, monkeypatch, ("list", "pods"))
    code, out, _ = say("status")
    assert code == ExitCode.DONE
    titles = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert titles[0].startswith("ready")
    wanted = ["attention", "devices", "last", "journal", "node", "labels", "operands", "digest", "host"]
    assert [title for title in titles[1:] if title in wanted] == wanted


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_a_time_span_is_said_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


# what is out of sight


def access(body: dict[str, Any]) -> list[str]:
    return [one["what"] for one in body["attention"] if one["kind"] == "access"]


def test_without_the_right_to_list_pods_everything_else_is_shown(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = status(say)
    refuse(node, monkeypatch, ("list", "pods"))
    body = status(say)
    (one,) = access(body)
    assert "refused to list pods (403)" in one
    for part in ("state", "labels", "cordon", "journal", "host", "reboot", "lastRun", "health"):
        assert body[part] == whole[part], part
    assert body["operands"] is None
    assert whole["operands"] != []
    assert "operands  unknown" in say("status")[1]
    assert body["digest"]["wanted"] == "wanted"
    assert (body["next"]["decision"], body["next"]["exitCode"]) == ("refused", 7)


def test_without_the_pods_nobody_is_said_to_be_gone(node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner("rbln-system/driver-x", "uid-of-driver-x")
    taken = encode(Journal(owner, node.tree.boot_id, begin="2026-01-02T03:04:05Z"))
    given = {"metadata": {"annotations": {node.tree.profile.keys.journal: taken}}}
    store = node.cluster.store
    store.patch("nodes", NODE, lambda there: apply_merge_patch(there, given))
    try:
        assert status(say)["journal"]["ownerLives"] is False
        refuse(node, monkeypatch, ("list", "pods"))
        monkeypatch.setenv("POD_NAME", "driver-y")
        body = status(say)
        assert (body["journal"]["ownerLives"], body["state"]) == (None, "upgrading")
        assert len(access(body)) == 1, "nor is our own pod"
    finally:
        gone = {"metadata": {"annotations": {node.tree.profile.keys.journal: None}}}
        store.patch("nodes", NODE, lambda there: apply_merge_patch(there, gone))


def test_without_the_right_to_get_the_node_the_host_is_shown_and_the_error_comes_last(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(node, monkeypatch, ("get", "nodes"), ("list", "pods"))
    body = status(say, code=ExitCode.API_REFUSED)
    assert [what.partition(" (403)")[0] for what in access(body)] == [
        "the API server refused to get nodes",
        "the API server refused to list pods",
    ]
    assert (body["state"], body["cordon"], body["operands"]) == (None, None, None)
    assert body["journal"] == {"problem": access(body)[0]}
    assert [module["name"] for module in body["host"]["modules"]] == ["rebellions", "rebellions_core"]
    assert body["profile"] == "rebellions", "told by the devices on the bus"
    code, out, err = say("status")
    assert code == ExitCode.API_REFUSED
    assert out.startswith("unknown: the Node cannot be read; the facts of the host are below")
    assert "journal   unreadable: the API server refused to get nodes" in out
    assert "labels    unknown" in out
    assert "operands  unknown" in out
    assert "refused to get nodes" in err


def test_without_credentials_the_host_is_shown_and_the_error_comes_last(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    body = status(say, code=ExitCode.USAGE)
    assert "cannot connect to the cluster" in access(body)[0]
    assert body["host"]["kernel"]


@pytest.mark.submission
def test_an_api_server_that_does_not_answer_is_waited_for_once(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = json.loads(node.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("API_TIMEOUT", "200ms")
    body = status(say, code=ExitCode.API_UNAVAILABLE)
    assert "gave no usable answer" in access(body)[0]
    assert body["host"]["kernel"]


@pytest.mark.parametrize("variable", ["PROC_ROOT", "SYS_ROOT"])
def test_a_mount_that_is_missing_costs_the_hosts_part(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/nonexistent")
    monkeypatch.setenv("DRIVER_PROFILE", "rebellions")
    body = status(say)
    assert "/nonexistent" in access(body)[0]
    assert "/nonexistent" in body["host"]["problem"]
    assert body["labels"] != []
    assert body["operands"] != []


def test_where_neither_node_nor_host_can_be_seen_the_command_fails_as_ever(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(node, monkeypatch, ("get", "nodes"))
    monkeypatch.setenv("PROC_ROOT", "/nonexistent")
    monkeypatch.setenv("DRIVER_PROFILE", "rebellions")
    code, out, _ = say("status", "-o", "json")
    assert code == ExitCode.API_REFUSED
    assert "get nodes" in conforms("failure", out)["error"]


def test_a_node_that_does_not_exist_is_an_error(node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "no-such-node")
    code, out, _ = say("status", "-o", "json")
    assert code == ExitCode.USAGE
    assert "no-such-node does not exist" in conforms("failure", out)["error"]


def test_a_digest_that_cannot_be_used_costs_the_digest_only(
    node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVER_CONFIG_DIGEST", "two words")
    body = status(say)
    assert [one["kind"] for one in body["attention"]] == ["digest"]
    assert body["digest"]["wanted"] == ""
    assert body["operands"] != []


def test_a_pod_that_is_not_ours_costs_nothing_else(node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "somebody")
    body = status(say)
    assert "somebody is not on node" in access(body)[0]
    assert body["operands"] != []


# the devices


@pytest.fixture
def record(node: ByHand) -> Generator[Callable[[History, str], None], None, None]:
    """Writes health-watch's record, of this boot unless told another."""
    path = node.tree.root / node.tree.profile.paths.health_record.lstrip("/")

    def write(history: History, boot: str = "") -> None:
        path.write_text(health_record.encode_watch_record(history, boot or node.tree.boot_id))

    yield write
    path.unlink(missing_ok=True)


def test_without_a_watch_every_device_is_listed_and_nobody_has_judged_it(node: ByHand, say: Say) -> None:
    health = status(say)["health"]
    assert (health["source"], health["state"]) == (None, None)
    assert health["devices"] == [{"name": "", "address": "0000:c1:00.0", "health": None, "reason": ""}]
    assert "--probe takes a sample now" in say("status")[1]


def test_a_wedge_that_health_watch_remembers_is_the_headline(
    node: ByHand, say: Say, record: Callable[..., None]
) -> None:
    record(History(HealthState.WEDGED, failures=3, reason="rbln0 is gone"))
    body = status(say)
    assert (body["state"], body["why"]) == ("wedged", "the driver does not serve its devices: rbln0 is gone")
    assert (body["health"]["source"], body["health"]["state"]) == ("health-watch", "wedged")
    assert body["attention"][0]["kind"] == "wedge"


def test_a_wedge_says_since_when(node: ByHand, say: Say, record: Callable[..., None]) -> None:
    record(History(HealthState.WEDGED, failures=3, reason="rbln0 is gone", wedge=Wedge(1_767_323_045)))
    body = status(say)
    assert (body["health"]["since"], body["since"]) == ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z")


def test_each_device_is_shown_as_the_last_sample_saw_it(node: ByHand, say: Say, record: Callable[..., None]) -> None:
    devices = (
        DeviceVerdict("rbln0", Health.HEALTHY, "", "0000:c1:00.0"),
        DeviceVerdict("rbln1", Health.UNHEALTHY, "abnormal", "0000:c2:00.0"),
    )
    record(History(HealthState.SUSPECT, failures=1, reason="rbln1 is abnormal", devices=devices))
    health = status(say)["health"]
    assert [(one["name"], one["health"], one["reason"]) for one in health["devices"]] == [
        ("rbln0", "healthy", ""),
        ("rbln1", "unhealthy", "abnormal"),
    ]
    assert health["sampledAt"] is not None
    _, out, _ = say("status")
    assert "devices   rbln0 0000:c1:00.0 healthy\n" in out
    assert "          rbln1 0000:c2:00.0 unhealthy: abnormal\n" in out


def test_a_watch_that_has_taken_no_sample_for_long_is_named(
    node: ByHand, say: Say, record: Callable[..., None]
) -> None:
    record(History(HealthState.HEALTHY, was_healthy=True))
    path = node.tree.root / node.tree.profile.paths.health_record.lstrip("/")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    (one,) = [one for one in status(say)["attention"] if one["kind"] == "health-watch"]
    assert "it may not be running" in one["what"]


def test_a_record_of_an_earlier_boot_says_nothing(node: ByHand, say: Say, record: Callable[..., None]) -> None:
    record(History(HealthState.WEDGED, failures=3, reason="rbln0 is gone"), "another-boot")
    assert status(say)["state"] == "ready"


def test_a_probe_that_is_asked_for_judges_each_device(node: ByHand, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_ROOT", "/opt/rbln/1.2.92")
    health = status(say, "--probe")["health"]
    assert (health["source"], health["sampledAt"] is not None) == ("probe", True)
    assert [(one["name"], one["health"]) for one in health["devices"]] == [("RBLN-CA12", "healthy")]


def test_no_probe_is_begun_where_one_sleeps_in_the_kernel(
    node: ByHand, say: Say, record: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Owner(pid=4242, start_ticks=1, pid_namespace=1)
    record(History(HealthState.SUSPECT, failures=1, stuck=stuck))
    monkeypatch.setenv("DRIVER_ROOT", "/opt/rbln/1.2.92")
    body = status(say, "--probe")
    assert body["health"]["source"] == "health-watch"
    assert "health-watch" in [one["kind"] for one in body["attention"]]


def note_clients(node: ByHand, **fields: Any) -> None:
    """The host has noted who the clients of its loaded driver are."""
    root, profile = node.tree.root, node.tree.profile
    notes = HostClientNotes(HostRoots(root, root / "proc", root / "sys", root / "dev"), profile, FakeClock())
    seen = notes.sighting()
    known = {"load": seen.load, "digest": seen.digest, "ready_s": 1_767_323_045.0, **fields}
    made = (Client("1", "monitoring/exporter", "DaemonSet"), Client("2", "a/b", "ReplicaSet", ClientState.RESTARTED))
    notes.remember(
        client_record.encode(
            ClientRecord(Generation(seen.boot_id, **known), made, has_looked=True, claims=("team/npu",))
        )
    )


@pytest.mark.submission
def test_the_generation_of_the_loaded_driver_is_shown_with_its_clients(node: ByHand, say: Say) -> None:
    assert status(say)["generation"] is None
    note_clients(node)
    body = status(say)
    assert body["generation"]["ready"] == "2026-01-02T03:04:05Z"
    assert body["generation"]["digest"] == OLD_DIGEST
    assert [(one["pod"], one["state"]) for one in body["generation"]["clients"]] == [
        ("monitoring/exporter", "found"),
        ("a/b", "restarted"),
    ]
    assert body["generation"]["claims"] == ["team/npu"]
    _, out, _ = say("status")
    assert "claim team/npu was prepared for an earlier driver, and is still held" in out
    assert "driver    ready since 2026-01-02T03:04:05Z" in out
    assert "client monitoring/exporter (DaemonSet) is not restarted yet" in out
    note_clients(node, load="of an earlier driver")
    assert status(say)["generation"] is None
