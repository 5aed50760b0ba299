"""What bad input gets, through the real command line: its exit code, one line what, one line what to do, no loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.control_plane.kubelet import NOTHING, NodeFactory, Shown
from tests.support.control_plane.processes import Ended
from tests.support.control_plane.runner import JOURNAL, OLD, PREFIX, CommandRunner
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.fakes.pace import patient

LABELS = {f"{PREFIX}device-plugin": "paused-for-driver-upgrade", f"{PREFIX}metrics-exporter": "true"}


@pytest.fixture
def one(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node with the old driver, ready for an upgrade."""
    command_runner = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    command_runner.node = node(LABELS, boot_id=command_runner.tree.boot_id)
    return command_runner


def _assert_lost_nothing(
    command_runner: CommandRunner, ended: Ended, code: int, *words: str, shows: Shown = NOTHING
) -> None:
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err
    assert "what to do: " in ended.err
    assert len([line for line in ended.err.splitlines() if "error" in line]) <= 2
    assert ended.last_line.startswith(f"exit {code}: ")
    assert command_runner.node is not None
    assert command_runner.node.labels() == LABELS
    assert command_runner.node.shown() == shows
    assert command_runner.tree.driver_version == OLD


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NODE_NAME": "no-such-node"}, ["no-such-node does not exist"]),
        ({"NODE_NAME": "../pods"}, ["not the name of a node"]),
        ({"NODE_NAME": ""}, ["the name of the node is not set"]),
        ({"KUBECONFIG": "/nonexistent/kubeconfig"}, ["cannot connect to the cluster"]),
        ({"POD_TERMINATION_TIMEOUT": "5 parsecs"}, ["5 parsecs", "1h30m"]),
        ({"DRIVER_PROFILE": "cray"}, ["no profile 'cray'", "amd, ascend, furiosa, gaudi, nvidia, rebellions"]),
        ({"DRIVER_LOAD": "nobody"}, ["nobody", "container"]),
        ({"FORCE_REINSTALL": "perhaps"}, ["perhaps"]),
        ({"POD_NAME": "rbln-driver-abcde", "OPERATOR_NAMESPACE": "wrong"}, ["wrong/rbln-driver-abcde is not on node"]),
        ({"PROFILE_FILE": "/nonexistent.toml"}, ["cannot be read"]),
        ({"SYS_ROOT": "/nonexistent"}, ["cannot read /nonexistent/module"]),
        ({"PROC_ROOT": "/nonexistent"}, ["cannot read /nonexistent/sys/kernel"]),
        ({"DRIVER_CONFIG_DIGEST": ""}, ["the wanted driver is unknown"]),
    ],
)
def test_a_bad_setting_is_exit_code_2(one: CommandRunner, env: dict[str, str], words: list[str]) -> None:
    # Shown on the Node where it is known to be this host's, and that is only once it was read.
    is_shown = env.keys() & {"DRIVER_CONFIG_DIGEST", "POD_NAME", "SYS_ROOT"}
    _assert_lost_nothing(one, one.reconcile(**env), 2, *words, shows=("failed", 2) if is_shown else NOTHING)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "x"\nflavour = "sweet"\n', ["unknown key flavour"]),
        ('name = "x"\nstrategy = "hope"\n', ["strategy is 'hope'", "in-place, reboot"]),
        ("name = [", ["is not TOML"]),
    ],
)
def test_a_bad_profile_file_names_the_key(one: CommandRunner, tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    _assert_lost_nothing(one, one.reconcile(PROFILE_FILE=str(path)), 2, *words)


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    ("journal", "words"),
    [
        ("not json", ["cannot be read"]),
        ('{"v":99}', ["version 99"]),
        ('{"v":1,"owner":{},"labels":[],"bootId":"","cordoned":false}', ["cannot be read"]),
        ('{"v":1,"bootId":3}', ["cannot be read"]),
    ],
)
def test_an_unreadable_journal_stops_the_run_and_stays(one: CommandRunner, journal: str, words: list[str]) -> None:
    assert one.node is not None
    one.node.api.patch(one.node.path, {"metadata": {"annotations": {JOURNAL: journal}}})
    _assert_lost_nothing(one, one.reconcile(), 2, *words, shows=("held", 2))
    assert one.node.annotations()[JOURNAL] == journal
    status = one.run("status")
    assert status.code == 0, status.err
    assert "unreadable" in status.out
    assert status.out.startswith("held since ")
    assert one.run("restore").code == 2
    restored = one.run("restore", "--ignore-journal")
    assert restored.code == 0, restored.err
    assert one.node.labels() == {**LABELS, f"{PREFIX}device-plugin": "true"}
    assert one.node.shown() == ("failed", 0), "who took it did not finish"
    assert JOURNAL not in one.node.annotations()


def test_who_has_no_rights_is_refused_with_verb_and_resource(control_plane: ControlPlane, one: CommandRunner) -> None:
    nobody = str(control_plane.kubeconfig(control_plane.nobody.token))
    _assert_lost_nothing(one, one.reconcile(KUBECONFIG=nobody), 7, "refused to get nodes (403)")


def test_an_unknown_token_is_refused(control_plane: ControlPlane, one: CommandRunner) -> None:
    _assert_lost_nothing(one, one.reconcile(KUBECONFIG=str(control_plane.kubeconfig("wrong"))), 7, "(401)")


def test_a_dead_api_server_is_unavailable_after_the_budget(
    control_plane: ControlPlane, agent_with_events: User, one: CommandRunner
) -> None:
    dead = str(control_plane.kubeconfig(agent_with_events.token, server="https://127.0.0.1:9"))
    ended = one.reconcile(KUBECONFIG=dead, API_TIMEOUT="1s")
    _assert_lost_nothing(one, ended, 8, "gave no usable answer within 1 s")
    assert ended.took_s < patient(5.0)


@pytest.mark.parametrize("garbage", [b"\xff\xfe\x00", b"", b"two words", b"x" * 100_000, b"a\nb\n"])
def test_garbage_in_the_digest_file_means_replace_not_crash(one: CommandRunner, garbage: bytes) -> None:
    (one.tree.root / "run/rbln/rbln-driver.state").write_bytes(garbage)
    planned = one.run("plan")
    assert planned.code == 0, planned.err
    assert "does not contain exactly one digest" in planned.out


def test_every_command_teaches_with_help(one: CommandRunner) -> None:
    run: Callable[..., Ended] = one.run
    for command in ("reconcile-driver-state", "plan", "status", "restore", "sandbox"):
        ended = run(command, "--help")
        assert ended.code == 0, ended.err
        assert "Usage: driver-manager" in ended.out
    assert "NODE_NAME" in run("plan", "--help").out
    assert run("no-such-command").code == 2
